"""A recording or a replay, read as bars and arrows on one clock."""

from collections import defaultdict

from course_utils.network.network import Network
from course_utils.network.replay import Replay
from course_utils.network.trace import Trace
from course_utils.pictures.bars import Activity, Arrow, Bar
from course_utils.pictures.realtime import in_real_time


def activity(source: "Trace | Replay", network: Network | None = None) -> Activity:
    """Read a recording (in real time, or replayed on a network) or a replay.

    Raises:
        TypeError: It is something else.
        ReplayError: A message or a collective has no partner, and a network was given.
    """
    if isinstance(source, Trace):
        return _virtual(source.replay(network), network) if network else in_real_time(source)
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
