"""A dry run makes the calls that real ranks make, and refuses what it cannot know."""

import random

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from course_utils import Network, WorkerError, dry_run, launch
from course_utils.network import alike
from course_utils.network.schedule import ReplayError

COMPARED = (
    "kind", "bytes", "shape", "dtype", "op", "root", "peer", "tag", "group", "blocking", "of",
    "parts", "line",
)  # fmt: skip


def train_with_ddp():
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5)))
    for _ in range(3):
        model(torch.ones(3, 10)).sum().backward()
    waiting = dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()
    waiting.wait()
    return dist.get_rank(), dist.get_world_size()


def train_with_a_hook():
    model = DistributedDataParallel(nn.Linear(10, 20))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(2):
        model(torch.ones(3, 10)).sum().backward()


def train_sharded():
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(2):
        model(torch.ones(3, 64)).sum().backward()


def call_everything():
    world_size = dist.get_world_size()
    rank = dist.get_rank()
    x = torch.ones(world_size)
    dist.broadcast(x, src=1)
    dist.reduce(x, dst=0)
    dist.all_gather([torch.zeros(world_size) for _ in range(world_size)], x)
    dist.reduce_scatter_tensor(torch.zeros(1), x)
    dist.all_to_all_single(torch.zeros(world_size), x)
    dist.scatter(torch.zeros(1), list(x.split(1)) if rank == 0 else None, src=0)
    dist.all_gather_object([None] * world_size, {"rank": rank})
    half = dist.new_group(range(world_size // 2))
    if rank < world_size // 2:
        dist.all_reduce(x, group=half)


def pass_on_along_a_pipeline():
    """Every stage waits for the one before it, works, and hands on."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x = torch.zeros(1000)
    if rank > 0:
        dist.recv(x, src=rank - 1)
    if rank < last:
        dist.send(x + 1, dst=rank + 1)


FUNCTIONS = (
    train_with_ddp, train_with_a_hook, train_sharded, call_everything, pass_on_along_a_pipeline
)  # fmt: skip


def calls(events):
    return [tuple(getattr(event, name) for name in COMPARED) for event in events]


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_a_dry_run_makes_the_calls_of_real_ranks(fn, world_size):
    trace = launch(fn, world_size=world_size, trace=True, backend="gloo").trace
    pretended = dry_run(fn, world_size=world_size)
    for rank in range(world_size):
        assert calls(pretended.of_rank(rank)) == calls(trace.of_rank(rank))
    for algorithm in ("ring", "tree", "direct"):
        network = Network(3, 10, algorithm=algorithm)
        assert pretended.replay(network).finish_us == trace.replay(network).finish_us


def test_each_rank_knows_its_place_and_starts_from_the_same_random_numbers():
    def place():
        return dist.get_rank(), dist.get_world_size(), torch.rand(1).item()

    torch.manual_seed(0)
    pretended = dry_run(place, world_size=1024, ranks=[700, 3])
    assert pretended.ranks == (3, 700)
    assert [value[:2] for value in pretended.values.values()] == [(3, 1024), (700, 1024)]
    assert len({value[2] for value in pretended.values.values()}) == 1


def test_nodes_lay_the_ranks_out():
    import os

    def place():
        return os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["GROUP_RANK"]

    pretended = dry_run(place, world_size=1024, nodes=128, ranks=[1001])
    assert pretended.values[1001] == ("1", "8", "125")


def test_a_rank_changes_nothing_of_what_the_next_one_finds():
    seen = []

    def note():
        seen.append(dist.get_rank())
        return len(seen)

    assert set(dry_run(note, world_size=4).values.values()) == {1}
    assert not seen


def test_what_it_pretends_is_said():
    pretended = dry_run(lambda: dist.barrier(), world_size=1024)
    assert "DryRun(4 of 1024 ranks, 4 events)" in repr(pretended)
    assert "values that a rank receives are wrong" in repr(pretended)


def goes_on_while_the_sum_is_positive():
    x = torch.ones(1)
    dist.all_reduce(x)
    while x.item() > 0:
        dist.barrier()
        x -= 1


def sends_as_much_as_it_received():
    x = torch.ones(3)
    dist.recv(x, src=0)
    dist.all_reduce(torch.ones(int(x[0].abs().item() * 2) + 1))


def fails_when_it_receives_other_numbers():
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() > 0


@pytest.mark.parametrize(
    "fn",
    [
        goes_on_while_the_sum_is_positive,
        sends_as_much_as_it_received,
        fails_when_it_receives_other_numbers,
    ],
)
def test_calls_that_depend_on_what_is_received_are_refused(fn):
    with pytest.raises(RuntimeError, match="depends on the values that it receives") as error:
        dry_run(fn, world_size=16)
    assert "use launch" in str(error.value)


def test_a_failure_names_the_pretended_rank_and_the_line():
    def fails():
        if dist.get_rank() == 512:
            raise KeyError("no such sample")

    with pytest.raises(WorkerError) as error:
        dry_run(fails, world_size=1024)
    assert "This was rank 512 of a pretended world of 1024" in str(error.value)
    assert 'raise KeyError("no such sample")' in str(error.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"world_size": 0}, "world_size must be a whole number of at least 1, got 0"),
        ({"world_size": 2.5}, "world_size must be a whole number of at least 1, got 2.5"),
        ({"world_size": 10, "nodes": 3}, "10 ranks cannot be laid out as 3 equal nodes"),
        ({"world_size": True}, "world_size must be a whole number of at least 1, got True"),
        ({"world_size": 2, "timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"world_size": 4, "ranks": [4]}, "there is no rank 4 in a world of 4"),
        ({"world_size": 4, "ranks": []}, "ranks is empty"),
    ],
)
def test_what_cannot_be_a_world_is_refused_before_anything_starts(options, problem):
    with pytest.raises(ValueError, match=problem):
        dry_run(train_with_ddp, **options)


def test_what_is_no_call_is_refused_as_by_launch():
    with pytest.raises(TypeError, match="launch needs a function"):
        dry_run(None, world_size=4)
    with pytest.raises(TypeError, match="does not fit the arguments"):
        dry_run(train_with_ddp, 1, world_size=4)


def test_ranks_that_differ_are_not_taken_for_all():
    def differ():
        dist.all_reduce(torch.ones(4 if dist.get_rank() else 8))

    with pytest.raises(ReplayError, match=r"call 0 differs: .* of 32 bytes.* of 16 bytes"):
        dry_run(differ, world_size=64).replay(Network(3, 10))


def test_messages_between_ranks_need_all_of_them():
    def around():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        x = torch.ones(1)
        if rank in (0, world_size // 2):
            dist.send(x, dst=rank + 1)
        if rank in (1, world_size // 2 + 1):
            dist.recv(x, src=rank - 1)

    with pytest.raises(ReplayError, match="ranks='all'"):
        dry_run(around, world_size=16, ranks=[0, 8]).replay(Network(3, 10))
    everybody = dry_run(around, world_size=16, ranks="all").replay(Network(3, 10))
    assert len(everybody.finish_us) == 16


def test_a_rank_that_was_not_run_has_no_events():
    with pytest.raises(ValueError, match=r"ranks=\[5\]"):
        dry_run(train_with_ddp, world_size=1024).of_rank(5)


def test_a_thousand_ranks_finish_when_the_formula_says():
    pretended = dry_run(lambda: dist.all_reduce(torch.ones(1 << 20)), world_size=1024)
    latency_us, gbit_s = 5.0, 100.0
    us_per_byte = 8 / (gbit_s * 1000)
    part = 4 * (1 << 20) / 1024
    finish = pretended.replay(Network(latency_us, gbit_s)).finish_us
    assert finish == pytest.approx([2 * 1023 * (latency_us + part * us_per_byte)] * 1024)


KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"]


def _mixed(kinds):
    n = dist.get_world_size()
    waiting = []
    for kind, size, later in kinds:
        x = torch.ones(size * n)
        if kind == "all_reduce":
            work = dist.all_reduce(x, async_op=later)
        elif kind == "all_gather":
            work = dist.all_gather_into_tensor(torch.empty(size * n * n), x, async_op=later)
        elif kind == "reduce_scatter":
            work = dist.reduce_scatter_tensor(torch.empty(size), x, async_op=later)
        elif kind == "all_to_all":
            work = dist.all_to_all_single(torch.empty(size * n), x, async_op=later)
        else:
            work = dist.barrier(async_op=later)
        if later:
            waiting.append(work)
    for work in waiting:
        work.wait()


@pytest.mark.parametrize("world_size", [2, 3, 8, 12, 33])
def test_the_formula_of_a_ring_is_its_replay(world_size):
    generator = random.Random(world_size)
    kinds = []
    for _ in range(12):
        later = generator.random() < 0.5
        kinds.append((generator.choice(KINDS), generator.randint(1, 500), later))
    pretended = dry_run(_mixed, kinds, world_size=world_size, ranks=[0, world_size - 1])
    network = Network(3, 10)
    events = pretended.of_rank(0)
    assert alike.stays_in_step(events, network, world_size)
    replayed = pretended.replay(network)
    assert replayed.intervals  # the replay's own, not the formula's
    formula_us = alike.finish_us(events, network, world_size)
    assert replayed.finish_us == pytest.approx([formula_us] * world_size, rel=1e-12)


def test_a_root_or_uneven_links_are_replayed_message_by_message():
    def broadcast():
        dist.broadcast(torch.ones(100), src=0)

    def reduce_all():
        dist.all_reduce(torch.ones(100))

    uneven = Network(3, 10, slow_links={(0, 1): 7.0})
    assert not alike.stays_in_step(dry_run(broadcast, world_size=4).of_rank(0), Network(3, 10), 4)
    assert not alike.stays_in_step(dry_run(reduce_all, world_size=4).of_rank(0), uneven, 4)
    with pytest.raises(ReplayError, match="algorithm='tree'"):
        dry_run(_mixed, [("all_reduce", 10, False)] * 3, world_size=1024).replay(uneven)
    by_tree = dry_run(broadcast, world_size=1024).replay(Network(3, 10, algorithm="tree"))
    assert max(by_tree.finish_us) == pytest.approx(10 * (3 + 400 * 8 / 10_000))
