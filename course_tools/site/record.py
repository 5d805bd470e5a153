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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_tools import ROOT
from course_tools.site.live_parts import SITE, Entry, Json, Places, places
from course_utils import Network
from course_utils.network.trace import Trace
from course_utils.pictures.style import rounded
from course_utils.record.event import USER_THREAD, Event

FIRST_CELL = """\
from dataclasses import replace
from course_tools.site.record import keep, keep_challenge"""
Compute = Callable[[Event], float]  # what a rank computes before an event, in microseconds
NAMES_A_PLACE = "%env SITE_PLACE="  # begins the cells that write a place
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
    choices = _choices_of(runs)
    if algorithms:
        choices = {algorithm: ["", algorithm] for algorithm in algorithms}
    case = {"runs": "all", "network": described(network)}
    if compute is None:
        case["unit_us"] = _tenth_of_the_longest(runs, network)
    _write(choices, {"": case}, {"all": recordings})


def _choices_of(runs: Iterable[str]) -> Json:
    """What a reader chooses between: these runs, each as it was recorded."""
    return {name: [name, None] for name in runs}


def _tenth_of_the_longest(runs: dict[str, Trace], network: Network) -> float:
    """A unit of lateness: a tenth of what the slowest run takes, in round microseconds."""
    finishes_us: list[float] = []
    for trace in runs.values():
        replayed = trace.replay(network)
        finishes_us += replayed.finish_us
    longest_us = max(finishes_us)
    tenth_us = longest_us / 10
    return rounded(tenth_us)


def _with_name(compute: Callable[[Event, str], float], name: str, event: Event) -> float:
    return compute(event, name)


def keep_challenge() -> None:
    """Writes the challenge's baselines on its networks, with the times that nobody can beat."""
    from course_challenge.baselines import BASELINES
    from course_challenge.judging import cases as all_cases
    from course_challenge.judging import tried
    from course_challenge.leagues import LEAGUES

    each_size_once = []
    for case in all_cases():
        if case.size and case.league == "flat":
            each_size_once.append(case)
    runs: dict[str, Json] = {}
    sizes = {}  # by run: how many ranks, and of which size
    for baseline, fn in BASELINES.items():
        attempt = tried(fn, cases=each_size_once)
        for world_size, case, trace in attempt.traces:
            size = case.size
            run = f"{world_size} ranks, {size}"
            sizes[run] = (world_size, size)
            runs_of_size = runs.setdefault(run, {})
            runs_of_size[baseline] = compact(trace)
    cases = {}
    for league in LEAGUES:
        for run, (world_size, size) in sizes.items():
            name = f"{league}, {run}"
            cases[name] = _case_of_league(league, run, world_size, size)
    choices = _choices_of(BASELINES)
    _write(choices, cases, runs)


def _case_of_league(name: str, run: str, world_size: int, size: str) -> Json:
    """What the challenge's runs of a size are replayed with in a league."""
    from course_challenge.leagues import LEAGUES, SIZES

    league = LEAGUES[name]
    nbytes = SIZES[size]
    bound_us = league.bound_us(world_size, nbytes)
    others = world_size - 1
    others_are_punctual = [0.0] * others
    late_us = [*others_are_punctual, league.late_us]
    tenth_us = bound_us / 10
    return {
        "runs": run,
        "network": described(league.network),
        "bound_us": bound_us,
        "late": late_us,
        "unit_us": rounded(tenth_us),
    }


def compact(trace: Trace, compute: Compute | None = None) -> Json:
    """A recording as tables: each different call once, and by rank their numbers in its order."""
    numbers: dict[str, int] = {}  # of the calls, by their JSON
    ranks: list[list[int]] = []
    for rank in range(trace.world_size):
        events = trace.of_rank(rank)
        numbers_of_rank = []
        for call in _calls(events):
            call_json = json.dumps(call)
            next_number = len(numbers)
            number = numbers.setdefault(call_json, next_number)
            numbers_of_rank.append(number)
        ranks.append(numbers_of_rank)
    calls = [json.loads(call) for call in numbers]
    tables: Json = {"calls": calls, "ranks": ranks}
    if compute:
        tables["compute"] = _computed_us(trace, compute)
    return tables


def _computed_us(trace: Trace, compute: Compute) -> list[list[float]]:
    """By rank, what it computes before each of its events."""
    by_rank = []
    for rank in range(trace.world_size):
        events = trace.of_rank(rank)
        times_us = list(map(compute, events))
        by_rank.append(times_us)
    return by_rank


def _calls(events: Sequence[Event]) -> Iterator[Json]:
    """Yields what a replay needs of each call of a rank."""
    moments = _moments_of_threads(events)
    positions = {}
    for position, event in enumerate(events):
        positions[event.index] = position
    for position, event in enumerate(events):
        call = _call(event)
        if event.of is not None:
            earlier_position = positions[event.of]
            call["back"] = position - earlier_position
        if event.flags & USER_THREAD:  # their order counts, and nothing else
            begin = moments.index(event.start_s)
            end = moments.index(event.end_s)
            call["flags"] = USER_THREAD
            call["start_s"] = float(begin)
            call["end_s"] = float(end)
        yield call


