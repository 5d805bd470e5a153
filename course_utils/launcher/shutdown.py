"""How a rank ends: as a program does, but that it goes on holding its connections.

When a function has returned or failed, `torchrun` lets Python end: threads that still save come to
their end, processes are joined and queues written, functions of `atexit` run, files are flushed.
A rank does all of this as well. What it has inherited is left alone: the kernel will end by itself.
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

from course_utils.launcher.stacks import Frame

_PATIENCE_S, _EVERY_S = 0.3, 0.5  # until it is said who is at work, and until it is said again
_SEGMENTS = "/dev/shm"


@dataclass
class AtWork:
    """What a rank is still waiting for although its function is over."""

    what: str  # such as `thread saver`
    line: Frame | None = None  # of the learner, where it is

    def place(self) -> str:
        """Such as `, at cell [3], line 7, in save: time.sleep(100)`."""
        if self.line is None:
            return ""
        return f", at {self.line.place}: {self.line.code}"


def leave_the_kernels_alone() -> None:
    """Right after the fork: forget what the kernel would do when it ends."""
    atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)
    _restart_log_listeners()
    gc.freeze()  # also, from now on `gc.get_objects` has only what this rank has made
    _forget_finalizers()
    _forget_threads_that_wait()
    _forget_processes()
    _forget_records()
    _start_processes_by_fork()


# Python has no public way to each of these. Without one of them a rank still ends, if less fully.
def _forget_finalizers() -> None:
    """Such as those of temporary folders, which would remove the kernel's."""
    finalize = weakref.finalize
    if hasattr(finalize, "_registry"):
        finalize._kernels = finalize._registry  # kept: what they hold must not be finalised either
        finalize._registry = {}
        finalize._registered_with_atexit = False


def _forget_threads_that_wait() -> None:
    """Keep what ends the threads of an executor, which runs before threads are joined."""
    calls = getattr(threading, "_threading_atexits", [])
    kept = [call for call in calls if _module(call).startswith("concurrent.futures.")]
    calls[:] = kept
    # A cell may launch from a thread of an executor's: that is the rank's main thread now.
    executors = sys.modules.get("concurrent.futures.thread")
    getattr(executors, "_threads_queues", {}).pop(threading.current_thread(), None)


def _module(call: Callable) -> str:
    function = getattr(call, "func", call)
    return getattr(function, "__module__", None) or ""


def _forget_processes() -> None:
    """Do as `multiprocessing` does in each process that it forks."""
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.process._children = set()  # the kernel's, which would be terminated at the end
    multiprocessing.util._run_after_forkers()  # a queue gets a thread that writes it
    if getattr(resource_tracker._resource_tracker, "_fd", None) is not None:
        _track_alone(resource_tracker._resource_tracker)


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
    """As this rank was; a loader's worker that a server forks does not know a notebook's cells.

    On macOS, and from Python 3.14 on Linux too, that would be the default.
    """
    choice = getattr(multiprocessing.context, "_default_context", None)
    if not hasattr(choice, "_default_context"):
        return
    if choice._actual_context is choice._default_context:  # not chosen, but used by the kernel
        choice._actual_context = None
    choice._default_context = multiprocessing.get_context("fork")


def _track_alone(kernels: resource_tracker.ResourceTracker) -> None:
    """Have segments and semaphores of this rank removed when it ends, not when the kernel ends."""
    there = set()
    with contextlib.suppress(OSError):
        there.update(os.listdir(_SEGMENTS))

    class Tracker(resource_tracker.ResourceTracker):
        def _send(self, command: str, name: str, kind: str) -> None:
            file = name.lstrip("/")
            if file in there or f"sem.{file}" in there:
                kernels._send(command, name, kind)
            else:
                super()._send(command, name, kind)

    tracker = Tracker()
    resource_tracker._resource_tracker = tracker
    for function in ("ensure_running", "register", "unregister", "getfd"):
        setattr(resource_tracker, function, getattr(tracker, function))


