"""A deadline for what must come to its end: ten times what is promised, and nothing is measured."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """TimeoutError in the main thread if the block is not over after so many seconds."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
