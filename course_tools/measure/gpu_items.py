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
from course_utils.launcher.deadlines import slowness

OF_THE_CPU = {"add_up_twice"}  # workers that add up numbers there: gloo does, but not NCCL alone
OF_FOUR = {"worker", "two_pairs"}  # workers that need four ranks
OUTCOME = re.compile(  # a line of pytest: of a test, or of all of them
    r"^(?:PASSED|FAILED|ERROR|SKIPPED).*|^\d+ (?:passed|failed).*", re.MULTILINE
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
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
    results = list(launch(add_up, timeout=80, **by_nccl()))
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
        launch(forgets, timeout=20, **by_nccl())
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

    results = launch(adds_up, trace=True, timeout=60, **by_nccl())
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
    table = gpu_workers.workers()[chapter]
    if not any(table.values()):
        raise LeftOut("its workers want several GPUs")
    of_two = {}
    of_four = {}
    for worker, call in table.items():
        if not call or worker in OF_THE_CPU:
            continue
        if worker in OF_FOUR:
            of_four[worker] = call
        else:
            of_two[worker] = call
    if of_two:
        in_one_launch(of_two, names, 2)
    if of_four and gpus() < 2:
        workers = ", ".join(of_four)
        print(f"{workers}: left out, 4 ranks are too many for {gpus()} GPU")
    elif of_four:
        in_one_launch(of_four, names, 4)


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

    launch(run, timeout=80, **by_nccl(ranks))


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

        results = launch(train_ddp.train, f"{folder}/b.pt", 1, **by_nccl(gpus()))
        weights = results[0]
        for weight in weights.values():
            assert weight.isfinite().all()
        print(f"under launch, as many ranks: trained; {len(weights)} tensors came back")


def torchrun(*script: str, timeout_s: float = 45) -> str:
    """Runs a script in a process for each GPU and returns what it prints.

    It is ended gently: a killed torchrun would leave those processes behind.

    Args:
        script: Its path, or `-m` and its module, and its arguments.
        timeout_s: How long is long enough on a quiet machine.
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
        printed, _ = process.communicate(timeout=timeout_s * slowness())
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, "torchrun failed"
    return printed


def tests() -> None:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rA", "tests"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    outcomes = OUTCOME.findall(run.stdout)
    summary = "\n".join(outcomes)
    if not summary:
        summary = run.stdout[-4000:] + run.stderr
    print(summary)
    assert not run.returncode


def bandwidth() -> None:
    """All-reduces between GPUs, in workers of launch and of torchrun."""
    if gpus() < 2:
        raise LeftOut("it takes two GPUs")
    results = launch(all_reduce, SIZES, timeout=100, **by_nccl(gpus()))
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


def items() -> dict[str, tuple[Callable[[], None], int]]:
    """Returns everything in its order, the heart of it first, with the seconds that each may take.

    What comes late is the first to be left out when the eight minutes are over.
    """
    in_order = {
        "the machine": (machine, 60),
        "two ranks by NCCL": (two_ranks, 90),
        "a hang under NCCL, told": (a_hang, 60),
        "a recording with CUDA's events": (cuda_events, 60),
        "train_ddp.py": (script, 120),
    }
    for chapter, table in gpu_workers.workers().items():
        if any(table.values()):
            run = functools.partial(chapter_workers, chapter)
            in_order[f"workers of chapter {chapter}"] = (run, 100)
    for chapter in ("00", "14"):
        run = functools.partial(chapter_notebook, chapter)
        in_order[f"chapter {chapter}"] = (run, 60)
    in_order["tests marked gpu"] = (tests, 120)
    in_order["bandwidth"] = (bandwidth, 60)
    in_order["chapter 04"] = (functools.partial(chapter_notebook, "04"), 240)
    return in_order


def main(name: str) -> int:
    """Runs one item; returns 0 where all is well, 3 where it is left out, else 1."""
    run, _limit_s = items()[name]
    try:
        run()
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
