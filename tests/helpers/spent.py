"""CPU seconds of every test, written down where `--seconds FILE` asks for it.

`course_tools.measure.cpu_seconds` makes a table of them. A test's seconds are its worker's, of all
processes that this has started, and of its kernels; its fixtures' belong to the test that was the
first to ask for them. What daemons spend that have left their family is not counted.
"""

import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
# By process id when it was started: kernels that this worker asked for. What forks them is no
# child of this worker.
KERNELS: dict[int, str] = {}


class Seconds:
    """Writes a line for each test.

    Args:
        path: the file; all workers append to it.
        is_master: whether this is the process that hands tests out to workers.
    """

    def __init__(self, path: str, is_master: bool) -> None:
        self.path, self.is_master = path, is_master
        self.of_kernels: dict[str, float] = {}
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
        for kernel, started in list(KERNELS.items()):
            if start_of(kernel) != started:  # it has ended, and the number may be a stranger's
                del KERNELS[kernel]
                continue
            now = of_process(kernel) + sum(map(of_process, descendants(kernel)))
            self.of_kernels[started] = max(now, self.of_kernels.get(started, 0.0))
        running = sum(map(of_process, descendants(os.getpid())))
        return own + of_usage(resource.RUSAGE_CHILDREN) + running + sum(self.of_kernels.values())


def of_usage(whose: int) -> float:
    """CPU seconds of this process, or of its children that have ended."""
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def count(kernel: int) -> None:
    """Count a kernel's seconds from now on."""
    KERNELS[kernel] = start_of(kernel)


def start_of(pid: int) -> str:
    """When a process was started, and its number; empty if it is not there."""
    fields = stat(pid)
    return f"{pid} {fields[19]}" if fields else ""


def of_process(pid: int) -> float:
    """CPU seconds of a process and of the children that it has buried; 0 if it is not there."""
    return sum(map(int, stat(pid)[11:15])) / TICKS


def stat(pid: int) -> list[str]:
    """What stands in /proc behind a process' name; empty if it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """All processes that live and that this one, or one of them, has started."""
    found = []
    for number in children(pid):
        found += [number, *descendants(number)]
    return found


def children(pid: int) -> list[int]:
    """The processes that live and that a process has started; none if it is not there."""
    numbers = []
    with contextlib.suppress(OSError):  # it has just ended
        for listed in list(Path(f"/proc/{pid}/task").glob("*/children")):
            with contextlib.suppress(OSError):  # this thread has just ended
                numbers += map(int, listed.read_text().split())
    return numbers
