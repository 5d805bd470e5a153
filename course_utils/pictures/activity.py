"""A recording or a replay, read as bars and arrows on one clock."""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_utils.network.network import Network
from course_utils.network.replay import Replay
from course_utils.network.trace import Trace
from course_utils.pictures.bars import Activity, Arrow, Bar
from course_utils.record.meetings import meetings

if TYPE_CHECKING:
    from course_utils.record.event import Event

_CLOCK = "real time on this machine (ms)"
_PORTS = {"send": "send", "recv": "receive"}  # all else is a collective
_Met = dict[tuple[int, int], float]  # by an event's rank and index


def activity(source: "Trace | Replay", network: Network | None = None) -> Activity:
    """Read a recording (in real time, or replayed on a network) or a replay.

    Raises:
        TypeError: It is something else.
        ReplayError: A message or a collective has no partner, and a network was given.
    """
    if isinstance(source, Trace):
        return _virtual(source.replay(network), network) if network else _in_real_time(source)
    if isinstance(source, Replay):
        return _virtual(source, network or source.network)
    raise TypeError(
        f"a timeline is drawn of results.trace or of trace.replay(network), not of {source!r:.80}"
    )


def named(network: Network) -> str:
    """What a network is, in words for an axis."""
    words = [f"latency {network.latency_us:g} us, {network.gbit_s:g} Gbit/s"]
    if network.between:
        latency_us, gbit_s = network.between
        words += [f"{network.nodes} nodes with {latency_us:g} us, {gbit_s:g} Gbit/s between them"]
    words += [f"slow link {a} to {b}" for a, b in network.slow_links]
    words += [f"rank {rank} slow" for rank in network.slow_ranks]
    return ", ".join(words)


def _virtual(replay: Replay, network: Network | None) -> Activity:
    bars = [Bar(i.rank, i.start_us, i.end_us, i.what, i) for i in replay.intervals]
    sent = defaultdict(list)  # between two ports, messages arrive in the order they were sent in
    for i in replay.intervals:
        if i.what == "send":
            sent[i.rank, i.peer].append(i)
    sends = {pair: iter(own) for pair, own in sent.items()}
    arrows = [
        Arrow(i.peer, next(sends[i.peer, i.rank]).start_us, i.rank, i.end_us, i.bytes)
        for i in replay.intervals
        if i.what == "receive"
    ]
    arrows.sort(key=lambda arrow: (arrow.start, arrow.source, arrow.end, arrow.target))
    clock = f"virtual time (us), {named(network)}" if network else "virtual time (us)"
    return Activity(len(replay.finish_us), bars, arrows, replay.finish_us, "us", clock)


def _in_real_time(trace: Trace) -> Activity:
    """Bars from the first call of any rank on, in milliseconds.

    A message or a collective begins where the last rank that it needs has called it too: before,
    the others only wait. Of what a failed launch left unfinished nothing but the waiting is drawn.
    """
    begin = min((event.start_s for event in trace), default=0.0)

    def ms(moment_s: float) -> float:
        return 1e3 * (moment_s - begin)

    met: _Met = {}
    arrows = []
    for meeting in meetings(trace, trace.world_size):
        calls = list(meeting.calls.values())
        for call in calls:
            met[call.rank, call.index] = max(other.start_s for other in _needed(call, calls))
        if len(calls) == 2 and calls[0].kind in _PORTS and all(call.finished for call in calls):
            sent, taken = (meeting.calls[rank] for rank in meeting.members)
            ends = ms(sent.start_s), taken.rank, ms(taken.end_s)
            arrows.append(Arrow(sent.rank, *ends, sent.bytes))
    arrows.sort(key=lambda arrow: arrow.start)
    bars = [
        Bar(rank, ms(start_s), ms(end_s), what, label)
        for rank, (end_s, _) in enumerate(trace.ended)
        for start_s, end_s, what, label in _of_rank(trace.of_rank(rank), begin, end_s, met)
    ]
    ends = tuple(max(0.0, ms(end_s)) for end_s, _ in trace.ended)
    return Activity(trace.world_size, bars, arrows, ends, "ms", _CLOCK)


def _of_rank(
    events: "list[Event]", now: float, end_s: float, met: _Met
) -> Iterator[tuple[float, float, str, str]]:
    """A rank waits while a call holds it, and else runs its own code."""
    for event in events:
        if event.blocking or event.kind == "wait":
            if event.start_s > now:
                yield now, event.start_s, "compute", "own code"
            yield event.start_s, event.end_s, "wait", f"waits in {event.what}"
            now = max(now, event.end_s)
        if event.kind != "wait" and event.finished:
            begin = met.get((event.rank, event.index), 0.0)
            begin = begin if event.start_s < begin < event.end_s else event.start_s
            yield begin, event.end_s, _PORTS.get(event.kind, "collective"), event.what
    if end_s > now:
        yield now, end_s, "compute", "own code"


def _needed(event: "Event", members: "list[Event]") -> "list[Event]":
    """Whose data a rank needs before its part in a collective can be done."""
    if event.kind in ("broadcast", "scatter"):
        return [other for other in members if other.rank == event.root] or [event]
    if event.kind in ("reduce", "gather") and event.rank != event.root:
        return [event]
    return members