def _forget_records() -> None:
    """Records that a log handler of the kernel has not yet handed on are not this rank's."""
    for reference in logging._handlerList:
        buffered = getattr(reference(), "buffer", None)
        if isinstance(buffered, list):
            buffered.clear()


def _restart_log_listeners() -> None:
    """The kernel's threads that write what is logged into a queue are in no fork: start our own.

    With a new queue, in which no record of the kernel waits, and no thread.
    """
    handlers = [handler for handler in _log_handlers() if isinstance(handler, QueueHandler)]
    within_a_process = [h for h in handlers if isinstance(h.queue, queue.Queue | queue.SimpleQueue)]
    if not within_a_process:
        return
    listeners = [thing for thing in gc.get_objects() if issubclass(type(thing), QueueListener)]
    for listener in listeners:
        if getattr(listener, "_thread", None) is None:
            continue
        served = [handler for handler in within_a_process if handler.queue is listener.queue]
        listener.queue = queue.SimpleQueue()
        for handler in served:
            handler.queue = listener.queue
        listener._thread = None
        listener.start()
        atexit.register(listener.stop)  # which waits until all is written


def _log_handlers() -> list[logging.Handler]:
    handlers = [reference() for reference in logging._handlerList]
    return [handler for handler in handlers if handler is not None]


def end(say: Callable[[AtWork], None]) -> None:
    """End as Python does; `say` hears what keeps the rank from ending, again and again."""
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(say, over, threading.get_ident()), daemon=True)
    watching.start()
    for step in (_join_threads, atexit._run_exitfuncs, flush_files, _end_tracker):
        try:
            step()
        except BaseException:
            traceback.print_exc()  # as Python does at its end, and goes on
    over.set()
    watching.join()


def _join_threads() -> None:
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        # It joins the threads of an executor itself, so it must not keep us from joining the rest.
        call()
    while threads := _threads_at_work():
        for thread in threads:
            thread.join()


def _threads_at_work() -> list[threading.Thread]:
    current = threading.current_thread()
    return [t for t in threading.enumerate() if t is not current and not t.daemon]


def flush_files() -> None:
    """Write what stands in the buffers of files that this rank has opened and not closed."""
    base = io.IOBase.__base__  # without the abstract class, which takes ten times as long to ask
    files = [value for value in gc.get_objects() if isinstance(value, base)]
    texts = [file for file in files if isinstance(file, io.TextIOWrapper)]
    buffers = [file for file in files if isinstance(file, io.BufferedWriter | io.BufferedRandom)]
    plain = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.BufferedReader, io.FileIO)
    others = [file for file in files if not isinstance(file, plain)]  # such as a GzipFile
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
    """Let it remove what is left, and wait for it: the kernel stops all that is still there."""
    tracker = resource_tracker._resource_tracker
    stop = getattr(tracker, "_stop", None)
    if stop and getattr(tracker, "_pid", None):
        stop()


def _watch(say: Callable[[AtWork], None], over: threading.Event, main: int) -> None:
    wait = _PATIENCE_S
    while not over.wait(wait):
        wait = _EVERY_S
        with contextlib.suppress(Exception):
            say(_at_work(main))


def _at_work(main: int) -> AtWork:
    """Who keeps this rank from ending: a thread, a process, or a function of `atexit`."""
    frames = sys._current_frames()
    threads = [t for t in _threads_at_work() if t.ident != main]
    for thread in threads:
        return AtWork(f"thread {thread.name}", _line(frames.get(thread.ident)))
    line = _line(frames.get(main))
    for process in multiprocessing.process._children:
        return AtWork(f"process {process.name}", line)
    queues = [t for t in threading.enumerate() if t.name == "QueueFeederThread"]
    if queues:
        return AtWork("a queue that nobody reads", line)
    return AtWork("what was registered with atexit", line)


def _line(frame: FrameType | None) -> Frame | None:
    """The learner's line of a stack; below our own frames lies the cell that launched."""
    while frame and frame.f_code.co_name != "_park_until_killed":
        row = Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
        if row.is_learners:
            return row
        frame = frame.f_back
    return None
