"""How a rank shuts down: as a program does, except that it goes on holding its connections.

When a function has returned or failed, `torchrun` lets Python end: threads that still save come to
their end, processes are joined and queues written, functions of `atexit` run, files are flushed.
A rank does all of this as well. What it has inherited is left alone: the kernel will end by itself.

So there are three moments:

    tracker_kept          in the kernel, around the fork
    disown_kernel_state   in the rank, right after it: forget what the kernel does at its end
    shut_down             in the rank, when its function has returned or failed
"""

import atexit
import contextlib
import gc
import io
import logging
import multiprocessing.context
import multiprocessing.process
import multiprocessing.util
import os
import queue
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from logging.handlers import QueueHandler, QueueListener
from multiprocessing import resource_tracker
from types import FrameType

from course_utils.launcher.language import _
from course_utils.launcher.stacks import ENTRY_POINTS, Frame

_FIRST_REPORT_S = 0.3  # until it is reported what keeps the rank from ending
_NEXT_REPORT_S = 0.5  # until it is reported again
_SEGMENTS = "/dev/shm"
_exit_functions_at_start = 0  # how many this rank had before the learner's function began


@dataclass
class PendingWork:
    """What a rank is still waiting for although its function is over.

    Attributes:
        description: Such as `thread saver`.
        frame: Where that stands, in the learner's code.
        is_thread: A thread of the learner's, which may be reading a queue of the notebook.
    """

    description: str
    frame: Frame | None = None
    is_thread: bool = False

    def place(self) -> str:
        """Such as `, at cell [3], line 7, in save: time.sleep(100)`."""
        if self.frame is None:
            return ""
        return _(", at {line}", line=self.frame.place_and_code)


def disown_kernel_state() -> None:
    """Right after the fork: forget what the kernel would do when it ends."""
    global _exit_functions_at_start
    atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)
    _restart_log_listeners()
    gc.freeze()  # also, from now on `gc.get_objects` has only what this rank has made
    _forget_finalizers()
    _keep_exit_calls_of_executors()
    _forget_processes()
    _forget_records()
    _start_processes_by_fork()
    _exit_functions_at_start = atexit._ncallbacks()


# Python has no public way to any of these. If one is missing, a rank still ends, if less fully.
def _forget_finalizers() -> None:
    """Such as those of temporary folders, which would remove the kernel's."""
    finalize = weakref.finalize
    if hasattr(finalize, "_registry"):
        finalize._kernels = finalize._registry  # kept: what they hold mustn't be finalised either
        finalize._registry = {}
        finalize._registered_with_atexit = False


def _keep_exit_calls_of_executors() -> None:
    """Keep what ends the threads of an executor, which runs before threads are joined."""
    calls = getattr(threading, "_threading_atexits", [])
    calls[:] = [call for call in calls if _module(call).startswith("concurrent.futures.")]
    # A cell may launch from a thread of an executor's: that is the rank's main thread now.
    executors = sys.modules.get("concurrent.futures.thread")
    queues_by_thread = getattr(executors, "_threads_queues", {})
    queues_by_thread.pop(threading.current_thread(), None)


def _module(call: Callable) -> str:
    function = getattr(call, "func", call)
    return getattr(function, "__module__", None) or ""


def _forget_processes() -> None:
    """Do as `multiprocessing` does in each process that it forks."""
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.process._children = set()  # the kernel's, which would be terminated at the end
    multiprocessing.util._run_after_forkers()  # a queue gets a thread that writes it
    tracker = resource_tracker._resource_tracker
    if getattr(tracker, "_fd", None) is not None:
        _track_alone(tracker)


@contextlib.contextmanager
def tracker_kept() -> Iterator[None]:
    """A fork within knows the kernel's tracker, and so which segments are the kernel's.

    Since 3.14 Python closes it in a child unless it is told, as `multiprocessing` does.
    """
    intent = getattr(resource_tracker, "_fork_intent", None)
    if intent is None:
        yield
        return
    intent.preserve_fd = True
    try:
        yield
    finally:
        intent.preserve_fd = False


def _start_processes_by_fork() -> None:
    """Start processes as this rank was: a server that forks them knows no cell of a notebook.

    On macOS, and from Python 3.14 on Linux too, a server would be the default.
    """
    choice = getattr(multiprocessing.context, "_default_context", None)
    if not hasattr(choice, "_default_context"):
        return
    if choice._actual_context is choice._default_context:  # not chosen, but used by the kernel
        choice._actual_context = None
    choice._default_context = multiprocessing.get_context("fork")


def _track_alone(kernels_tracker: resource_tracker.ResourceTracker) -> None:
    """Have segments and semaphores of this rank removed when it ends, not when the kernel ends."""
    kernels_segments: set[str] = set()
    with contextlib.suppress(OSError):
        names = os.listdir(_SEGMENTS)
        kernels_segments.update(names)

    class Tracker(resource_tracker.ResourceTracker):
        def _send(self, command: str, name: str, kind: str) -> None:
            file = name.lstrip("/")
            semaphores_file = f"sem.{file}"
            if file in kernels_segments or semaphores_file in kernels_segments:
                kernels_tracker._send(command, name, kind)
            else:
                super()._send(command, name, kind)

    tracker = Tracker()
    resource_tracker._resource_tracker = tracker
    for function in ("ensure_running", "register", "unregister", "getfd"):
        setattr(resource_tracker, function, getattr(tracker, function))


def _forget_records() -> None:
    """Records that a log handler of the kernel hasn't yet handed on are not this rank's."""
    for handler in _log_handlers():
        buffered = getattr(handler, "buffer", None)
        if isinstance(buffered, list):
            buffered.clear()


