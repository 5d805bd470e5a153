"""What every rank does, step by step, so that each message finds its two ends."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from course_utils.network.collectives import rounds
from course_utils.record.event import ASIDE, Event, Meeting, meetings

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

    Raises:
        ReplayError: A message or a collective has no partner: says which, of which rank and line.
    """

    def __init__(self, events: Sequence[Event], world_size: int, algorithm: str) -> None:
        self.messages: list[Message] = []  # steps and ends refer to them by their places here
        # Likewise each rank's part in each collective, which runs beside the rank's program.
        self.tasks: list[tuple[Event, list[Step]]] = []
        # By rank, what it does itself; it may compute before its first event.
        self.programs: list[list[Step]] = [[("compute", None, None)] for _ in range(world_size)]
        self._ends: dict[tuple[int, int | None], End] = {}  # by rank and index of an event
        self._last: dict[tuple, End] = {}  # task of a rank in a group
        met = meetings(events, world_size)
        messages = [one for one in met if one.key[0] == "message"]
        _refuse_lonely(messages)
        for number, one in enumerate(messages):
            source, target = one.members
            sent, taken = one.calls[source], one.calls[target]
            self._ends[sent.rank, sent.index] = "left", number
            self._ends[taken.rank, taken.index] = "arrived", number
            self.messages.append(Message(sent, taken, sent.bytes, (taken.index, 0)))
        for one in met:
            if one.key[0] == "collective":
                _refuse_disagreement(one)
                self._add_collective(one, algorithm)
        threaded: dict[int, list[tuple[float, list[Step]]]] = {
            event.rank: [] for event in events if event.flags & ASIDE
        }
        for event in events:
            begins = ends = self.programs[event.rank]
            if event.rank in threaded:  # one thread goes on while another one waits
                begins, ends = [], []
                threaded[event.rank] += (event.start_s, begins), (event.end_s, ends)
            self._add_steps(event, begins, ends)
        for rank, steps in threaded.items():
            for _, own in sorted(steps, key=lambda step: step[0]):
                self.programs[rank] += own

    def _add_collective(self, met: Meeting, algorithm: str) -> None:
        """Add a collective's messages, and for each member its task."""
        calls = [met.calls[rank] for rank in met.members]
        first = calls[0]
        root = 0 if first.root is None else first.group.index(first.root)
        parts = tuple(tuple(call.parts) for call in calls)
        steps: list[list[Step]] = [[] for _ in calls]
        for round_ in rounds(first.kind, algorithm, len(calls), root, first.bytes, parts):
            number = len(self.messages)
            for place, (source, _, _) in enumerate(round_, number):
                steps[source].append(("send", place, None))
            for place, (source, target, size) in enumerate(round_, number):
                order = calls[target].index, len(steps[target])
                steps[target].append(("wait", ("arrived", place), None))
                self.messages.append(Message(calls[source], calls[target], size, order))
        for call, own in zip(calls, steps, strict=True):
            end, who = ("done", len(self.tasks)), (call.rank, met.key)
            if who in self._last:  # a rank's collectives in a group come one after the other
                own.insert(0, ("wait", self._last[who], None))
            self._ends[call.rank, call.index] = self._last[who] = end
            self.tasks.append((call, own))

    def _add_steps(self, event: Event, begins: list[Step], ends: list[Step]) -> None:
        """Add what an event makes its rank do, after what it computes first; and its waiting."""
        waits = event.kind == "wait"
        end = self._ends.get((event.rank, event.of if waits else event.index))
        if end is None:
            raise ReplayError(f"{event!r}: the recording lacks that event.")
        begins.append(("compute", event, event))
        kind, number = end
        if not waits and kind != "arrived":  # asking for a message takes no time
            begins.append(("send" if kind == "left" else "start", number, event))
        if waits or event.blocking:
            ends.append(("wait", end, event))


def _refuse_lonely(messages: list[Meeting]) -> None:
    if alone := [call for one in messages if one.missing for call in one.calls.values()]:
        first = min(alone, key=lambda event: (event.index, event.rank))
        verb = "receives" if first.kind == "send" else "sends"
        who = "no rank" if first.peer is None else f"rank {first.peer} never"
        raise ReplayError(f"{first!r}: it has no partner, {who} {verb} it.")


def _refuse_disagreement(met: Meeting) -> None:
    first = next(met.calls[rank] for rank in met.members if rank in met.calls)
    for rank in met.members:
        if (call := met.calls.get(rank)) is None:
            raise ReplayError(f"{first!r}: it has no partner, rank {rank} made no such call.")
        alike = (call.kind, call.op, call.root) == (first.kind, first.op, first.root)
        sized = call.kind in ("scatter", "all_to_all") or call.bytes == first.bytes
        if not (alike and sized):
            raise ReplayError(f"{first!r}: it has no partner, it met {call!r}.")
