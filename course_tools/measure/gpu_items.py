"""What `make gpu` looks at: each a function that prints what it sees, a line at a time.

It returns when all is as it should be, raises when it isn't, and raises LeftOut where this machine
cannot show it. `gpu_report` runs each in a process of its own, which may hang.
"""

import ast
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nbformat
import torch
import torch.distributed as dist
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.measure import gpu_workers
from course_tools.measure.bandwidth import SIZES, Row, all_reduce
from course_tools.notebooks import build
from course_utils import WorkerTimeout, hardware, launch
from course_utils.devices.driver import usable_gpus

OF_THE_CPU = {"add_up_twice"}  # workers that add up numbers there: gloo does, but not NCCL alone
OF_FOUR = {"worker", "two_pairs"}  # workers that need four ranks
# Workers that number GPUs by themselves, so that two ranks can't share one.
OF_SEVERAL_GPUS = {"device_zero.with_data_parallel", "on_a_gpu"}
# Seconds. What an item may take is the sum of what bounds its parts, so that a part which hangs
# ends by itself and says why, before its item is ended from outside.
START_S = 25  # a new Python imports torch, a chapter defines its functions
PROBE_S = 60  # of NCCL, before the first launch of a process
DRIVER_S = 60  # of the library's question to CUDA's driver
SMI_S = 20
SUM_S = 30
HANG_S = 20
EVENTS_S = 30
WORKERS_S = 45
SCRIPT_S = 25
BANDWIDTH_S = 40
TORCHRUN_S = 30
TWO_RANKS = "two ranks by NCCL"
OUTCOME = re.compile(  # a line of pytest: of a test, or of all of them
    r"tests/.* (?:PASSED|FAILED|ERROR|SKIPPED)|(?:FAILED|ERROR|SKIPPED) |=+ \d+ (?:passed|failed)"
)
# Here and not a function of this file: the report names lines of a learner's, not of the course's.
FORGETS = """\
def forgets():
    number = torch.ones(1, device="cuda")
    if dist.get_rank() == 0:
        dist.all_reduce(number)
    return number.item()
"""
# In a notebook's kernel, so that two ranks use NCCL where they would use the CPU by default.
SHARING = """\
import functools

_launch_as_it_is = launch


@functools.wraps(_launch_as_it_is)
def launch(fn, *args, **options):
    if options.get("world_size", 2) <= 2 and not {"backend", "device"} & options.keys():
        options |= {"backend": "nccl", "share_gpus": True}
    return _launch_as_it_is(fn, *args, **options)
"""


class LeftOut(Exception):
    """This machine cannot show it; the text says why."""


def gpus() -> int:
    """Returns how many GPUs torch can use here."""
    return len(usable_gpus().names)


def by_nccl(world_size: int = 2) -> dict[str, Any]:
    """Returns the options of a launch through NCCL, whose ranks share GPUs where they must."""
    must_share = world_size > gpus()
    return {"world_size": world_size, "backend": "nccl", "share_gpus": must_share}


def machine() -> None:
    """Hardware, versions, and how the GPUs are connected."""
    nccl_numbers = torch.cuda.nccl.version()
    nccl = ".".join(map(str, nccl_numbers))
    print(hardware())
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")
    columns = "name,memory.total,driver_version,mig.mode.current"
    print_answer_of("nvidia-smi", f"--query-gpu={columns}", "--format=csv")
    print_answer_of("nvidia-smi", "topo", "-m")


