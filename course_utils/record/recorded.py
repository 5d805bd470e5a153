"""A recorded launch, as the kernel sees it: before its ranks run, and when they are gone."""

import functools
import os
from collections.abc import Callable
from time import monotonic, thread_time
from types import TracebackType
from typing import Any

from course_utils.launcher.errors import WorkerError
from course_utils.network.trace import Trace
from course_utils.record.event import Event
from course_utils.record.ledger import WIDE, Ledger, Part, Writer
from course_utils.record.recorder import Recorder


class Recording:
    """The learner's function, recorded: made in the kernel, called in every rank, read at its end.

    Attributes:
        trace: What was recorded, from the end of the ranks on; a `WorkerError` gets it as well.
    """

    def __init__(self, fn: Callable, world_size: int) -> None:
        self.fn, self.world_size, self.start_s = fn, world_size, monotonic()
        self.trace: Trace | None = None

    def __enter__(self) -> "Recording":
        self.ledger = Ledger(self.world_size)
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        self.trace = self._read(error is not None)
        self.ledger.close()
        if isinstance(error, WorkerError):
            error.trace = self.trace

    def __call__(self, *args: Any) -> Any:
        """In the rank: run the function, with its events written down."""
        recorder = Recorder(Writer(self.ledger, int(os.environ["RANK"])))
        recorder.listen()
        value = self.fn(*args)
        recorder.ledger.end(monotonic(), thread_time() - recorder.cpu)
        return value

    def _read(self, failed: bool) -> Trace:
        parts, stop_s = list(map(self.ledger.read, range(self.world_size))), monotonic()
        for call in (call for part in parts for call in part.calls):
            if line := call.pop("line", None):  # read now: its cell can be another one later
                call["place"], call["code"] = line.place, line.code
        ended = [((part.ended[0] or stop_s) - self.start_s, part.ended[1]) for part in parts]
        events = functools.partial(_events, parts, self.start_s, stop_s if failed else None)
        return Trace.later(events, tuple(ended), failed)


def _events(parts: list[Part], start_s: float, stop_s: float | None) -> tuple[Event, ...]:
    """What all ranks have written, as events; what has no end ends at `stop_s`, where given."""
    events = []
    for rank, part in enumerate(parts):
        rows = zip(*[iter(part.cells)] * WIDE, strict=True)
        for index, (call, of, cpu_s, began_s, end_s) in enumerate(rows):
            event = object.__new__(Event)  # Event(**fields) takes four times as long
            event.__dict__.update(
                part.calls[int(call)],
                rank=rank,
                index=index,
                of=None if of < 0 else int(of),
                cpu_s=max(0.0, cpu_s),  # another thread has another clock
                start_s=began_s - start_s,
                end_s=(end_s or stop_s or began_s) - start_s,
                finished=bool(end_s) or stop_s is None,
            )
            events.append(event)
    return tuple(events)
