"""Calls that a GPU does later: which of them stops a rank's queue, whatever its stack looks like.

Under NCCL a collective returns as soon as it is queued. A rank that hangs stands in the line that
needs a result, in `.item()` or a copy, and no frame there tells of a collective. The record does.
"""

from collections.abc import Callable, Iterable, Mapping

from course_utils.record.event import ASYNC, QUEUED, Event, Key, Meeting, key_of

Lane = tuple[int, Key | None]  # a rank, and a group whose calls have a stream of their own


def stuck(
    calls: Iterable[Event],
    meeting_of: Callable[[Event], Meeting],
    lacks: Callable[[Event], object],
    differs: Callable[[Meeting], object],
) -> dict[int, list[Event]]:
    """By rank the first calls of its queues that cannot end, in order; nothing where they run dry.

    Args:
        calls: All calls that are known, each rank's in its order.
        meeting_of: The meeting that a call belongs to.
        lacks: Whether somebody has not come to a call.
        differs: Whether the calls of a meeting are not the same on all ranks.
    """
    lanes: dict[Lane, list[Event]] = {}
    found: dict[int, list[Event]] = {}
    for call in calls:
        if not call.flags & QUEUED:
            continue
        if call.kind == "send":
            continue  # a small one ends without its receiver
        if call.kind == "recv":
            if not call.tag and lacks(call):  # NCCL looks at no tag
                found.setdefault(call.rank, []).append(call)
            continue
        lanes.setdefault(_lane(call), []).append(call)
    _run(lanes, meeting_of, lacks, differs)
    for left in lanes.values():
        if left:
            found.setdefault(left[0].rank, []).append(left[0])
    for first in found.values():
        first.sort(key=lambda call: call.index)
    return found


def _lane(call: Event) -> Lane:
    """Calls for which the caller waits share the stream of its computations."""
    return call.rank, key_of(call) if call.flags & ASYNC else None


def _run(
    lanes: Mapping[Lane, list[Event]],
    meeting_of: Callable[[Event], Meeting],
    lacks: Callable[[Event], object],
    differs: Callable[[Meeting], object],
) -> None:
    """Take away the first calls of the lanes, as long as all ranks of some call have come to it."""
    for lane in lanes.values():
        lane.reverse()  # the first is taken from the end
    goes_on = True
    while goes_on:
        heads = {id(lane[-1]): lane for lane in lanes.values() if lane}
        goes_on = False
        for lane in list(heads.values()):
            if not lane or id(lane[-1]) not in heads:
                continue
            call = lane[-1]
            meeting = meeting_of(call)
            queued = [its for its in meeting.calls.values() if its.flags & QUEUED]
            all_first = all(id(its) in heads for its in queued)
            if all_first and not lacks(call) and not differs(meeting):
                for its in queued:
                    heads.pop(id(its)).pop()
                goes_on = True
    for lane in lanes.values():
        lane.reverse()