def print_answer_of(*command: str) -> None:
    """Prints what a command prints, without its colours, or that it gave no answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        program, first_word, *_ = command
        print(f"({program} {first_word} gave no answer)")
        return
    without_colours = re.sub(r"\x1b\[\d*m", "", done.stdout)
    print(without_colours.strip())


def two_ranks() -> None:
    """Two ranks add up by NCCL, which share a GPU where there is one."""

    def add_up() -> tuple[str, float]:
        number = dist.get_rank() + 1.0
        numbers = torch.full((1 << 20,), number, device="cuda")
        dist.all_reduce(numbers)
        total = numbers.sum().item()
        mean = total / len(numbers)
        return torch.cuda.get_device_name(), mean

    begun = time.monotonic()
    results = list(launch(add_up, timeout=SUM_S, **by_nccl()))
    seconds = time.monotonic() - begun
    print(f"{results} in {seconds:.1f} s, with NCCL's probe")
    means = [mean for _device, mean in results]
    assert means == [3.0, 3.0]


def a_hang() -> None:
    """Rank 1 leaves out its call; rank 0 has queued its own and stands in a later line."""
    names = {"torch": torch, "dist": dist}
    code = compile(FORGETS, "<a learner's cell>", "exec")
    exec(code, names)
    forgets = names["forgets"]
    error = None
    try:
        launch(forgets, timeout=HANG_S, **by_nccl())
    except WorkerTimeout as hang:
        error = hang
    print(error)
    assert error, "nothing hung"
    assert error.pattern == "returned"
    assert "has queued all_reduce" in str(error)


def cuda_events() -> None:
    """A recording has the times of the work on the GPU, beside those of the calls."""

    def adds_up() -> None:
        numbers = torch.ones(1 << 24, device="cuda")  # 64 MiB
        for _ in range(3):
            dist.all_reduce(numbers)
            dist.all_reduce(numbers, async_op=True).wait()
        numbers.sum().item()

    results = launch(adds_up, trace=True, timeout=EVENTS_S, **by_nccl())
    events = results.trace.of_rank(0)
    for event in events:
        if event.kind == "wait":
            continue
        call_us = 1e6 * (event.end_s - event.start_s)
        work_us = 1e6 * (event.done_s - event.began_s)
        print(f"{event.what}: {call_us:.0f} us in the call, {work_us:.0f} us on the GPU")
        assert event.queued
        assert event.start_s <= event.done_s


def chapter_workers(chapter: str) -> None:
    """What a chapter runs in ranks, once each, on GPUs."""
    names = gpu_workers.prepared(chapter)
    table = gpu_workers.on_real_gpus()[chapter]
    for worker, why in gpu_workers.left_out().get(chapter, {}).items():
        print(f"{worker}: left out, {why}")
    of_two = {}
    of_four = {}
    for worker, call in table.items():
        if worker in OF_THE_CPU:
            print(f"{worker}: left out, it stays on the CPU")
        elif worker in OF_SEVERAL_GPUS and gpus() < 2:
            print(f"{worker}: left out, it wants several GPUs")
        elif worker in OF_FOUR and gpus() < 2:
            print(f"{worker}: left out, 4 ranks are too many for {gpus()} GPU")
        elif worker in OF_FOUR:
            of_four[worker] = call
        else:
            of_two[worker] = call
    if of_two:
        in_one_launch(of_two, names, 2)
    if of_four:
        in_one_launch(of_four, names, 4)
    if not of_two | of_four:
        raise LeftOut("nothing of it is left")


def chapters_on_the_cpu() -> None:
    """The chapters of which nothing runs on a GPU, each with the reason."""
    for chapter, why in gpu_workers.on_the_cpu_alone().items():
        print(f"chapter {chapter}: {why}")
    raise LeftOut("They are run by `make test`, on the CPU.")


def in_one_launch(calls: dict[str, str], names: dict[str, Any], ranks: int) -> None:
    """Runs workers one after the other in the same ranks: to join costs seconds on GPUs."""

    def run() -> None:
        is_first = dist.get_rank() == 0
        for worker, call in calls.items():
            code = compile(call, f"<{worker}>", "eval")
            begun = time.monotonic()
            eval(code, names)
            torch.cuda.synchronize()
            seconds = time.monotonic() - begun
            most_bytes = torch.cuda.max_memory_allocated()
            mib = most_bytes / 2**20
            if is_first:
                print(f"{worker}: done in {seconds:.1f} s; at most {mib:.1f} MiB on the GPU so far")

    launch(run, timeout=WORKERS_S, **by_nccl(ranks))


def chapter_notebook(chapter: str) -> None:
    """A chapter from its first cell to its last, with two ranks on GPUs."""
    targets = build.targets(ROOT, [chapter])
    target = targets[0]
    notebook = build.plan(target)
    share_gpus = nbformat.v4.new_code_cell(SHARING)
    imports = [imports_launch(cell) for cell in notebook.cells]
    below_import = imports.index(True) + 1
    notebook.cells.insert(below_import, share_gpus)
    build.execute(notebook, target.built.parent)
    print("ran to its end")
    for line in printed_by(notebook).splitlines():
        if line.startswith("launch: "):
            print(line)


def printed_by(notebook: NotebookNode) -> str:
    """Returns what a notebook's cells have printed."""
    printed = ""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                printed += output.text
    return printed


def imports_launch(cell: NotebookNode) -> bool:
    """Returns whether a cell is the one that imports `launch`."""
    if cell.cell_type != "code":
        return False
    tree = ast.parse(cell.source)
    for statement in tree.body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        names = [alias.name for alias in statement.names]
        if "launch" in names:
            return True
    return False


def script() -> None:
    """train_ddp.py under torchrun, a process for each GPU, and under launch; and once resumed."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"--path={folder}/a.pt"
        for epochs in (1, 2):
            printed = torchrun("notebooks/train_ddp.py", path, f"--epochs={epochs}")
            print(printed, end="")
        print(f"under torchrun, {gpus()} processes: trained, and resumed")
        sys.path.append(str(ROOT / "notebooks"))
        import train_ddp

        options = by_nccl(gpus())
        results = launch(train_ddp.train, f"{folder}/b.pt", 1, timeout=SCRIPT_S, **options)
        weights = results[0]
        for weight in weights.values():
            assert weight.isfinite().all()
        print(f"under launch, as many ranks: trained; {len(weights)} tensors came back")


def torchrun(*script: str) -> str:
    """Runs a script in a process for each GPU and returns what it prints.

    It is ended gently: a killed torchrun would leave those processes behind.

    Args:
        script: Its path, or `-m` and its module, and its arguments.

    Raises:
        TimeoutExpired: It took more than TORCHRUN_S seconds.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={gpus()}", *script]
    settings = {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "BANDWIDTH_SIZES": json.dumps(SIZES),
    }
    environment = os.environ | settings
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        printed, _ = process.communicate(timeout=TORCHRUN_S)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, "torchrun failed"
    return printed


