"""Inside a rank, with trace=True: when the work of a queued call began and ended on the GPU.

A call of NCCL returns when it is queued. Two CUDA events, one before and one after it in the stream
that its work runs in, note the times, and nobody has to wait. They are read when the learner's
function has returned.
"""

import contextlib
import threading
import time
from time import monotonic
from typing import Any

import torch

from course_utils.launcher import torch_private
from course_utils.launcher.torch_private import C10D
from course_utils.record.memory import Row

_PATIENCE_S = 2.0  # a stream that takes longer hangs: that is reported, without these times
_POLL_S = 0.0001
_AT_MOST = 20_000  # pairs of events
_future_of = torch_private.find(f"{C10D}:Work.get_future")  # as it is before `Waits` wraps it


def usable(device: str) -> bool:
    """Whether events can time calls on tensors of this kind of device."""
    return device == "cuda" and not torch.cuda.is_current_stream_capturing()


def now_in_stream() -> Any:
    """An event, which is queued in the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class CudaTimes:
    """The events around a rank's queued calls."""

    def __init__(self) -> None:
        # Calls whose end is not queued yet, by number of the row, each with its first event.
        self._begun: dict[int, tuple[Row, Any]] = {}
        self._pairs: list[tuple[Row, Any, Any]] = []  # calls, each with both events
        self._lock = threading.Lock()  # autograd has threads of its own

    def begin(self, row: Row) -> None:
        """Queue the first event, before a call is issued."""
        if len(self._pairs) + len(self._begun) < _AT_MOST:
            self._begun[row.index] = row, now_in_stream()

    def follow(self, row: Row, call: Any) -> None:
        """Queue the second event, after a call was issued.

        The work of a blocking call is in the current stream, that of an asynchronous one in one of
        NCCL's own.
        """
        if row.index not in self._begun:
            return
        if not call.async_op:
            self._end(row)
            return
        if _future_of is None:
            return
        # The future runs its callback in a stream that waits for the work.
        with contextlib.suppress(RuntimeError):  # without a future nobody can see the end
            _future_of(call.work).add_done_callback(lambda _: self._end(row))

    def _end(self, row: Row) -> None:
        with self._lock:
            begun = self._begun.pop(row.index, None)
            if begun is not None:
                self._pairs.append((*begun, now_in_stream()))

    def read(self) -> None:
        """When the function has returned: write the times into the rows, on the record's clock."""
        # An error of CUDA belongs to the learner's own line, which reads the wrong result.
        with contextlib.suppress(RuntimeError):
            if self._pairs:
                self._read()

    def _read(self) -> None:
        deadline = monotonic() + _PATIENCE_S
        last = now_in_stream()
        if not _is_over(last, deadline):
            return
        last_s = monotonic()  # `last` is over just now: the two clocks meet here
        for row, begin, end in self._pairs:
            if _is_over(end, deadline):
                row.began_s = last_s - begin.elapsed_time(last) / 1000
                row.done_s = last_s - end.elapsed_time(last) / 1000


def _is_over(event: Any, deadline: float) -> bool:
    """Wait until the stream has reached an event, or give up at the deadline.

    Polled: `event.synchronize()` could not be left.
    """
    while not event.query():
        if monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
