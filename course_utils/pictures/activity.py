"""A recording or a replay, read as bars and arrows on one clock."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from course_utils.launcher.language import _
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
        ends_of_bars = [bar.end_us for bar in self.bars]
        return max([0.0, *self.ends, *ends_of_bars])


def activity(source: Trace | Replay) -> Activity:
    """Read a recording, in real time, or a replay; raises TypeError for anything else."""
    if isinstance(source, Trace):
        return _in_real_time(source)
    if isinstance(source, Replay):
        return _virtual(source)
    raise TypeError(
        _(
            "a timeline is drawn of results.trace or of trace.replay(network), not of "
            "{source!r:.80}",
            source=source,
        )
    )


def spans(bars: Iterable[Interval], pixel_us: float) -> dict[str, list]:
    """The same to the eye, with fewer bars: by kind [rank, start, end].

    What is shorter than a pixel is joined with the next within a pixel.
    """
    by_kind: dict[str, list] = defaultdict(list)
    latest: dict[tuple[int, str], list] = {}  # by rank and kind the bar that may still grow
    for bar in bars:
        rank, start_us, end_us, kind = bar[:4]
        span = latest.get((rank, kind))
        if span is not None:
            _rank, span_start_us, span_end_us = span
            gap_us = start_us - span_end_us
            span_us = span_end_us - span_start_us
            if gap_us < pixel_us and span_us < pixel_us:
                span[2] = max(span_end_us, end_us)
                continue
        span = [rank, start_us, end_us]
        latest[rank, kind] = span
        by_kind[kind].append(span)
    return by_kind


def named(network: Network) -> str:
    """What a network is, in words for an axis."""
    words = [f"latency {network.latency_us:g} µs, {network.gbit_s:g} Gbit/s"]
    if network.between:
        latency_us, gbit_s = network.between
        link = f"{latency_us:g} µs, {gbit_s:g} Gbit/s"
        words.append(f"{network.nodes} nodes with {link} between them")
    for source, target in network.slow_links:
        words.append(f"slow link {source} to {target}")
    for rank in network.slow_ranks:
        words.append(f"rank {rank} slow")
    return ", ".join(words)


def virtual_text(picture: Activity) -> str:
    """Who is done when on the virtual clock, and how long it waited in calls."""
    waited_us = [0.0] * len(picture.ends)
    for bar in picture.bars:
        if bar.what == "wait":
            waited_us[bar.rank] += bar.end_us - bar.start_us
    sentences = []
    for end_us, wait_us in zip(picture.ends, waited_us, strict=True):
        done = us(end_us)
        waited = us(wait_us)
        sentences.append(f"done at {done}, waiting for {waited} of it")
    clock = picture.clock[1:]  # without its first letter, which is a capital here
    text = first_of(together(sentences))
    return f"V{clock}: {text}"


def real_text(trace: Trace) -> str:
    """How many calls of which kind each rank made: in every run the same, unlike the times."""
    calls_of_rank = []
    for rank in range(trace.world_size):
        counts = Counter(event.kind for event in trace.of_rank(rank))
        words = [f"{count} {kind}" for kind, count in counts.items()]
        calls = ", ".join(words) or "no calls"
        calls_of_rank.append(calls)
    parts = together(calls_of_rank, ": ")
    text = f"Real time, calls of {first_of(parts)}"
    queued = _queued(trace)
    if not queued:
        return text
    if _are_timed(queued):
        return f"{text} {_TIMED}"
    return f"{text} {_QUEUED}"


def _queued(trace: Trace) -> list[Event]:
    """The calls that ended when they were queued."""
    return [event for event in trace if event.queued and event.kind != "wait"]


def _are_timed(queued: list[Event]) -> bool:
    """Whether it is known of each when its work was done."""
    return all(event.done_s is not None for event in queued)


def _virtual(replay: Replay) -> Activity:
    sends = []
    receives = []
    for bar in replay.intervals:
        if bar.what == "send":
            sends.append(bar)
        elif bar.what == "receive":
            receives.append(bar)
    # Between two ports, messages arrive in the order in which they were sent.
    sends.sort(key=lambda bar: (bar.rank, bar.peer))
    receives.sort(key=lambda bar: (bar.peer, bar.rank))
    arrows = []
    for sending, receiving in zip(sends, receives, strict=True):
        arrow = sending._replace(end_us=receiving.end_us)
        arrows.append(arrow)
    clock = f"virtual time (µs), {named(replay.network)}"
    return Activity(list(replay.intervals), arrows, replay.finish_us, clock)


def _in_real_time(trace: Trace) -> Activity:
    """Bars from the first call of any rank on: calls and waits while they last, or own code.

    Of what a failed launch left unfinished nothing but the waiting is drawn.
    """
    begin_s = min((event.start_s for event in trace), default=0.0)

    def to_us(seconds: float) -> float:
        return 1e6 * (seconds - begin_s)

    return Activity(
        bars=_bars_in_real_time(trace, begin_s, to_us),
        arrows=_arrows_in_real_time(trace, to_us),
        ends=tuple(max(0.0, to_us(end_s)) for end_s in trace.ended_s),
        clock=_real_clock(trace),
        tick_us=1000,
    )


def _real_clock(trace: Trace) -> str:
    """What the axis of a recording is called."""
    clock = "real time on this machine (ms)"
    queued = _queued(trace)
    if not queued:
        return clock
    if _are_timed(queued):
        return f"{clock}, collectives as the GPU worked on them"
    return f"{clock}, calls until they were queued"


def _bars_in_real_time(
    trace: Trace, begin_s: float, to_us: Callable[[float], float]
) -> list[Interval]:
    bars: list[Interval] = []
    free_s = [begin_s] * trace.world_size  # from when on a rank runs code of its own

    def add(rank: int, start_s: float, end_s: float, kind: str) -> None:
        start_us = to_us(start_s)
        end_us = to_us(end_s)
        bars.append(Interval(rank, start_us, end_us, kind, None))

    def add_own_code(rank: int, end_s: float) -> None:
        if to_us(end_s) > to_us(free_s[rank]):
            add(rank, free_s[rank], end_s, "compute")

    for event in trace:
        rank = event.rank
        is_wait = event.kind == "wait"
        if event.finished and not is_wait:
            kind = _PORTS.get(event.kind, "collective")
            if event.done_s is None:
                add(rank, event.start_s, event.end_s, kind)
            else:  # when the GPU worked on it
                add(rank, event.began_s, event.done_s, kind)
        if event.blocking or is_wait:  # it holds its rank
            add_own_code(rank, event.start_s)
            add(rank, event.start_s, event.end_s, "wait")
            free_s[rank] = max(free_s[rank], event.end_s)
    for rank, end_s in enumerate(trace.ended_s):
        add_own_code(rank, end_s)
    return bars


def _arrows_in_real_time(trace: Trace, to_us: Callable[[float], float]) -> list[Interval]:
    """A message that has come: from when it was sent until its receiver had it."""
    arrows = []
    for meeting in meetings(trace, trace.world_size):
        if meeting.key.form != "message":
            continue
        source, target = meeting.members
        sent = meeting.calls.get(source)
        taken = meeting.calls.get(target)
        if sent is None or taken is None:
            continue
        if sent.finished and taken.finished:
            start_us = to_us(sent.start_s)
            end_us = to_us(taken.end_s)
            arrow = Interval(source, start_us, end_us, "send", None, target)
            arrows.append(arrow)
    return arrows
