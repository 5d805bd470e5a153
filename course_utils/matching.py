"""Who meets whom in a trace: each message its two ends, each collective all its members."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from course_utils.collectives import lower

if TYPE_CHECKING:
    from course_utils.trace import Event, Trace

# What a rank does: send a message; wait until one has left, or has arrived; start a collective, or
# wait for its end; compute.
SEND, SENT, TAKEN, START, DONE, COMPUTE = range(6)
Step = tuple[int, float, "Event | None"]  # one of these, its message, task or microseconds, and why


class ReplayError(ValueError):
    """The recording has no replay: something in it has no partner."""


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


class Schedule(NamedTuple):
    """What all ranks do; steps refer to messages and tasks by their places in these lists."""

    messages: list[Message]
    tasks: list[Task]
    programs: list[list[Step]]


def match(trace: "Trace", algorithm: str) -> Schedule:
    """Find every partner, and spell collectives out as messages.

    Raises:
        ReplayError: A message or a collective has no partner; says which, of which rank and line.
    """
    schedule = Schedule([], [], [])
    handles: dict[tuple[int, int], tuple[int, int]] = {}  # by rank and index: what a wait means
    _match_messages(trace, schedule, handles)
    for calls in _calls_by_group(trace):
        _match_collective(calls, algorithm, schedule, handles)
    programs = [[] for _ in range(trace.world_size)]
    for event in trace.events:
        programs[event.rank] += _steps(event, handles)
    return schedule._replace(programs=programs)


def _match_messages(trace: "Trace", schedule: Schedule, handles: dict) -> None:
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
            handles[sent.rank, sent.index] = SENT, len(schedule.messages)
            handles[taken.rank, taken.index] = TAKEN, len(schedule.messages)
            order = taken.index, 0
            message = Message(sent.rank, taken.rank, sent.bytes, order, sent, taken)
            schedule.messages.append(message)


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


def _match_collective(
    calls: list["Event"], algorithm: str, schedule: Schedule, handles: dict
) -> None:
    """Add a collective's messages, and for each member its task."""
    first, n = calls[0], len(calls)
    root = 0 if first.root is None else first.group.index(first.root)
    parts = [call.parts for call in calls]
    lowered = lower(first.kind, algorithm, n, root, first.bytes, parts)
    pending: dict[tuple[int, int], list[int]] = {}  # by places of sender and receiver
    steps: list[list[Step]] = [[] for _ in calls]
    for place, own in enumerate(lowered):
        for other, size in own:
            if size is not None:
                pending.setdefault((place, other), []).append(len(schedule.messages))
                steps[place].append((SEND, len(schedule.messages), calls[place]))
                ends = calls[place].rank, calls[other].rank
                message = Message(*ends, size, (0, 0), calls[place], calls[other])
                schedule.messages.append(message)
            else:
                steps[place].append((TAKEN, other, calls[place]))
    for place, call in enumerate(calls):
        handles[call.rank, call.index] = DONE, len(schedule.tasks)
        _number(steps[place], place, pending, schedule.messages)
        schedule.tasks.append(Task(call, steps[place]))


def _number(steps: list[Step], place: int, pending: dict, messages: list[Message]) -> None:
    """Let each step that takes know its message, and each message when it is asked for."""
    for position, (code, other, event) in enumerate(steps):
        if code == TAKEN:
            number = pending[other, place].pop(0)
            messages[number] = messages[number]._replace(order=(event.index, position))
            steps[position] = TAKEN, number, event


def _steps(event: "Event", handles: dict) -> list[Step]:
    """What an event makes its rank do."""
    if event.kind == "wait":
        if (event.rank, event.of) not in handles:
            raise ReplayError(f"{event!r}: the recording lacks that event.")
        return [(*handles[event.rank, event.of], event)]
    code, number = handles[event.rank, event.index]
    begin, what = {SENT: (SEND, number), TAKEN: (COMPUTE, 0.0), DONE: (START, number)}[code]
    first = begin, what, event  # asking for a message takes no time
    return [first, (code, number, event)] if event.blocking else [first]
