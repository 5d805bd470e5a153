"""The kernel's side of a launch: one handle per rank, all watched together, none left behind."""

import contextlib
import ctypes
import fcntl
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import FileIO
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from course_utils.launcher import echoes, errors, ports, reasons, shutdown, transport
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.descendants import Descendants
from course_utils.launcher.drained_queues import DrainedQueues
from course_utils.launcher.errors import StacksByRank
from course_utils.launcher.language import _
from course_utils.launcher.libc import LIBC
from course_utils.launcher.listener import Listener
from course_utils.launcher.rendezvous import Rendezvous
from course_utils.launcher.shutdown import PendingWork
from course_utils.launcher.stacks import from_dump
from course_utils.launcher.stop_button import Stopped
from course_utils.launcher.worker import WorkerMain
from course_utils.launcher.worker_handle import WorkerHandle

_GRACE_S = 0.5  # after a failure, for the rank that caused it to report as well
_TERMINATE_S = 1.0  # between SIGTERM and SIGKILL, for ranks to shut down as a program does
_POLL_S = 0.1
_STACK_S = 3.0  # for all ranks to write their stacks; longer on a slow machine
_PAUSE_HARD = 2  # OpenMP 5's `omp_pause_hard`, which gives everything back
_FORKED = 0x40  # Linux's flag PF_FORKNOEXEC: the process was forked and has not called exec
# If two threads fork at once, one of them fails in filelock, which torch brings (Python >= 3.12).
_FORKING = threading.Lock()


