"""What a rank starts ends with it: processes that it forks, and programs that it runs.

The system tells a forked process that its parent is gone, if the thread that has forked it lives
as long as the parent. Of a program nobody tells, nor of a process that a helper thread has
forked. For these the rank starts, once and only then, a guard: a shell that waits for the rank's
end, and ends the rank's process group.
"""

import contextlib
import ctypes
import functools
import multiprocessing.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any

LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
# Of the process group, which ends with it. It is no child of the rank, which may wait for those.
_GUARD = "exec 3<&0; (read line; kill -KILL 0) <&3 >/dev/null 2>&1 &"
_TRACKER = "multiprocessing.resource_tracker"


class Descendants:
    """All that one rank starts; its process ids stand in `pids`, a file that all ranks share."""

    def __init__(self, pids: FileIO) -> None:
        self._pids = pids
        self._rank = 0
        self._guards_end = -1  # the rank's end of the pipe by which its guard hears of its end
        self._kept: list[subprocess.Popen] = []
        self._lock = threading.RLock()
        self._is_main = True  # who forks is the main thread

    def take_along(self) -> None:
        """In a rank, before anything of the learner's runs."""
        die_with_parent()
        self._rank = os.getpid()
        self._note(self._rank)
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)
        self._guarding(subprocess.Popen, "__init__")
        self._guarding(os, "system")
        if hasattr(multiprocessing.util, "spawnv_passfds"):  # private: else law 8 holds less far
            multiprocessing.util.spawnv_passfds = self._spawn(multiprocessing.util.spawnv_passfds)

    def _note(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # no room left
            self._pids.write(f"{pid}\n".encode())

    def _before_fork(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        if not self._is_main:
            self._start_guard()

    def _in_child(self) -> None:
        if self._is_main:
            die_with_parent()
        self._note(os.getpid())
        if self._guards_end >= 0:  # else the guard would wait for this process as well
            os.close(self._guards_end)
            self._guards_end = -1

    def _guarding(self, owner: Any, name: str) -> None:
        start = getattr(owner, name)

        @functools.wraps(start)
        def start_guarded(*args: Any, **options: Any) -> Any:
            self._start_guard()
            return start(*args, **options)

        setattr(owner, name, start_guarded)

    def _spawn(self, spawn: Callable) -> Callable:
        """What `multiprocessing` starts Python with."""

        def spawn_guarded(path: Any, args: Sequence, files: Sequence[int]) -> int:
            self._start_guard()
            if not any(_TRACKER in os.fsdecode(word) for word in args):
                pid = spawn(path, args, files)
                self._note(pid)
                return pid
            # It removes what is left when this rank is dead, so it must not be stopped with it.
            tracker = subprocess.Popen(args, executable=path, pass_fds=files, process_group=0)
            self._kept.append(tracker)
            return tracker.pid

        return spawn_guarded

    def _start_guard(self) -> None:
        """In the rank itself: the end of what it has forked is not that of its group."""
        if os.getpid() != self._rank:
            return
        with self._lock:
            if self._guards_end >= 0:
                return
            with contextlib.suppress(OSError):  # no descriptor, no process or no shell
                reading, self._guards_end = os.pipe()
                with open(reading, "rb"):
                    subprocess.Popen(["/bin/sh", "-c", _GUARD], stdin=reading).wait()


def die_with_parent() -> None:
    """Have this process killed when the one that forked it is gone."""
    if sys.platform == "linux":
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
