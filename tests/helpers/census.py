"""What this process holds: its own, whatever other tests run beside it."""

import contextlib
import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
from forks import Forks, segments

from course_utils.launcher.deadlines import Deadline

FORKS = Forks()
DEAD = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


def census(folder: Path) -> dict[str, Counter[str]]:
    """What this process holds; on macOS what can be seen there."""
    found = {
        "processes": Counter(map(str, family())),
        "threads": Counter([t.name for t in threading.enumerate()]),
        "temporary files": Counter(os.listdir(folder)),
        "environment": Counter(f"{k}={v}" for k, v in os.environ.items() if k[:7] != "PYTEST_"),
        "signal handlers": Counter(f"{s} {signal.getsignal(s)}" for s in signal.valid_signals()),
    }
    if (maps := Path("/proc/self/maps")).exists():
        found |= {
            "native threads": Counter(filter(None, map(thread, Path("/proc/self/task").iterdir()))),
            "descriptors": Counter(filter(None, map(link, Path("/proc/self/fd").iterdir()))),
            "shared memory": Counter(segments(FORKS.pids() | {os.getpid()})),
            "mapped files": Counter(re.findall(r" (/memfd:.*|/dev/shm/.*)", maps.read_text())),
        }
    return found


def thread(entry: Path) -> str:
    """The name of a native thread; a failure says with it whose thread is left."""
    try:
        name = (entry / "comm").read_text().strip()
        return name.removeprefix("jemalloc_bg_thd")  # pyarrow's, which starts when it likes
    except OSError:  # it has just ended
        return ""


def beyond(
    before: dict[str, Counter[str]], after: dict[str, Counter[str]]
) -> dict[str, dict[str, int]]:
    """What is there now and was not before, or the other way round for the environment."""
    more = {name: dict(after[name] - before[name]) for name in after}
    more["no longer in the environment"] = dict(before["environment"] - after["environment"])
    return {name: what for name, what in more.items() if what}


def family() -> set[psutil.Process]:
    """All descendants: this one's children, dead or alive, and what else was forked and lives."""
    found = set(psutil.Process().children(recursive=True))
    for pid in alive(FORKS.pids()):
        with contextlib.suppress(psutil.Error):
            found.add(psutil.Process(pid))
    return found


def link(entry: Path) -> str:
    """The kind of an open descriptor, without its number: `socket`, `pipe`, a path."""
    try:
        return os.readlink(entry).split(":[")[0]
    except OSError:  # the one with which this folder is read
        return ""


def alive(numbers: set[int]) -> set[int]:
    """Those that run; the dead wait for whoever adopted them."""
    found = set()
    for number in numbers:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(number).status() not in DEAD:
                found.add(number)
    return found


def gone_within(numbers: set[int], seconds: float) -> bool:
    """Whether they all end before so many seconds are over, as a quiet machine counts them."""
    deadline = Deadline(seconds)
    while alive(numbers) and not deadline.is_over():
        time.sleep(0.01)
    return not alive(numbers)
