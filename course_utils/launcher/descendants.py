"""What a rank starts ends with it: processes that it forks, and programs that it runs.

The system tells a forked process that its parent is gone, provided that the thread which forked it
lives as long as the parent. It tells neither a program nor a process that a helper thread forked.
For these the rank starts a guard, once and only when it is needed: a shell that waits for the
rank's end and then kills the rank's process group.
"""

import _thread
import contextlib
import functools
import multiprocessing.context
import multiprocessing.process
import multiprocessing.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, BinaryIO

from course_utils.launcher.libc import LIBC

_PR_SET_PDEATHSIG = 1
# A shell starts the guard and ends at once, so the guard isn't the rank's child: a learner's code
# may wait for all of its children. The guard is in the rank's process group, so its `kill 0` ends
# that group and the guard with it.
_GUARD = "exec 3<&0; (read line; kill -KILL 0) <&3 >/dev/null 2>&1 &"
_TRACKER = "multiprocessing.resource_tracker"


class Descendants:
    """All processes that one rank starts.

    Args:
        pids: An open file, shared by all ranks, into which every process id is written.
    """

    def __init__(self, pids: FileIO) -> None:
        self._pids = pids
        self._rank_pid = 0
        # A pipe's writing end, once a guard waits at the other end: it hears when this one closes.
        self._lifeline: int | None = None
        self._trackers: list[subprocess.Popen] = []  # else Python warns that one still runs
        self._lock = threading.RLock()
        self._fork = threading.local()  # several threads may fork at once

    def bind_to_this_rank(self) -> None:
        """In a rank, before anything of the learner's runs: note all that it starts from now on."""
        die_with_parent()
        self._rank_pid = os.getpid()
        self._note(self._rank_pid)
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)
        self._guard_before(subprocess.Popen, "__init__")
        self._guard_before(os, "system")
        spawn = getattr(multiprocessing.util, "spawnv_passfds", None)
        if spawn is not None:  # private: without it, such programs outlive a kernel that dies
            multiprocessing.util.spawnv_passfds = self._guarded_spawn(spawn)

    def _note(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # no room left
            self._pids.write(f"{pid}\n".encode())

    def _before_fork(self) -> None:
        this_thread = threading.current_thread()
        self._fork.is_by_main_thread = this_thread is threading.main_thread()
        if not self._fork.is_by_main_thread:
            self._start_guard()

    def _in_child(self) -> None:
        if self._fork.is_by_main_thread:
            die_with_parent()
        self._note(os.getpid())
        if self._lifeline is not None:  # otherwise the guard would wait for this process as well
            os.close(self._lifeline)
            self._lifeline = None

    def _guard_before(self, owner: Any, name: str) -> None:
        """Have a function or method start the guard before it does what it does."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def guarded(*args: Any, **options: Any) -> Any:
            self._start_guard()
            return original(*args, **options)

        setattr(owner, name, guarded)

    def _guarded_spawn(self, spawn: Callable) -> Callable:
        """Replaces the function with which `multiprocessing` starts Python."""

        def spawn_guarded(path: Any, args: Sequence, files: Sequence[int]) -> int:
            self._start_guard()
            words = map(os.fsdecode, args)
            is_tracker = any(_TRACKER in word for word in words)
            if not is_tracker:
                pid = spawn(path, args, files)
                self._note(pid)
                return pid
            # The tracker removes what a dead rank has left, so it mustn't be killed with the rank.
            tracker = subprocess.Popen(args, executable=path, pass_fds=files, process_group=0)
            self._trackers.append(tracker)
            return tracker.pid

        return spawn_guarded

    def _start_guard(self) -> None:
        """In the rank itself: when a process that it has forked ends, its group lives on."""
        if os.getpid() != self._rank_pid:
            return
        with self._lock, contextlib.suppress(OSError):  # no descriptor, no process or no shell
            if self._lifeline is not None:
                return
            reader, self._lifeline = os.pipe()
            with open(reader, "rb") as stdin:
                self._run_guard(stdin)

    def _run_guard(self, stdin: BinaryIO) -> None:
        """Start the guard at a pipe's reading end. If that fails, a later call may try again."""
        try:
            # `Popen` calls `_start_guard`, which finds the lifeline.
            shell = subprocess.Popen(["/bin/sh", "-c", _GUARD], stdin=stdin)
        except OSError:
            os.close(self._lifeline)
            self._lifeline = None
            raise
        shell.wait()


def share_folder_with_spawned(folder: Callable[[], str]) -> None:
    """Have processes that are started by spawn use a folder of their parent's.

    Otherwise each of them makes one, which nobody removes if the process is killed.

    Args:
        folder: Makes the folder if it is not there yet, and returns its path.
    """
    for kind in ("SpawnProcess", "ForkServerProcess"):
        process = getattr(multiprocessing.context, kind)
        process.__init__ = _with_folder(process.__init__, folder)


def _with_folder(start: Callable, folder: Callable[[], str]) -> Callable:
    @functools.wraps(start)
    def start_with_folder(*args: Any, **options: Any) -> None:
        # Its children copy this dictionary when they are made, and look there first.
        multiprocessing.process.current_process()._config["tempdir"] = folder()
        start(*args, **options)

    return start_with_folder


def die_with_parent() -> None:
    """Have this process killed when the one that forked it is gone."""
    if sys.platform == "linux":
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        # No `threading.Thread`: the learner's program would count it, and `stack_writer` would take
        # it for a thread of the learner's, which may still make calls.
        _thread.start_new_thread(_watch_parent, (os.getppid(),))


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
