"""Calls that a GPU carries out later: which of them stops a rank's queue.

Under NCCL a collective returns as soon as it is queued. A rank that hangs stands in the line that
needs a result, in `.item()` or a copy, and no frame there tells of a collective. The record does.
"""

from collections import deque
from collections.abc import Callable, Iterable

from course_utils.record.event import ASYNC, QUEUED, Event, Key, Meeting, key_of

# The stream that a call is queued on: a rank, and a group whose calls have a stream of their own.
Stream = tuple[int, Key | None]


def stuck(
    calls: Iterable[Event],
    meeting_of: Callable[[Event], Meeting],
    missing: Callable[[Event], object],
    difference: Callable[[Meeting], object],
) -> dict[int, list[Event]]:
    """Find the calls that stop queues.

    Args:
        calls: All calls that are known, each rank's in its order.
        meeting_of: The meeting that a call belongs to.
        missing: Who has not come to a call, if anybody.
        difference: What the calls of a meeting differ in, if they do.

    Returns:
        By rank the first calls of its queues that cannot end, in order. A rank whose queues run
        empty is left out.
    """
    queues: dict[Stream, deque[Event]] = {}
    stuck_calls: dict[int, list[Event]] = {}
    for call in calls:
        # A send needs no receiver to end, as long as it is small.
        if not call.flags & QUEUED or call.kind == "send":
            continue
        if call.kind != "recv":
            queues.setdefault(_stream(call), deque()).append(call)
        elif not call.tag and missing(call):  # NCCL looks at no tag
            stuck_calls.setdefault(call.rank, []).append(call)

    def may_end(call: Event) -> bool:
        return not missing(call) and not difference(meeting_of(call))

    _run(queues.values(), meeting_of, may_end)
    for queue in queues.values():
        if queue:
            first = queue[0]
            stuck_calls.setdefault(first.rank, []).append(first)
    for rank_calls in stuck_calls.values():
        rank_calls.sort(key=lambda call: call.index)
    return stuck_calls


def _stream(call: Event) -> Stream:
    """Calls for which the caller waits share the stream of its computations."""
    is_async = call.flags & ASYNC
    group = key_of(call) if is_async else None
    return call.rank, group


def _run(
    queues: Iterable[deque[Event]],
    meeting_of: Callable[[Event], Meeting],
    may_end: Callable[[Event], bool],
) -> None:
    """Take the first calls off their queues, as long as a call is the first one on all its ranks.

    Calls are known by their `id`, since it would take long to compare all their fields.
    """
    has_gone_on = True
    while has_gone_on:
        has_gone_on = False
        first_in = {id(queue[0]): queue for queue in queues if queue}
        for queue in list(first_in.values()):
            if not queue or id(queue[0]) not in first_in:
                continue  # its first call has just been taken off; the next one comes later
            call = queue[0]
            met = meeting_of(call).calls.values()
            queued = [peer_call for peer_call in met if peer_call.flags & QUEUED]
            all_first = all(id(peer_call) in first_in for peer_call in queued)
            if all_first and may_end(call):
                for peer_call in queued:
                    first_in.pop(id(peer_call)).popleft()
                has_gone_on = True
