"""What happens inside one worker, from the fork to its end."""

import builtins
import contextlib
import faulthandler
import getpass
import logging
import multiprocessing.process
import multiprocessing.util
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from course_utils.launcher import errors, nested, shutdown, stack_writer, torch_private, transport
from course_utils.launcher.descendants import Descendants, share_folder_with_spawned
from course_utils.launcher.language import _, in_two_languages
from course_utils.launcher.libc import LIBC
from course_utils.launcher.listener import Listener
from course_utils.launcher.rendezvous import Rendezvous
from course_utils.launcher.shutdown import PendingWork
from course_utils.launcher.worker_handle import WorkerHandle

_STREAMS = (  # descriptor, mode and name
    (0, "r", "stdin"),
    (1, "w", "stdout"),
    (2, "w", "stderr"),
)
current_worker: "WorkerMain | None" = None  # the worker that this process is; None in the kernel


@dataclass
class WorkerMain:
    """One rank as it finds itself after the fork.

    Attributes:
        handle: The rank uses its `worker_socket`, `output_writer` and `stack_file`.
        kernel_pid: Process id of the parent.
        has_reported: The kernel has a result or a failure, so it finds this rank settled.
        pid: Of this rank; a process that its function forks has a different one.
    """

    handle: WorkerHandle
    kernel_pid: int
    listeners: Sequence[Listener]
    descendants: Descendants
    has_reported: bool = False
    pid: int = 0

    def run(
        self, fn: Callable, args: tuple, rendezvous: Rendezvous, backend: str | None
    ) -> NoReturn:
        """Become the rank, run the learner's function, hand over its result, and never return."""
        global current_worker
        torch.set_num_threads(1)  # first: the kernel's OpenMP threads did not survive the fork
        current_worker = self
        self.pid = os.getpid()
        try:
            shutdown.disown_kernel_state()
            self._bind_to_kernel()
            self._capture_output()
            self._answer_signals()
            nested.refuse_launchers()
            self._run_function(fn, args, rendezvous, backend)
        except BaseException as error:
            self._report_failure(error)
        finally:
            # The kernel has a result, or a failure, or neither: then what `_report_failure` itself
            # raised is on its way through here. In all three cases the rest of this rank's life
            # follows, and nothing after it.
            self._park_until_killed(unreported=sys.exception())

    # `stacks` knows methods by their names. A rank's stack begins in this one, `_report_failure` or
    # `_park_until_killed` (`ENTRY_POINTS`). If this one stands in `_call_function`, `_flush` or
    # `_send`, the rank has joined the others (`CALLED_AFTER_JOINING`).
    def _run_function(
        self, fn: Callable, args: tuple, rendezvous: Rendezvous, backend: str | None
    ) -> None:
        rank = self.handle.rank
        os.environ.update(rendezvous.environment(rank))
        multiprocessing.util.get_temp_dir = rendezvous.make_folder
        share_folder_with_spawned(rendezvous.make_folder)
        _set_debug_level()
        with contextlib.ExitStack() as listening:
            for listener in self.listeners:
                listening.enter_context(listener.in_worker(rank))
            if backend is None:
                rendezvous.serve(rank)
            else:
                rendezvous.join(backend, rank)
            result = self._call_function(fn, args)
        self._flush()
        try:
            self._send(transport.RESULT, result)
            self.has_reported = True
        except Exception as error:
            note, in_english = in_two_languages(_why_it_cannot_be_sent, result, error)
            self._report_failure(error, note, in_english)

    def _call_function(self, fn: Callable, args: tuple) -> Any:
        """What the function returns; a script that ends by `sys.exit(main())` returns nothing."""
        try:
            result = fn(*args)
        except BaseException as error:
            if self._is_a_fork_of_the_rank():
                self._exit_fork(error)
            if isinstance(error, SystemExit) and error.code in (None, 0):
                return None
            raise
        if self._is_a_fork_of_the_rank():
            self._exit_fork(None)
        return result

    def _is_a_fork_of_the_rank(self) -> bool:
        """Whether this process isn't the rank itself, but one that the learner's code forked."""
        return os.getpid() != self.pid

    def _exit_fork(self, error: BaseException | None) -> NoReturn:
        """End this process, a fork of the rank, as a program ends.

        It has returned from the learner's function as the rank will: left alone, it would send a
        result, and the kernel would take that for the rank's.

        Args:
            error: What the function raised in this process, if it did.
        """
        status = 0
        try:
            status = self._print_how_the_fork_ends(error)
            shutdown.flush_files()
            self._flush()
        finally:
            os._exit(status)

    def _print_how_the_fork_ends(self, error: BaseException | None) -> int:
        """Print why this process, a fork of the rank, ends; returns its exit status."""
        rank = self.handle.rank
        if isinstance(error, SystemExit):  # `sys.exit()` is how such a process should end
            if error.code is None:
                return 0
            if isinstance(error.code, int):
                return error.code & 0xFF  # what the system keeps of it
            print(error.code, file=sys.stderr)
            return 1
        if error is None:
            message = _(
                "A process that rank {rank} has forked returned from the function, too. Only what "
                "the rank itself returns counts: end the other process by os._exit(0).",
                rank=rank,
            )
        else:
            failure = errors.from_exception(rank, error)
            message = _(
                "A process that rank {rank} has forked failed: {story}",
                rank=rank,
                story=failure.story(),
            )
        print(message, file=sys.stderr)
        return 0 if error is None else 1

    def _send(self, kind: bytes, value: Any) -> None:
        transport.send(self.handle.worker_socket, kind, value)

    def _bind_to_kernel(self) -> None:
        """Live as long as the kernel, in a process group of the system that only this rank has."""
        os.setpgid(0, 0)  # the stop button signals the kernel's group; the kernel stops its workers
        _reset_signals()
        self.descendants.bind_to_this_rank()
        if os.getppid() != self.kernel_pid:
            os._exit(1)  # the kernel died before the system could be asked to watch it

    def _capture_output(self) -> None:
        """Send everything printed, by Python or by C++, to the kernel through one pipe."""
        nothing_to_read = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing_to_read, 0)
        os.dup2(self.handle.output_writer.fileno(), 1)
        os.dup2(1, 2)
        if nothing_to_read != 0:  # it is where the kernel has closed its own
            os.close(nothing_to_read)
        self.handle.output_writer.close()
        _replace_streams()
        builtins.input = no_keyboard
        getpass.getpass = no_keyboard
        sys.breakpointhook = no_keyboard

    def _answer_signals(self) -> None:
        """Write a stack at a crash and whenever the kernel asks for it, and hear SIGINT again."""
        stack_file = self.handle.stack_file
        faulthandler.enable(file=stack_file)  # all threads: the crashing one may be C's
        faulthandler.enable = _keeping_our_file(faulthandler.enable)
        stack_writer.start_answering(self.handle.stack_signals, stack_file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def _flush(self) -> None:
        """Before the kernel hears of the end: from then on it may stop this rank."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the learner closed it, or replaced it
                stream.flush()
        LIBC.fflush(None)  # what compiled code printed

    def _report_failure(self, error: BaseException, note: str = "", in_english: str = "") -> None:
        """Report to the kernel; what is raised meanwhile is a failure as well, and goes instead."""
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises wherever we are
            error = _dead_loader(error) or error
            failure = errors.from_exception(self.handle.rank, error, note, in_english)
            with contextlib.suppress(Exception):  # it may be what failed
                self._flush()
            self._send(transport.FAILED, failure)
            self.has_reported = True
        except BaseException as second_error:
            self._report_second_failure(error, second_error)

    def _report_second_failure(self, error: BaseException, second_error: BaseException) -> None:
        """Report what was raised while a failure was reported, and where that failure was."""
        second_error = second_error.with_traceback(error.__traceback__)
        failure = errors.from_exception(self.handle.rank, second_error)
        failure.headline = _(
            "{headline} (raised while a {exception} was told)",
            headline=failure.headline,
            exception=type(error).__name__,
        )
        self._send(transport.FAILED, failure)
        self.has_reported = True

    def _park_until_killed(self, unreported: BaseException | None) -> NoReturn:
        """Shut down as a program does, but hold the connections to peers until the kernel kills.

        Args:
            unreported: What was raised and not yet reported, if anything was.
        """
        try:
            if not self.has_reported:  # no failure ends in silence
                if unreported is None:
                    unreported = RuntimeError(_("its end cannot be told"))
                self._report_failure(unreported)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            shutdown.shut_down(self._report_pending_work)
            self._flush()
            self._send(transport.SHUT_DOWN, None)
            while True:
                time.sleep(3600)
        finally:
            os._exit(1)  # destructors of process groups can wait for each other

    def _report_pending_work(self, work: PendingWork) -> None:
        self._send(transport.PENDING, work)


def _reset_signals() -> None:
    """Handle signals as a new Python does; SIGINT stays blocked until `_answer_signals`."""
    signal.set_wakeup_fd(-1)  # otherwise our signals would wake the kernel's event loop
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops a press that has come since the fork
    # No press reaches this rank's group. But a thread of the learner's may interrupt the rank's
    # main thread by `_thread.interrupt_main`, such as a timer that watches how long it takes.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_debug_level() -> None:
    """Follow TORCH_DISTRIBUTED_DEBUG, which torch has read when the notebook imported it.

    Under DETAIL every DDP model on gloo crashes (torch 2.15), under torchrun as well. INFO names
    the parameters that a loss left out, too.
    """
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") in ("INFO", "DETAIL"):
        dist.set_debug_level(dist.DebugLevel.INFO)


def _why_it_cannot_be_sent(result: Any, error: Exception) -> str:
    """In words, with the place within the result."""
    try:
        place = transport.place_of_what_fails(result)
    except Exception:  # the object is odd; what is known of it must be told all the same
        place = ""
    if isinstance(error, transport.IsDistributedTensorError):
        if place:
            return _(
                "its result has a DTensor at {place}, of which each rank holds a part: call "
                "full_tensor() on every rank, and return that.",
                place=place,
            )
        return _(
            "its result is a DTensor, of which each rank holds a part: call full_tensor() on "
            "every rank, and return that."
        )
    note = _(
        "its result, a {kind}, cannot be sent back: {exception}: {words}",
        kind=type(result).__name__,
        exception=type(error).__name__,
        words=errors.first_line(error),
    )
    lines = [note]
    if place:
        lines.append(_("That is what stands at {place} in it.", place=place))
    lines.append(_("Return tensors, numbers, strings, and lists or dicts of these."))
    return "\n  ".join(lines)


def _replace_streams() -> None:
    """Give this rank new streams over descriptors 0 to 2.

    The kernel's own stream objects bypass these descriptors, and handlers of logging hold them.
    """
    kernels_streams = {sys.stdout, sys.stderr}
    options = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
    for descriptor, mode, name in _STREAMS:
        stream = open(descriptor, mode, buffering=1, **options)  # noqa: SIM115, it stays open
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for reference in logging._handlerList:
        handler = reference()
        if getattr(handler, "stream", None) in kernels_streams:
            handler.stream = sys.stderr  # setStream would flush the old, whose lock may be held


def _keeping_our_file(enable: Callable) -> Callable:
    """Replaces `faulthandler.enable` in the learner's function: reports of crashes stay ours."""

    def enable_in_a_file(file: Any = None, all_threads: bool = True, **options: Any) -> None:
        if file not in (None, sys.stderr):
            enable(file, all_threads, **options)

    return enable_in_a_file


def _dead_loader(error: BaseException) -> BaseException | None:
    """What torch says of a DataLoader's worker that was killed, if that is why a connection broke.

    The connection breaks a moment before the system says that the worker has ended.
    """
    look = torch_private.find("torch._C:_error_if_any_worker_fails")
    if look is None or not isinstance(error, OSError | EOFError):
        return None
    if not multiprocessing.process._children:
        return None
    try:
        for _attempt in range(20):
            look()
            time.sleep(0.01)
    except RuntimeError as killed:
        return killed.with_traceback(error.__traceback__)
    return None


def no_keyboard(*arguments: object, **options: object) -> NoReturn:
    """Instead of what would ask the browser, which hears no rank, or a terminal."""
    raise EOFError(
        _("a rank has no keyboard: ask in the cell, hand that to launch; to debug, print")
    )