class WorkerGroup:
    """All ranks of one launch.

    Attributes:
        workers: A handle for each rank, by rank.
        timeout_s: Seconds from the last fork until all must be done; listeners may extend it.
        unfinished: A sentence for each rank whose function had returned but which hadn't ended.
    """

    def __init__(
        self, world_size: int, nodes: int, timeout_s: float, listeners: Sequence[Listener]
    ) -> None:
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.listeners = listeners
        self.workers: list[WorkerHandle] = []
        self.unfinished: list[str] = []
        self._rendezvous = Rendezvous(world_size, nodes, timeout_s)
        self._kernel_pid = os.getpid()
        self._listener_exits = contextlib.ExitStack()
        self._failed_listeners: list[Listener] = []
        self._pids: FileIO | None = None  # process ids of the ranks and of all that they fork
        self._rank_to_start = 0
        self._watched_since_s = 0.0  # all ranks are forked; their timeout counts from here
        self._deadline_s = 0.0  # on the system's monotonic clock
        self._press_times_s: list[float] = []  # when the stop button was pressed
        self._ranks_are_stopped = False  # or have ended by themselves: nothing is left to `_stop`

    def output(self) -> list[str]:
        """What each rank has printed."""
        return [worker.output.text() for worker in self.workers]

    def output_pieces(self) -> list[list[tuple[str, str]]]:
        """The same, cut at the marks in it; see `CapturedOutput.pieces`."""
        return [worker.output.pieces() for worker in self.workers]

    def start(self, fn: Callable, args: tuple, backend: str | None) -> None:
        """Have all listeners get ready, and fork every rank.

        Raises:
            WorkerError: The system has no process, descriptor, memory or address left.
        """
        try:
            self._open(listens=backend is None)
            self._fork(fn, args, backend)
        except OSError as error:
            reason = reasons.of_start(error, self._rank_to_start, self.world_size)
            # A plain RuntimeError has a traceback, for which IPython would open files as well.
            raise errors.WorkerError([reason], self.output()) from None

    def _open(self, listens: bool) -> None:
        """Open in the kernel what the ranks inherit."""
        for listener in self.listeners:
            listener.on_start(self.world_size)
            self._listener_exits.callback(listener.on_exit)
        LIBC.fflush(None)  # otherwise every rank prints again what compiled code has printed
        self._rendezvous.open(listens)
        self._pids = FileIO(transport.anonymous_file("pids"), "r+")
        fcntl.fcntl(self._pids, fcntl.F_SETFL, os.O_APPEND)  # no process overwrites another's id
        for rank in range(self.world_size):
            self._rank_to_start = rank
            worker = WorkerHandle(rank)
            self.workers.append(worker)  # before it opens anything, so that `close` closes it
            worker.open()

    def _fork(self, fn: Callable, args: tuple, backend: str | None) -> None:
        _end_openmp_threads()
        # A rank unblocks each when it has a handler for it, see `WorkerMain`.
        blocked = [signal.SIGINT]
        for worker in self.workers:
            blocked += worker.stack_signals
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            # Little is written between two forks: each page written to is copied once more.
            for worker in self.workers:
                self._rank_to_start = worker.rank
                with _FORKING, shutdown.tracker_kept():
                    worker.pid = os.fork()
                if worker.pid == 0:
                    self._become_rank(worker, fn, args, backend)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        self._rendezvous.after_fork()
        for worker in self.workers:
            worker.after_fork()

    def _become_rank(
        self, worker: WorkerHandle, fn: Callable, args: tuple, backend: str | None
    ) -> NoReturn:
        """In the fork: close what belongs to the kernel and to other ranks, then be the rank."""
        try:
            for other in self.workers:
                if other is not worker:
                    other.close()
            worker.kernel_socket.close()
            worker.output_reader.close()
            descendants = Descendants(self._pids)
            worker_main = WorkerMain(worker, self._kernel_pid, self.listeners, descendants)
            worker_main.run(fn, args, self._rendezvous, backend)
        finally:
            os._exit(1)  # no rank goes on with what the kernel was doing

    def results(self, press_times_s: list[float]) -> list[Any]:
        """Wait for what every rank returns. Whatever is raised, `close` stops the ranks.

        Args:
            press_times_s: When the stop button was pressed; empty until it is.

        Returns:
            By rank, what its function returned.

        Raises:
            Stopped: The stop button was pressed before all functions had returned.
            WorkerError: A rank failed.
            WorkerTimeout: The ranks weren't done in time, or never will be.
        """
        self._press_times_s = press_times_s
        self._watched_since_s = time.monotonic()
        self._deadline_s = self._watched_since_s + self.timeout_s
        hang_is_proven = False
        unsettled = self.workers
        while unsettled:
            if self._press_times_s:
                raise Stopped
            if hang_is_proven:
                break
            self._move_deadline()
            seconds_left = self._deadline_s - time.monotonic()
            if seconds_left < 0:
                break
            hang_is_proven = self._poll(self.workers, seconds_left)
            unsettled = self._unsettled()
        if unsettled or self._failures():
            error = self._error(unsettled, hang_is_proven)
            self._stop()  # before `close` does, since the error says what was unfinished
            error.parts += self.unfinished
            raise error
        self._wait_until_ended()
        return [worker.result for worker in self.workers]

    def _unsettled(self) -> list[WorkerHandle]:
        return [worker for worker in self.workers if not worker.settled]

    def _still_ending(self) -> list[WorkerHandle]:
        return [worker for worker in self.workers if not worker.is_over]

    def _failures(self) -> list[errors.Failure]:
        return [worker.failure for worker in self.workers if worker.failure]

    def _move_deadline(self) -> None:
        """Move it closer after a failure; else, when time is up, to what the listeners grant."""
        failures = self._failures()
        if failures:
            for failure in failures:
                self._deadline_s = min(self._deadline_s, failure.when + _GRACE_S)
        elif time.monotonic() > self._deadline_s:
            for listener in self.listeners:
                with self._survived(listener):
                    self.timeout_s = max(self.timeout_s, listener.on_timeout())
            self._deadline_s = self._watched_since_s + self.timeout_s

    def _poll(self, awaited: Sequence[WorkerHandle], seconds_left: float) -> bool:
        """Wait for a moment until one of these ranks says something or ends; read all ranks.

        Returns:
            Whether a listener has proven that the ranks will never be done.
        """
        _wait_for_any(awaited, min(_POLL_S, seconds_left))
        for worker in self.workers:
            worker.read()
        return self._poll_listeners()

    def _poll_listeners(self, final: bool = False) -> bool:
        """Let the listeners look, but for those that have failed, and return what `_poll` does."""
        hang_is_proven = False
        for listener in self.listeners:
            if listener in self._failed_listeners and not final:
                continue
            with self._survived(listener):
                if listener.on_poll(self.workers, final):
                    hang_is_proven = True
        return hang_is_proven

    @contextlib.contextmanager
    def _survived(self, listener: Listener) -> Iterator[None]:
        """Within, a listener that fails ends no launch; it is told of once."""
        try:
            yield
        except Exception as error:
            if listener not in self._failed_listeners:
                self._failed_listeners.append(listener)
                _warn_about(listener, error)

    def _wait_until_ended(self) -> None:
        """All ranks have returned: wait until they have ended as a program does, or time is up.

        Once the stop button is pressed, ranks have as long to save something as after a failure.
        """
        drained = DrainedQueues()
        ending = self._still_ending()
        try:
            while ending:
                if self._press_times_s:
                    self._deadline_s = min(self._deadline_s, self._press_times_s[0] + _TERMINATE_S)
                seconds_left = self._deadline_s - time.monotonic()
                if seconds_left < 0:
                    break
                self._poll(ending, seconds_left)
                if _may_wait_for_a_reader(ending):
                    drained.take()
                ending = self._still_ending()
        finally:
            drained.give_back()
        self._ranks_are_stopped = True  # each has ended by itself, or its time is up
        self._note_unfinished()

    def _note_unfinished(self) -> None:
        """Say of each rank that had returned or failed how it did not end as a program does."""
        for worker in self.workers:
            if worker.late_death:
                sentence = _(
                    "After its function was over, rank {rank} did not end as a program does: "
                    "{death}. What it returned is safe.",
                    rank=worker.rank,
                    death=worker.late_death,
                )
                self.unfinished.append(sentence)
            elif worker.settled and not worker.is_over:
                if self._press_times_s and worker.pending_work is None:
                    continue  # it was on its way to its end, and waited for nothing
                self.unfinished.append(_was_stopped(worker))

    def _error(self, unsettled: list[WorkerHandle], hang_is_proven: bool) -> errors.WorkerError:
        """What went wrong; a listener may say it better."""
        now_s = time.monotonic()
        failures = self._failures()
        stacks: StacksByRank = {}
        if failures:
            error = self._worker_error(failures, unsettled)
        else:
            stacks = self._stacks(unsettled)
            seconds = math.inf if hang_is_proven else self.timeout_s
            error = errors.worker_timeout(stacks, self.output(), seconds, now_s)
        self._let_listeners_explain(stacks, error)
        if not failures:
            reason = reasons.unknown_host(self.output())
            if reason:
                error.parts.append(errors.likely_reason(reason))
        return error

    def _let_listeners_explain(self, stacks: StacksByRank, error: errors.WorkerError) -> None:
        for listener in self.listeners:
            try:
                listener.on_error(stacks, error)
            except Exception as wrong:  # a listener that fails mustn't hide the error
                note = _(
                    "{name} could not explain it: {exception}: {words}",
                    name=type(listener).__name__,
                    exception=type(wrong).__name__,
                    words=wrong,
                )
                error.add_note(note)

    def _worker_error(
        self, failures: list[errors.Failure], unsettled: list[WorkerHandle]
    ) -> errors.WorkerError:
        output = self.output()
        error = errors.worker_error(failures, self.world_size, output)
        root_cause = error.failures[0]
        winner = self._winner_of_port(root_cause, unsettled)
        if winner is not None:
            return errors.race_error(failures, winner, self.world_size, output)
        if root_cause.echo != echoes.WAITED or not unsettled:
            return error
        # A rank gave up waiting for others, so it helps to know where those are.
        stacks = self._stacks(unsettled)
        stacks_of_unsettled = {}
        for worker in unsettled:
            stacks_of_unsettled[worker.rank] = stacks[worker.rank]
        return errors.worker_error(failures, self.world_size, output, stacks_of_unsettled)

    def _winner_of_port(
        self, root_cause: errors.Failure, unsettled: list[WorkerHandle]
    ) -> int | None:
        """The rank that listens on the port that a failed one wanted; None if that is not why."""
        port = ports.port_in_use(root_cause.headline)
        if port is None:
            return None
        pids = {worker.rank: worker.pid for worker in unsettled}
        return ports.who_listens(port, pids)

    def _stacks(self, unsettled: list[WorkerHandle]) -> StacksByRank:
        """Where every rank is, as `Listener.on_error` gets it."""
        for worker in unsettled:
            worker.request_stack()
        deadline = Deadline(_STACK_S)
        late = unsettled
        while late and not deadline.is_over():
            time.sleep(0.02)
            late = [worker for worker in late if not worker.has_written_stack()]
            for worker in late:
                worker.ask_again_if_late()
        stacks: StacksByRank = {worker.rank: None for worker in self.workers}
        for worker in unsettled:
            stacks[worker.rank] = from_dump(worker.read_stack())
        return stacks

    def _stop(self) -> None:
        """End all ranks as `torchrun` does: SIGTERM, then 1 s; SIGKILL follows in `close`."""
        if self._ranks_are_stopped:
            return
        self._ranks_are_stopped = True
        unsettled = self._unsettled()
        # All of them stand still before the first one ends: the others would notice and say so.
        for worker in unsettled:
            worker.signal_all(signal.SIGSTOP)
        for worker in unsettled:
            worker.terminate()
        for worker in unsettled:
            worker.signal_all(signal.SIGCONT)
        deadline_s = time.monotonic() + _TERMINATE_S
        while self._still_ending() and time.monotonic() < deadline_s:
            _wait_for_any(self._still_ending(), _POLL_S)
            for worker in self.workers:
                worker.read()
        self._note_unfinished()

    def close(self) -> None:
        """Stop whatever still runs and give everything back.

        These steps run in order. One that raises doesn't keep the later ones from running.
        """
        steps: list[Callable[[], object]] = [self._stop]
        for worker in self.workers:
            steps.append(worker.kill_all)
        for worker in self.workers:
            steps.append(worker.reap)
        last_poll = partial(self._poll_listeners, final=True)
        steps.append(last_poll)
        for worker in self.workers:
            steps.append(worker.close)
        steps += [self._rendezvous.close, self._remove_segments, self._listener_exits.close]
        with contextlib.ExitStack() as callbacks:
            for step in reversed(steps):  # an ExitStack begins with the last one
                callbacks.callback(step)

    def _remove_segments(self) -> None:
        """Remove what the ranks' processes have left in shared memory, unless they still live."""
        pids_of_ranks = {worker.pid for worker in self.workers}
        dead_pids = set()
        for pid in self._noted_pids():
            if not _has_left_its_rank(pid, pids_of_ranks):
                dead_pids.add(pid)
        remove_segments(dead_pids)

    def _noted_pids(self) -> list[int]:
        if self._pids is None:
            return []
        self._pids.seek(0)
        text = self._pids.read()
        self._pids.close()
        return [int(pid) for pid in text.split()]


