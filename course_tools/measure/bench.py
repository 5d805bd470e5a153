"""What it costs: each figure beside a baseline that is measured in the same turn.

A figure's turn gives two numbers, ours and the baseline's; what counts is the median of their
ratios and its quartiles, since a drift of the machine hits both alike. `--against FOLDER` runs the
same figures of another checkout of the project as well, by its own benchmark, in alternating turns,
and prints how much longer this one takes.

    python -m course_tools.measure.bench [--against FOLDER] [--only WORDS] [--seconds 16]
        [--others] [--json FILE]
"""

import argparse
import atexit
import contextlib
import functools
import heapq
import importlib.util
import io
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from course_tools import ROOT
from course_tools.commands import parser_of
from course_utils import Network, launch
from course_utils.devices import prepare
from course_utils.network.simulation import Interval
from course_utils.network.trace import Trace
from course_utils.record.event import Event

MESSAGES = 100_000
MEGABYTES = 256
LOOPBACK = "lo"
if sys.platform == "darwin":
    LOOPBACK = "lo0"
Turn = tuple[float, float]  # what one turn of ours took, and of the baseline (seconds)


def total() -> float:
    """What every rank does: 1 + 2 + ... by one all_reduce."""
    tensor = torch.full((10,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return tensor[0].item()


def join(rank: int, ranks: int, file: str) -> None:
    """Join a group of so many ranks, which meet in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    store = dist.FileStore(file, ranks)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)


def with_launch(ranks: int) -> list[float]:
    return list(launch(total, world_size=ranks, backend="gloo"))


def with_bare_fork(ranks: int) -> list[float]:
    """The floor: no guards, no capture, no errors, no deadline."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        children = []
        pipes = []
        for rank in range(ranks):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                join(rank, ranks, store)
                packed = pickle.dumps(total())
                os.write(write, packed)
                os._exit(0)
            os.close(write)
            pipes.append(read)
            children.append(child)
        results = []
        for pipe in pipes:
            packed = os.read(pipe, 4096)
            results.append(pickle.loads(packed))
        for pipe, child in zip(pipes, children, strict=True):
            os.waitpid(child, 0)
            os.close(pipe)
    return results


def _entry(rank: int, ranks: int, file: str, queue: Any) -> None:
    """What a rank of `start_processes` does."""
    torch.set_num_threads(1)
    join(rank, ranks, file)
    result = total()
    queue.put((rank, result))


def with_start_processes(ranks: int) -> list[float]:
    """Torch's own launcher, whose results go through a queue."""
    import torch.multiprocessing as mp

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        queue = context.SimpleQueue()
        arguments = (ranks, f"{folder}/store", queue)
        mp.start_processes(_entry, arguments, nprocs=ranks, start_method="fork")
        for _ in range(ranks):
            rank, result = queue.get()
            results[rank] = result
        queue.close()
    return [results[rank] for rank in range(ranks)]


def _joined(folder: str) -> None:
    """What a rank of Accelerate does."""
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    if not dist.is_initialized():
        join(rank, ranks, f"{folder}/store")
    result = total()
    file = Path(folder, str(rank))
    file.write_text(str(result))


def with_accelerate(ranks: int) -> list[float]:
    """Hands no results back: they go through files."""
    from accelerate import notebook_launcher

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        with contextlib.redirect_stdout(io.StringIO()):
            notebook_launcher(_joined, (folder,), num_processes=ranks, use_port="0")
        results = []
        for rank in range(ranks):
            file = Path(folder, str(rank))
            result = file.read_text()
            results.append(float(result))
    return results


def seconds(run: Callable[[], Any]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def against_the_fork(run: Callable[[int], list[float]], ranks: int) -> Turn:
    """A launcher beside the bare fork, which does the same with nothing around it.

    No launch enlarges pages in this process: a bare fork costs what it costs without the course.
    """
    prepare._WORTH_IT = sys.maxsize
    launcher_s = seconds(lambda: run(ranks))
    fork_s = seconds(lambda: with_bare_fork(ranks))
    return launcher_s, fork_s


@functools.cache
def _other_process() -> "Checkout":
    checkout = Checkout(Path.cwd(), "elsewhere")
    atexit.register(checkout.close)
    return checkout


def elsewhere(name: str) -> Turn:
    """A turn of `against_the_fork`, in a process that is kept for such."""
    turn = _other_process().measure(name)
    if isinstance(turn, str):
        raise RuntimeError(turn)
    return turn


@functools.cache
def _use_this_kernel() -> None:
    """From 64 ranks on, launch has enlarged the pages here, as in a lesson after some cells."""
    with_launch(64)


def launched(ranks: int) -> Turn:
    """A launch in a kernel that has launched before, beside a bare fork without the course."""
    _use_this_kernel()
    launch_s = seconds(lambda: with_launch(ranks))
    _nothing_s, fork_s = elsewhere(f"{FORK}, {ranks} ranks")
    return launch_s, fork_s


def many_small() -> None:
    """What is recorded: a thousand small all_reduces."""
    tensor = torch.ones(8)
    for _ in range(1000):
        dist.all_reduce(tensor)


def recording() -> Turn:
    """A thousand small all_reduces of two ranks, recorded, beside the same not recorded."""
    run = functools.partial(launch, many_small, world_size=2, backend="gloo")
    recorded_s = seconds(lambda: run(trace=True))
    not_recorded_s = seconds(lambda: run(trace=False))
    return recorded_s, not_recorded_s


def ring(ranks: int, messages: int) -> Trace:
    """So many messages of a ring all-reduce, as isend and irecv would be recorded."""
    group = tuple(range(ranks))
    events = []
    for rank in range(ranks):
        right = (rank + 1) % ranks
        left = (rank - 1) % ranks
        event = functools.partial(Event, rank=rank, group=group, start_s=0.0, end_s=0.0)
        message = functools.partial(event, bytes=4096, tag=0)
        wait = functools.partial(event, kind="wait", bytes=0)
        for send in range(0, 4 * messages // ranks, 4):
            receive = send + 1
            events += [
                message(index=send, kind="send", peer=right),
                message(index=receive, kind="recv", peer=left),
                wait(index=send + 2, of=send),
                wait(index=send + 3, of=receive),
            ]
    ended_s = (0.0,) * ranks
    return Trace(tuple(events), ended_s)


def through_a_heap(numbers: list[int]) -> None:
    """Push all numbers, then pop all of them."""
    heap: list[int] = []
    for number in numbers:
        heapq.heappush(heap, number)
    while heap:
        heapq.heappop(heap)


def replay_speed() -> Turn:
    """A first replay of 100,000 messages, beside what orders a simulation: 5 pushes for each."""
    trace = ring(8, MESSAGES)
    pushes = 5 * MESSAGES
    numbers = [hash(str(number)) for number in range(pushes)]
    network = Network(latency_us=10, gbit_s=80)
    replay_s = seconds(lambda: trace.replay(network))
    heap_s = seconds(lambda: through_a_heap(numbers))
    return replay_s, heap_s


def redraw_speed() -> Turn:
    """A slider of `explore` is moved, until the message with the new picture is ready to leave.

    Eight ranks with thirty messages each; beside writing one SVG element for each bar of them.
    """
    from jupyter_client.session import Session

    from course_utils import explore

    trace = ring(8, 8 * 30)
    session = Session(key=b"a key, since kernels sign what they send")
    widgets = [explore(trace)]
    for widget in widgets:  # to which its children are added
        widgets += getattr(widget, "children", ())
    slider = first_of_kind(widgets, "SelectionSlider")
    picture = first_of_kind(widgets, "HTML")
    values = [value for _label, value in slider.options]
    values.remove(slider.value)
    values = values[:8]

    def redraw() -> None:
        for value in values:
            slider.value = value
            update = {"method": "update", "state": picture.get_state("value")}
            message = session.msg("comm_msg", {"data": update})
            session.serialize(message)

    redrawn_s = seconds(redraw)
    replay = trace.replay(Network(latency_us=10, gbit_s=80))
    written_s = seconds(lambda: as_elements(replay.intervals))
    return redrawn_s / len(values), written_s


def first_of_kind(widgets: list[Any], kind: str) -> Any:
    """The first widget whose class has this name."""
    for widget in widgets:
        if type(widget).__name__ == kind:
            return widget
    raise LookupError(f"no {kind} among {len(widgets)} widgets")


def as_elements(bars: Iterable[Interval]) -> str:
    """An SVG element for each bar."""
    elements = []
    for bar in bars:
        start = f"M{bar.start_us:.1f} {bar.rank}"
        end = f"L{bar.end_us:.1f} {bar.rank}"
        elements.append(f'<path d="{start}{end}"/>')
    return "".join(elements)


IMPORT = """
import time
import torch, torch.distributed
torchs = time.process_time()
from course_utils import launch
print(time.process_time(), torchs)
"""


def importing() -> Turn:
    """CPU seconds of a fresh Python that imports torch and our launch, beside torch alone."""
    command = [sys.executable, "-c", IMPORT]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    both, torch_alone = run.stdout.split()
    return float(both), float(torch_alone)


def large_results() -> Turn:
    """Two ranks make 256 MB each and hand them over, beside making them here."""
    kept: list[torch.Tensor] = []
    elements = MEGABYTES * (1 << 20) // 4

    def make() -> torch.Tensor:
        return torch.ones(elements)

    launch_s = seconds(lambda: kept.extend(launch(make, world_size=2, backend="gloo")))
    kept.clear()  # giving the memory back is not part of a launch
    here_s = seconds(lambda: kept.extend((make(), make())))
    return launch_s, here_s


def training() -> Turn:
    """Seconds for a thousand images of DDP under launch, beside torchrun."""
    from course_tools.measure import ddp_throughput

    images_per_s = ddp_throughput.paired(1)
    with_launch_per_s = images_per_s["launch"][0]
    under_torchrun_per_s = images_per_s["torchrun"][0]
    launch_s = 1e3 / with_launch_per_s
    torchrun_s = 1e3 / under_torchrun_per_s
    return launch_s, torchrun_s


TEST = """
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def adds_up():
    total = torch.full((10,), dist.get_rank() + 1.0)
    dist.all_reduce(total)
    assert total[0] == 3


@pytest.mark.ranks(2, backend="gloo")
def test_by_plugin():
    adds_up()


def rank_of_spawn(rank, file):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "INTERFACE"
    store = dist.FileStore(file, 2)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=wait)
    adds_up()
    dist.destroy_process_group()


def test_by_spawn(tmp_path):
    mp.spawn(rank_of_spawn, (str(tmp_path / "store"),), nprocs=2)
"""


def testing() -> Turn:
    """Pytest on a test of two ranks, by the plugin, beside one that calls `mp.spawn` itself."""
    plugin_s = seconds(lambda: run_test("test_by_plugin"))
    spawn_s = seconds(lambda: run_test("test_by_spawn"))
    return plugin_s, spawn_s


def run_test(name: str) -> None:
    """Let pytest run one of these tests in this process; its file has a name of its own."""
    import pytest

    text = TEST.replace("INTERFACE", LOOPBACK)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = folder / f"test_{folder.name}.py"
        path.write_text(text)
        command = [f"{path}::{name}", "-q", "-p", "no:cacheprovider"]
        command.append(f"--rootdir={folder}")
        command.append(f"--basetemp={folder}/base")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = pytest.main(command)
    if status:
        raise RuntimeError(printed.getvalue())


class Figure(NamedTuple):
    """What is measured: a turn, what it is compared with, and the aim for their ratio."""

    turn: Callable[[], Turn]
    beside: str
    aim: float | None = None


FORK = "bare fork"
LAUNCHERS = {
    FORK: lambda ranks: [],  # which is what the others are beside
    "early launch": with_launch,
    "start_processes(fork)": with_start_processes,
    "Accelerate": with_accelerate,
}


def served_elsewhere() -> dict[str, Figure]:
    """Figures that the other process measures: every launcher beside the fork."""
    figures = {}
    for launcher, run in LAUNCHERS.items():
        for ranks in (2, 4, 8, 64):
            name = f"{launcher}, {ranks} ranks"
            turn = functools.partial(against_the_fork, run, ranks)
            figures[name] = Figure(turn, FORK)
    return figures


def beside_the_fork(*launchers: str, sizes: tuple[int, ...] = (2, 4, 8)) -> dict[str, Figure]:
    """Figures of launchers, in the process where no launch enlarges pages."""
    figures = {}
    for launcher in launchers:
        for ranks in sizes:
            name = f"{launcher}, {ranks} ranks"
            turn = functools.partial(elsewhere, name)
            figures[name] = Figure(turn, FORK)
    return figures


def our_launches() -> dict[str, Figure]:
    """Figures of `launch` in a kernel that has launched before; 64 ranks have no aim."""
    figures = {}
    for ranks in (2, 4, 8, 64):
        name = f"launch, {ranks} ranks"
        turn = functools.partial(launched, ranks)
        aim = None
        if ranks <= 8:
            aim = 1.10
        figures[name] = Figure(turn, FORK, aim)
    return figures


FIGURES = {
    **our_launches(),
    **beside_the_fork("early launch", sizes=(4,)),
    **beside_the_fork("start_processes(fork)"),
    "1,000 all_reduces recorded": Figure(recording, "not recorded", 1.10),
    "replay of 100,000 messages": Figure(replay_speed, "5 heap operations each"),
    "redraw of explore, 8 ranks": Figure(redraw_speed, "its bars written"),
    "a test of 2 ranks, by our plugin": Figure(testing, "by mp.spawn"),
    "CPU of import": Figure(importing, "torch alone"),
    "2 x 256 MB back": Figure(large_results, "made here"),
}
OTHERS = []
if importlib.util.find_spec("accelerate"):  # of the extra `bench`
    OTHERS.append("Accelerate")
ASKED_FOR = {
    **beside_the_fork(*OTHERS),
    "1,000 images of DDP": Figure(training, "torchrun"),
}


class Checkout:
    """A process that measures with the `course_utils` of a folder, a turn at a time."""

    def __init__(self, folder: Path, where: str = "here") -> None:
        # Each checkout is measured by its own benchmark, which knows how its library is laid out.
        self.folder = folder
        benchmark = benchmark_of(folder)
        command = [sys.executable, str(benchmark), "--serve", where]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, figure: str) -> Turn | str:
        """One turn's two numbers, or why there are none."""
        print(figure, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer = json.loads(line)
        if isinstance(answer, str):
            return answer
        return tuple(answer)

    def close(self) -> None:
        """End it, and wait until it has."""
        self._process.stdin.close()
        self._process.wait()


def benchmark_of(folder: Path) -> Path:
    """The benchmark's file in a checkout of this project, old or new."""
    for place in ("course_tools/measure/bench.py", "tools/bench.py"):
        path = folder / place
        if path.exists():
            return path
    raise SystemExit(f"{folder} is no checkout of this project: it has no bench.py")


def serve(figures: dict[str, Figure]) -> None:
    """Read names of figures, and write what a turn gives; what else is printed goes nowhere."""
    out = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    for line in sys.stdin:
        name = line.strip()
        try:
            figure = figures[name]
            answer: Turn | str = figure.turn()
        except Exception as error:
            answer = repr(error)
        print(json.dumps(answer), file=out, flush=True)


def quartiles(values: list[float]) -> dict[str, float]:
    """The median of these values, and the two other quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def compare(figure: str, checkouts: list[Checkout], budget_s: float) -> list[list[Turn]] | str:
    """All turns of each checkout, in alternating order, within so many seconds; or why not.

    A checkout that lacks the figure is left out, as an older one may.
    """
    measurable = []
    for checkout in checkouts:
        warm_up = checkout.measure(figure)
        if warm_up == repr(KeyError(figure)):
            continue
        if isinstance(warm_up, str):  # why it cannot be measured
            return warm_up
        measurable.append(checkout)
    turns = [[] for _ in measurable]
    order = list(zip(measurable, turns, strict=True))
    end = time.monotonic() + budget_s
    for done in range(40):
        is_over = time.monotonic() >= end
        if is_over and done >= 5:
            break
        order.reverse()
        for checkout, turns_of_checkout in order:
            turn = checkout.measure(figure)
            turns_of_checkout.append(turn)
    return turns


def row(turns: list[list[Turn]]) -> dict[str, Any]:
    """What the turns of a figure come to: of this checkout, and of another one if there is one."""
    our_turns = turns[0]
    times_s, beside_s = zip(*our_turns, strict=True)
    result = {
        "ms": 1e3 * statistics.median(times_s),
        "beside_ms": 1e3 * statistics.median(beside_s),
        "ratio": ratios(our_turns),
        "turns": len(our_turns),
    }
    if len(turns) > 1:
        their_turns = turns[1]
        times_there_s = [there_s for there_s, _beside_s in their_turns]
        pairs = zip(times_s, times_there_s, strict=True)
        result["then"] = ratios(their_turns)
        result["to_then"] = ratios(pairs)
    return result


def ratios(pairs: Iterable[Turn]) -> dict[str, float]:
    """The quartiles of the ratios in these pairs."""
    values = [first / second for first, second in pairs]
    return quartiles(values)


def shown(spread: dict[str, float]) -> str:
    """The median of quartiles, and how far they reach."""
    return "{median:.2f} ({low:.2f} to {high:.2f})".format(**spread)


def line(name: str, figure: Figure, result: dict[str, Any]) -> str:
    """A row of the table: times, the ratio with its quartiles, the aim, and the other checkout."""
    ratio = result["ratio"]
    ours_ms = result["ms"]
    beside_ms = result["beside_ms"]
    text = f"{name:32} {ours_ms:8.1f} ms, {figure.beside} {beside_ms:.1f} ms: {shown(ratio)}"
    if figure.aim:
        verdict = "MISSED"
        if ratio["median"] <= figure.aim:
            verdict = "reached"
        text += f", aim {figure.aim:g} {verdict}"
    if "then" in result:
        then = shown(result["then"])
        to_then = shown(result["to_then"])
        text += f"; there {then}; here to there {to_then}"
    return text


def measured(
    figures: dict[str, Figure], checkouts: list[Checkout], budget_s: float
) -> dict[str, dict[str, Any]]:
    """The rows of these figures, each printed when it is there; one that fails has none."""
    results = {}
    for name, figure in figures.items():
        turns = compare(name, checkouts, budget_s)
        if isinstance(turns, str):
            print(f"{name}: failed: {turns}")
            continue
        result = row(turns)
        results[name] = result
        text = line(name, figure, result)
        if len(turns) < len(checkouts):
            text += f"; not in {checkouts[-1].folder}"
        print(text, flush=True)
    return results


def load_of_machine() -> str:
    """A sentence on how busy this machine is."""
    load, *_ = os.getloadavg()
    cores = os.cpu_count() or 1
    sentence = f"load average {load:.1f} on {cores} cores"
    if load > 1.5 * cores:
        sentence += ": other programs took part in this"
    return sentence


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    parser.add_argument("--seconds", type=float, default=16, help="of each figure")
    parser.add_argument("--others", action="store_true", help="other launchers and DDP as well")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve == "elsewhere":
        serve(served_elsewhere())
        return
    if options.serve:
        serve(FIGURES | ASKED_FOR)
        return
    checkouts = [Checkout(ROOT)]
    if options.against:
        folder = options.against.resolve()
        checkouts.append(Checkout(folder))
    chosen = chosen_figures(options.only, options.others)
    results = measured(chosen, checkouts, options.seconds)
    for checkout in checkouts:
        checkout.close()
    print(load_of_machine())
    if options.json:
        write_json(options.json, results)


def chosen_figures(words: str, others: bool) -> dict[str, Figure]:
    """The figures whose names contain these words; those of others too, if wanted."""
    figures = dict(FIGURES)
    if others:
        figures |= ASKED_FOR
    chosen = {}
    for name, figure in figures.items():
        if words in name:
            chosen[name] = figure
    return chosen


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Writes all results, and what they were measured on."""
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    report = {"machine": machine, "figures": results}
    text = json.dumps(report, indent=1)
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
