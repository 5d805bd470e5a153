"""How the kernel asks a rank where it is, without disturbing it.

The first of two signals is blocked in all of the rank but for one thread, which waits for it and
writes the main thread's stack in Python, and those of threads that wait for other ranks. So it
interrupts nothing: no sleep, no handler of the learner's, no wait in C++, which would complain of
an "interrupted system call".

That thread cannot answer while compiled code holds the interpreter's lock. So the kernel sends
the second signal a little later, which `faulthandler` answers from C, in the main thread.
"""

import _thread
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterable
from io import FileIO
from types import FrameType, TracebackType
from typing import Any

from course_utils.launcher import errors
from course_utils.launcher.stacks import THREAD, Frame

_LIBC = ctypes.CDLL(None)
_MOST = 100  # frames, as many as faulthandler writes
_THREADS = 8  # besides the main thread, of those that wait for other ranks
_GROUPS = f"{os.sep}torch{os.sep}distributed{os.sep}"
_LONGEST = 200  # characters of what an exception says
_ended: list[str] = []  # about the last thread that an exception has ended, if there is one
_ACTION_BYTES = 256  # more than a `struct sigaction` has


def free_signals() -> tuple[int, int]:
    """Two signals that nobody in this process handles, and that people do not send."""
    first, second = sorted(_rare_signals(), key=_is_handled)[:2]
    return first, second


def _rare_signals() -> Iterable[int]:
    """Linux has signals without a meaning; macOS has some that are ignored by default."""
    if hasattr(signal, "SIGRTMIN"):
        return range(signal.SIGRTMIN + 12, signal.SIGRTMAX - 12)
    return signal.SIGINFO, signal.SIGURG, signal.SIGIO


def _is_handled(number: int) -> bool:
    """Ask the system: Python knows nothing of handlers that compiled code has set."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _LIBC.sigaction(number, None, action)
    handler = ctypes.c_void_p.from_buffer(action)  # comes first in a `struct sigaction`
    return bool(handler.value)  # the default is 0


def answer(signals: tuple[int, int], file: FileIO) -> None:
    """In the main thread of a rank, where both signals are blocked: answer from now on."""
    in_python, in_c = signals
    for number in signals:  # the first as well: what is ignored by default, macOS does not keep
        faulthandler.register(number, file=file, all_threads=False)
    _note_threads_that_end()
    # No `threading.Thread`: the learner's program would count it, and wait for its end.
    _thread.start_new_thread(_write_whenever_asked, (in_python, _thread.get_ident(), file))
    # Amid Python code this one can crash: github.com/python/cpython/issues/140815.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [in_c])


def _write_whenever_asked(number: int, thread: int, file: FileIO) -> None:
    while True:
        signal.sigwait([number])
        with contextlib.suppress(Exception):  # nobody else would ever be answered
            os.write(file.fileno(), _stack(thread))


def _stack(main: int) -> bytes:
    """The main thread's stack, written as faulthandler writes it, behind those of some others."""
    frames = sys._current_frames()
    rows = _rows(frames.pop(main))
    with contextlib.suppress(BaseException):  # what an exception says is code of the learner's
        rows += _handled(main)
    others: list[str] = []
    for frame in frames.values():
        stack = _rows(frame)
        if len(others) < _THREADS and any(_GROUPS in row for row in stack):
            others.append("\n".join([THREAD, *stack, ""]))
    text = "\n".join([*others, "Stack (most recent call first):", *rows, *_ended, ""])
    return text.encode("ascii", "backslashreplace")


def _rows(frame: FrameType | None) -> list[str]:
    rows = []
    while frame and len(rows) < _MOST:
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        rows.append(f'  File "{code.co_filename}", line {line} in {code.co_name}')
        frame = frame.f_back
    return rows


def _handled(thread: int) -> list[str]:
    """A line about the exception that led a thread into an `except` or a `finally`, if one did.

    Nobody hears of it before that has ended.
    """
    handled = sys._current_exceptions().get(thread)
    error = handled[1] if isinstance(handled, tuple) else handled  # a tuple before Python 3.12
    return _told("Handles", error)


def _note_threads_that_end() -> None:
    """Keep what the last thread said that an exception has ended."""
    tell = threading.excepthook

    def note_and_tell(args: Any) -> None:
        with contextlib.suppress(BaseException):  # what it says is code of the learner's
            _ended[:] = _told("Ended", args.exc_value)
        tell(args)

    threading.excepthook = note_and_tell


def _told(what: str, error: BaseException | None) -> list[str]:
    """A line about an exception, if a line of the learner's raised it."""
    if error is None:
        return []
    raised_at = _innermost_of_learner(error.__traceback__)
    if raised_at is None:
        return []
    headline = errors.from_exception(0, error).headline  # the same words in every run
    words = " ".join(headline.split())[:_LONGEST]
    return [f'{what} {words} "{raised_at.file}", line {raised_at.line} in {raised_at.name}']


def _innermost_of_learner(trace: TracebackType | None) -> Frame | None:
    innermost = None
    while trace:
        code = trace.tb_frame.f_code
        frame = Frame(code.co_filename, trace.tb_lineno, code.co_name)
        if frame.is_learners:
            innermost = frame
        trace = trace.tb_next
    return innermost
