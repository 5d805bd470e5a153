"""A program with a time, after which it is ended with all that it has started.

Its descendants are found by a mark in their environment. To have them by the process group, or by
the tree of processes, isn't enough: torchrun's workers and Jupyter's kernels have sessions of their
own, and whose parent has ended has a new one.
"""

import contextlib
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import psutil

MARK = "COURSE_BOUNDED_PROCESS"
GENTLE_S = 3.0  # between SIGTERM and SIGKILL
POLL_S = 0.2
LAST_WORDS_S = 1.0  # what was printed before the end is still read


class BoundedProcess:
    """A program that runs in a folder for so many seconds at most.

    Attributes:
        was_stopped: Whether it had not ended by then.
    """

    def __init__(
        self, command: list[str], seconds: float, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.was_stopped = False
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            command,
            start_new_session=True,
            env={**environment, MARK: self._mark},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._deadline_s = time.monotonic() + seconds
        self._lines: SimpleQueue[str | None] = SimpleQueue()  # None where the pipe has ended
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def status(self) -> int | None:
        """The status with which the program has ended."""
        return self._process.returncode

    def lines(self) -> Iterator[str]:
        """Yields each line as it comes, until the program has ended or its time is over."""
        yield from self._lines_until(self._deadline_s)
        left_s = max(0.0, self._deadline_s - time.monotonic())
        try:
            self._process.wait(left_s)  # it may have closed its output before its end
        except subprocess.TimeoutExpired:
            self.was_stopped = True
        self._end()
        yield from self._lines_until(time.monotonic() + LAST_WORDS_S)

    def _read(self) -> None:
        """In a thread: take lines from the pipe, which a descendant may hold for ever."""
        for line in self._process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def _lines_until(self, deadline_s: float) -> Iterator[str]:
        """Yields lines until the pipe or the program has ended, or this time has come."""
        while time.monotonic() < deadline_s:
            has_ended = self._process.poll() is not None
            try:
                line = self._lines.get(timeout=POLL_S)
            except Empty:
                if has_ended:  # who holds the pipe now is a descendant that was left behind
                    return
                continue
            if line is None:
                self._lines.put(None)  # for who asks once more
                return
            yield line

    def _end(self) -> None:
        """Ends the program and all that it has started: gently, so that they can clean up."""
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                process.terminate()
        psutil.wait_procs(self._marked(), timeout=GENTLE_S)
        left = self._marked()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=GENTLE_S)

    def _marked(self) -> list[psutil.Process]:
        """Those of this machine's processes that have the mark."""
        marked = []
        for process in psutil.process_iter():
            try:
                mark = process.environ().get(MARK)
            except psutil.Error:  # it has just ended, or belongs to somebody else
                continue
            if mark == self._mark and process.pid != os.getpid():
                marked.append(process)
        return marked