def tests(marks: str) -> None:
    """The tests that need a GPU and have these marks, each with its line as soon as it is over."""
    command = [sys.executable, "-m", "pytest", "-m", marks, "-v", "-rfEs", "tests"]
    run = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    others = []
    outcomes = 0
    for line in run.stdout:
        if OUTCOME.match(line):
            outcomes += 1
            print(line.rstrip(), flush=True)
        else:
            others.append(line)
    status = run.wait()
    if status or not outcomes:
        print("".join(others)[-4000:])
    assert not status


def bandwidth() -> None:
    """All-reduces between GPUs, in workers of launch and of torchrun."""
    if gpus() < 2:
        raise LeftOut("it takes two GPUs")
    results = launch(all_reduce, SIZES, timeout=BANDWIDTH_S, **by_nccl(gpus()))
    under_launch = results[0]
    printed = torchrun("-m", "course_tools.measure.bandwidth")
    under_torchrun = json.loads(printed)
    print(f"{gpus()} ranks; bus bandwidth by nccl-tests' formula")
    pairs = zip(under_launch, under_torchrun, strict=True)
    for launch_row, fields in pairs:
        torchrun_row = Row(*fields)
        of_launch = _shown(launch_row)
        of_torchrun = _shown(torchrun_row)
        print(f"{launch_row.size:,} bytes: launch {of_launch}, torchrun {of_torchrun}")


def _shown(row: Row) -> str:
    """Time and bandwidth of a size."""
    return f"{row.us:,.1f} us, {row.bus_gb_s:.2f} GB/s"


@dataclass(frozen=True)
class Item:
    """A part of the report.

    Attributes:
        run: What prints its lines.
        limit_s: How many seconds it may take.
        needs_nccl: Whether it is left out where two ranks can't add up a number by NCCL.
    """

    run: Callable[[], None]
    limit_s: float
    needs_nccl: bool = False


def items() -> dict[str, Item]:
    """Returns everything in its order, the heart of it first.

    What comes late is the first to be left out when the eight minutes are over.
    """
    in_order = {
        "the machine": Item(machine, START_S + DRIVER_S + 2 * SMI_S),
        TWO_RANKS: by_ranks(two_ranks, SUM_S),
        "a hang under NCCL, told": by_ranks(a_hang, HANG_S),
        "a recording with CUDA's events": by_ranks(cuda_events, EVENTS_S),
        # torchrun's ranks have a GPU each. With several, those of launch come by NCCL as well.
        "train_ddp.py": Item(script, START_S + 2 * TORCHRUN_S + PROBE_S + SCRIPT_S, gpus() > 1),
    }
    for chapter, table in gpu_workers.on_real_gpus().items():
        run = functools.partial(chapter_workers, chapter)
        launches = [WORKERS_S]
        if OF_FOUR & table.keys():
            launches.append(WORKERS_S)
        in_order[f"workers of chapter {chapter}"] = by_ranks(run, *launches)
    for chapter in ("00", "14"):
        run = functools.partial(chapter_notebook, chapter)
        in_order[f"chapter {chapter}"] = by_ranks(run, 60)
    without_nccl = functools.partial(tests, "gpu and not nccl and not soak")
    with_nccl = functools.partial(tests, "gpu and nccl and not soak")
    in_order["tests marked gpu"] = Item(without_nccl, 120)
    in_order["tests marked gpu and nccl"] = Item(with_nccl, 240, needs_nccl=True)
    in_order["bandwidth"] = by_ranks(bandwidth, BANDWIDTH_S, TORCHRUN_S)
    in_order["chapter 04"] = Item(functools.partial(chapter_notebook, "04"), 240, needs_nccl=True)
    in_order["chapters on the CPU alone"] = Item(chapters_on_the_cpu, START_S)
    return in_order


def by_ranks(run: Callable[[], None], *parts_s: float) -> Item:
    """Returns an item that launches ranks by NCCL, each part of it after a probe at worst."""
    limit_s = START_S + sum(PROBE_S + part_s for part_s in parts_s)
    return Item(run, limit_s, needs_nccl=True)


def main(name: str) -> int:
    """Runs one item; returns 0 where all is well, 3 where it is left out, else 1."""
    item = items()[name]
    try:
        item.run()
    except LeftOut as why:
        print(why)
        return 3
    except Exception as error:  # whatever it is, the report has it
        kind = type(error).__name__
        end_of_text = str(error)[-3000:]
        print(f"{kind}: {end_of_text}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
