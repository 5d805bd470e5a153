"""Who meets whom in a trace: each message its two ends, each collective all its members."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from course_utils.network.collectives import lower, refuse_unknown

if TYPE_CHECKING:
    from course_utils.network.trace import Trace
    from course_utils.record.event import Event

# What a rank does: send a message; wait until one has left, or has arrived; start a collective, or
# wait for its end; compute.
SEND, SENT, TAKEN, START, DONE, COMPUTE = range(6)
Step = tuple[int, Any, "Event | None"]  # one of these; a message's or task's number; and why


_FAILED = (
    "this recording is of a launch that failed, so it ends in the middle and cannot be replayed or "
    "counted: plot_timeline(error.trace) shows in real time how far each rank came."
)


class ReplayError(ValueError):
    """The recording has no replay: it is of a failed launch, or something has no partner."""


class Message(NamedTuple):
    """One message; `order` is when its receiver asked for it, among all that it asked for."""

    source: int
    target: int
    bytes: float
    order: tuple[int, int]
    sent: "Event"
    taken: "Event"


class Task(NamedTuple):
    """One rank's part in one collective; it runs beside the rank's program."""

    event: "Event"
    steps: list[Step]


@dataclass
class Schedule:
    """What all ranks do; steps refer to messages and tasks by their places in these lists."""

    messages: list[Message] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    programs: list[list[Step]] = field(default_factory=list)
    ends: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By rank and index of an event: the step that waits for its end."""


def match(trace: "Trace", algorithm: str) -> Schedule:
    """Find every partner, and spell collectives out as messages of `algorithm`.

    Raises:
        ValueError: The algorithm is unknown.
        ReplayError: The launch failed; or a message or a collective has no partner: says which, of
            which rank and line.
    """
    refuse_unknown(algorithm)
    if trace.failed:
        raise ReplayError(_FAILED)
    schedule = Schedule(programs=[[] for _ in range(trace.world_size)])
    _match_messages(trace, schedule)
    for calls in _calls_by_group(trace):
        _match_collective(calls, algorithm, schedule)
    for event in trace.events:
        schedule.programs[event.rank] += _steps(event, schedule.ends)
    for program in schedule.programs:
        program.append((COMPUTE, None, None))
    return schedule


def _match_messages(trace: "Trace", schedule: Schedule) -> None:
    """The k-th send of a pair, tag and group meets the k-th receive of the same."""
    ends: dict[tuple, tuple[list[Event], list[Event]]] = {}
    for event in trace.events:
        if event.kind == "send":
            key = event.rank, event.peer, event.tag, event.group_name
            ends.setdefault(key, ([], []))[0].append(event)
        elif event.kind == "recv":
            key = event.peer, event.rank, event.tag, event.group_name
            ends.setdefault(key, ([], []))[1].append(event)
    alone = [event for a, b in ends.values() for event in a[len(b) :] + b[len(a) :]]
    if alone:
        first = min(alone, key=lambda event: (event.index, event.rank))
        verb = "receives" if first.kind == "send" else "sends"
        who = "no rank" if first.peer is None else f"rank {first.peer} never"
        raise ReplayError(f"{first!r}: it has no partner, {who} {verb} it.")
    for sends, takes in ends.values():
        for sent, taken in zip(sends, takes, strict=True):
            schedule.ends[sent.rank, sent.index] = SENT, len(schedule.messages)
            schedule.ends[taken.rank, taken.index] = TAKEN, len(schedule.messages)
            ranks, order = (sent.rank, taken.rank), (taken.index, 0)
            schedule.messages.append(Message(*ranks, sent.bytes, order, sent, taken))


def _calls_by_group(trace: "Trace") -> list[list["Event"]]:
    """Each collective as the list of its members' calls, in the group's order."""
    groups: dict[str, dict[int, list[Event]]] = {}
    for event in trace.events:
        if event.kind not in ("send", "recv", "wait"):
            members = groups.setdefault(event.group_name, {rank: [] for rank in event.group})
            members[event.rank].append(event)
    found = []
    for members in groups.values():
        calls = list(members.values())
        for place in range(max(map(len, calls))):
            met = [own[place] if place < len(own) else None for own in calls]
            found.append(_agreed(met, list(members)))
    return found


def _agreed(calls: Sequence["Event | None"], ranks: Sequence[int]) -> list["Event"]:
    """The calls, if they can meet in one collective."""
    first = next(call for call in calls if call)
    for rank, call in zip(ranks, calls, strict=True):
        if call is None:
            raise ReplayError(f"{first!r}: it has no partner, rank {rank} made no such call.")
        if _signature(call) != _signature(first):
            raise ReplayError(f"{first!r}: it has no partner, it met {call!r}.")
    return list(calls)


def _signature(event: "Event") -> tuple:
    size = None if event.kind in ("scatter", "all_to_all") else event.bytes
    return event.kind, event.op, event.root, size, event.group


def _match_collective(calls: list["Event"], algorithm: str, schedule: Schedule) -> None:
    """Add a collective's messages, and for each member its task."""
    first, messages = calls[0], schedule.messages
    root = 0 if first.root is None else first.group.index(first.root)
    parts = [call.parts for call in calls]
    steps: list[list] = lower(first.kind, algorithm, len(calls), root, first.bytes, parts)
    takes: dict[tuple[int, int], deque[int]] = {}  # by places of sender and receiver: steps' places
    for place, own in enumerate(steps):
        for position, (other, size) in enumerate(own):
            if size is None:
                takes.setdefault((other, place), deque()).append(position)
    for place, own in enumerate(steps):
        for position, (other, size, *_) in enumerate(own):
            if len(own[position]) == 2 and size is not None:
                taken, call, target = takes[place, other].popleft(), calls[place], calls[other]
                own[position] = SEND, len(messages), call
                steps[other][taken] = TAKEN, len(messages), target
                order = target.index, taken
                messages.append(Message(call.rank, target.rank, size, order, call, target))
    for call, own in zip(calls, steps, strict=True):
        schedule.ends[call.rank, call.index] = DONE, len(schedule.tasks)
        schedule.tasks.append(Task(call, own))


def _steps(event: "Event", ends: dict[tuple[int, int], tuple[int, int]]) -> list[Step]:
    """What an event makes its rank do, after what it computes first."""
    steps: list[Step] = [(COMPUTE, event, event)]
    number = event.of if event.kind == "wait" else event.index
    if (event.rank, number) not in ends:
        raise ReplayError(f"{event!r}: the recording lacks that event.")
    code, what = ends[event.rank, number]
    if event.kind not in ("recv", "wait"):  # asking for a message takes no time
        steps.append((SEND if code == SENT else START, what, event))
    if event.blocking or event.kind == "wait":
        steps.append((code, what, event))
    return steps
