"""Inside a rank, with trace=True: when the work of a queued call began and ended on the GPU.

A call of NCCL returns when it is queued. A CUDA event before it and one behind it, in the stream
that the work runs in, note its times without anybody waiting. They are read when the learner's
function has returned.
"""

import contextlib
import threading
import time
from time import monotonic
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.record.memory import Row

_PATIENCE_S = 2.0  # a stream that never ends is a hang, which is told without these times
_POLL_S = 0.0001  # so much later than an event its time may be read
_AT_MOST = 20_000  # pairs of events
_future_of = c10d.Work.get_future  # as it is before waits are recorded


def usable(device: str) -> bool:
    """Whether calls on tensors of this kind of device can be timed by events."""
    return device == "cuda" and not torch.cuda.is_current_stream_capturing()


def now_in_stream() -> Any:
    """An event that is queued in the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class CudaTimes:
    """The events around a rank's queued calls."""

    def __init__(self) -> None:
        self.begins: dict[int, tuple[Row, Any]] = {}  # by number of the row, without an end so far
        self.pairs: list[tuple[Row, Any, Any]] = []
        self.lock = threading.Lock()  # autograd has threads of its own

    def begin(self, row: Row) -> None:
        """Before a call is issued."""
        if len(self.pairs) + len(self.begins) < _AT_MOST:
            self.begins[row.index] = row, now_in_stream()

    def follow(self, row: Row, call: Any) -> None:
        """Behind a call that was issued: its work is in the current stream, or in one of NCCL's."""
        if row.index not in self.begins:
            return
        if not call.async_op:
            self._end(row)
            return
        # The future's callback is given a stream that waits for the work.
        with contextlib.suppress(RuntimeError):  # a work without a future has no end that is seen
            _future_of(call.work).add_done_callback(lambda _: self._end(row))

    def _end(self, row: Row) -> None:
        with self.lock:
            if row.index in self.begins:
                row, begin = self.begins.pop(row.index)
                self.pairs.append((row, begin, now_in_stream()))

    def read(self) -> None:
        """When all is over: write down what the events say, on the clock of the record."""
        # An error of CUDA's belongs to the learner's own line, and so to the result that is read.
        with contextlib.suppress(RuntimeError):
            if self.pairs:
                self._read()

    def _read(self) -> None:
        deadline = monotonic() + _PATIENCE_S
        last = now_in_stream()
        if not _is_over(last, deadline):
            return
        last_s = monotonic()  # now `last` is over: a moment that both clocks know
        for row, begin, end in self.pairs:
            if _is_over(end, deadline):
                row.began_s = last_s - begin.elapsed_time(last) / 1000
                row.done_s = last_s - end.elapsed_time(last) / 1000


def _is_over(event: Any, deadline: float) -> bool:
    """Wait until the stream has come to an event, without a call that could not be left."""
    while not event.query():
        if monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