def _restart_log_listeners() -> None:
    """Have this rank's own threads write what is logged into a queue: a fork has no threads.

    Each gets a new queue, in which no record of the kernel waits, and which no thread holds.
    """
    handlers = [handler for handler in _log_handlers() if _logs_into_a_queue(handler)]
    if not handlers:
        return
    for listener in gc.get_objects():
        if not issubclass(type(listener), QueueListener):
            continue
        if getattr(listener, "_thread", None) is None:
            continue
        served = [handler for handler in handlers if handler.queue is listener.queue]
        listener.queue = queue.SimpleQueue()
        for handler in served:
            handler.queue = listener.queue
        listener._thread = None
        listener.start()
        atexit.register(listener.stop)  # which waits until all is written


def _logs_into_a_queue(handler: logging.Handler) -> bool:
    """Whether it logs into a queue within this process; one between processes needs no thread."""
    if not isinstance(handler, QueueHandler):
        return False
    return isinstance(handler.queue, queue.Queue | queue.SimpleQueue)


def _log_handlers() -> list[logging.Handler]:
    handlers = [reference() for reference in logging._handlerList]
    return [handler for handler in handlers if handler is not None]


def shut_down(report: Callable[[PendingWork], None]) -> None:
    """End as Python does.

    Args:
        report: Hears again and again what keeps the rank from ending.
    """
    if not _has_something_to_wait_for():
        _take_every_step()  # without a thread that watches, which would take 1 ms of each launch
        return
    is_over = threading.Event()
    arguments = report, is_over, threading.get_ident()
    watching = threading.Thread(target=_report_until, args=arguments, daemon=True)
    watching.start()
    _take_every_step()
    is_over.set()
    watching.join()


def _has_something_to_wait_for() -> bool:
    """Whether the learner's function has left threads, processes or functions for the end."""
    has_threads = threading.active_count() > 1
    has_processes = bool(multiprocessing.process._children)
    has_exit_functions = atexit._ncallbacks() > _exit_functions_at_start
    return has_threads or has_processes or has_exit_functions


def _take_every_step() -> None:
    for step in (_join_threads, atexit._run_exitfuncs, flush_files, _end_tracker):
        try:
            step()
        except BaseException:
            traceback.print_exc()  # as Python does at its end, and goes on


def _join_threads() -> None:
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        # It joins the threads of an executor. If it fails, no thread is joined, as in Python.
        call()
    threads = _threads_at_work()
    while threads:
        for thread in threads:
            thread.join()
        threads = _threads_at_work()  # those may have started others


def _threads_at_work() -> list[threading.Thread]:
    current = threading.current_thread()
    at_work = []
    for thread in threading.enumerate():
        if thread is not current and not thread.daemon:
            at_work.append(thread)
    return at_work


def flush_files() -> None:
    """Write what stands in the buffers of files that this rank has opened and not closed."""
    base = io.IOBase.__base__  # without the abstract class, which takes ten times as long to ask
    # The type is asked, not the object: `isinstance` reads `__class__` of it, and that may raise,
    # as it does of a proxy whose object is gone.
    files = [value for value in gc.get_objects() if issubclass(type(value), base)]
    texts = []
    buffers = []
    others = []  # such as a GzipFile
    for file in files:
        if isinstance(file, io.TextIOWrapper):
            texts.append(file)
        elif isinstance(file, io.BufferedWriter | io.BufferedRandom):
            buffers.append(file)
        elif not isinstance(file, io.BufferedReader | io.FileIO):
            others.append(file)
    for text in texts:
        with contextlib.suppress(Exception):
            text.flush()
    for other in others:
        with contextlib.suppress(Exception):
            if other.writable():
                other.close()  # which writes its last block
    for buffer in buffers:
        with contextlib.suppress(Exception):
            buffer.flush()


def _end_tracker() -> None:
    """Let it remove what is left, and wait for it: the kernel stops all that still runs."""
    tracker = resource_tracker._resource_tracker
    stop = getattr(tracker, "_stop", None)
    if stop and getattr(tracker, "_pid", None):
        stop()


def _report_until(
    report: Callable[[PendingWork], None], is_over: threading.Event, main_thread: int
) -> None:
    seconds = _FIRST_REPORT_S
    while not is_over.wait(seconds):
        seconds = _NEXT_REPORT_S
        with contextlib.suppress(Exception):
            report(_pending_work(main_thread))


def _pending_work(main_thread: int) -> PendingWork:
    """Who keeps this rank from ending: a thread, a process, or a function of `atexit`."""
    frames = sys._current_frames()
    for thread in _threads_at_work():
        if thread.ident != main_thread:
            description = _("thread {name}", name=thread.name)
            frame = _learners_frame(frames.get(thread.ident))
            return PendingWork(description, frame, is_thread=True)
    frame = _learners_frame(frames.get(main_thread))
    for process in multiprocessing.process._children:
        description = _("process {name}", name=process.name)
        return PendingWork(description, frame)
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            description = _("a queue that nobody reads")
            return PendingWork(description, frame)
    description = _("what was registered with atexit")
    return PendingWork(description, frame)


def _learners_frame(innermost: FrameType | None) -> Frame | None:
    """The learner's line of a stack; below our own frames lies the cell that launched."""
    pythons_frame = innermost
    while pythons_frame and pythons_frame.f_code.co_name not in ENTRY_POINTS:
        code = pythons_frame.f_code
        frame = Frame(code.co_filename, pythons_frame.f_lineno or 0, code.co_name)
        if frame.is_learners:
            return frame
        pythons_frame = pythons_frame.f_back
    return None