def _moments_of_threads(events: Sequence[Event]) -> list[float]:
    """When a call of a thread of the learner's began or ended, in order."""
    moments = set()
    for event in events:
        if event.flags & USER_THREAD:
            moments.add(event.start_s)
            moments.add(event.end_s)
    return sorted(moments)


def _call(event: Event) -> Json:
    """What a replay needs of a call, as far as it is not the default."""
    default = Event(rank=0, index=0, kind="", bytes=0, start_s=0.0, end_s=0.0)
    call = {}
    for name in KEPT:
        value = getattr(event, name)
        default_value = getattr(default, name)
        if value != default_value:
            call[name] = value
    return call


def described(network: Network) -> Json:
    """A network as JSON has it."""
    slow_links = []
    for link, factor in network.slow_links.items():
        slow_links.append([*link, factor])
    slow_ranks = list(network.slow_ranks.items())
    return {
        "latency_us": network.latency_us,
        "gbit_s": network.gbit_s,
        "nodes": network.nodes,
        "between": network.between,
        "slow_links": slow_links,
        "slow_ranks": slow_ranks,
    }


def _write(choices: Json, cases: Json, runs: Json) -> None:
    """Writes the place that a cell before this one has named, and says how large it is."""
    place = {"choices": choices, "cases": cases, "runs": runs}
    place_json = json.dumps(place, separators=(",", ":"))
    line = f"{place_json}\n"
    name = os.environ["SITE_PLACE"]
    path = SITE / f"recordings/{name}.json"
    path.write_text(line, encoding="utf-8")
    status = path.stat()
    size = status.st_size
    path_in_course = path.relative_to(ROOT)
    print(f"{path_in_course}: {size:,} bytes")


def record(notebook: str, wanted: Places) -> None:
    """Runs a notebook as far as the last of these places, and each place's code after its cell."""
    book = _with_cells_that_keep(notebook, wanted)
    path = ROOT / notebook
    folder = str(path.parent)
    run_in_folder = {"metadata": {"path": folder}}
    client = NotebookClient(book, timeout=600, kernel_name="python3", resources=run_in_folder)
    environment = os.environ | {"COURSE_LANG": "en"}
    client.execute(env=environment)
    for cell in book.cells:
        if cell.source.startswith(NAMES_A_PLACE):
            _tell_what_it_printed(cell)


def _with_cells_that_keep(notebook: str, wanted: Places) -> NotebookNode:
    """The notebook that `record` runs: code as far as needed, and the cells that write places."""
    path = ROOT / notebook
    book = nbformat.read(path, as_version=4)
    first_cell = new_code_cell(FIRST_CELL)
    cells = [first_cell]
    left = dict(wanted)
    for cell in book.cells:
        if not left:
            break
        if cell.cell_type != "code":
            continue
        cells.append(cell)
        for name, place in list(left.items()):
            if place["after"] in cell.source:
                del left[name]
                cell_that_keeps = _cell_that_keeps(name, place)
                cells.append(cell_that_keeps)
    names = ", ".join(left)
    assert not left, f"{notebook} has no cell for {names}"
    book.cells = cells
    return book


def _cell_that_keeps(name: str, place: Entry) -> NotebookNode:
    """The cell that writes a place."""
    code = place["code"]
    source = f"{NAMES_A_PLACE}{name}\n{code}"
    return new_code_cell(source)


def _tell_what_it_printed(cell: NotebookNode) -> None:
    """Prints what a cell that keeps a place has printed."""
    printed = ""
    for output in cell.outputs:
        printed += output.get("text", "")
    _, without_first_line = printed.split("\n", 1)  # in which %env says what it has set
    print(without_first_line, end="")


def main(names: Sequence[str]) -> None:
    """Records all places, or those that are named."""
    folder = SITE / "recordings"
    folder.mkdir(exist_ok=True)
    _let_kernels_import_the_course()
    by_notebook: dict[str, Places] = {}
    all_places = places()
    for name, place in all_places.items():
        if names and name not in names:
            continue
        notebook = place["notebook"]
        places_of_notebook = by_notebook.setdefault(notebook, {})
        places_of_notebook[name] = place
    for notebook, wanted in by_notebook.items():
        record(notebook, wanted)


def _let_kernels_import_the_course() -> None:
    """Puts the course in front of the path that kernels inherit."""
    folders = [str(ROOT)]
    path_before = os.environ.get("PYTHONPATH")
    if path_before:
        folders.append(path_before)
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)


if __name__ == "__main__":
    main(sys.argv[1:])
