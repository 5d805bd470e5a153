"""How many learners does this machine bear? Starts kernels, each of which launches and checks.

    python -m course_tools.measure.server_load --learners 8

All press Shift+Enter at the same moment, which a class does not, and once before it counts. Each
learner has a number of its own, which its ranks add up: a wrong sum would be another learner's.
Prints memory per learner, the median and the slowest time of a round, and ends with 1 if anything
was crossed or failed, or if the slowest learner waited over four times as long as the median one.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import psutil
from jupyter_client import BlockingKernelClient, KernelManager

from course_tools.commands import parser_of
from course_tools.kernels import QUIET

FAIR = 4.0  # the slowest may take so many times what the median takes
PATIENCE_S = 300
BEGIN = """
import os, json, time
os.environ["LEARNER"] = "{learner}"
import torch, torch.distributed as dist
from course_utils import check, launch
from course_checks.cases import CASES

def add_up():
    number = torch.tensor([int(os.environ["LEARNER"])])
    dist.all_reduce(number)
    return int(number)

def total(tensor):
    dist.all_reduce(tensor)
    return tensor

def total_spec(tensors):
    return [sum(tensors)] * len(tensors)

def total_inputs(rank, world_size, case):
    return case.tensor()
"""
ROUND = """
begun = time.monotonic()
sums = launch(add_up, world_size=4, backend="gloo", timeout=100)[:]
passed = bool(check(total, spec=total_spec, inputs=total_inputs, cases=CASES[:3], timeout=100))
print("\\n" + json.dumps([time.monotonic() - begun, sums, passed]))
"""


class Round(NamedTuple):
    """What one learner saw."""

    seconds: float
    right: bool  # the learner's own sum, and a check that passed


@contextmanager
def kernels(count: int) -> Iterator[list[BlockingKernelClient]]:
    """So many kernels, started side by side, that talk over files."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="k"))

        def start(number: int) -> BlockingKernelClient:
            manager = KernelManager(transport="ipc", ip=f"{folder}/{number}", config=QUIET)
            manager.start_kernel(cwd=folder)
            stack.callback(manager.shutdown_kernel, now=True)
            client = manager.client()
            client.start_channels()
            stack.callback(client.stop_channels)
            client.wait_for_ready(timeout=PATIENCE_S)
            return client

        with ThreadPoolExecutor(max(1, count)) as pool:
            clients = pool.map(start, range(count))
            yield list(clients)


def run(client: BlockingKernelClient, text: str) -> str:
    """Execute a cell, and return what it printed.

    Raises:
        RuntimeError: It has failed.
    """
    printed: list[str] = []

    def hear(message: dict) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            printed.append(content["text"])
        if message["msg_type"] == "error":
            raise RuntimeError(f"{content['ename']}: {content['evalue']}")

    client.execute_interactive(text, output_hook=hear, timeout=PATIENCE_S)
    return "".join(printed)


def one_round(client: BlockingKernelClient, learner: int) -> Round:
    """Launch four ranks and check an answer, as one learner does."""
    printed = run(client, ROUND)
    *_above, last_line = printed.splitlines()
    seconds, sums, passed = json.loads(last_line)
    wanted = [4 * learner] * 4
    is_right = passed and sums == wanted
    return Round(seconds, is_right)


def most_memory(pid: int, stop: threading.Event) -> int:
    """The most bytes that a process and its descendants had at once, a shared page counted once."""
    most = 0
    while not stop.wait(0.2):
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
        held = sum(map(_proportional, processes))
        most = max(most, held)
    return most


def _proportional(process: psutil.Process) -> int:
    """Bytes of a process, of a shared page its share; 0 if the process has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def measure(learners: int, rounds: int) -> tuple[list[Round], int]:
    """All rounds of all learners, and the most bytes that they held together."""
    stop = threading.Event()
    numbers = [1000 + learner for learner in range(learners)]
    with kernels(learners) as clients, ThreadPoolExecutor(learners + 1) as pool:
        for number, client in zip(numbers, clients, strict=True):
            cell = BEGIN.format(learner=number)
            client.execute(cell)
        _warm_up = list(pool.map(one_round, clients, numbers))  # it imports what ranks need
        memory = pool.submit(most_memory, os.getpid(), stop)
        results: list[Round] = []
        try:
            for _ in range(rounds):
                results += pool.map(one_round, clients, numbers)
        finally:
            stop.set()
        return results, memory.result()


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    begun = time.monotonic()
    results, memory = measure(args.learners, args.rounds)
    seconds = time.monotonic() - begun
    times = [result.seconds for result in results]
    median = statistics.median(times)
    slowest = max(times)
    ratio = slowest / median
    bytes_of_learner = memory / args.learners
    gigabytes = bytes_of_learner / 1e9
    wrong = [result for result in results if not result.right]
    print(f"{args.learners} learners, {args.rounds} rounds, {seconds:.0f} s in all")
    print(f"memory per learner: {gigabytes:.2f} GB, four ranks counted")
    print(f"a launch and a check: median {median:.1f} s, slowest {slowest:.1f} s")
    print(f"slowest / median: {ratio:.1f} (at most {FAIR:g})")
    print(f"crossed or failed: {len(wrong)}")
    if wrong or ratio > FAIR:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
