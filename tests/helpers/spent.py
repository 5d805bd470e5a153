"""CPU seconds of every test, written down where `--seconds FILE` asks for it.

`tools/seconds.py FILE` makes a table of them. A test's seconds are those of its worker, of all
processes that this has started, and of its kernels; its fixtures' belong to the test that was the
first to ask for them. What daemons spend that have left their family is not counted.
"""

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
KERNELS: list[
    int
] = []  # whom this worker asked for; the process that forks them is another's child


class Seconds:
    """Writes a line for each test.

    Args:
        path: the file; all workers append to it.
        is_master: whether this is the process that hands tests out to workers.
    """

    def __init__(self, path: str, is_master: bool) -> None:
        self.path, self.is_master = path, is_master
        self.of_kernels: dict[int, float] = {}
        self.cpu_s, self.wall_s = 0.0, time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        self.note("collecting")
        result = yield
        self.note("ending")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        self.note(item.nodeid)
        return result

    def note(self, name: str) -> None:
        """Write what was spent since the last line."""
        cpu_s, wall_s = self.spent(), time.monotonic()
        line = {"name": name, "cpu_s": cpu_s - self.cpu_s, "wall_s": wall_s - self.wall_s}
        with open(self.path, "a") as file:  # one write of a short line: workers do not mix
            file.write(json.dumps(line) + "\n")
        self.cpu_s, self.wall_s = cpu_s, wall_s

    def spent(self) -> float:
        """CPU seconds until now, of this process and of all that descend from it."""
        own = of_usage(resource.RUSAGE_SELF)
        if self.is_master:  # its descendants are workers, who count for themselves
            return own
        for kernel in KERNELS:
            now = of_process(kernel) + sum(map(of_process, descendants(kernel)))
            self.of_kernels[kernel] = max(now, self.of_kernels.get(kernel, 0.0))
        running = sum(map(of_process, descendants(os.getpid())))
        return own + of_usage(resource.RUSAGE_CHILDREN) + running + sum(self.of_kernels.values())


def of_usage(whose: int) -> float:
    """CPU seconds of this process, or of its children that have ended."""
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def of_process(pid: int) -> float:
    """CPU seconds of a process and of the children that it has buried; 0 if it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    behind_the_name = stat.rpartition(")")[2].split()
    return sum(map(int, behind_the_name[11:15])) / TICKS


def descendants(pid: int) -> list[int]:
    """All processes that live and that this one, or one of them, has started."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            numbers = [int(number) for number in children.read_text().split()]
        except OSError:  # the thread has just ended
            continue
        for number in numbers:
            found += [number, *descendants(number)]
    return found
