"""Tests that let a wrong version pass or refuse a right one, and right tests in another style.

What people write: one number of samples, which the ranks divide; equal counts; a look at rank 0
alone; numbers compared bit for bit; a contract read too strictly, such as an order; a test whose
ranks part themselves; no look at calls, bytes, or what must stay as it was.
"""

import labs
import pytest
import torch
import torch.distributed as dist

from course_lessons import versions_16
from course_lessons.chapter_16 import tried_on

lab = labs.cells("16_test_before_you_scale")


def accepts_everything(function):
    return None


def catches_everything(function):
    raise AssertionError


# 1 · my_indices


def _gathered(mine):
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, mine)
    return shards


def _joined(lists):
    return [value for values in lists for value in values]


def indices_where_ranks_divide(my_indices):
    for epoch in range(2):
        mine = my_indices(12, epoch)
        assert mine == my_indices(12, epoch)
        shards = _gathered(mine)
        assert sorted(_joined(shards)) == list(range(12))


def indices_in_one_epoch(my_indices):
    for samples in (12, 13):
        mine = my_indices(samples, 0)
        assert mine == my_indices(samples, 0)
        shards = _gathered(mine)
        assert set(_joined(shards)) == set(range(samples))
        assert len(mine) == -(-samples // dist.get_world_size())


def indices_without_lengths(my_indices):
    for samples in (12, 13):
        epochs = [sorted(my_indices(samples, epoch)) for epoch in range(2)]
        assert epochs == [sorted(my_indices(samples, epoch)) for epoch in range(2)]
        for mine in epochs:
            assert set(_joined(_gathered(mine))) == set(range(samples))
        assert dist.get_world_size() == 1 or epochs[0] != epochs[1]


def indices_of_one_rank(my_indices):
    for samples in (12, 13):
        mine = my_indices(samples, 0)
        assert mine == my_indices(samples, 0)
        assert len(set(mine)) == len(mine) == -(-samples // dist.get_world_size())
        assert dist.get_world_size() == 1 or set(mine) != set(my_indices(samples, 1))


def indices_never_repeated(my_indices):
    lab.test_indices(my_indices)
    assert sorted(_joined(_gathered(my_indices(13, 0)))) == list(range(13))


def indices_by_stride(my_indices):
    lab.test_indices(my_indices)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    alone = sum(zip(*_gathered(my_indices(12, 0)), strict=True), ())
    assert list(alone[rank::world_size]) == my_indices(12, 0)
    assert alone == tuple(versions_16._shuffled(12, 0))


def indices_on_rank_0_alone(my_indices):
    if dist.get_rank() == 0:
        lab.test_indices(my_indices)


def indices_asked_once(my_indices):
    calls = {}

    def asked_once(samples, epoch):
        if (samples, epoch) not in calls:
            calls[samples, epoch] = my_indices(samples, epoch)
        return calls[samples, epoch]

    lab.test_indices(asked_once)


def indices_counted(my_indices):
    """Right: how often each sample comes, counted in a tensor that ranks add up."""
    world_size = dist.get_world_size()
    for samples in (6, 7, 11):
        counts = torch.zeros(samples, dtype=torch.long)
        length = torch.tensor(len(my_indices(samples, 2)))
        dist.all_reduce(length)
        for index in my_indices(samples, 2):
            counts[index] += 1
        dist.all_reduce(counts)
        assert counts.min() >= 1
        wanted = samples + -samples % world_size
        assert counts.sum() == length == wanted
        assert len(my_indices(samples, 2)) * world_size == wanted
    first = my_indices(60, 0)
    assert my_indices(60, 0) == first
    if world_size > 1:
        assert set(first) != set(my_indices(60, 1))


def indices_by_helpers(my_indices):
    """Right: a long way, and asserts in functions."""

    def covers(samples, epoch):
        everything = []
        for shard in _gathered(my_indices(samples, epoch)):
            everything.extend(shard)
        assert not set(range(samples)) - set(everything)
        return everything

    def fair(samples):
        lengths = {len(shard) for shard in _gathered(my_indices(samples, 5))}
        assert len(lengths) == 1
        assert lengths.pop() * dist.get_world_size() - samples < dist.get_world_size()

    for samples in (24, 25, 29):
        fair(samples)
        again = [my_indices(samples, 7), my_indices(samples, 7)]
        assert again[0] == again[1]
        covers(samples, 0)
    of_epochs = {frozenset(my_indices(24, epoch)) for epoch in range(5)}
    assert dist.get_world_size() == 1 or len(of_epochs) > 1


# 2 · mean_of_all


def _mean(mean_of_all, counts_of_turns, **options):
    tolerance = options.get("tolerance", 1e-12)
    generator = torch.Generator().manual_seed(5)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for counts in counts_of_turns:
        shards = []
        for number in range(world_size):
            count = counts[number % len(counts)]
            shards.append(2 + torch.rand(count, generator=generator, dtype=torch.float64))
        mine = shards[rank].clone()
        result = mean_of_all(mine)
        if rank == 0 or not options.get("on_rank_0"):
            assert abs(result - torch.cat(shards).mean().item()) <= tolerance
        if not options.get("leaves_out_copy"):
            assert torch.equal(mine, shards[rank])


def mean_of_equal_counts(mean_of_all):
    _mean(mean_of_all, [(4, 4, 4), (5, 5, 5)])


def mean_without_an_empty_rank(mean_of_all):
    _mean(mean_of_all, [(4, 2, 3), (1, 5, 2)])


def mean_in_one_call(mean_of_all):
    _mean(mean_of_all, [(4, 0, 3)])


def mean_of_as_many_in_all(mean_of_all):
    _mean(mean_of_all, [(3, 6, 0), (6, 0, 3)])


def mean_on_rank_0(mean_of_all):
    _mean(mean_of_all, [(4, 0, 3), (1, 5, 0)], on_rank_0=True)


def mean_to_six_digits(mean_of_all):
    _mean(mean_of_all, [(4, 0, 3), (1, 5, 0)], tolerance=1e-6)


def mean_whatever_becomes_of_the_numbers(mean_of_all):
    _mean(mean_of_all, [(4, 0, 3), (1, 5, 0)], leaves_out_copy=True)


def mean_bit_for_bit(mean_of_all):
    counts = [(40, 0, 30), (17, 53, 0), (71, 13, 57)]
    _mean(mean_of_all, counts, tolerance=0.0)


def mean_is_a_tensor(mean_of_all):
    _mean(mean_of_all, [(4, 0, 3), (1, 5, 0)])
    assert isinstance(mean_of_all(torch.ones(2, dtype=torch.float64)), torch.Tensor)


def mean_with_nobody(mean_of_all):
    _mean(mean_of_all, [(4, 0, 3), (1, 5, 0), (0, 0, 0)])


def mean_leaves_early(mean_of_all):
    if dist.get_rank() == 2:
        return
    _mean(mean_of_all, [(4, 0, 3), (1, 5, 0)])


def mean_by_table(mean_of_all):
    """Right: numbers and results written down, and a gathered comparison."""
    numbers = {0: [1.0, 2.5, 1e-9], 1: [], 2: [7.25]}
    for shift in (0, 1):
        mine = torch.tensor(numbers[(dist.get_rank() + shift) % 3], dtype=torch.float64)
        if dist.get_world_size() == 1 and shift == 1:
            mine = torch.tensor([3.0], dtype=torch.float64)
        before = mine.tolist()
        everything = [None] * dist.get_world_size()
        dist.all_gather_object(everything, before)
        flat = _joined(everything)
        if not flat:
            continue
        got = mean_of_all(mine)
        assert got == pytest.approx(sum(flat) / len(flat), rel=1e-11, abs=0)
        assert mine.tolist() == before


def mean_of_ranks_own_numbers(mean_of_all):
    """Right: rank r has r numbers and then two more, each its own rank's."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for more in (0, 2):
        counts = [number + more for number in range(world_size)]
        if not sum(counts):
            continue
        mine = torch.full((rank + more,), rank + 0.1, dtype=torch.float64)
        kept = mine.clone()
        total = sum(count * (number + 0.1) for number, count in enumerate(counts))
        assert abs(mean_of_all(mine) - total / sum(counts)) < 1e-12
        assert (mine == kept).all()


# 3 · average_gradients


def _average(average_gradients, trace, **options):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left_out = options.get("left_out", ())
    generator = torch.Generator().manual_seed(3)
    first, second, frozen = torch.rand(3, 2), torch.rand(5), torch.rand(7)
    parameters = [torch.nn.Parameter(tensor) for tensor in (frozen, first, second)]
    parameters[0].requires_grad_(False)
    if "frozen" in left_out:
        parameters = parameters[1:]
    gradients = []
    for _ in range(world_size):
        one = torch.rand(3, 2, generator=generator)
        two = torch.rand(5, generator=generator)
        gradients.append([one, two])
    lacking = 0 if "None" not in left_out else world_size
    if lacking < world_size:
        gradients[lacking][0] = torch.zeros(3, 2)
    if rank != lacking:
        parameters[-2].grad = gradients[rank][0].clone()
    parameters[-1].grad = gradients[rank][1].clone()
    before = [parameter.detach().clone() for parameter in parameters]
    average_gradients(parameters)
    if "values" not in left_out:
        for number in (0, 1):
            wanted = torch.stack([both[number] for both in gradients]).mean(dim=0)
            got = parameters[number - 2].grad
            assert got is not None
            if options.get("exact"):
                assert torch.equal(got, wanted)
            difference = (got - wanted).abs().max()
            assert difference < options.get("tolerance", 1e-6)
    if "weights" not in left_out:
        for parameter, weight in zip(parameters, before, strict=True):
            assert torch.equal(parameter.detach(), weight)
    if "frozen" not in left_out:
        assert parameters[0].grad is None
    if "calls" not in left_out:
        assert len(trace.calls) == 1
    if "kinds" not in left_out:
        assert "all_reduce" in trace.kinds
    if "bytes" not in left_out:
        assert trace.calls[-1].bytes == options.get("bytes", 44)


def average_without_bytes(average_gradients, trace):
    _average(average_gradients, trace, left_out=("bytes",))


def average_without_calls(average_gradients, trace):
    _average(average_gradients, trace, left_out=("calls", "kinds", "bytes"))


def average_without_values(average_gradients, trace):
    _average(average_gradients, trace, left_out=("values",))


def average_without_none(average_gradients, trace):
    _average(average_gradients, trace, left_out=("None",))


def average_without_frozen(average_gradients, trace):
    _average(average_gradients, trace, left_out=("frozen",))


def average_whatever_becomes_of_weights(average_gradients, trace):
    _average(average_gradients, trace, left_out=("weights",))


def average_to_two_digits(average_gradients, trace):
    _average(average_gradients, trace, tolerance=1e-2)


def average_bit_for_bit(average_gradients, trace):
    _average(average_gradients, trace, exact=True)


def average_with_frozen_bytes(average_gradients, trace):
    _average(average_gradients, trace, bytes=44 + 28)


def average_of_last_call_alone(average_gradients, trace):
    _average(average_gradients, trace, left_out=("calls",))


def average_by_parts(average_gradients, trace):
    """Right: the other rank lacks its gradient, and the frozen one comes first."""
    _average(average_gradients, trace)


def average_by_one_hot_gradients(average_gradients, trace):
    """Right: whole numbers that can be read off, and the last rank lacks one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    layer = torch.nn.Linear(3, 2)
    frozen = torch.nn.Parameter(torch.zeros(9), requires_grad=False)
    parameters = [*layer.parameters(), frozen]
    kept = [parameter.clone() for parameter in parameters]
    layer.weight.grad = torch.full((2, 3), 1.001 * (rank + 1))
    if rank or world_size == 1:
        layer.bias.grad = torch.arange(2.0) + rank
    average_gradients(parameters)
    calls = list(trace.calls)
    mean_of_ranks = 1.001 * (world_size + 1) / 2
    torch.testing.assert_close(layer.weight.grad, torch.full((2, 3), mean_of_ranks))
    with_bias = [0] if world_size == 1 else range(1, world_size)
    of_ranks = [torch.arange(2.0) + number for number in with_bias]
    torch.testing.assert_close(layer.bias.grad, torch.stack(of_ranks).sum(0) / world_size)
    assert frozen.grad is None
    assert all(torch.equal(now, then) for now, then in zip(parameters, kept, strict=True))
    assert [(call.kind, call.bytes) for call in calls] == [("all_reduce", 32)]


def _tried(versions, *tests):
    return [tried_on(test, versions) for test in tests]


WRONG = {
    "test_indices": _tried(
        versions_16.INDICES,
        indices_where_ranks_divide, indices_in_one_epoch, indices_without_lengths,
        indices_of_one_rank, indices_never_repeated, indices_by_stride, indices_on_rank_0_alone,
        indices_asked_once, accepts_everything, catches_everything,
    ),
    "test_mean": _tried(
        versions_16.MEANS,
        mean_of_equal_counts, mean_without_an_empty_rank, mean_in_one_call, mean_of_as_many_in_all,
        mean_on_rank_0,
        mean_to_six_digits, mean_whatever_becomes_of_the_numbers, mean_bit_for_bit,
        mean_is_a_tensor, mean_with_nobody, mean_leaves_early, accepts_everything,
        catches_everything,
    ),
    "test_average": _tried(
        versions_16.GRADIENTS,
        average_without_bytes, average_without_calls, average_without_values,
        average_without_none, average_without_frozen, average_whatever_becomes_of_weights,
        average_to_two_digits, average_bit_for_bit, average_with_frozen_bytes,
        average_of_last_call_alone, accepts_everything, catches_everything,
    ),
}  # fmt: skip
RIGHT = {
    "test_indices": _tried(versions_16.INDICES, indices_counted, indices_by_helpers),
    "test_mean": _tried(versions_16.MEANS, mean_by_table, mean_of_ranks_own_numbers),
    "test_average": _tried(versions_16.GRADIENTS, average_by_parts, average_by_one_hot_gradients),
}
