"""Signs of life: a panel that comes by itself, and time for ranks that go on."""

from collections.abc import Sequence
from math import ceil, inf
from time import monotonic

from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import StacksByRank, WorkerError, WorkerTimeout
from course_utils.launcher.language import _, sentences
from course_utils.launcher.listener import Listener
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.live import Panel
from course_utils.record.record import Record

_UNNOTICED_S = 3.0  # a launch that is over sooner needs no panel


class LatePanel(Panel):
    """The panel of a long launch for which nobody asked for one.

    It comes after three seconds and goes at the end, when all that the ranks printed appears below
    the cell.
    """

    def show(self) -> None:
        """Nothing yet; see `on_poll`."""

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
        """Show the panel when it is time, keep it up to date, and take it away at the end."""
        if final:
            self.hide()
            return
        is_time = monotonic() - self.started_s >= _UNNOTICED_S
        if self.view is None and is_time:
            super().show()
        super().on_poll(workers)


class SilenceTimeout(Listener):
    """Counts a launch's time-out from the last sign of life instead of from its start.

    A rank that calls `torch.distributed` or prints something is alive, so a long training needs no
    `timeout=`, and a launch in which nothing moves any more ends as soon as ever.

    Args:
        record: counts the calls of every rank.
        silence_s: how many seconds without a sign of life end the launch, on a quiet machine.
    """

    def __init__(self, record: Record, silence_s: float) -> None:
        self._record = record
        self._silence_s = silence_s

    def on_start(self, world_size: int) -> None:
        """Begin to listen."""
        self._started_s = monotonic()
        self._last_sign_s = self._started_s
        self._seen: list[tuple[int, int]] = []
        self._allowed_s = inf  # until it is asked for

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
        """Compare what every rank has called and printed with what was there before."""
        if final:
            return
        calls_by_rank = self._record.counts()
        bytes_by_rank = [worker.output.received_bytes for worker in workers]
        seen = list(zip(calls_by_rank, bytes_by_rank, strict=True))
        if seen != self._seen:
            self._seen = seen
            self._last_sign_s = monotonic()

    def on_timeout(self) -> float:
        """Seconds from the start to the moment at which the silence has lasted too long."""
        seconds_of_life = self._last_sign_s - self._started_s
        self._allowed_s = slowness() * self._silence_s
        return ceil(seconds_of_life + self._allowed_s)

    def on_error(self, stacks: StacksByRank, error: WorkerError) -> None:
        """Say that silence has ended the launch, not its length."""
        silent_s = monotonic() - self._last_sign_s
        if isinstance(error, WorkerTimeout) and silent_s >= self._allowed_s:  # else it is a hang
            silence = _(
                "No rank made a call or printed anything in the last {seconds:g} s.",
                seconds=self._allowed_s,
            )
            error.parts[0] = sentences(error.parts[0], silence)