def _was_stopped(worker: WorkerHandle) -> str:
    """A sentence about a rank whose function was over, and that waited for something."""
    work = worker.pending_work or PendingWork(_("something of its own"))
    return _(
        "After its function was over, rank {rank} was stopped, as it still waited for "
        "{description}{place}.",
        rank=worker.rank,
        description=work.description,
        place=work.place(),
    )


def _may_wait_for_a_reader(ending: Iterable[WorkerHandle]) -> bool:
    """Whether ranks may be unable to end because nobody reads a queue of the notebook.

    Only if each rank that still ends has said what it waits for, and no rank waits for a thread:
    that may be who reads the queue.
    """
    for worker in ending:
        if worker.pending_work is None or worker.pending_work.is_thread:
            return False
    return True


def _warn_about(listener: Listener, error: Exception) -> None:
    warning = _(
        "The launch goes on without its listener {name}, which failed: {exception}: {words}",
        name=type(listener).__name__,
        exception=type(error).__name__,
        words=error,
    )
    warnings.warn(warning, RuntimeWarning, stacklevel=2)


def _has_left_its_rank(pid: int, ranks: set[int]) -> bool:
    """Whether a process lives on in a process group of the system that is none of the ranks'."""
    try:
        return os.getpgid(pid) not in ranks
    except OSError:  # it's gone
        return False


