"""The record of what each rank called and when: made in the kernel, written in ranks, read here.

Every launch has one. It holds the starts of each rank's last calls, which the report of a hang
needs. With `trace=True` it holds all calls, and their ends and waits as well.
"""

import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Any

from course_utils.launcher.listener import Listener
from course_utils.record import hooks, memory
from course_utils.record.event import ASYNC, Event, Log
from course_utils.record.memory import Row, Rows

_TRIES = 5  # times that we try to read a rank's part


class Record(Listener):
    """What every rank calls, kept where the kernel can read it.

    Args:
        trace: Whether to record everything, with ends and waits.
        timeout_s: Seconds without progress that end the launch. A group's timer matters only if it
            is shorter.
    """

    def __init__(self, trace: bool = False, timeout_s: float = 60.0) -> None:
        self.trace = trace
        self.timeout_s = timeout_s
        self.failed = False  # whether the launch has failed
        # With `trace`, by rank: seconds from the launch to the end of its function.
        self.ended_s: tuple[float, ...] = ()
        # By rank, why its part could not be read. A trace has no events of such a rank.
        self.unread: dict[int, Exception] = {}

    def on_start(self, world_size: int) -> None:
        """Make the memory."""
        self.start_s = monotonic()
        self.failed = False
        self.ended_s = ()
        self.unread = {}
        self._ranks = range(world_size)
        self._parts = memory.make_parts(world_size, self.trace)

    @contextlib.contextmanager
    def in_worker(self, rank: int) -> Iterator[None]:
        """Have every call of this rank written down, and the return of its function."""
        recorder = hooks.Recorder(self._parts[rank], self.timeout_s)
        recorder.carefully(recorder.listen)
        yield
        recorder.carefully(recorder.note_return)

    def on_error(self, *_: object) -> None:
        """Note that the launch has failed."""
        self.failed = True

    def logs(self) -> dict[int, Log | None]:
        """What each rank has called, until `on_exit`; None where the record can't be relied on.

        With `trace` as without: waits, which meet nobody, are left out.

        Starts are on the system's monotonic clock. Where nobody saw an end, it equals the start.
        """
        logs = {}
        for rank in self._ranks:
            part = self._read(rank)
            logs[rank] = None
            if part is not None:
                rows, complete = part
                calls = [(description, row) for description, row in rows if not row.is_wait]
                logs[rank] = Log(_events(rank, calls), complete)
        return logs

    def counts(self) -> list[int]:
        """How many rows each rank has written."""
        return [part.head.rows_written for part in self._parts]

    def events_until_now(self, rank: int) -> tuple[Event, ...]:
        """With `trace`, what a rank has called so far, as `events` has it; asked in that rank."""
        part = self._read(rank)
        if part is None:
            raise self.unread[rank]
        rows, _ = part
        return _events(rank, rows, True, self.start_s)

    def _read(self, rank: int) -> tuple[Rows, bool] | None:
        """A rank's rows, and whether these are all that it has written."""
        for _attempt in range(_TRIES):  # the rank may be writing
            try:
                part = self._parts[rank].read()
            except Exception as error:
                self.unread[rank] = error.with_traceback(None)
            else:
                self.unread.pop(rank, None)
                return part
        return None

    def on_exit(self) -> None:
        """Read what a trace is made of, and give the memory back."""
        if self.trace:
            self._stop_s = monotonic()
            self._rows = []
            for rank in self._ranks:
                part = self._read(rank)
                rows = part[0] if part else []
                self._rows.append(rows)
                end_s = _return_s(rows) or self._stop_s
                self.ended_s += (end_s - self.start_s,)
        self._parts = []

    def events(self) -> tuple[Event, ...]:
        """What a trace holds of all ranks, without new_group and return; indices start at 0.

        Its events have no numbers: nothing was overwritten (a trace has room for 8 million calls of
        a rank), so `meetings` can count them. Here it is known who has sent to a receive from any
        rank, which it was not when it was called.
        """
        stop_s = self._stop_s if self.failed else None
        events = []
        for rank in self._ranks:
            events += _events(rank, self._rows[rank], True, self.start_s, stop_s)
        return tuple(events)


def _return_s(rows: Rows) -> float | None:
    """When a rank's function returned, on the system's clock; None if it did not."""
    for description, row in reversed(rows):
        if description["kind"] == "return":
            return row.start_s
    return None


def _events(
    rank: int,
    rows: Rows,
    traced: bool = False,
    from_s: float = 0.0,
    stop_s: float | None = None,
) -> tuple[Event, ...]:
    """What a rank has written, in order.

    Args:
        rank: The rank.
        rows: Its rows.
        traced: Whether they are for a trace; see `Record.events`.
        from_s: The moment from which times are counted, on the system's clock.
        stop_s: When the launch was stopped, if it has failed: what has no end ends then.
    """
    events = []
    index_of = {}  # by number of the row
    for row_number, (description, row) in enumerate(rows):
        if traced and _is_left_out(description, row, has_failed=stop_s is not None):
            continue
        index_of[row_number] = len(events)
        fields = {
            **description,
            "rank": rank,
            "index": len(events),
            "number": 0 if traced else row.number,
            "start_s": row.start_s - from_s,
            "end_s": (row.end_s or stop_s or row.start_s) - from_s,
            "finished": bool(row.end_s) or stop_s is None,
            "blocking": not row.is_wait and not row.flags & ASYNC,
            "of": index_of[row.waits_for] if row.is_wait else None,
            "flags": row.flags,
            "began_s": row.began_s - from_s if row.began_s else None,
            "done_s": row.done_s - from_s if row.done_s else None,
        }
        if traced and row.peer >= 0:
            fields["peer"] = row.peer
        events.append(_event(fields))
    return tuple(events)


def _is_left_out(description: dict[str, Any], row: Row, has_failed: bool) -> bool:
    """Whether a trace leaves a row out.

    A call that was never issued raised an exception and met nobody; unless the launch has failed.
    """
    if description["kind"] in ("new_group", "return"):
        return True
    return not row.is_wait and not row.was_issued and not has_failed


def _event(fields: dict[str, Any]) -> Event:
    """An event with these fields.

    `Event(**fields)` would set each field of the frozen dataclass by a call: 17 us an event, this
    takes 3. A trace can have 100,000 of them.
    """
    event = object.__new__(Event)
    event.__dict__.update(fields)
    return event
