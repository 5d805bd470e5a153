"""The kernel's side of a launch: one member per rank, all watched together, none left behind."""

import contextlib
import ctypes
import fcntl
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from io import FileIO
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from course_utils.launcher import echoes, errors, reasons, shutdown, transport
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.descendants import LIBC, Descendants
from course_utils.launcher.listener import Listener
from course_utils.launcher.queues import Drained
from course_utils.launcher.rendezvous import Rendezvous
from course_utils.launcher.shutdown import AtWork
from course_utils.launcher.stacks import Frame, from_dump
from course_utils.launcher.worker import WorkerMain
from course_utils.launcher.worker_handle import WorkerHandle

_GRACE_S = 0.5  # after a failure, for the one that caused it to be heard as well
_END_S = 1.0  # for ranks that are stopped to end as a program does that receives SIGTERM
_DRAIN_S = 0.2  # until queues are read that keep a rank from ending
_TICK_S = 0.1
_STACK_S = 3.0  # for all ranks to write where they are; longer on a slow machine
_PAUSE_HARD = 2  # of OpenMP 5: `omp_pause_hard` gives everything back
_FORKED = 0x40  # a flag of Linux: PF_FORKNOEXEC, forked and since then no program of its own
# From Python 3.12 on, of two threads that fork at once, filelock, which torch brings, fails one.
_FORKING = threading.Lock()


class Stopped(KeyboardInterrupt):
    """The stop button was pressed. All ranks are gone, and IPython shows one line."""

    def _render_traceback_(self) -> list[str]:
        return ["Stopped; nothing is left running."]


