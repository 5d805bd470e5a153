"""What is recorded of a launch, as the kernel sees it: before its ranks run, and after."""

import contextlib
import functools
from collections.abc import Iterator
from time import monotonic, thread_time

from course_utils.launcher.listener import Listener
from course_utils.record import recorder
from course_utils.record.event import Event
from course_utils.record.ledger import WIDE, Ledger, Part, Writer
from course_utils.record.notes import Log, Notes
from course_utils.record.observer import Observer
from course_utils.record.recorder import Recorder


class Record(Listener):
    """What every rank calls, kept where the kernel can read it.

    Attributes:
        trace: Whether ends and waits are recorded as well.
        ended: By rank when its function returned, and its CPU seconds since its last event.
        failed: Whether the launch failed.
    """

    def __init__(self, trace: bool = False) -> None:
        self.trace, self.failed = trace, False
        self.notes: list[Notes] = []
        self.ledger: Ledger | None = None
        self.ended: tuple[tuple[float, float], ...] = ()

    def before(self, world_size: int) -> None:
        """Make the memory.

        Raises:
            RuntimeError: this torch cannot record.
        """
        if self.trace and (reason := recorder.refusal()):
            raise RuntimeError(reason)
        self.start_s = monotonic()
        self.notes = [Notes() for _ in range(world_size)]
        if self.trace:
            self.ledger = Ledger(world_size)

    @contextlib.contextmanager
    def inside(self, rank: int) -> Iterator[None]:
        """See the groups that are yet to be made."""
        observer = Observer(self.notes[rank])
        if self.trace:
            tracer = Recorder(Writer(self.ledger, rank))
            tracer.listen()
        yield
        observer.returned()
        if self.trace:
            tracer.ledger.end(monotonic(), thread_time() - tracer.cpu)

    def explain(self, *_: object) -> None:
        """Take note that the launch failed."""
        self.failed = True

    def logs(self) -> dict[int, Log | None]:
        """What each rank has noted of its calls, until `close`."""
        return {rank: notes.read() for rank, notes in enumerate(self.notes)}

    def close(self) -> None:
        """Read what a trace is made of, and give the memory back."""
        if self.ledger:
            self._read()
            self.ledger.close()
        for notes in self.notes:
            notes.close()

    def _read(self) -> None:
        parts, stop_s = list(map(self.ledger.read, range(len(self.notes)))), monotonic()
        for call in (call for part in parts for call in part.calls):
            if line := call.pop("line", None):  # read now: its cell can be another one later
                call["place"], call["code"] = line.place, line.code
        self.ended = tuple(
            ((part.ended[0] or stop_s) - self.start_s, part.ended[1]) for part in parts
        )
        stop = stop_s if self.failed else None
        self.events = functools.partial(_events, parts, self.start_s, stop)


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
