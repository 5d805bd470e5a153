"""How a rank writes its stack when the kernel asks for it, without being disturbed.

The kernel asks by one of two signals. The first is blocked in all of the rank except for one
thread, which waits for it and writes the main thread's stack in Python, and those of threads that
wait for other ranks. So it interrupts nothing: no sleep, no handler of the learner's, no wait in
C++, which would complain of an "interrupted system call".

That thread can't answer while compiled code holds the interpreter's lock. So the kernel sends
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
from collections.abc import Sequence
from io import FileIO
from types import FrameType, TracebackType

from course_utils.launcher import errors
from course_utils.launcher.libc import action_at
from course_utils.launcher.stacks import (
    HANDLES,
    HAS_THREADS,
    MAX_FRAMES,
    STACK,
    THREAD,
    THREAD_ENDED_BY,
    Frame,
)

_MAX_THREADS = 8  # besides the main thread, of those that wait for other ranks
_LAUNCHER = os.path.dirname(__file__)
_DISTRIBUTED = f"{os.sep}torch{os.sep}distributed{os.sep}"
_MAX_CHARACTERS = 200  # of what an exception says
_ended_thread: list[str] = []  # a line about the last one that an exception has ended, if any


def two_unused_signals() -> tuple[int, int]:
    """Two signals that nobody in this process handles, and that people don't send."""
    first, second, *_ = sorted(_rare_signals(), key=_is_handled)
    return first, second


def _rare_signals() -> Sequence[int]:
    """Linux has signals without a meaning; macOS has some that are ignored by default."""
    if hasattr(signal, "SIGRTMIN"):
        first = signal.SIGRTMIN + 12
        end = signal.SIGRTMAX - 12
        return range(first, end)
    return signal.SIGINFO, signal.SIGURG, signal.SIGIO


def _is_handled(number: int) -> bool:
    """Whether anybody handles a signal in this process, also compiled code."""
    handler = ctypes.c_void_p.from_buffer(action_at(number))  # the first of its fields
    return bool(handler.value)  # the default is 0


def start_answering(signals: tuple[int, int], file: FileIO) -> None:
    """In the main thread of a rank, where both signals are blocked: answer from now on."""
    in_python, in_c = signals
    for number in signals:  # the first as well: macOS drops what is ignored by default
        faulthandler.register(number, file=file, all_threads=False)
    _note_threads_that_end()
    # No `threading.Thread`: the learner's program would count it, and wait for its end.
    _thread.start_new_thread(_write_whenever_asked, (in_python, _thread.get_ident(), file))
    # Faulthandler, which answers `in_c`, can crash amid Python code:
    # github.com/python/cpython/issues/140815.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [in_c])


def _write_whenever_asked(number: int, main_thread: int, file: FileIO) -> None:
    while True:
        signal.sigwait([number])
        with contextlib.suppress(Exception):  # a thread that ends would never answer again
            os.write(file.fileno(), _stack(main_thread))


def frames_of_threads() -> list[FrameType]:
    """Where other threads stand that the learner's function, or a library for it, has started.

    They are all but the main one and the launcher's own. Some are unknown to `threading`: those
    that extensions start by `_thread`. A thread that was started this very moment may be missing.
    """
    frames_by_thread = sys._current_frames()
    # To keep this thread's own frame would be a circle: what it holds would live on.
    for ident in {threading.get_ident(), threading.main_thread().ident}:
        frames_by_thread.pop(ident, None)
    return [frame for frame in frames_by_thread.values() if not _is_launchers(frame)]


def _is_launchers(frame: FrameType) -> bool:
    """Whether a thread, which stands at this frame, began in the launcher."""
    while frame.f_back:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_LAUNCHER)


def _stack(main_thread: int) -> bytes:
    """The main thread's stack, as faulthandler writes it, after those of some other threads."""
    main_rows = _rows(sys._current_frames()[main_thread])
    with contextlib.suppress(BaseException):  # what an exception says is code of the learner's
        main_rows += _handled(main_thread)
    lines: list[str] = []
    count = 0
    frames = frames_of_threads()
    if frames:
        lines += [HAS_THREADS, ""]
    for frame in frames:
        if count == _MAX_THREADS:
            break
        rows = _rows(frame)
        if any(_DISTRIBUTED in row for row in rows):
            lines += [THREAD, *rows, ""]
            count += 1
    lines += [STACK, *main_rows, *_ended_thread, ""]
    text = "\n".join(lines)
    return text.encode("ascii", "backslashreplace")


def _rows(frame: FrameType | None) -> list[str]:
    rows: list[str] = []
    while frame and len(rows) < MAX_FRAMES:
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        row = f'  File "{code.co_filename}", line {line} in {code.co_name}'
        rows.append(row)
        frame = frame.f_back
    return rows


def _handled(thread: int) -> list[str]:
    """A line about the exception that led a thread into an `except` or a `finally`, if one did.

    Nobody hears of that exception until the block has ended.
    """
    error = sys._current_exceptions().get(thread)
    if isinstance(error, tuple):  # before Python 3.12
        error = error[1]
    return _line_about(HANDLES, error)


def _note_threads_that_end() -> None:
    """Keep a line about the last thread that an exception has ended."""
    original = threading.excepthook

    def note_and_go_on(args: threading.ExceptHookArgs) -> None:
        with contextlib.suppress(BaseException):  # what it says is code of the learner's
            _ended_thread[:] = _line_about(THREAD_ENDED_BY, args.exc_value)
        original(args)

    threading.excepthook = note_and_go_on


def _line_about(verb: str, error: BaseException | None) -> list[str]:
    """A line about an exception, if a line of the learner's raised it; else none."""
    if error is None:
        return []
    raised_at = _innermost_of_learner(error.__traceback__)
    if raised_at is None:
        return []
    headline = errors.from_exception(0, error).headline  # the same words in every run
    in_one_line = " ".join(headline.split())
    words = in_one_line[:_MAX_CHARACTERS]
    place = f'"{raised_at.file}", line {raised_at.line} in {raised_at.name}'
    return [f"{verb} {words} {place}"]


def _innermost_of_learner(traceback: TracebackType | None) -> Frame | None:
    innermost = None
    while traceback:
        code = traceback.tb_frame.f_code
        frame = Frame(code.co_filename, traceback.tb_lineno, code.co_name)
        if frame.is_learners:
            innermost = frame
        traceback = traceback.tb_next
    return innermost