class WorkerGroup:
    """All ranks of one launch."""

    def __init__(
        self, world_size: int, nodes: int, timeout: float, listeners: Sequence[Listener]
    ) -> None:
        self.world_size, self.timeout, self.listeners = world_size, timeout, listeners
        self.members: list[WorkerHandle] = []
        self._kernel = os.getpid()
        self.meet = Rendezvous(world_size, nodes, timeout)
        self._listening = contextlib.ExitStack()
        self._opened = contextlib.ExitStack()
        self._pids: FileIO | None = None  # of all that ranks have forked
        self.unfinished: list[str] = []  # sentences on what was stopped after its function was over
        self._has_stopped = False

    def close(self) -> None:
        """Stop whoever still runs and give everything back, whatever else goes wrong."""
        steps = [self._stop]
        steps += [m.kill for m in self.members] + [m.reap for m in self.members]
        steps += [partial(listener.on_poll, self.members, True) for listener in self.listeners]
        steps += [m.close for m in self.members]
        steps += [self.meet.close, self._remove_segments, self._listening.close]
        with contextlib.ExitStack() as taken:  # from the last to the first
            for step in reversed(steps):
                taken.callback(step)

    def _remove_segments(self) -> None:
        """Remove what the ranks' processes have left in shared memory, but of those that live."""
        groups = {member.pid for member in self.members}
        dead = set()
        if self._pids:
            self._pids.seek(0)
            for pid in map(int, self._pids.read().split()):
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) not in groups:
                        continue  # it has left its rank, and lives
                dead.add(pid)
        self._opened.close()
        remove_segments(dead)

    def output(self) -> list[str]:
        """What each rank has printed."""
        return [member.text() for member in self.members]

    def pieces(self) -> list[list[tuple[str, str]]]:
        """The same, cut at the marks in it; see `WorkerHandle.pieces`."""
        return [member.pieces() for member in self.members]

    def start(self, fn: Callable, args: tuple, backend: str | None) -> None:
        """Let all who listen get ready, and fork every rank."""
        rank = 0
        try:
            for listener in self.listeners:
                listener.on_start(self.world_size)
                self._listening.callback(listener.on_exit)
            LIBC.fflush(None)  # what compiled code has printed, which every rank would print again
            self.meet.open(listens=backend is None)
            self._pids = FileIO(transport.anonymous_file("pids"), "r+")
            self._opened.callback(self._pids.close)
            fcntl.fcntl(self._pids, fcntl.F_SETFL, os.O_APPEND)  # each behind the others
            for rank in range(self.world_size):
                self.members.append(
                    WorkerHandle(rank)
                )  # first, so that `close` finds what was opened
                self.members[rank].open()
            _end_openmp_threads()
            # Blocked until a rank can answer, and ignores the stop button.
            not_yet = [signal.SIGINT, *self.members[0].signals]
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, not_yet)
            try:
                for rank in range(self.world_size):  # a page written on in between is copied again
                    with _FORKING, shutdown.tracker_kept():
                        pid = self.members[rank].pid = os.fork()
                    if pid == 0:
                        self._become(rank, fn, args, backend)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self.meet.forked()
            for member in self.members:
                member.watch()
        except OSError as error:  # the system has no process, descriptor, memory or address left
            sentence = reasons.of_start(error, rank, self.world_size)
            # Not a plain RuntimeError: to show its traceback, IPython would open files as well.
            raise errors.WorkerError([sentence], self.output()) from None

    def _become(self, rank: int, fn: Callable, args: tuple, backend: str | None) -> NoReturn:
        """In the fork: let go of the other ranks' ends and of the kernel's, and work."""
        try:
            own = self.members.pop(rank)
            for end in (*self.members, own.channel, own.pipe):
                end.close()
            worker = WorkerMain(own, self._kernel, self.listeners, Descendants(self._pids))
            worker.run(fn, args, self.meet, backend)
        finally:
            os._exit(1)  # no rank goes on with what the kernel was doing

    def results(self, pressed: list[int]) -> list[Any]:
        """Wait for what every rank returns; whatever is raised, `close` stops the ranks."""
        begun = time.monotonic()
        deadline = begun + self.timeout
        while running := [member for member in self.members if not member.settled]:
            if pressed:
                raise Stopped
            failed_at = [member.failure.when for member in self.members if member.failure]
            deadline = min([deadline, *(when + _GRACE_S for when in failed_at)])
            left = deadline - time.monotonic()
            if left < 0 and not failed_at and deadline > 0:  # else it was proven that they hang
                self.timeout = max([self.timeout, *(each.on_timeout() for each in self.listeners)])
                deadline = begun + self.timeout
                left = deadline - time.monotonic()
            if left < 0:
                break
            # Until a rank says something or ends, or it is time to look at the clock.
            wait([end for member in self.members for end in member.waitables()], min(_TICK_S, left))
            for member in self.members:
                member.read()
            if True in [listener.on_poll(self.members) for listener in self.listeners]:
                deadline = -math.inf
        if running or any(member.failure for member in self.members):
            error = self._error(running, deadline)
            self._stop()
            error.parts += self.unfinished
            raise error
        self._let_end(deadline, pressed)
        return [member.result for member in self.members]

    def _let_end(self, deadline: float, pressed: list[int]) -> None:
        """Wait until all ranks that are done have ended as a program does, or time is up."""
        begun, drained = time.monotonic(), Drained()
        while ending := [member for member in self.members if not member.is_over]:
            left = deadline - time.monotonic()
            if left < 0:
                break
            if pressed:  # nobody waits any longer, and what all have returned is here
                pressed.clear()
                break
            wait([end for member in ending for end in member.waitables()], min(_TICK_S, left))
            for member in self.members:
                member.read()
            for listener in self.listeners:
                listener.on_poll(self.members)
            if time.monotonic() > begun + _DRAIN_S:
                drained.take()
        drained.give_back()
        self._has_stopped = True
        self._note_unfinished()

    def _note_unfinished(self) -> None:
        for member in self.members:
            rank = member.rank
            if member.died_late:
                over = f"""After its function was over, rank {rank} did not end as a program does: \
{member.died_late}. What it returned is safe."""
                self.unfinished.append(over)
            elif member.settled and not member.is_over:
                work = member.at_work or AtWork("something of its own")
                what, place = work.what, work.place()
                over = f"""After its function was over, rank {rank} was stopped, as it still \
waited for {what}{place}."""
                self.unfinished.append(over)

    def _stop(self) -> None:
        """Have all ranks end as `torchrun` does: SIGTERM, a while, then SIGKILL by `close`."""
        if self._has_stopped:
            return
        self._has_stopped = True
        working = [member for member in self.members if not member.settled]
        # Who still works stands still before the first one ends: it would notice, and say so.
        for member in working:
            member.kill(signal.SIGSTOP)
        for member in working:
            member.ask_to_end()
        for member in working:
            member.kill(signal.SIGCONT)
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            ending = [member for member in self.members if not member.is_over]
            if not ending:
                break
            wait([end for member in ending for end in member.waitables()], _TICK_S)
            for member in self.members:
                member.read()
        self._note_unfinished()

    def _error(self, running: list[WorkerHandle], deadline: float) -> errors.WorkerError:
        """What went wrong, which whoever listens may say better."""
        ranks, now = {}, time.monotonic()
        if failures := [member.failure for member in self.members if member.failure]:
            error = errors.worker_error(failures, self.world_size, self.output())
            if error.failures[0].echo == echoes.WAITED and running:
                stands = self._stacks(running)
                others = {member.rank: stands[member.rank] for member in running}
                error = errors.worker_error(failures, self.world_size, self.output(), others)
        else:
            ranks = self._stacks(running)
            seconds = self.timeout if deadline > 0 else math.inf
            error = errors.worker_timeout(ranks, self.output(), seconds, now)
        for listener in self.listeners:
            try:
                listener.on_error(ranks, error)
            except Exception as wrong:  # it hides no error
                name = type(listener).__name__
                error.add_note(f"{name} could not explain it: {type(wrong).__name__}: {wrong}")
        if not failures and (reason := reasons.unknown_host(self.output())):
            error.parts.append(f"Likely reason: {reason}.")
        return error

    def _stacks(self, running: list[WorkerHandle]) -> dict[int, list[Frame] | None]:
        """Where every rank is, as `Listener.on_error` has it."""
        for member in running:
            member.request_stack()
        deadline = Deadline(_STACK_S)
        while False in [m.has_written_stack() for m in running] and not deadline.is_over():
            time.sleep(0.02)
        return {m.rank: from_dump(m.read_stack()) if m in running else None for m in self.members}


def _end_openmp_threads() -> None:
    """End the threads with which this thread of the kernel has computed; it gets new ones later.

    No fork inherits them. A rank that asks for several by `torch.set_num_threads(2)` would wait
    for them for ever. Threads with which other threads of the kernel compute stay as they are.
    A kernel that is a fork itself may lack its threads already, and would wait for their end.
    """
    with contextlib.suppress(OSError, AttributeError):  # a different OpenMP, as on macOS
        openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        _, _, fields = Path("/proc/self/stat").read_text().rpartition(")")
        flags = int(fields.split()[6])
        if not flags & _FORKED:
            openmp.omp_pause_resource_all(_PAUSE_HARD)


def remove_segments(owners: set[int]) -> None:
    """Remove what these processes, which are dead by now, have left in shared memory.

    Torch makes a segment for every tensor that a DataLoader worker hands over, and removes its
    name at once. A worker that is stopped in between leaves the segment for ever.
    """
    with contextlib.suppress(OSError):  # no descriptor left to look
        for segment in Path("/dev/shm").glob("torch_*_*"):
            if segment.name.split("_")[1] in map(str, owners):
                segment.unlink(missing_ok=True)
