"""Replays against closed formulas, at every world size; and recordings that have no replay."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from course_utils import Network, launch
from course_utils.network.collectives import ALGORITHMS
from course_utils.network.schedule import ReplayError
from course_utils.network.trace import Event, Trace

ALPHA, GBIT = 10.0, 80.0
BETA = 8 / (GBIT * 1000)  # microseconds per byte
NETWORK = Network(latency_us=ALPHA, gbit_s=GBIT)
BYTES = 4 * 240  # of what every rank adds up: divides by 2, 3, 4, 8 and 16
WORLD_SIZES = (2, 3, 4, 8, 16)


def mine() -> tuple[int, int, torch.Tensor]:
    rank, n = dist.get_rank(), dist.get_world_size()
    return rank, n, torch.full((BYTES // 4,), rank + 1.0)


def ring(batched: bool) -> torch.Tensor:
    rank, n, x = mine()
    chunks, arrived = list(x.chunk(n)), torch.empty(len(x) // n)
    for turn in range(2 * (n - 1)):
        out, into = chunks[(rank - turn) % n], chunks[(rank - turn - 1) % n]
        pair = [dist.P2POp(dist.isend, out, (rank + 1) % n)]
        pair += [dist.P2POp(dist.irecv, arrived, (rank - 1) % n)]
        if not batched:
            pair = [op.op(op.tensor, op.peer) for op in pair]
        for work in dist.batch_isend_irecv(pair) if batched else pair:
            work.wait()
        into.copy_(into + arrived if turn < n - 1 else arrived)
    return x


def direct() -> torch.Tensor:
    rank, n, x = mine()
    if rank:
        dist.send(x, 0)
        dist.recv(x, 0)
        return x
    for other in range(1, n):
        arrived = torch.empty_like(x)
        dist.recv(arrived, other)
        x += arrived
    for work in [dist.isend(x, other) for other in range(1, n)]:
        work.wait()
    return x


def tree() -> torch.Tensor:
    """Binary tree down to rank 0 and up again; for powers of two."""
    rank, n, x = mine()
    arrived, depth = torch.empty_like(x), int(math.log2(n))
    lowest = depth if rank == 0 else (rank & -rank).bit_length() - 1
    for level in range(lowest):
        dist.recv(arrived, rank + 2**level)
        x += arrived
    if rank:
        dist.send(x, rank - 2**lowest)
        dist.recv(x, rank - 2**lowest)
    for work in [dist.isend(x, rank + 2**level) for level in reversed(range(lowest))]:
        work.wait()
    return x


def built_in() -> torch.Tensor:
    _, _, x = mine()
    dist.all_reduce(x)
    return x


FORMULA = {
    "ring": lambda n: 2 * (n - 1) * (ALPHA + BYTES / n * BETA),
    "direct": lambda n: 2 * (ALPHA + (n - 1) * BYTES * BETA),
    "tree": lambda n: 2 * math.log2(n) * (ALPHA + BYTES * BETA),
}


def finish(trace: Trace, network: Network = NETWORK, **options: object) -> float:
    return max(trace.replay(network, **options).finish_us)


def event(rank: int, index: int, kind: str, size: int, n: int = 2, **fields: object) -> Event:
    fields = {"tag": 0, "group": tuple(range(n)), "blocking": True, "place": "line 1"} | fields
    return Event(
        rank=rank, index=index, kind=kind, bytes=size, start_s=0.0, end_s=0.0, **fields
    )  # fmt: skip


def trace_of(*events: Event, n: int = 2) -> Trace:
    return Trace(tuple(sorted(events, key=lambda e: (e.rank, e.index))), (0.0,) * n)


def one_collective(kind: str, n: int, size: int, root: int | None = None) -> Trace:
    parts = (size // n,) * n if kind in ("scatter", "reduce_scatter", "all_to_all") else ()
    events = [event(r, 0, kind, size, n, root=root, parts=parts) for r in range(n)]
    return trace_of(*events, n=n)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"latency_us": -1}, "latency_us must be a finite number of at least 0"),
        ({"gbit_s": 0}, "gbit_s must be a finite number above 0"),
        ({"gbit_s": -8}, "gbit_s must be"),
        ({"gbit_s": math.nan}, "gbit_s must be"),
        ({"gbit_s": math.inf}, "gbit_s must be"),
        ({"gbit_s": "fast"}, "gbit_s must be"),
        ({"gbit_s": None}, "gbit_s must be"),
        ({"algorithm": "magic"}, "choose 'ring', 'tree' or 'direct'"),
        ({"nodes": 2}, "go together"),
        ({"between": (1, 1)}, "go together"),
        ({"nodes": 0}, "nodes must be"),
        ({"nodes": 2, "between": (1, 0)}, "the bandwidth between nodes must be"),
        ({"slow_ranks": {0: 0}}, "the factor of slow rank 0 must be"),
        ({"slow_links": {(0, 1): -2}}, r"the factor of slow link \(0, 1\) must be"),
    ],
)
def test_what_cannot_be_a_network_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Network(**{"latency_us": 1, "gbit_s": 1} | wrong)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (replace(NETWORK, nodes=3, between=(1, 1)), "2 ranks cannot be laid out as 3 equal nodes"),
        (replace(NETWORK, slow_ranks={2: 2}), "no rank 2"),
        (replace(NETWORK, slow_links={(0, 7): 2}), "no rank 7"),
    ],
)
def test_a_network_that_does_not_fit_the_recording_is_refused(network, says):
    with pytest.raises(ValueError, match=says):
        one_collective("barrier", 2, 0).replay(network)


@pytest.mark.parametrize("compute", [[1.0], [1.0, -1.0], lambda event: math.inf])
def test_a_compute_that_makes_no_sense_is_refused(compute):
    with pytest.raises(ValueError, match="compute"):
        one_collective("barrier", 2, 0).replay(NETWORK, compute)


def test_a_message_without_partner_is_named_with_its_line():
    sent = event(0, 0, "send", 16, peer=1, place="cell [3], line 2", code="dist.send(t, 1)")
    with pytest.raises(ReplayError) as caught:
        trace_of(sent).replay(NETWORK)
    assert str(caught.value) == (
        "rank 0: send of 16 bytes to rank 1 at cell [3], line 2: dist.send(t, 1): "
        "it has no partner, rank 1 never receives it."
    )


def test_an_unknown_algorithm_is_refused_by_traffic():
    with pytest.raises(ValueError, match=r"'Ring': choose 'ring', 'tree' or 'direct'"):
        one_collective("barrier", 2, 0).traffic("Ring")


def test_messages_with_other_tags_do_not_meet():
    pair = event(0, 0, "send", 16, peer=1, tag=1), event(1, 0, "recv", 16, peer=0, tag=2)
    with pytest.raises(ReplayError, match=r"tag 1.*rank 1 never receives it"):
        trace_of(*pair).replay(NETWORK)


def test_ranks_that_disagree_about_a_collective_are_named():
    calls = event(0, 0, "all_reduce", 16, op="sum"), event(1, 0, "all_reduce", 8, op="sum")
    with pytest.raises(ReplayError, match=r"rank 0: all_reduce of 16 .* it met rank 1: all_reduce"):
        trace_of(*calls).replay(NETWORK)


def test_a_collective_that_one_rank_never_called_is_named():
    with pytest.raises(ReplayError, match=r"rank 0: all_reduce.*rank 1 made no such call"):
        trace_of(event(0, 0, "all_reduce", 16)).replay(NETWORK)


def test_a_wait_for_something_that_was_not_recorded_is_named():
    with pytest.raises(ReplayError, match=r"rank 0: wait for event 7.*lacks that event"):
        trace_of(event(0, 0, "wait", 16, of=7)).replay(NETWORK)


def test_ranks_that_wait_for_each_other_are_found():
    crossed = [event(r, 0, "recv", 8, peer=1 - r) for r in range(2)]
    crossed += [event(r, 1, "send", 8, peer=1 - r) for r in range(2)]
    with pytest.raises(ReplayError, match=r"rank 0: recv of 8 bytes from rank 1.*waits for ever"):
        trace_of(*crossed).replay(NETWORK)


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize("batched", [False, True])
def test_a_ring_written_by_hand_takes_what_its_formula_says_and_what_the_built_in_takes(n, batched):
    results = launch(ring, batched, world_size=n, trace=True)
    assert all((x == n * (n + 1) / 2).all() for x in results)
    assert finish(results.trace) == pytest.approx(FORMULA["ring"](n), rel=1e-12)
    builtin = one_collective("all_reduce", n, BYTES)
    assert results.trace.replay(NETWORK).finish_us == builtin.replay(NETWORK).finish_us
    assert results.trace.traffic() == builtin.traffic("ring")


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_a_direct_all_reduce_written_by_hand_takes_what_its_formula_says(n):
    results = launch(direct, world_size=n, trace=True)
    assert all((x == n * (n + 1) / 2).all() for x in results)
    assert finish(results.trace) == pytest.approx(FORMULA["direct"](n), rel=1e-12)
    assert results.trace.traffic().received_bytes[0] == (n - 1) * BYTES


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_a_tree_written_by_hand_takes_what_its_formula_says(n):
    results = launch(tree, world_size=n, trace=True)
    assert all((x == n * (n + 1) / 2).all() for x in results)
    assert finish(results.trace) == pytest.approx(FORMULA["tree"](n), rel=1e-12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_built_in_all_reduce_takes_what_its_algorithm_says(algorithm):
    trace = launch(built_in, world_size=4, trace=True).trace
    network = replace(NETWORK, algorithm=algorithm)
    assert finish(trace, network) == pytest.approx(FORMULA[algorithm](4), rel=1e-12)


S, B = 960, 120
CLOSED = {
    "broadcast": (7 * (ALPHA + 2 * B * BETA), 3 * (ALPHA + S * BETA), ALPHA + 7 * S * BETA),
    "reduce": (7 * (ALPHA + 2 * B * BETA), 3 * (ALPHA + S * BETA), ALPHA + 7 * S * BETA),
    "reduce_scatter": (
        7 * (ALPHA + B * BETA), 6 * ALPHA + (3 * S + 7 * B) * BETA, ALPHA + 7 * B * BETA,
    ),
    "all_gather": (7 * (ALPHA + S * BETA), 3 * ALPHA + 7 * S * BETA, ALPHA + 7 * S * BETA),
    "scatter": (ALPHA + 7 * B * BETA, 3 * ALPHA + 7 * B * BETA, ALPHA + 7 * B * BETA),
    "gather": (ALPHA + 7 * S * BETA, 3 * ALPHA + 7 * S * BETA, ALPHA + 7 * S * BETA),
    "all_to_all": (7 * (ALPHA + B * BETA), 7 * (ALPHA + B * BETA), ALPHA + 7 * B * BETA),
    "barrier": (14 * ALPHA, 6 * ALPHA, 2 * ALPHA),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.parametrize("root", [0, 5])
def test_every_collective_takes_what_the_table_of_formulas_says(kind, root):
    root = root if kind in ("broadcast", "reduce", "scatter", "gather") else None
    trace = one_collective(kind, 8, 0 if kind == "barrier" else S, root)
    for algorithm, formula in zip(ALGORITHMS, CLOSED[kind], strict=True):
        took = finish(trace, replace(NETWORK, algorithm=algorithm))
        assert took == pytest.approx(formula, rel=1e-12), algorithm


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 13])
def test_every_collective_ends_at_any_world_size(kind, n):
    trace = one_collective(kind, n, 0 if kind == "barrier" else 4 * n, n - 1)
    for algorithm in ALGORITHMS:
        assert finish(trace, replace(NETWORK, algorithm=algorithm)) >= (ALPHA if n > 1 else 0)


def test_a_port_carries_one_message_after_the_other_and_both_ports_work_at_once():
    both = [event(r, i, "send", 1000, peer=1 - r) for r in (0, 1) for i in (0, 1)]
    both += [event(r, i, "recv", 1000, peer=1 - r) for r in (0, 1) for i in (2, 3)]
    assert trace_of(*both).replay(NETWORK).finish_us == (ALPHA + 0.2, ALPHA + 0.2)


def test_one_slow_link_and_links_between_nodes_cost_what_they_say():
    trace = trace_of(event(0, 0, "send", 1000, peer=1), event(1, 0, "recv", 1000, peer=0))
    slow = replace(NETWORK, slow_links={(0, 1): 3})
    far = replace(NETWORK, nodes=2, between=(50, 8))
    took = [trace.replay(net).finish_us[1] for net in (NETWORK, slow, far)]
    assert took == pytest.approx([10.1, 30.3, 51.0], rel=1e-12)


def test_compute_comes_before_events_and_a_slow_rank_holds_up_the_others():
    trace = one_collective("barrier", 2, 0)
    net = replace(NETWORK, slow_ranks={1: 3.0})
    assert finish(trace, net, compute=[5.0, 5.0]) == 15 + 20
    assert finish(trace, net, compute=lambda event: 100.0 * event.rank) == 300 + 20
    replayed = trace.replay(net, compute=[5.0, 5.0])
    shown = [i for i in replayed.intervals if i.rank == 0 and i.what in ("compute", "wait")]
    assert [(i.what, i.start_us, i.end_us) for i in shown] == [("compute", 0, 5), ("wait", 5, 25)]
    assert shown[1].event.what == "barrier"


def test_collectives_started_together_overlap_with_compute_but_not_with_each_other():
    calls = [event(r, i, "all_reduce", 0, blocking=False) for r in (0, 1) for i in (0, 1)]
    waits = [event(r, 2 + i, "wait", 0, of=i) for r in (0, 1) for i in (0, 1)]
    trace = trace_of(*calls, *waits)
    assert finish(trace) == 40
    assert finish(trace, compute=lambda event: 30.0 * (event.index == 2)) == 40


def test_intervals_tell_who_sends_to_whom_and_at_which_line():
    replayed = launch(direct, trace=True).trace.replay(NETWORK)
    sends = [i for i in replayed.intervals if i.what == "send"]
    assert [(i.rank, i.peer, i.bytes) for i in sends] == [(1, 0, BYTES), (0, 1, BYTES)]
    assert sends[0].event.code == "dist.send(x, 0)"
    assert repr(replayed) == "Replay(2 ranks, 20.192 µs)"


def test_one_rank_alone_needs_no_time():
    assert launch(built_in, world_size=1, trace=True).trace.replay(NETWORK).finish_us == (0.0,)


@pytest.mark.parametrize("ended", [[[1.5], [2.5]], [[1.5, 0.0], [2.5, 0.0]]])
def test_a_trace_that_was_saved_in_an_older_form_is_read(tmp_path, ended):
    trace = Trace((event(0, 0, "barrier", 0), event(1, 0, "barrier", 0)), (1.5, 2.5))
    trace.save(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    del data["ended_s"]
    (tmp_path / "trace.json").write_text(json.dumps(data | {"ended": ended}))
    assert Trace.load(tmp_path / "trace.json") == trace
