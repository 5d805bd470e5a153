"""One record of what each rank called, when: made in the kernel, written in the ranks, read here.

It is always there, and holds the starts of each rank's last calls, which the report of a hang
needs. With `trace=True` it is whole, and holds ends and waits as well.
"""

import contextlib
from collections.abc import Iterator
from time import monotonic

from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame
from course_utils.record import hooks
from course_utils.record.event import ASYNC, Event, Log
from course_utils.record.memory import ON_ITS_WAY, Memory, Part, Writer

_NOT_TRACED = ("new_group", "return")


class Record(Listener):
    """What every rank calls, kept where the kernel can read it.

    Attributes:
        trace: Whether all of it is recorded, with ends and waits.
        ended: With `trace`, by rank: seconds from the launch until its function returned or was
            stopped; and 0.0, where older recordings have CPU seconds.
        failed: Whether the launch failed.
    """

    def __init__(self, trace: bool = False) -> None:
        self.trace, self.failed = trace, False
        self.world_size, self.start_s, self.stop_s = 0, 0.0, 0.0
        self.ended: tuple[tuple[float, float], ...] = ()
        self._parts: list[Part | None] = []

    def before(self, world_size: int) -> None:
        """Make the memory.

        Raises:
            RuntimeError: This torch cannot record.
        """
        if self.trace and (reason := hooks.refusal()):
            raise RuntimeError(reason)
        self.world_size, self.start_s = world_size, monotonic()
        self._memory = Memory(world_size, self.trace)

    @contextlib.contextmanager
    def inside(self, rank: int) -> Iterator[None]:
        """Have every call of this rank written down, and that its function has returned."""
        recorder = hooks.Recorder(Writer(self._memory, rank))
        recorder.carefully(recorder.listen)
        yield
        recorder.carefully(recorder.returned)

    def explain(self, *_: object) -> None:
        """Take note that the launch failed."""
        self.failed = True

    def logs(self) -> dict[int, Log | None]:
        """What each rank has called, until `close`; None where that is not to be relied on.

        Starts are on the system's monotonic clock. Where nobody saw an end, it stands at the start.
        """
        return {
            rank: Log(tuple(_events(rank, part)), part.first == 0) if part else None
            for rank, part in enumerate(self._read())
        }

    def close(self) -> None:
        """Read what a trace is made of, and give the memory back."""
        if self.trace:
            self._parts, self.stop_s = self._read(), monotonic()
            ends = (_end_s(part, self.stop_s) - self.start_s for part in self._parts)
            self.ended = tuple((end_s, 0.0) for end_s in ends)
        self._memory.close()

    def _read(self) -> list[Part | None]:
        return [_placed(self._memory.read(rank)) for rank in range(self.world_size)]

    @property
    def unread(self) -> dict[int, Exception]:
        """By rank why its record could not be read; a trace has nothing of such a rank."""
        return self._memory.unread

    def events(self) -> tuple[Event, ...]:
        """What a trace has of all ranks: without new_group and return, each rank's from 0 on.

        Nothing is forgotten, so `meetings` counts its calls: who has sent to a rank that receives
        from any was not known when that call was counted.
        """
        times = {"start_s": self.start_s, "stop_s": self.stop_s if self.failed else None}
        parts = ((rank, part) for rank, part in enumerate(self._parts) if part)
        return tuple(e for rank, part in parts for e in _events(rank, part, traced=True, **times))


def _end_s(part: Part | None, stop_s: float) -> float:
    """When a rank's function returned, or it was stopped."""
    rows = reversed(part.rows if part else [])
    ends = (row.start_s for row in rows if part.calls[int(row.call)]["kind"] == "return")
    return next(ends, stop_s)


def _events(
    rank: int,
    part: Part,
    traced: bool = False,
    start_s: float = 0.0,
    stop_s: float | None = None,
) -> list[Event]:
    """What a rank has written, in order; what has no end ends at `stop_s`, where given.

    A call that raised an exception met nobody: a trace leaves it out, unless its launch failed.
    """
    events, places = [], {}
    for number, row in enumerate(part.rows, part.first):
        call, flags, of = part.calls[int(row.call)], int(row.flags), int(row.of)
        raised = of == ON_ITS_WAY and stop_s is None
        if traced and (raised or call["kind"] in _NOT_TRACED):
            continue
        places[number] = len(events)
        event = object.__new__(Event)  # Event(**fields) takes four times as long
        event.__dict__.update(
            call,
            rank=rank,
            index=len(events),
            number=0 if traced else int(row.number),
            start_s=row.start_s - start_s,
            end_s=(row.end_s or stop_s or row.start_s) - start_s,
            finished=bool(row.end_s) or stop_s is None,
            blocking=of < 0 and not flags & ASYNC,
            of=places[of] if of >= 0 else None,
            flags=flags,
        )
        if traced and row.peer >= 0:
            event.__dict__["peer"] = int(row.peer)
        events.append(event)
    return events


def _placed(part: Part | None) -> Part | None:
    """Read the learner's lines now: a cell can be another one later."""
    for call in part.calls if part else ():
        if line := call.get("line"):
            frame = Frame(*line)
            call["place"], call["code"] = frame.place, frame.code
    return part
