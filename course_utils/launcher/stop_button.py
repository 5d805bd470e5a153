"""The stop button: a press is noticed where stopping is safe, instead of anywhere."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from course_utils.launcher.language import _, sentences
from course_utils.launcher.libc import LIBC, action_at

_rank_being_rebuilt: int | None = None  # whose result the main thread is rebuilding


class Stopped(KeyboardInterrupt):
    """The stop button was pressed. All ranks are gone, and IPython shows this in a line or two.

    Attributes:
        results: The `Results`, if all ranks had returned when the button was pressed; else None.
        unfinished: Sentences on what ranks that had returned had not ended by then.
    """

    def __init__(self, sentence: str = "", results: Any = None) -> None:
        super().__init__(*[sentence] if sentence else [])
        self.results = results
        self.unfinished: list[str] = []

    def _render_traceback_(self) -> list[str]:
        line = str(self) or _("Stopped; nothing is left running.")
        if self.results is not None:
            where = _("All ranks had returned: sys.last_value.results has what they returned.")
            line = sentences(line, where)
        return [line, *self.unfinished]


@contextlib.contextmanager
def stop_button() -> Iterator[list[float]]:
    """Within, presses of the button are only noted; `WorkerGroup.results` looks for one, and stops.

    Only while a result is rebuilt, which runs code of the learner's and may last, a press
    interrupts at once; see `a_press_ends_rebuilding`.

    Yields:
        When the button was pressed: a list that is empty at first, and grows by each press. In
        seconds on the system's monotonic clock.
    """
    press_times_s: list[float] = []

    def note_press(number: int, frame: Any) -> None:
        press_times_s.append(time.monotonic())
        if _rank_being_rebuilt is not None:
            sentence = _(
                "Stopped while the result of rank {rank} was rebuilt; nothing is left running.",
                rank=_rank_being_rebuilt,
            )
            raise Stopped(sentence)

    if _is_main_thread():  # in other threads Python lets nobody set a handler
        # Python gives back only handlers that it has set itself, so the system's action is kept.
        old_action = action_at(signal.SIGINT)
        old_handler = signal.signal(signal.SIGINT, note_press)
        if old_handler is None:  # it was set by compiled code
            old_handler = signal.SIG_DFL
    try:
        yield press_times_s
    finally:
        if press_times_s:  # takes further presses, which could hit ipykernel while it replies
            time.sleep(1.0)
        if _is_main_thread():
            signal.signal(signal.SIGINT, old_handler)
            LIBC.sigaction(signal.SIGINT, old_action, None)


@contextlib.contextmanager
def a_press_ends_rebuilding(rank: int) -> Iterator[None]:
    """Within, a press of the stop button raises Stopped. Python hears it in the main thread."""
    global _rank_being_rebuilt
    if not _is_main_thread():
        yield
        return
    _rank_being_rebuilt = rank
    try:
        yield
    finally:
        _rank_being_rebuilt = None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
