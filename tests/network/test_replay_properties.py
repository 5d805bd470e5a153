"""What holds for every recording and network: bounds, monotony, names of ranks."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_network import event, one_collective, trace_of

from course_utils import Network
from course_utils.network.collectives import ALGORITHMS
from course_utils.network.trace import Trace

REDUCED = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather")
bounded = settings(max_examples=40, derandomize=True, deadline=None, database=None)
networks = st.builds(
    Network,
    latency_us=st.integers(0, 50),
    gbit_s=st.integers(1, 100),
    algorithm=st.sampled_from(ALGORITHMS),
)


@st.composite
def programs(draw: st.DrawFn) -> Trace:
    """Build a recording that cannot deadlock: rounds of messages or collectives, then waits.

    Within a round every rank first sends without blocking, then receives, then waits.
    """
    n = draw(st.integers(1, 5))
    rows: list[list] = [[] for _ in range(n)]

    def add(rank: int, kind: str, size: int, **fields: object) -> int:
        rows[rank].append(event(rank, len(rows[rank]), kind, size, n, **fields))
        return len(rows[rank]) - 1

    ranks = st.integers(0, n - 1)
    pairs = st.tuples(ranks, ranks, st.integers(0, 10_000)).filter(lambda p: p[0] != p[1])
    messages = st.lists(pairs, max_size=6) if n > 1 else st.just([])
    for turn in draw(st.lists(st.one_of(messages, st.sampled_from(REDUCED)), max_size=4)):
        if isinstance(turn, str):
            one = one_collective(turn, n, n * draw(st.integers(0, 2_000)), _root(turn, n))
            for own in one.events:
                fields = {"root": own.root, "parts": own.parts}
                add(own.rank, own.kind, own.bytes, **fields)
            continue
        sent = [(a, add(a, "send", size, peer=b, blocking=False)) for a, b, size in turn]
        for a, b, size in turn:
            add(b, "recv", size, peer=a)
        for a, index in sent:
            add(a, "wait", 0, of=index)
    return trace_of(*(own for rank in rows for own in rank), n=n)


def _root(kind: str, n: int) -> int | None:
    return n - 1 if kind in ("broadcast", "gather") else None


def never_earlier(worse: tuple[float, ...], better: tuple[float, ...]) -> bool:
    return all(w >= b * (1 - 1e-12) for w, b in zip(worse, better, strict=True))


@bounded
@given(programs(), networks)
def test_no_port_is_faster_than_its_bytes_and_no_rank_than_its_computing(trace, network):
    traffic, beta = trace.traffic(network.algorithm), 8 / (network.gbit_s * 1000)
    finish = trace.replay(network, [7.0] * trace.world_size).finish_us
    for rank, us in enumerate(finish):
        least = [7.0, traffic.sent_bytes[rank] * beta]
        if traffic.received_messages[rank]:
            least.append(network.latency_us + traffic.received_bytes[rank] * beta)
        assert us >= max(least) * (1 - 1e-12)


@bounded
@given(st.sampled_from(ALGORITHMS), st.integers(2, 9), st.integers(1, 5000), networks)
def test_no_all_reduce_beats_the_bandwidth_lower_bound(algorithm, n, chunk, network):
    beta, size = 8 / (network.gbit_s * 1000), n * chunk
    bound = 2 * (n - 1) / n * size * beta  # Patarasuk and Yuan 2009, theorem 1
    trace = one_collective("all_reduce", n, size)
    took = max(trace.replay(replace(network, algorithm=algorithm)).finish_us)
    assert took >= bound * (1 - 1e-12)
    if algorithm == "ring":
        latency = 2 * (n - 1) * network.latency_us
        assert took == pytest.approx(bound + latency, rel=1e-9)


@bounded
@given(programs(), networks, st.integers(1, 30))
def test_more_latency_never_helps_any_rank(trace, network, more):
    worse = replace(network, latency_us=network.latency_us + more)
    assert never_earlier(trace.replay(worse).finish_us, trace.replay(network).finish_us)


@bounded
@given(programs(), networks, st.integers(2, 9))
def test_less_bandwidth_never_helps_any_rank(trace, network, times):
    worse = replace(network, gbit_s=network.gbit_s / times)
    assert never_earlier(trace.replay(worse).finish_us, trace.replay(network).finish_us)


@bounded
@given(programs(), networks, st.integers(2, 9), st.data())
def test_a_slow_link_never_helps_any_rank(trace, network, times, data):
    pair = data.draw(st.permutations(range(max(2, trace.world_size))))[:2]
    worse = replace(network, slow_links={tuple(pair): times} if trace.world_size > 1 else {})
    assert never_earlier(trace.replay(worse).finish_us, trace.replay(network).finish_us)


@bounded
@given(programs(), networks, st.integers(2, 9))
def test_more_bytes_never_help_any_rank(trace, network, times):
    grown = [
        replace(e, bytes=e.bytes * times, parts=tuple(p * times for p in e.parts)) for e in trace
    ]
    worse = Trace(tuple(grown), trace.ended_s).replay(network).finish_us
    assert never_earlier(worse, trace.replay(network).finish_us)


@bounded
@given(programs(), networks, st.integers(2, 9), st.data())
def test_a_rank_that_computes_slower_never_helps_any_rank(trace, network, times, data):
    slow = replace(network, slow_ranks={data.draw(st.integers(0, trace.world_size - 1)): times})
    compute = [10.0] * trace.world_size
    worse, better = trace.replay(slow, compute), trace.replay(network, compute)
    assert never_earlier(worse.finish_us, better.finish_us)


@bounded
@given(programs(), networks, st.data())
def test_ranks_may_be_renumbered(trace, network, data):
    new = data.draw(st.permutations(range(trace.world_size)))
    renumbered = [
        replace(
            e,
            rank=new[e.rank],
            peer=None if e.peer is None else new[e.peer],
            root=None if e.root is None else new[e.root],
            group=tuple(new[rank] for rank in e.group),
        )
        for e in trace
    ]
    other = trace_of(*renumbered, n=trace.world_size).replay(network).finish_us
    here = trace.replay(network).finish_us
    assert [other[new[rank]] for rank in range(trace.world_size)] == pytest.approx(here, rel=1e-12)


@bounded
@given(programs(), networks)
def test_a_replay_gives_the_same_digits_again(trace, network):
    assert trace.replay(network) == trace.replay(network)
