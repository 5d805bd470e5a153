"""A recording or a replay, read as bars and arrows on one clock."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from course_utils.network.network import Network
from course_utils.network.simulation import Interval, Replay
from course_utils.network.trace import Trace
from course_utils.pictures.style import first_of, together, us
from course_utils.record.event import Event, meetings

_QUEUED = (
    "A call ends here when it was queued on the GPU, not when its work was done: between calls a "
    "rank runs code of its own, or waits for its GPU."
)
_TIMED = (
    "A collective lasts here as long as its work did on the GPU, by CUDA's events. The call itself "
    "ended when it was queued."
)
_PORTS = {"send": "send", "recv": "receive"}  # all else is a collective


class Activity(NamedTuple):
    """Everything on one clock, in microseconds."""

    bars: list[Interval]
    arrows: list[Interval]  # from when a message is sent until it has arrived
    ends: tuple[float, ...]  # when each rank is done
    clock: str  # which one this is, for an axis
    tick_us: int = 1  # what the axis counts in: 1000 if milliseconds

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
    return _in_real_time(source) if isinstance(source, Trace) else _virtual(source)


def spans(bars: Iterable[Interval], pixel_us: float) -> dict[str, list]:
    """The same to the eye, with fewer bars: by kind [rank, start, end].

    What is shorter than a pixel is joined with the next within a pixel.
    """
    found, before = defaultdict(list), {}
    for bar in bars:
        rank, start, end, what = bar[:4]
        last = before.get((rank, what), [rank, -math.inf, -math.inf])
        if start - last[2] < pixel_us and last[2] - last[1] < pixel_us:
            last[2] = max(last[2], end)
        else:
            before[rank, what] = [rank, start, end]
            found[what].append(before[rank, what])
    return found


def named(network: Network) -> str:
    """What a network is, in words for an axis."""
    words = [f"latency {network.latency_us:g} µs, {network.gbit_s:g} Gbit/s"]
    if network.between:
        latency_us, gbit_s = network.between
        words += [f"{network.nodes} nodes with {latency_us:g} µs, {gbit_s:g} Gbit/s between them"]
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
    return f"V{what.clock[1:]}: {first_of(said)}"


def real_text(trace: Trace) -> str:
    """How many calls of which kind each rank made: in every run the same, unlike the times."""
    calls = [Counter(e.kind for e in trace.of_rank(rank)) for rank in range(trace.world_size)]
    counts = (", ".join(f"{n} {kind}" for kind, n in own.items()) or "no calls" for own in calls)
    text = f"Real time, calls of {first_of(together(counts, ': '))}"
    queued = _queued(trace)
    if not queued:
        return text
    return f"{text} {_TIMED if _are_timed(queued) else _QUEUED}"


def _queued(trace: Trace) -> list[Event]:
    """The calls that ended when they were queued."""
    return [event for event in trace if event.queued and event.kind != "wait"]


def _are_timed(queued: list[Event]) -> bool:
    """Whether it is known of each when its work was done."""
    return all(event.done_s is not None for event in queued)


def _virtual(replay: Replay) -> Activity:
    def of(what: str, *ends: int) -> list[Interval]:
        return sorted((i for i in replay.intervals if i.what == what), key=itemgetter(*ends))

    # Between two ports, messages arrive in the order in which they were sent.
    pairs = zip(of("send", 0, 5), of("receive", 5, 0), strict=True)  # by sender and receiver
    arrows = [sent._replace(end_us=taken.end_us) for sent, taken in pairs]
    clock = f"virtual time (µs), {named(replay.network)}"
    return Activity(list(replay.intervals), arrows, replay.finish_us, clock)


def _in_real_time(trace: Trace) -> Activity:
    """Bars from the first call of any rank on: calls and waits while they last, or own code.

    Of what a failed launch left unfinished nothing but the waiting is drawn.
    """
    begin = min((event.start_s for event in trace), default=0.0)
    bars, now = [], [begin] * trace.world_size

    def bar(rank: int, start_s: float, end_s: float, what: str, to: int | None = None) -> Interval:
        return Interval(rank, 1e6 * (start_s - begin), 1e6 * (end_s - begin), what, None, to)

    for event in trace:
        rank, lasts = event.rank, (event.rank, event.start_s, event.end_s)
        if event.finished and event.kind != "wait":
            works = lasts if event.done_s is None else (rank, event.began_s, event.done_s)
            bars.append(bar(*works, _PORTS.get(event.kind, "collective")))
        if event.blocking or event.kind == "wait":  # it holds the rank
            bars += bar(rank, now[rank], event.start_s, "compute"), bar(*lasts, "wait")
            now[rank] = max(now[rank], event.end_s)
    ended = [end_s for end_s, *_ in trace.ended]
    bars += [bar(rank, now[rank], end_s, "compute") for rank, end_s in enumerate(ended)]
    bars = [one for one in bars if one.what != "compute" or one.end_us > one.start_us]
    met = (one for one in meetings(trace, trace.world_size) if one.key[0] == "message")
    pairs = [[one.calls.get(rank) for rank in one.members] for one in met]
    arrows = [
        bar(sent.rank, sent.start_s, taken.end_s, "send", taken.rank)
        for sent, taken in pairs
        if sent and taken and sent.finished and taken.finished
    ]
    ends = tuple(max(0.0, 1e6 * (end_s - begin)) for end_s in ended)
    clock = "real time on this machine (ms)"
    queued = _queued(trace)
    if queued:
        timed = ", collectives as the GPU worked on them"
        clock += timed if _are_timed(queued) else ", calls until they were queued"
    return Activity(bars, arrows, ends, clock, 1000)
