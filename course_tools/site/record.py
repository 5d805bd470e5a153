"""Records what the site's sliders move: real runs of real ranks, as compact JSON.

    python -m course_tools.site.record                 every place of source/site/places.toml
    python -m course_tools.site.record 03-overlap      this one

A notebook is run as far as a place needs, in a kernel of its own, and in that kernel `keep` writes
source/site/recordings/PLACE.json. Virtual times do not depend on the computer, and real times are
left out, so recording again changes nothing unless the course has changed.
"""

import json
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import nbformat
from nbclient import NotebookClient

from course_tools import ROOT
from course_utils import Network
from course_utils.network.trace import Trace
from course_utils.pictures.style import rounded
from course_utils.record.event import USER_THREAD, Event

SITE = ROOT / "source/site"
KEPT = ("kind", "bytes", "peer", "tag", "root", "op", "group", "group_name", "blocking", "parts")


def places() -> dict[str, dict[str, str]]:
    """Returns what places.toml says, by the place's name."""
    return tomllib.loads((SITE / "places.toml").read_text(encoding="utf-8"))


def keep(
    runs: dict[str, Trace],
    network: Network,
    compute: Callable[..., float] | None = None,
    algorithms: Sequence[str] = (),
) -> None:
    """Writes a place: its recordings, its network, and what ranks compute before each event (µs).

    `compute` is asked with an event, and with the recording's name where it takes two arguments.
    """
    two = compute is not None and compute.__code__.co_argcount == 2
    told = {
        name: compact(trace, compute and (lambda e, n=name: compute(e, n) if two else compute(e)))
        for name, trace in runs.items()
    }
    choices = {algorithm: ["", algorithm] for algorithm in algorithms}
    case = {"runs": "all", "network": described(network)}
    if compute is None:
        slowest = max(max(trace.replay(network).finish_us) for trace in runs.values())
        case["unit_us"] = rounded(slowest / 10)
    _write(choices or {name: [name, None] for name in runs}, {"": case}, {"all": told})


def keep_challenge() -> None:
    """Writes the challenge's baselines on its networks, with the times that nobody can beat."""
    from course_challenge.baselines import BASELINES
    from course_challenge.judging import cases as all_cases
    from course_challenge.judging import tried
    from course_challenge.leagues import LEAGUES, SIZES

    once = [case for case in all_cases() if case.size and case.league == "flat"]
    runs: dict[str, dict[str, Any]] = {}
    cases: dict[str, Any] = {}
    for baseline, fn in BASELINES.items():
        for n, case, trace in tried(fn, cases=once).traces:
            own = f"{n} ranks, {case.size}"
            runs.setdefault(own, {})[baseline] = compact(trace)
            for name, league in LEAGUES.items():
                bound_us = league.bound_us(n, SIZES[case.size])
                facts = {"runs": own, "network": described(league.network), "bound_us": bound_us}
                late = [*[0.0] * (n - 1), league.late_us]
                cases[f"{name}, {own}"] = facts | {"late": late, "unit_us": rounded(bound_us / 10)}
    order = sorted(cases, key=lambda one: list(LEAGUES).index(one.split(",")[0]))
    _write({one: [one, None] for one in BASELINES}, {one: cases[one] for one in order}, runs)


def compact(trace: Trace, compute: Callable[[Event], float] | None = None) -> dict[str, Any]:
    """A recording as tables: each different call once, and by rank their numbers in its order."""
    calls: dict[str, int] = {}
    ranks: list[list[int]] = []
    for rank in range(trace.world_size):
        own = trace.of_rank(rank)
        at = {event.index: place for place, event in enumerate(own)}
        moments = sorted({t for e in own if e.flags & USER_THREAD for t in (e.start_s, e.end_s)})
        ranks.append([])
        for place, event in enumerate(own):
            told = _told(event, place, at)
            if event.flags & USER_THREAD:  # their order counts, and nothing else
                told |= {"flags": USER_THREAD, "start_s": float(moments.index(event.start_s))}
                told["end_s"] = float(moments.index(event.end_s))
            ranks[-1].append(calls.setdefault(json.dumps(told), len(calls)))
    found: dict[str, Any] = {"calls": list(map(json.loads, calls)), "ranks": ranks}
    if compute:
        found["compute"] = [list(map(compute, trace.of_rank(r))) for r in range(trace.world_size)]
    return found


def _told(event: Event, place: int, at: dict[int, int]) -> dict[str, Any]:
    """What a replay needs of a call, as far as it is not the default."""
    default = Event(rank=0, index=0, kind="", bytes=0, start_s=0.0, end_s=0.0)
    told = {name: getattr(event, name) for name in KEPT}
    told = {name: value for name, value in told.items() if value != getattr(default, name)}
    return told | ({} if event.of is None else {"back": place - at[event.of]})


def described(network: Network) -> dict[str, Any]:
    """A network as JSON has it."""
    told = {name: getattr(network, name) for name in ("latency_us", "gbit_s", "nodes", "between")}
    told["slow_links"] = [[*link, factor] for link, factor in network.slow_links.items()]
    return told | {"slow_ranks": list(network.slow_ranks.items())}


def _write(choices: dict[str, Any], cases: dict[str, Any], runs: dict[str, Any]) -> None:
    to = SITE / "recordings" / f"{os.environ['SITE_PLACE']}.json"
    told = {"choices": choices, "cases": cases, "runs": runs}
    to.write_text(json.dumps(told, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{to.relative_to(ROOT)}: {to.stat().st_size:,} bytes")


def record(notebook: str, wanted: dict[str, dict[str, str]]) -> None:
    """Runs a notebook as far as the last of these places, and each place's code after its cell."""
    book, left = nbformat.read(ROOT / notebook, as_version=4), dict(wanted)
    start = (
        "from dataclasses import replace\nfrom course_tools.site.record import keep, keep_challenge"
    )
    cells = [nbformat.v4.new_code_cell(start)]
    for cell in (cell for cell in book.cells if cell.cell_type == "code" and left):
        cells.append(cell)
        for name in [name for name, place in left.items() if place["after"] in cell.source]:
            told = f"%env SITE_PLACE={name}\n{left.pop(name)['code']}"
            cells.append(nbformat.v4.new_code_cell(told))
    assert not left, f"{notebook} has no cell for {', '.join(left)}"
    book.cells = cells
    folder = {"metadata": {"path": str(ROOT / notebook.split("/")[0])}}
    client = NotebookClient(book, timeout=600, kernel_name="python3", resources=folder)
    client.execute(env=os.environ | {"COURSE_LANG": "en"})
    for cell in (cell for cell in cells if cell.source.startswith("%env SITE_PLACE=")):
        print("".join(output.get("text", "") for output in cell.outputs).split("\n", 1)[1], end="")


def main(names: Sequence[str]) -> None:
    """Records all places, or those that are named."""
    (SITE / "recordings").mkdir(exist_ok=True)
    paths = [ROOT, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, map(str, paths)))
    wanted = {name: place for name, place in places().items() if not names or name in names}
    for notebook in dict.fromkeys(place["notebook"] for place in wanted.values()):
        record(notebook, {n: p for n, p in wanted.items() if p["notebook"] == notebook})


if __name__ == "__main__":
    main(sys.argv[1:])
