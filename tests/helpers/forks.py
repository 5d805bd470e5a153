"""Which processes stem from this one, however far away they are by now."""

import mmap
import os
from pathlib import Path

try:
    LIMIT = int(Path("/proc/sys/kernel/pid_max").read_text())
except OSError:
    LIMIT = 100_000  # as on macOS


class Forks:
    """A byte for every process id, in memory that all forks share: each fork sets its own.

    So an orphan is known for whose it is, and so is a segment whose maker is dead, also while
    other tests run beside this one.

    Args:
        file: where the bytes are, for who wants to read them from another program.
    """

    def __init__(self, file: Path | None = None) -> None:
        if file is None:
            self._noted = mmap.mmap(-1, LIMIT)
        else:
            with file.open("r+b") as opened:
                self._noted = mmap.mmap(opened.fileno(), LIMIT)
        os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        self._noted[os.getpid()] = 1

    def forget(self) -> None:
        """Begin anew, so that a number that is given a second time stands for nothing old."""
        for pid in pids(self._noted):
            self._noted[pid] = 0

    def pids(self) -> set[int]:
        """Every process that was forked since, dead or alive."""
        return pids(self._noted)


def pids(noted: bytes | mmap.mmap) -> set[int]:
    """The numbers whose byte is set."""
    found, at = set(), noted.find(b"\1")
    while at >= 0:
        found.add(at)
        at = noted.find(b"\1", at + 1)
    return found


def segments(forked: set[int]) -> set[str]:
    """What is in /dev/shm of these processes, whose numbers stand in the names."""
    names = os.listdir("/dev/shm")
    return {name for name in names if any(f"_{pid}_" in f"_{name}_" for pid in forked)}
