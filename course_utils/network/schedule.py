"""What every rank does, step by step, so that each message finds its two ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from course_utils.network.collectives import refuse_unknown, rounds
from course_utils.record.event import Event
from course_utils.record.meetings import Meeting, meetings

# What a rank does: compute; send a message; wait until one has left, or has arrived; start a
# collective, or wait for its end.
COMPUTE, SEND, SENT, TAKEN, START, DONE = range(6)
Step = tuple[int, Any, Event | None]  # one of these; a message's or task's number; and why


class ReplayError(ValueError):
    """The recording has no replay: it is of a failed launch, or something has no partner."""


class Message(NamedTuple):
    """One message; `order` is when its receiver asked for it, among all that it asked for."""

    source: int
    target: int
    bytes: float
    order: tuple[int, int]
    sent: Event
    taken: Event


class Task(NamedTuple):
    """One rank's part in one collective; it runs beside the rank's program."""

    event: Event
    steps: list[Step]


@dataclass
class Schedule:
    """What all ranks do; steps refer to messages and tasks by their places in these lists."""

    messages: list[Message] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    programs: list[list[Step]] = field(default_factory=list)


# By rank and index of an event: the step that waits for its end.
Ends = dict[tuple[int, int], tuple[int, int]]


def schedule(events: Sequence[Event], world_size: int, algorithm: str) -> Schedule:
    """Find every partner, and spell collectives out as messages of `algorithm`.

    Raises:
        ValueError: The algorithm is unknown.
        ReplayError: A message or a collective has no partner: says which, of which rank and line.
    """
    refuse_unknown(algorithm)
    plan, ends = Schedule(programs=[[] for _ in range(world_size)]), {}
    met = meetings(events, world_size, anew=True)
    messages = [one for one in met if one.key[0] == "message"]
    _refuse_lonely(messages)
    for one in messages:
        _add_message(one, plan, ends)
    for one in met:
        if one.key[0] == "collective":
            _refuse_disagreement(one)
            _add_collective(one, algorithm, plan, ends)
    for event in events:
        _add_steps(event, ends, plan.programs[event.rank])
    for program in plan.programs:
        program.append((COMPUTE, None, None))
    return plan


def _refuse_lonely(messages: list[Meeting]) -> None:
    alone = [call for one in messages if len(one.calls) < 2 for call in one.calls.values()]
    if alone:
        first = min(alone, key=lambda event: (event.index, event.rank))
        verb = "receives" if first.kind == "send" else "sends"
        who = "no rank" if first.peer is None else f"rank {first.peer} never"
        raise ReplayError(f"{first!r}: it has no partner, {who} {verb} it.")


def _refuse_disagreement(met: Meeting) -> None:
    calls = [met.calls.get(rank) for rank in met.members]
    first = next(call for call in calls if call)
    for rank, call in zip(met.members, calls, strict=True):
        if call is None:
            raise ReplayError(f"{first!r}: it has no partner, rank {rank} made no such call.")
        if _signature(call) != _signature(first):
            raise ReplayError(f"{first!r}: it has no partner, it met {call!r}.")


def _signature(event: Event) -> tuple:
    size = None if event.kind in ("scatter", "all_to_all") else event.bytes
    return event.kind, event.op, event.root, size


def _add_message(met: Meeting, plan: Schedule, ends: Ends) -> None:
    sent, taken = (met.calls[rank] for rank in met.members)
    ends[sent.rank, sent.index] = SENT, len(plan.messages)
    ends[taken.rank, taken.index] = TAKEN, len(plan.messages)
    order = taken.index, 0
    plan.messages.append(Message(sent.rank, taken.rank, sent.bytes, order, sent, taken))


def _add_collective(met: Meeting, algorithm: str, plan: Schedule, ends: Ends) -> None:
    """Add a collective's messages, and for each member its task."""
    calls = [met.calls[rank] for rank in met.members]
    first, messages = calls[0], plan.messages
    root = 0 if first.root is None else first.group.index(first.root)
    parts = tuple(tuple(call.parts) for call in calls)
    steps: list[list[Step]] = [[] for _ in calls]
    for round_ in rounds(first.kind, algorithm, len(calls), root, first.bytes, parts):
        number = len(messages)
        for place, (source, _, _) in enumerate(round_, number):
            steps[source].append((SEND, place, None))
        for place, (source, target, size) in enumerate(round_, number):
            sent, taken = calls[source], calls[target]
            order = taken.index, len(steps[target])
            steps[target].append((TAKEN, place, None))
            messages.append(Message(sent.rank, taken.rank, size, order, sent, taken))
    for call, own in zip(calls, steps, strict=True):
        ends[call.rank, call.index] = DONE, len(plan.tasks)
        plan.tasks.append(Task(call, own))


def _add_steps(event: Event, ends: Ends, program: list[Step]) -> None:
    """What an event makes its rank do, after what it computes first."""
    waits = event.kind == "wait"
    end = ends.get((event.rank, event.of if waits else event.index))
    if end is None:
        raise ReplayError(f"{event!r}: the recording lacks that event.")
    program.append((COMPUTE, event, event))
    code, what = end
    if not waits and code != TAKEN:  # asking for a message takes no time
        program.append((SEND if code == SENT else START, what, event))
    if waits or event.blocking:
        program.append((code, what, event))
