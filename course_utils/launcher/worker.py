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

from course_utils.launcher import errors, nested, shutdown, stack_writer, transport
from course_utils.launcher.descendants import LIBC, Descendants
from course_utils.launcher.listener import Listener
from course_utils.launcher.rendezvous import Rendezvous
from course_utils.launcher.worker_handle import WorkerHandle

current_worker: "WorkerMain | None" = None  # the worker that this process is; None in the kernel


@dataclass
class WorkerMain:
    """One rank as it finds itself after the fork."""

    own: WorkerHandle  # of its ends the rank has `theirs`, `output` and `stack`
    kernel: int  # process id of the parent
    listeners: Sequence[Listener]
    family: Descendants
    has_told: bool = False  # the kernel has a result or a failure

    def run(self, fn: Callable, args: tuple, meet: Rendezvous, backend: str | None) -> NoReturn:
        """Become the rank, run the learner's function, hand over its result, and never return."""
        global current_worker
        torch.set_num_threads(1)  # first: the kernel's OpenMP threads did not survive the fork
        current_worker = self
        try:
            shutdown.leave_the_kernels_alone()
            self._live_and_die_with_the_kernel()
            self._capture_output()
            nested.refuse_launchers()
            self._run_function(fn, args, meet, backend)
        except BaseException as error:
            self._tell_failure(error)
        finally:
            self._park_until_killed()

    # `stacks` looks for `_run_function` and `_park_until_killed`: there a rank's own stack begins.
    def _run_function(
        self, fn: Callable, args: tuple, meet: Rendezvous, backend: str | None
    ) -> None:
        rank = self.own.rank
        os.environ.update(meet.environment(rank))
        multiprocessing.util.get_temp_dir = meet.folder
        with contextlib.ExitStack() as listening:
            for listener in self.listeners:
                listening.enter_context(listener.in_worker(rank))
            if backend is None:
                meet.serve(rank)
            else:
                meet.join(backend, rank)
            result = _call_function(fn, args)
        self._let_out()
        try:
            transport.send(self.own.theirs, transport.RESULT, result)
            self.has_told = True
        except Exception as error:
            self._tell_failure(error, self._why_it_cannot_be_sent(result, error))

    def _why_it_cannot_be_sent(self, result: Any, error: Exception) -> str:
        """In words, with the place within the result."""
        place = transport.place_of_what_fails(result)
        if isinstance(error, transport.HoldsAPartError):
            what = f"its result has a DTensor at {place}" if place else "its result is a DTensor"
            return f"""{what}, of which each rank holds a part: call full_tensor() on every rank, \
and return that."""
        kind = type(result).__name__
        note = f"its result, a {kind}, cannot be sent back: {type(error).__name__}: {error}"
        if place:
            note += f"\n  That is what stands at {place} in it."
        note += "\n  Return tensors, numbers, strings, and lists or dicts of these."
        return note

    def _live_and_die_with_the_kernel(self) -> None:
        os.setpgid(0, 0)  # the stop button signals the kernel's group; the kernel stops its workers
        signal.set_wakeup_fd(-1)  # else our signals would wake the kernel's event loop
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # forgets a press that hit the fork
        # For a watchdog of the learner's; no press reaches this rank's own group.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.family.take_along()  # DataLoader workers, too
        if os.getppid() != self.kernel:
            os._exit(1)  # the kernel died before it could be watched

    def _capture_output(self) -> None:
        """Send everything printed, by Python or by C++, to the kernel through one pipe."""
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nowhere, 0), (self.own.output.fileno(), 1), (1, 2)):
            os.dup2(source, target)
        os.close(nowhere)
        self.own.output.close()
        old = {sys.stdout, sys.stderr}
        # The kernel's own stream objects bypass descriptors 1 and 2, and log handlers hold them.
        how = {"buffering": 1, "encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = open(number, "w" if number else "r", **how)  # noqa: SIM115, it stays open
            vars(sys).update({name: stream, f"__{name}__": stream})
        builtins.input = getpass.getpass = sys.breakpointhook = no_keyboard
        for reference in logging._handlerList:
            handler = reference()
            if getattr(handler, "stream", None) in old:
                handler.stream = sys.stderr  # setStream would flush the old, whose lock may be held
        faulthandler.enable(file=self.own.stack)  # all threads: the crashing one may be in C
        faulthandler.enable = _enable_in_a_file(faulthandler.enable)
        stack_writer.answer(self.own.signals, self.own.stack)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def _let_out(self) -> None:
        """Before the kernel hears the end: it may stop this rank at once."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the learner closed it, or put in another
                stream.flush()
        LIBC.fflush(None)  # what compiled code printed

    def _tell_failure(self, error: BaseException, note: str = "") -> None:
        """Tell the kernel; what is raised meanwhile is a failure as well, and is told instead."""
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises wherever we are
            error = _dead_loader(error) or error
            failure = errors.from_exception(self.own.rank, error, note)
            with contextlib.suppress(Exception):  # it may be what failed
                self._let_out()
            transport.send(self.own.theirs, transport.FAILED, failure)
            self.has_told = True
        except BaseException as another:
            self._tell_last(error, another)

    def _tell_last(self, error: BaseException, another: BaseException) -> None:
        """Tell what was raised while a failure was told, and where that failure was."""
        another = another.with_traceback(error.__traceback__)
        failure = errors.from_exception(self.own.rank, another)
        failure.headline += f" (raised while a {type(error).__name__} was told)"
        transport.send(self.own.theirs, transport.FAILED, failure)
        self.has_told = True

    def _park_until_killed(self) -> NoReturn:
        """End as a program, but hold what peers are connected to until the kernel kills it."""
        try:
            if not self.has_told:  # whatever was raised, no failure ends in silence
                self._tell_failure(sys.exc_info()[1] or RuntimeError("its end cannot be told"))
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            shutdown.end(lambda work: transport.send(self.own.theirs, transport.AT_WORK, work))
            self._let_out()
            transport.send(self.own.theirs, transport.ENDED, None)
            while True:
                time.sleep(3600)
        finally:
            os._exit(1)  # destructors of process groups can wait for each other


def _enable_in_a_file(enable: Callable) -> Callable:
    """Of `faulthandler.enable()` in the learner's function: ours goes on, whose words are read."""

    def enabled(file: Any = None, all_threads: bool = True, **more: Any) -> None:
        if file not in (None, sys.stderr):
            enable(file, all_threads, **more)

    return enabled


def _call_function(fn: Callable, args: tuple) -> Any:
    """What the function returns; a script that ends by `sys.exit(main())` returns nothing."""
    try:
        return fn(*args)
    except SystemExit as ended:
        if ended.code in (None, 0):
            return None
        raise


def _dead_loader(error: BaseException) -> BaseException | None:
    """What torch says of a DataLoader's worker that was killed, if that is why a connection broke.

    The connection breaks a moment before the system says that the worker has ended.
    """
    look = getattr(torch._C, "_error_if_any_worker_fails", None)  # private: else it stays unsaid
    if look is None or not isinstance(error, OSError | EOFError):
        return None
    try:
        for _ in range(20 if multiprocessing.process._children else 0):
            look()
            time.sleep(0.01)
    except RuntimeError as killed:
        return killed.with_traceback(error.__traceback__)
    return None


def no_keyboard(*_: object, **__: object) -> NoReturn:
    """Instead of what would ask the browser, which hears no rank, or a terminal."""
    raise EOFError("a rank has no keyboard: ask in the cell, hand that to launch; to debug, print")
