"""A recording or a replay, read as bars and arrows on one clock."""

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from course_utils.network.network import Network
from course_utils.network.replay import Interval, Replay
from course_utils.network.trace import Trace
from course_utils.pictures.style import SPOKEN, first_of, together, us
from course_utils.record.event import Event
from course_utils.record.meetings import meetings

_PORTS = {"send": "send", "recv": "receive"}  # all else is a collective


class Activity(NamedTuple):
    """Everything on one clock, in microseconds.

    Attributes:
        bars: What ranks do: "compute", "wait", "collective", "send" and "receive".
        arrows: From when a message is sent until its receiver has it, in the order of sending.
        ends: When each rank is done.
        clock: Which clock this is, for an axis.
        tick_us: What the axis counts in: 1000 if milliseconds.
    """

    bars: list[Interval]
    arrows: list[Interval]
    ends: tuple[float, ...]
    clock: str
    tick_us: int = 1

    @property
    def end(self) -> float:
        """When the last of all is done."""
        return max((0.0, *self.ends, *(bar.end_us for bar in self.bars)))


def activity(source: Trace | Replay) -> Activity:
    """Read a recording, in real time, or a replay; raises TypeError for anything else."""
    if not isinstance(source, (Trace, Replay)):
        raise TypeError(
            "a timeline is drawn of results.trace or of trace.replay(network), "
            f"not of {source!r:.80}"
        )
    what = _in_real_time(source) if isinstance(source, Trace) else _virtual(source)
    what.arrows.sort(key=itemgetter(1, 0, 2, 5))  # start_us, rank, end_us, peer
    return what


def named(network: Network) -> str:
    """What a network is, in words for an axis."""
    words = [f"latency {network.latency_us:g} us, {network.gbit_s:g} Gbit/s"]
    if network.between:
        latency_us, gbit_s = network.between
        words += [f"{network.nodes} nodes with {latency_us:g} us, {gbit_s:g} Gbit/s between them"]
    words += [f"slow link {a} to {b}" for a, b in network.slow_links]
    words += [f"rank {rank} slow" for rank in network.slow_ranks]
    return ", ".join(words)


def virtual_text(what: Activity) -> str:
    """Who is done when on the virtual clock, and how long it waited in calls."""
    held, ends = [0.0] * len(what.ends), what.ends
    for bar in what.bars:
        held[bar.rank] += bar.end_us - bar.start_us if bar.what == "wait" else 0.0
    pairs = zip(ends, held, strict=True)
    said = together(f"done at {us(end)}, waiting for {us(own)} of it" for end, own in pairs)
    if len(said) > SPOKEN:
        first, last, most = ends.index(min(ends)), ends.index(max(ends)), held.index(max(held))
        said = [
            f"of {len(what.ends)} ranks rank {first} is done first, at {us(ends[first])}, "
            f"rank {last} last, at {us(ends[last])}",
            f"rank {most} waits longest, {us(held[most])}",
        ]
    return f"V{what.clock[1:]}: {first_of(said)}"


def real_text(trace: Trace) -> str:
    """How many calls of which kind each rank made: in every run the same, unlike the times."""
    calls = [Counter() for _ in range(trace.world_size)]
    for event in trace:
        calls[event.rank][event.kind] += 1
    counts = (", ".join(f"{n} {kind}" for kind, n in own.items()) or "no calls" for own in calls)
    return f"Real time, calls of {first_of(together(counts, ': '))}"


def _virtual(replay: Replay) -> Activity:
    def of(what: str, *ends: int) -> list[Interval]:
        return sorted((i for i in replay.intervals if i.what == what), key=itemgetter(*ends))

    # Between two ports, messages arrive in the order in which they were sent.
    pairs = zip(of("send", 0, 5), of("receive", 5, 0), strict=True)  # by sender and receiver
    arrows = [sent._replace(end_us=taken.end_us) for sent, taken in pairs]
    clock = f"virtual time (us), {named(replay.network)}"
    return Activity(list(replay.intervals), arrows, replay.finish_us, clock)


def _in_real_time(trace: Trace) -> Activity:
    """Bars from the first call of any rank on.

    A message or a collective begins where the last rank that it needs has called it too: before,
    the others only wait. Of what a failed launch left unfinished nothing but the waiting is drawn.
    """
    begin = min((event.start_s for event in trace), default=0.0)

    def at_us(moment_s: float) -> float:
        return 1e6 * (moment_s - begin)

    met, arrows = {}, []
    for meeting in meetings(trace, trace.world_size):
        calls = list(meeting.calls.values())
        for call in calls:
            met[call.rank, call.index] = max(other.start_s for other in _needed(call, calls))
        if len(calls) == 2 and calls[0].kind in _PORTS and all(call.finished for call in calls):
            sent, taken = (meeting.calls[rank] for rank in meeting.members)
            ends = at_us(sent.start_s), at_us(taken.end_s)
            arrows.append(Interval(sent.rank, *ends, "send", sent, taken.rank, sent.bytes))
    bars = [
        Interval(rank, at_us(start_s), at_us(end_s), what, event)
        for rank, (end_s, *_) in enumerate(trace.ended)
        for start_s, end_s, what, event in _of_rank(trace.of_rank(rank), begin, end_s, met)
    ]
    ends = tuple(max(0.0, at_us(end_s)) for end_s, *_ in trace.ended)
    return Activity(bars, arrows, ends, "real time on this machine (ms)", 1000)


def _of_rank(
    events: list[Event], now: float, end_s: float, met: dict[tuple[int, int], float]
) -> Iterator[tuple[float, float, str, Event | None]]:
    """A rank waits while a call holds it, and else runs its own code."""
    for event in events:
        if event.blocking or event.kind == "wait":
            if event.start_s > now:
                yield now, event.start_s, "compute", None
            yield event.start_s, event.end_s, "wait", event
            now = max(now, event.end_s)
        if event.kind != "wait" and event.finished:
            begin = met.get((event.rank, event.index), 0.0)
            begin = begin if event.start_s < begin < event.end_s else event.start_s
            yield begin, event.end_s, _PORTS.get(event.kind, "collective"), event
    if end_s > now:
        yield now, end_s, "compute", None


def _needed(event: Event, members: list[Event]) -> list[Event]:
    """Whose data a rank needs before its part in a collective can be done."""
    if event.kind in ("broadcast", "scatter"):
        return [other for other in members if other.rank == event.root] or [event]
    if event.kind in ("reduce", "gather") and event.rank != event.root:
        return [event]
    return members
