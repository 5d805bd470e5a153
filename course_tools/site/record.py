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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import nbformat
from nbclient import NotebookClient

from course_tools import ROOT
from course_tools.site.live_parts import SITE, places
from course_utils import Network
from course_utils.network.trace import Trace
from course_utils.pictures.style import rounded
from course_utils.record.event import USER_THREAD, Event

FIRST_CELL = """\
from dataclasses import replace
from course_tools.site.record import keep, keep_challenge"""
Json = dict[str, Any]
KEPT = ("kind", "bytes", "peer", "tag", "root", "op", "group", "group_name", "blocking", "parts")


def keep(
    runs: dict[str, Trace],
    network: Network,
    compute: Callable[..., float] | None = None,
    algorithms: Sequence[str] = (),
) -> None:
    """Writes a place: its recordings, its network, and what ranks compute before each event (µs).

    `compute` is asked with an event, and with the recording's name where it takes two arguments.
    """
    takes_a_name = compute is not None and compute.__code__.co_argcount == 2
    recordings = {}
    for name, trace in runs.items():
        compute_of_run = compute
        if takes_a_name:
            compute_of_run = partial(_with_name, compute, name)
        recordings[name] = compact(trace, compute_of_run)
    if algorithms:
        choices = {algorithm: ["", algorithm] for algorithm in algorithms}
    else:
        choices = {name: [name, None] for name in runs}
    case = {"runs": "all", "network": described(network)}
    if compute is None:
        finishes_us: list[float] = []
        for trace in runs.values():
            finishes_us += trace.replay(network).finish_us
        case["unit_us"] = rounded(max(finishes_us) / 10)
    _write(choices, {"": case}, {"all": recordings})


def _with_name(compute: Callable[[Event, str], float], name: str, event: Event) -> float:
    return compute(event, name)


def keep_challenge() -> None:
    """Writes the challenge's baselines on its networks, with the times that nobody can beat."""
    from course_challenge.baselines import BASELINES
    from course_challenge.judging import cases as all_cases
    from course_challenge.judging import tried
    from course_challenge.leagues import LEAGUES, SIZES

    each_size_once = [case for case in all_cases() if case.size and case.league == "flat"]
    runs: dict[str, Json] = {}
    cases_of_league: dict[str, Json] = {name: {} for name in LEAGUES}
    for baseline, fn in BASELINES.items():
        for world_size, case, trace in tried(fn, cases=each_size_once).traces:
            run = f"{world_size} ranks, {case.size}"
            runs.setdefault(run, {})[baseline] = compact(trace)
            for name, league in LEAGUES.items():
                bound_us = league.bound_us(world_size, SIZES[case.size])
                cases_of_league[name][f"{name}, {run}"] = {
                    "runs": run,
                    "network": described(league.network),
                    "bound_us": bound_us,
                    "late": [*[0.0] * (world_size - 1), league.late_us],
                    "unit_us": rounded(bound_us / 10),
                }
    cases = {}
    for of_league in cases_of_league.values():
        cases |= of_league
    _write({baseline: [baseline, None] for baseline in BASELINES}, cases, runs)


def compact(trace: Trace, compute: Callable[[Event], float] | None = None) -> Json:
    """A recording as tables: each different call once, and by rank their numbers in its order."""
    numbers: dict[str, int] = {}  # of the calls, by their JSON
    ranks: list[list[int]] = []
    for rank in range(trace.world_size):
        events = trace.of_rank(rank)
        positions = {event.index: position for position, event in enumerate(events)}
        moments = _moments_of_threads(events)
        numbers_of_rank = []
        for position, event in enumerate(events):
            call = _call(event, position, positions)
            if event.flags & USER_THREAD:  # their order counts, and nothing else
                call["flags"] = USER_THREAD
                call["start_s"] = float(moments.index(event.start_s))
                call["end_s"] = float(moments.index(event.end_s))
            number = numbers.setdefault(json.dumps(call), len(numbers))
            numbers_of_rank.append(number)
        ranks.append(numbers_of_rank)
    tables: Json = {"calls": [json.loads(call) for call in numbers], "ranks": ranks}
    if compute:
        tables["compute"] = []
        for rank in range(trace.world_size):
            times_us = [compute(event) for event in trace.of_rank(rank)]
            tables["compute"].append(times_us)
    return tables


def _moments_of_threads(events: Sequence[Event]) -> list[float]:
    """When a call of a thread of the learner's began or ended, in order."""
    moments = set()
    for event in events:
        if event.flags & USER_THREAD:
            moments |= {event.start_s, event.end_s}
    return sorted(moments)


def _call(event: Event, position: int, positions: dict[int, int]) -> Json:
    """What a replay needs of a call, as far as it is not the default.

    Args:
        event: The call.
        position: Its place among the events of its rank.
        positions: Those of all, by the events' indices.
    """
    default = Event(rank=0, index=0, kind="", bytes=0, start_s=0.0, end_s=0.0)
    call = {}
    for name in KEPT:
        value = getattr(event, name)
        if value != getattr(default, name):
            call[name] = value
    if event.of is not None:
        call["back"] = position - positions[event.of]
    return call


def described(network: Network) -> Json:
    """A network as JSON has it."""
    return {
        "latency_us": network.latency_us,
        "gbit_s": network.gbit_s,
        "nodes": network.nodes,
        "between": network.between,
        "slow_links": [[*link, factor] for link, factor in network.slow_links.items()],
        "slow_ranks": list(network.slow_ranks.items()),
    }


def _write(choices: Json, cases: Json, runs: Json) -> None:
    place = {"choices": choices, "cases": cases, "runs": runs}
    text = json.dumps(place, separators=(",", ":"))
    name = os.environ["SITE_PLACE"]
    path = SITE / f"recordings/{name}.json"
    path.write_text(f"{text}\n", encoding="utf-8")
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")


def record(notebook: str, wanted: dict[str, dict[str, str]]) -> None:
    """Runs a notebook as far as the last of these places, and each place's code after its cell."""
    book = nbformat.read(ROOT / notebook, as_version=4)
    cells = [nbformat.v4.new_code_cell(FIRST_CELL)]
    keeping = []  # the cells that write a place
    left = dict(wanted)
    for cell in book.cells:
        if cell.cell_type != "code" or not left:
            continue
        cells.append(cell)
        places_of_cell = [name for name in left if left[name]["after"] in cell.source]
        for name in places_of_cell:
            place = left.pop(name)
            code = f"%env SITE_PLACE={name}\n{place['code']}"
            keep_cell = nbformat.v4.new_code_cell(code)
            keeping.append(keep_cell)
            cells.append(keep_cell)
    assert not left, f"{notebook} has no cell for {', '.join(left)}"
    book.cells = cells
    folder = (ROOT / notebook).parent
    client = NotebookClient(
        book,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | {"COURSE_LANG": "en"})
    for cell in keeping:
        printed = "".join(output.get("text", "") for output in cell.outputs)
        _, without_first_line = printed.split("\n", 1)  # in which %env says what it has set
        print(without_first_line, end="")


def main(names: Sequence[str]) -> None:
    """Records all places, or those that are named."""
    (SITE / "recordings").mkdir(exist_ok=True)
    python_path = str(ROOT)
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = python_path
    by_notebook: dict[str, dict[str, dict[str, str]]] = {}
    for name, place in places().items():
        if not names or name in names:
            by_notebook.setdefault(place["notebook"], {})[name] = place
    for notebook, wanted in by_notebook.items():
        record(notebook, wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