def _wait_for_any(workers: Iterable[WorkerHandle], seconds: float) -> None:
    """Wait until one of these ranks has something to read, or so many seconds have passed."""
    waitables = []
    for worker in workers:
        waitables += worker.waitables()
    wait(waitables, seconds)


def _end_openmp_threads() -> None:
    """End the threads with which this thread of the kernel has computed; it gets new ones later.

    A fork doesn't inherit them, and a rank that asks for several by `torch.set_num_threads(2)`
    would wait for them forever. Threads with which other threads of the kernel compute are left
    alone. So is a kernel that is a fork itself: it may lack its threads, and would wait for them.
    """
    with contextlib.suppress(OSError, AttributeError):  # a different OpenMP, as on macOS
        openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        status = Path("/proc/self/stat").read_text()
        _name, _bracket, rest = status.rpartition(")")
        fields = rest.split()
        flags = int(fields[6])
        if not flags & _FORKED:
            openmp.omp_pause_resource_all(_PAUSE_HARD)


def remove_segments(owners: set[int]) -> None:
    """Remove what these processes, which are dead by now, have left in shared memory.

    Torch makes a segment for every tensor that a DataLoader worker hands over, and removes its
    name at once. A worker that is stopped in between leaves the segment forever.
    """
    owner_names = {str(pid) for pid in owners}
    with contextlib.suppress(OSError):  # no descriptor is left to look with
        for segment in Path("/dev/shm").glob("torch_*_*"):
            _torch, owner_name, *_rest = segment.name.split("_")
            if owner_name in owner_names:
                segment.unlink(missing_ok=True)
