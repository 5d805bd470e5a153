"""What every rank does, step by step, so that each message finds its two ends."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from course_utils.launcher.language import _
from course_utils.network.collectives import rounds
from course_utils.record.event import USER_THREAD, Event, Meeting, meetings

# What one can wait for: "left", a message's last byte; "arrived", likewise; "done", a task.
End = tuple[str, int]
# "compute", "send" (a message), "start" (a task) or "wait" (for an end); what; and its event.
Step = tuple[str, Any, Event | None]


class ReplayError(ValueError):
    """The recording has no replay: it is of a failed launch, or something has no partner."""


class Message(NamedTuple):
    """One message; `order` is when its receiver asked for it, among all that it asked for."""

    sent: Event
    taken: Event
    bytes: float
    order: tuple[int, int]


class Schedule:
    """What all ranks do, of recorded events and an algorithm that collectives are carried out by.

    Attributes:
        messages: All messages. Steps and ends refer to them by their places in this list.
        tasks: Each rank's part in each collective, which runs beside the rank's program.
        programs: By rank, what it does itself. It may compute before its first event.

    Raises:
        ReplayError: A message or a collective has no partner: says which, of which rank and line.
    """

    def __init__(self, events: Sequence[Event], world_size: int, algorithm: str) -> None:
        self.messages: list[Message] = []
        self.tasks: list[tuple[Event, list[Step]]] = []
        self.programs: list[list[Step]] = []
        self._ends: dict[tuple[int, int | None], End] = {}  # by rank and index of an event
        self._last_task: dict[tuple, End] = {}  # of a rank in a group
        pairs = []
        collectives = []
        for meeting in meetings(events, world_size):
            kind = meeting.key.form
            if kind == "message":
                pairs.append(meeting)
            elif kind == "collective":
                collectives.append(meeting)
        self._add_messages(pairs)
        for meeting in collectives:
            _refuse_disagreement(meeting)
            self._add_collective(meeting, algorithm)
        self._add_programs(events, world_size)

    def _add_messages(self, pairs: Sequence[Meeting]) -> None:
        """Add what ranks send each other, outside of collectives."""
        _refuse_lonely(pairs)
        for number, pair in enumerate(pairs):
            source, target = pair.members
            sent = pair.calls[source]
            taken = pair.calls[target]
            self._ends[sent.rank, sent.index] = ("left", number)
            self._ends[taken.rank, taken.index] = ("arrived", number)
            order = (taken.index, 0)
            self.messages.append(Message(sent, taken, sent.bytes, order))

    def _add_collective(self, meeting: Meeting, algorithm: str) -> None:
        """Add a collective's messages, and for each member its task."""
        calls = [meeting.calls[rank] for rank in meeting.members]
        steps_of_place = self._add_transfers(calls, algorithm)
        for call, steps in zip(calls, steps_of_place, strict=True):
            end = ("done", len(self.tasks))
            member = (call.rank, meeting.key)
            if member in self._last_task:  # a rank's collectives in a group follow each other
                steps.insert(0, ("wait", self._last_task[member], None))
            self._last_task[member] = end
            self._ends[call.rank, call.index] = end
            self.tasks.append((call, steps))

    def _add_transfers(self, calls: Sequence[Event], algorithm: str) -> list[list[Step]]:
        """Add a collective's messages; returns what each member does, by its place in the group."""
        first = calls[0]
        root = 0
        if first.root is not None:
            root = first.group.index(first.root)
        parts = tuple(tuple(call.parts) for call in calls)
        all_rounds = rounds(first.kind, algorithm, len(calls), root, first.bytes, parts)
        steps: list[list[Step]] = [[] for _call in calls]
        for transfers in all_rounds:
            first_number = len(self.messages)
            for number, (source, _target, _size) in enumerate(transfers, first_number):
                steps[source].append(("send", number, None))
            for number, (source, target, size) in enumerate(transfers, first_number):
                sent = calls[source]
                taken = calls[target]
                steps_of_target = steps[target]
                order = (taken.index, len(steps_of_target))
                steps_of_target.append(("wait", ("arrived", number), None))
                self.messages.append(Message(sent, taken, size, order))
        return steps

    def _add_programs(self, events: Sequence[Event], world_size: int) -> None:
        ranks_with_threads = {event.rank for event in events if event.flags & USER_THREAD}
        self.programs = [[("compute", None, None)] for _rank in range(world_size)]
        for event in events:
            if event.rank not in ranks_with_threads:
                program = self.programs[event.rank]
                self._add_steps(event, program, program)
        for rank in ranks_with_threads:
            events_of_rank = [event for event in events if event.rank == rank]
            self.programs[rank] += self._in_order_of_time(events_of_rank)

    def _in_order_of_time(self, events: Sequence[Event]) -> list[Step]:
        """Of a rank with several threads: while one of them waits, a different one goes on."""
        timed: list[tuple[float, list[Step]]] = []
        for event in events:
            begin: list[Step] = []
            end: list[Step] = []
            self._add_steps(event, begin, end)
            timed.append((event.start_s, begin))
            timed.append((event.end_s, end))
        timed.sort(key=lambda pair: pair[0])
        program: list[Step] = []
        for _time, steps in timed:
            program += steps
        return program

    def _add_steps(self, event: Event, begin: list[Step], end: list[Step]) -> None:
        """Add what an event makes its rank compute and begin to `begin`, its waiting to `end`."""
        is_wait = event.kind == "wait"
        index = event.index
        if is_wait:
            index = event.of
        awaited = self._ends.get((event.rank, index))
        if awaited is None:
            raise ReplayError(_("{event!r}: the recording lacks that event.", event=event))
        begin.append(("compute", event, event))
        if not is_wait:
            # Of kind "arrived" there is nothing to begin: asking for a message takes no time.
            kind, number = awaited
            if kind == "left":
                begin.append(("send", number, event))
            elif kind == "done":
                begin.append(("start", number, event))
        if is_wait or event.blocking:
            end.append(("wait", awaited, event))


def _refuse_lonely(pairs: Sequence[Meeting]) -> None:
    lonely: list[Event] = []
    for pair in pairs:
        if pair.missing:
            lonely += pair.calls.values()
    if lonely:
        first = min(lonely, key=lambda call: (call.index, call.rank))
        raise ReplayError(_why_lonely(first))


def _why_lonely(call: Event) -> str:
    if call.kind == "send":
        return _(
            "{call!r}: it has no partner, rank {peer} never receives it.", call=call, peer=call.peer
        )
    if call.peer is None:
        return _("{call!r}: it has no partner, no rank sends it.", call=call)
    return _("{call!r}: it has no partner, rank {peer} never sends it.", call=call, peer=call.peer)


def _refuse_disagreement(meeting: Meeting) -> None:
    calls = meeting.calls
    present = [rank for rank in meeting.members if rank in calls]
    first = calls[present[0]]
    for rank in meeting.members:
        call = calls.get(rank)
        if call is None:
            raise ReplayError(
                _(
                    "{call!r}: it has no partner, rank {rank} made no such call.",
                    call=first,
                    rank=rank,
                )
            )
        if not _agree(first, call):
            raise ReplayError(
                _("{call!r}: it has no partner, it met {other!r}.", call=first, other=call)
            )


def _agree(first: Event, call: Event) -> bool:
    """Whether two calls may be of one collective."""
    if call.kind != first.kind or call.op != first.op or call.root != first.root:
        return False
    sizes_may_differ = call.kind in ("scatter", "all_to_all")
    return sizes_may_differ or call.bytes == first.bytes
