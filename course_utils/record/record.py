"""One record of what each rank called, when: made in the kernel, written in the ranks, read here.

It is always there, and holds the starts of each rank's last calls, which the report of a hang
needs. With `trace=True` it is whole, and holds ends and waits as well.
"""

import contextlib
from collections.abc import Iterator
from time import monotonic

from course_utils.launcher.listener import Listener
from course_utils.record import hooks, memory
from course_utils.record.event import ASYNC, Event, Log
from course_utils.record.memory import ON_ITS_WAY, Rows

_TRIES = 5  # to read what a rank has written


class Record(Listener):
    """What every rank calls, kept where the kernel can read it."""

    def __init__(self, trace: bool = False) -> None:
        self.trace = trace  # whether all of it is recorded, with ends and waits
        self.failed = False  # whether the launch has
        # With `trace`, by rank: seconds from the launch until its function was over.
        self.ended: tuple[tuple[float], ...] = ()

    def on_start(self, world_size: int) -> None:
        """Make the memory."""
        self.start_s, self._ranks = monotonic(), range(world_size)  # on the system's clock
        self._parts = memory.made(world_size, self.trace)
        self.unread: dict[int, Exception] = {}  # by rank why; a trace has nothing of such a rank

    @contextlib.contextmanager
    def in_worker(self, rank: int) -> Iterator[None]:
        """Have every call of this rank written down, and that its function has returned."""
        recorder = hooks.Recorder(self._parts[rank])
        recorder.carefully(recorder.listen)
        yield
        recorder.carefully(recorder.returned)

    def on_error(self, *_: object) -> None:
        """Take note that the launch failed."""
        self.failed = True

    def logs(self) -> dict[int, Log | None]:
        """What each rank has called, until `close`; None where that is not to be relied on.

        Starts are on the system's monotonic clock. Where nobody saw an end, it stands at the start.
        """
        found = {rank: self._read(rank) for rank in self._ranks}
        return {r: part and Log(_events(r, part[0]), part[1]) for r, part in found.items()}

    def counts(self) -> list[int]:
        """How many rows each rank has written."""
        return [part.head.rows for part in self._parts]

    def _read(self, rank: int) -> tuple[Rows, bool] | None:
        for _ in range(_TRIES):  # the rank may be writing
            try:
                found = self._parts[rank].read()
                self.unread.pop(rank, None)
                return found
            except Exception as why:
                self.unread[rank] = why.with_traceback(None)
        return None

    def on_exit(self) -> None:
        """Read what a trace is made of, and give the memory back."""
        if self.trace:
            self._stop_s = monotonic()
            parts = map(self._read, self._ranks)
            self._rows = [part[0] if part else [] for part in parts]
            for rows in self._rows:
                ends = (row.start_s for call, row in reversed(rows) if call["kind"] == "return")
                self.ended += ((next(ends, self._stop_s) - self.start_s,),)
        self._parts = []

    def events(self) -> tuple[Event, ...]:
        """What a trace has of all ranks: without new_group and return, each rank's from 0 on.

        Nothing is forgotten, so `meetings` counts its calls: who has sent to a rank that receives
        from any was not known when that call was counted.
        """
        how = True, self.start_s, self._stop_s if self.failed else None
        return tuple(e for rank in self._ranks for e in _events(rank, self._rows[rank], *how))


def _events(
    rank: int, rows: Rows, traced: bool = False, from_s: float = 0.0, to_s: float | None = None
) -> tuple[Event, ...]:
    """What a rank has written, in order; what has no end ends at `to_s`, where given.

    A call that raised an exception met nobody: a trace leaves it out, unless its launch failed.
    """
    events, places = [], {}
    for number, (call, row) in enumerate(rows):
        raised = row.of == ON_ITS_WAY and to_s is None
        if traced and (raised or call["kind"] in ("new_group", "return")):
            continue
        places[number] = len(events)
        event = object.__new__(Event)  # Event(**fields) takes four times as long
        event.__dict__.update(
            call,
            rank=rank,
            index=len(events),
            number=0 if traced else row.number,
            start_s=row.start_s - from_s,
            end_s=(row.end_s or to_s or row.start_s) - from_s,
            finished=bool(row.end_s) or to_s is None,
            blocking=row.of < 0 and not row.flags & ASYNC,
            of=places[row.of] if row.of >= 0 else None,
            flags=row.flags,
            began_s=row.began_s - from_s if row.began_s else None,
            done_s=row.done_s - from_s if row.done_s else None,
        )
        if traced and row.peer >= 0:
            event.__dict__["peer"] = row.peer
        events.append(event)
    return tuple(events)
