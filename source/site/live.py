"""Recordings that a page moves: replayed and drawn by the course's own modules, without a kernel.

Runs in the browser's Pyodide and, for the first picture and for tests, in CPython: the same text
comes out. `course_tools.site.website` packs it into a wheel with the modules it needs. What saves pictures
(matplotlib, IPython) is absent from both, and a page draws SVG only.
"""

import json
import sys
import types
from dataclasses import replace
from html import escape
from typing import Any


class _Absent(types.ModuleType):
    """Has whatever the modules of pictures import, and none of it is ever called."""

    def __getattr__(self, name: str) -> type:
        return object


for _name in ("IPython", "matplotlib"):
    for _part in ("", ".axes", ".collections", ".display", ".figure", ".pyplot"):
        sys.modules.setdefault(_name + _part, _Absent(_name + _part))

from course_utils.network.network import Network
from course_utils.network.simulation import Replay
from course_utils.network.trace import Trace
from course_utils.pictures.activity import activity, virtual_text
from course_utils.pictures.shapes import as_svg
from course_utils.pictures.style import rounded, us
from course_utils.pictures.timeline import draw
from course_utils.record.event import Event

SLIDE = 20  # places of a slider on each side of its middle, ten for a factor of ten
_told: dict[str, dict[str, Any]] = {}  # recordings, by their place on the site
_traces: dict[tuple[str, ...], tuple[Trace, list[list[float]] | None]] = {}


def learn(name: str, text: str) -> None:
    """Takes in what `course_tools.site.record` wrote."""
    _told[name] = json.loads(text)


def _trace(name: str, runs: str, run: str) -> tuple[Trace, list[list[float]] | None]:
    """A recording, and what its ranks compute before each event (µs), if it says that."""
    if (name, runs, run) not in _traces:
        told = _told[name]["runs"][runs][run]
        events = [
            Event(**_call(told["calls"][number], rank, index))
            for rank, own in enumerate(told["ranks"])
            for index, number in enumerate(own)
        ]
        ended_s = (0.0,) * len(told["ranks"])
        _traces[name, runs, run] = Trace(tuple(events), ended_s), told.get("compute")
    return _traces[name, runs, run]


def _call(told: dict[str, Any], rank: int, index: int) -> dict[str, Any]:
    """Such as is left out is as an event has it by default; `back` counts to what it waits for."""
    call = {name: tuple(v) if isinstance(v, list) else v for name, v in told.items()}
    back = call.pop("back", None)
    always = {"rank": rank, "index": index, "bytes": 0, "start_s": 0.0, "end_s": 0.0}
    return always | call | ({} if back is None else {"of": index - back})


def slid(value: float, places: int) -> float:
    """A value after its slider has moved; in the middle it is the value itself."""
    return value if places == 0 else float(f"{value * 10 ** (places / 10):.3g}")


def network_of(told: dict[str, Any], settings: dict[str, Any]) -> Network:
    """The place's own network, with what the sliders changed."""
    links = {(a, b): factor for a, b, factor in told.get("slow_links", [])}
    ranks = dict(told.get("slow_ranks", []))
    if settings.get("link"):
        links[tuple(settings["link"])] = settings["link_by"]
    if settings.get("rank") is not None:
        ranks[settings["rank"]] = settings["rank_by"]
    moved = settings.get("latency", 0), settings.get("gbit", 0)
    between = told.get("between")
    return Network(
        latency_us=slid(told["latency_us"], moved[0]),
        gbit_s=slid(told["gbit_s"], moved[1]),
        nodes=told.get("nodes", 1),
        between=between and (slid(between[0], moved[0]), slid(between[1], moved[1])),
        slow_links=links,
        slow_ranks=ranks,
        algorithm=told.get("algorithm", "ring"),
    )


def replayed(name: str, case: str, choice: str, settings: dict[str, Any]) -> Replay:
    """One recording of a place on its network; a rank that computes nothing can begin late."""
    told = _told[name]["cases"][case]
    run, algorithm = _told[name]["choices"][choice]
    trace, computed = _trace(name, told["runs"], run)
    network = network_of(told["network"], settings)
    if algorithm:
        network = replace(network, algorithm=algorithm)
    late, slow = [*told.get("late", [0.0] * trace.world_size)], settings.get("rank")
    if computed is None:
        if slow is not None:
            late[slow] += settings["rank_by"] * told["unit_us"]
        return trace.replay(replace(network, slow_ranks={}), late)
    return trace.replay(network, lambda event: computed[event.rank][event.index])


def redraw(name: str, settings_json: str) -> str:
    """Replays all that a place compares, draws what is chosen; returns JSON for the page."""
    settings = json.loads(settings_json)
    place, case = _told[name], settings.get("case") or next(iter(_told[name]["cases"]))
    told, chosen = place["cases"][case], settings.get("choice") or next(iter(place["choices"]))
    replays = {one: replayed(name, case, one, settings) for one in place["choices"]}
    since = max(told.get("late", [0.0]))
    now = activity(replays[chosen])
    axis_us = float(settings.get("axis_us") or rounded(max(now.end, 1e-9)))
    network = replays[chosen].network
    finished = {one: max(replay.finish_us) - since for one, replay in replays.items()}
    bound_us = told.get("bound_us", 0.0)
    percents = {one: f"{100 * bound_us / took:.0f} %" for one, took in finished.items()}
    moved = settings.get("rank") is not None or any(map(settings.get, ("latency", "gbit", "link")))
    return json.dumps(
        {
            "svg": as_svg(draw(now, axis_us, settings.get("before") or ())),
            "words": escape(virtual_text(now)),
            "finish_us": list(now.ends),
            "took": {one: [took, us(took)] for one, took in finished.items()},
            "percent": percents if bound_us and not moved else {},
            "axis_us": axis_us,
            "cut": now.end > axis_us,
            "latency": us(network.latency_us),
            "gbit": f"{network.gbit_s:g} Gbit/s",
            "unit_us": told.get("unit_us"),
        }
    )


if __name__ == "__main__":  # standard input has recordings, and what to redraw of them
    _read = json.load(sys.stdin)
    for _place, _text in _read["recordings"].items():
        learn(_place, _text)
    print(json.dumps([redraw(*_asked) for _asked in _read["asked"]]))
