"""One record of what each rank called, when: made in the kernel, written in the ranks, read here.

It is always there, and holds the starts of each rank's last calls, which the report of a hang
needs. With `trace=True` it is whole, and holds ends and waits as well.
"""

import contextlib
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame
from course_utils.record import hooks
from course_utils.record.event import ASYNC, Event, Log
from course_utils.record.memory import (
    CALL,
    END_S,
    FLAGS,
    NUMBER,
    OF,
    ON_ITS_WAY,
    PEER,
    START_S,
    Memory,
    Part,
    Writer,
)  # fmt: skip


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
        self._parts: list[Part] = []

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

        Starts are on the system's monotonic clock. Nobody saw an end, so it stands at the start.
        """
        return {rank: _log(rank, part) for rank, part in enumerate(self._read())}

    def close(self) -> None:
        """Read what a trace is made of, and give the memory back."""
        if self.trace:
            self._parts, self.stop_s = (
                [part or Part([], [], 0) for part in self._read()],
                monotonic(),
            )
            ends = (_end_s(part, self.stop_s) - self.start_s for part in self._parts)
            self.ended = tuple((end_s, 0.0) for end_s in ends)
        self._memory.close()

    def _read(self) -> list[Part | None]:
        return [_placed(self._memory.read(rank)) for rank in range(self.world_size)]

    def events(self) -> tuple[Event, ...]:
        """What a trace has of all ranks: without new_group and return, each rank's from 0 on."""
        stop_s = self.stop_s if self.failed else None
        found = []
        for rank, part in enumerate(self._parts):
            found += _traced(rank, part, self.start_s, stop_s)
        return tuple(found)


def _kind(part: Part, row: Sequence[float]) -> str:
    return part.calls[int(row[CALL])]["kind"]


def _end_s(part: Part, stop_s: float) -> float:
    """When a rank's function returned, or it was stopped."""
    ends = (row[START_S] for row in reversed(part.rows) if _kind(part, row) == "return")
    return next(ends, stop_s)


def _log(rank: int, part: Part | None) -> Log | None:
    if part is None:
        return None
    events = []
    for index, row in enumerate(part.rows, part.first):
        if _kind(part, row) != "wait":
            start_s = row[START_S]
            more = {"number": int(row[NUMBER]), "start_s": start_s, "end_s": row[END_S] or start_s}
            events.append(_event(part, row, rank=rank, index=index, **more))
    return Log(tuple(events), part.first == 0)


def _traced(rank: int, part: Part, start_s: float, stop_s: float | None) -> list[Event]:
    """What a trace has of a rank; what has no end ends at `stop_s`, where given.

    Nothing is forgotten, so `meetings` counts the calls; who has sent to a rank that receives from
    any was not known when its calls were counted. A call that raised an exception met nobody.
    """
    events, places = [], {}
    for number, row in enumerate(part.rows):
        of, began_s, end_s = int(row[OF]), row[START_S], row[END_S]
        raised = of == ON_ITS_WAY and stop_s is None
        if raised or _kind(part, row) in ("new_group", "return"):
            continue
        places[number] = len(events)
        peer = {} if row[PEER] < 0 else {"peer": int(row[PEER])}
        event = _event(
            part, row, rank=rank, index=len(events), start_s=began_s - start_s,
            end_s=(end_s or stop_s or began_s) - start_s, of=places[of] if of >= 0 else None,
            finished=bool(end_s) or stop_s is None, **peer,
        )  # fmt: skip
        events.append(event)
    return events


def _event(part: Part, row: Sequence[float], **more: Any) -> Event:
    """Event(**fields) takes four times as long."""
    event, flags = object.__new__(Event), int(row[FLAGS])
    blocking = row[OF] < 0 and not flags & ASYNC
    event.__dict__.update(part.calls[int(row[CALL])], flags=flags, blocking=blocking, **more)
    return event


def _placed(part: Part | None) -> Part | None:
    """Read the learner's lines now: a cell can be another one later."""
    for call in part.calls if part else ():
        if line := call.get("line"):
            frame = Frame(*line)
            call["place"], call["code"] = frame.place, frame.code
    return part
