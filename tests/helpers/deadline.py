"""Deadlines: for what must come to its end much more than is promised, and nothing is measured."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from course_utils.launcher.deadlines import Deadline, slowness
from course_utils.launcher.errors import WorkerTimeout


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """TimeoutError in the main thread if the block is not over after so many seconds.

    On a slow machine it is after as many times more: it is measured when they are over.
    """
    deadline = Deadline(seconds)

    def over(number: int, frame: FrameType | None) -> None:
        if deadline.is_over():
            raise TimeoutError(f"not over after {seconds} s on a quiet machine")
        signal.setitimer(signal.ITIMER_REAL, 1.0)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def long_enough(seconds: float) -> float:
    """Seconds for whoever wants a number: so many on a quiet machine, more on one that is slow."""
    return seconds * slowness(recent_s=10.0)


def hung(launching: Callable[[float], object], timeout: float) -> WorkerTimeout:
    """The error of a launch that hangs, after so many seconds on a quiet machine.

    With ten times more if a rank had not even begun its work.
    """
    quiet_or_not = long_enough(timeout)
    for seconds in (quiet_or_not, 10 * quiet_or_not):
        with pytest.raises(WorkerTimeout) as caught:
            launching(seconds)
        if "outside of your code" not in str(caught.value):
            break
    return caught.value
