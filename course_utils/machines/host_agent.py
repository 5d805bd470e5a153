"""Watches over a host that is a loopback address: when its input ends, its programs do.

A script. It is told the process group of each program in a line; its input ends when the kernel
closes the pipe or dies. Programs that left their group, as torchrun's ranks do, are found on Linux
by the environment variable COURSE_HOST, whose value is the first argument; elsewhere they get a
second in which torchrun stops its ranks.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def with_mark(mark: str) -> set[int]:
    """Processes that have the host's mark in their environment."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"COURSE_HOST={mark}\0".encode() in entry.read_bytes():
                found.add(int(entry.parent.name))
    return found


def stop(groups: list[int], mark: str) -> None:
    """End them, first on request, then without."""
    for number in () if Path("/proc/self/environ").exists() else (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            with contextlib.suppress(OSError):
                os.killpg(group, number)
        time.sleep(1.0 * (number == signal.SIGTERM) * bool(groups))
    while left := with_mark(mark):  # some may have been started while we looked
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    print(flush=True)  # ready
    stop([int(line) for line in sys.stdin], sys.argv[1])
