"""What every rank did when, in real time, from the times in a recording."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from course_utils.pictures.bars import Activity, Arrow, Bar

if TYPE_CHECKING:
    from course_utils.network.trace import Event, Trace

_CLOCK = "real time on this machine (ms)"
_Key = tuple[int, int]  # an event's rank and index


def in_real_time(trace: "Trace") -> Activity:
    """Bars from the first call of any rank on, in milliseconds.

    A message or a collective begins where the last rank that it needs has called it too: before,
    the others only wait. Of what a failed launch left unfinished nothing but the waiting is drawn.
    """
    begin = min((event.start_s for event in trace), default=0.0)
    pairs = [pair for pair in _pairs(trace) if all(event.finished for event in pair)]
    met = dict(_met(trace, pairs))
    bars = []
    for rank, (end_s, _) in enumerate(trace.ended):
        bars += _of_rank(trace.of_rank(rank), rank, begin, end_s, met)
    bars = [bar._replace(start=_ms(bar.start, begin), end=_ms(bar.end, begin)) for bar in bars]
    arrows = [
        Arrow(s.rank, _ms(s.start_s, begin), r.rank, _ms(r.end_s, begin), s.bytes) for s, r in pairs
    ]
    arrows.sort(key=lambda arrow: arrow.start)
    ends = tuple(max(0.0, _ms(end_s, begin)) for end_s, _ in trace.ended)
    return Activity(trace.world_size, bars, arrows, ends, "ms", _CLOCK)


def _ms(moment_s: float, begin_s: float) -> float:
    return 1e3 * (moment_s - begin_s)


def _of_rank(
    events: "list[Event]", rank: int, now: float, end_s: float, met: dict[_Key, float]
) -> Iterator[Bar]:
    """A rank waits while a call holds it, and else runs its own code."""
    for event in events:
        if event.blocking or event.kind == "wait":
            if event.start_s > now:
                yield Bar(rank, now, event.start_s, "compute", "own code")
            yield Bar(rank, event.start_s, event.end_s, "wait", f"waits in {event.what}")
            now = max(now, event.end_s)
        if event.kind != "wait" and event.finished:
            what = {"send": "send", "recv": "receive"}.get(event.kind, "collective")
            begin = met.get((rank, event.index), 0.0)
            begin = begin if event.start_s < begin < event.end_s else event.start_s
            yield Bar(rank, begin, event.end_s, what, event.what)
    if end_s > now:
        yield Bar(rank, now, end_s, "compute", "own code")


def _pairs(trace: "Trace") -> "Iterator[tuple[Event, Event]]":
    """Each send with its receive; what has no partner is left out."""
    ends = defaultdict(lambda: ([], []))
    for e in trace:
        if e.kind == "send":
            ends[e.rank, e.peer, e.tag, e.group_name][0].append(e)
        elif e.kind == "recv":
            ends[e.peer, e.rank, e.tag, e.group_name][1].append(e)
    for sends, takes in ends.values():
        yield from zip(sends, takes, strict=False)


def _met(trace: "Trace", pairs: "Iterable[tuple[Event, Event]]") -> Iterator[tuple[_Key, float]]:
    """By rank and index: when the last rank that the operation needs had called it as well."""
    calls, counts = defaultdict(list), defaultdict(int)
    for e in trace:
        if e.kind not in ("send", "recv", "wait"):
            calls[e.group_name, counts[e.rank, e.group_name]].append(e)
            counts[e.rank, e.group_name] += 1
    for sent, taken in pairs:
        both = max(sent.start_s, taken.start_s)
        yield from (((e.rank, e.index), both) for e in (sent, taken))
    for members in calls.values():
        for e in members:
            yield (e.rank, e.index), max(other.start_s for other in _needed(e, members))


def _needed(event: "Event", members: "list[Event]") -> "list[Event]":
    """Whose data a rank needs before its part in a collective can be done."""
    if event.kind in ("broadcast", "scatter"):
        return [other for other in members if other.rank == event.root] or [event]
    if event.kind in ("reduce", "gather") and event.rank != event.root:
        return [event]
    return members
