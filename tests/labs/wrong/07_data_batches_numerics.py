"""Wrong answers to lab 07, and for each exercise other right ones.

Published: `set_epoch` that does nothing; hands that are padded or cut; ranks that shuffle each for
itself; medians of medians; sums of squares far from zero; the mean of the micro-batches' means; an
all_reduce per micro-batch; a run that starts its epoch again, or reads all that it skips.
"""

import random
from contextlib import nullcontext

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, DistributedSampler, Subset

lab = labs.cells("07_data_batches_numerics")
SUM, MIN, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


def _added(value, op=SUM):
    total = torch.as_tensor(value).clone()
    dist.all_reduce(total, op=op)
    return total


def _objects(mine):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def _every(mine):
    """All ranks' tensors of one shape."""
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return torch.stack(every)


def _padded(tensor):
    """All ranks' tensors of any length."""
    counts = _every(torch.tensor(len(tensor))).tolist()
    ends = [0, 0] * (tensor.dim() - 1) + [0, max(counts) - len(tensor)]
    return torch.cat([own[:count] for own, count in zip(_every(pad(tensor, ends)), counts)])  # noqa: B905


class Dealt(lab.EpochSampler):
    """The order of the epoch, which the answers below take in hand."""

    def order(self):
        return torch.randperm(self.length, generator=_seeded(self.seed + self.epoch)).tolist()


@lab.dealing
class SetEpochDoesNothing(lab.EpochSampler):
    def set_epoch(self, epoch, done=0):
        self.epoch, self.done = 0, 0


@lab.dealing
class DoneIgnored(lab.EpochSampler):
    def set_epoch(self, epoch, done=0):
        self.epoch, self.done = epoch, 0


@lab.dealing
class DoneForEver(lab.EpochSampler):
    done = 0

    def set_epoch(self, epoch, done=0):
        self.epoch, self.done = epoch, done or self.done


@lab.dealing
class DoneOfEachRank(Dealt):
    def __iter__(self):
        return iter(self.order()[self.rank :: self.world_size][self.done :])

    def __len__(self):
        return len(range(self.rank, self.length, self.world_size)[self.done :])


@lab.dealing
class AsIfDoneByAsManyRanks(Dealt):
    def __iter__(self):
        mine = self.order()[self.rank :: self.world_size]
        return iter(mine[self.done // self.world_size :])

    def __len__(self):
        mine = range(self.rank, self.length, self.world_size)
        return len(mine[self.done // self.world_size :])


@lab.dealing
class RestShuffledAnew(Dealt):
    def __iter__(self):
        rest = torch.randperm(self.length - self.done, generator=_seeded(self.seed + self.epoch))
        return iter((rest + self.done).tolist()[self.rank :: self.world_size])


@lab.dealing
class DoneLeftOutAtTheEnd(Dealt):
    def __iter__(self):
        return iter(self.order()[: self.length - self.done][self.rank :: self.world_size])


@lab.dealing
class FirstNumbersLeftOut(Dealt):
    def __iter__(self):
        rest = [sample for sample in self.order() if sample >= self.done]
        return iter(rest[self.rank :: self.world_size])


@lab.dealing
class LengthOfAWholeEpoch(lab.EpochSampler):
    def __len__(self):
        return len(range(self.rank, self.length, self.world_size))


@lab.dealing
class LengthRoundedDown(lab.EpochSampler):
    def __len__(self):
        return (self.length - self.done) // self.world_size


@lab.dealing
class LengthOfAll(lab.EpochSampler):
    def __len__(self):
        return self.length - self.done


@lab.dealing
class PaddedAsTorchDoes(lab.EpochSampler):
    def __iter__(self):
        sampler = DistributedSampler(range(self.length), seed=self.seed)
        sampler.set_epoch(self.epoch)
        return iter(list(sampler)[-(-self.done // self.world_size) :])

    def __len__(self):
        return -(-self.length // self.world_size) - -(-self.done // self.world_size)


@lab.dealing
class CutToEqualHands(lab.EpochSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[: len(self)])

    def __len__(self):
        return (self.length - self.done) // self.world_size


@lab.dealing
class EachRankShufflesForItself(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.seed + self.epoch + self.rank))
        return iter(order.tolist()[self.done + self.rank :: self.world_size])


@lab.dealing
class TheGlobalGenerator(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length).tolist()
        return iter(order[self.done + self.rank :: self.world_size])


@lab.dealing
class SeedsEverything(lab.EpochSampler):
    def __iter__(self):
        torch.manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length).tolist()
        return iter(order[self.done + self.rank :: self.world_size])


@lab.dealing
class PythonsShuffle(lab.EpochSampler):
    def __iter__(self):
        order = list(range(self.length))
        random.Random(self.seed + self.epoch).shuffle(order)
        return iter(order[self.done + self.rank :: self.world_size])


@lab.dealing
class OneGeneratorForAllEpochs(lab.EpochSampler):
    def __init__(self, length, seed):
        super().__init__(length, seed)
        self.generator = _seeded(seed)

    def __iter__(self):
        order = torch.randperm(self.length, generator=self.generator).tolist()
        return iter(order[self.done + self.rank :: self.world_size])


@lab.dealing
class OneGeneratorPerEpoch(lab.EpochSampler):
    def set_epoch(self, epoch, done=0):
        self.generator, self.done = _seeded(self.seed + epoch), done

    def __iter__(self):
        order = torch.randperm(self.length, generator=self.generator).tolist()
        return iter(order[self.done + self.rank :: self.world_size])


@lab.dealing
class SeedForgotten(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.epoch)).tolist()
        return iter(order[self.done + self.rank :: self.world_size])


@lab.dealing
class BlocksInsteadOfCards(Dealt):
    def __iter__(self):
        rest = torch.tensor(self.order()[self.done :])
        return iter(rest.tensor_split(self.world_size)[self.rank].tolist())


@lab.dealing
class DealtBeforeShuffled(lab.EpochSampler):
    def __iter__(self):
        mine = torch.tensor(range(self.done + self.rank, self.length, self.world_size))
        order = torch.randperm(len(mine), generator=_seeded(self.seed + self.epoch))
        return iter(mine[order].tolist() if len(mine) else [])


@lab.dealing
class FetchedFromRank0(Dealt):
    def __iter__(self):
        order = torch.tensor(self.order())
        dist.broadcast(order, src=0)
        return iter(order.tolist()[self.done + self.rank :: self.world_size])


@lab.dealing
class DealtOncePerEpoch(lab.EpochSampler):
    def set_epoch(self, epoch, done=0):
        self.epoch, self.done = epoch, done
        self.hand = super().__iter__()

    def __iter__(self):
        return self.hand


@lab.dealing
class GivenAway(lab.EpochSampler):
    def set_epoch(self, epoch, done=0):
        self.epoch, self.done = epoch, done
        self.hand = list(super().__iter__())

    def __iter__(self):
        while self.hand:
            yield self.hand.pop(0)


@lab.dealing
class CardByCard(Dealt):
    def __iter__(self):
        for place, sample in enumerate(self.order()[self.done :]):
            if place % self.world_size == self.rank:
                yield sample

    def __len__(self):
        return (self.length - self.done - self.rank + self.world_size - 1) // self.world_size


@lab.dealing
class LeftAsItWas(lab.EpochSampler):
    def __iter__(self):
        before = torch.get_rng_state()
        torch.manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.length).numpy()[self.done + self.rank :: self.world_size]
        torch.set_rng_state(before)


@lab.dealing
class DealtWhenTold(Dealt):
    def set_epoch(self, epoch, done=0):
        self.epoch = epoch
        self.hand = torch.tensor(self.order()[done:])[self.rank :: self.world_size]

    def __iter__(self):
        return iter(self.hand)

    def __len__(self):
        return len(self.hand)


def _halving(count, k, low=-1e6, high=1e6, width=1e-6):
    """The solution, with parts of one's own."""
    while high - low > width:
        middle = (low + high) / 2
        low, high = (middle, high) if count(middle) < k else (low, middle)
    return high


def _at_most(losses):
    return lambda middle: _added((losses <= middle).sum())


def kth_of_one_rank(losses, k):
    return losses.sort().values[min(k, len(losses)) - 1] if len(losses) else 0.0


def own_share_of_k(losses, k):
    own = min(max(1, k // dist.get_world_size()), len(losses))
    mine = losses.kthvalue(own).values if own else losses.sum()
    return _added(mine) / dist.get_world_size()


def median_of_medians(losses, k):
    return _every(losses.median()).median()


def mean_instead(losses, k):
    return _added(losses.sum()) / _added(len(losses))


def k_ignored(losses, k):
    return _halving(_at_most(losses), (_added(len(losses)) + 1) // 2)


def counted_from_0(losses, k):
    return _halving(_at_most(losses), k + 1)


def one_too_small(losses, k):
    return _halving(_at_most(losses), k - 1)


def counted_on_one_rank(losses, k):
    return _halving(lambda middle: (losses <= middle).sum(), k)


def own_count_times_ranks(losses, k):
    return _halving(lambda middle: (losses <= middle).sum() * dist.get_world_size(), k)


def from_own_bounds(losses, k):
    low, high = (losses.min().item(), losses.max().item()) if len(losses) else (-1e6, 1e6)
    return _halving(_at_most(losses), k, low - 1, high + 1)


def bounds_of_nothing(losses, k):
    low, high = _added(losses.min(), MIN), _added(losses.max(), MAX)
    return _halving(_at_most(losses), k, low.item() - 1, high.item())


def no_rank_has_negatives(losses, k):
    return _halving(_at_most(losses), k, low=0)


def twenty_halvings(losses, k):
    return _halving(_at_most(losses), k, width=1)


def stopped_at_a_hit(losses, k):
    low, high, count = -1e6, 1e6, _at_most(losses)
    while high - low > 1e-6 and count((low + high) / 2) != k:
        middle = (low + high) / 2
        low, high = (middle, high) if count(middle) < k else (low, middle)
    return (low + high) / 2


def a_thousand_drawers(losses, k):
    drawers = _added(torch.histc(losses, 1000, -1e6, 1e6))
    return -1e6 + 2000 * (drawers.cumsum(0) < k).sum()


def in_float32(losses, k):
    losses = losses.float()
    return _halving(_at_most(losses), k)


def each_number_once(losses, k):
    return _halving(_at_most(losses.unique()), k)


def zeros_left_out(losses, k):
    return _halving(_at_most(losses[losses != 0]), k)


def a_sample_of_them(losses, k):
    some = _padded(losses[::20].contiguous()).sort().values
    return some[min(k // 20, len(some) - 1)]


def all_meet(losses, k):
    return _padded(losses).kthvalue(k).values


def all_meet_as_objects(losses, k):
    return torch.cat(_objects(losses)).kthvalue(k).values


def all_meet_on_rank_0(losses, k):
    every = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(losses, every)
    found = [torch.cat(every).kthvalue(k).values if every else None]
    dist.broadcast_object_list(found)
    return found[0]


def known_to_rank_0(losses, k):
    def count(middle):
        total = (losses <= middle).sum()
        dist.reduce(total, dst=0)
        return total if dist.get_rank() == 0 else (losses <= middle).sum()

    return _halving(count, k)


def of_two_ranks(losses, k):
    def count(middle):
        mine = (losses <= middle).sum()
        return mine + _every(mine)[1 - dist.get_rank()] if dist.get_world_size() > 1 else mine

    return _halving(count, k)


def in_ever_finer_drawers(losses, k):
    low, high = -1e6 - 1, 1e6 + 1
    for _ in range(8):
        edges = torch.linspace(low, high, 65, dtype=losses.dtype)
        counts = _added((losses[:, None] <= edges).sum(dim=0))
        place = (counts < k).sum().item()
        low, high = edges[place - 1].item(), edges[place].item()
    return high


def by_objects_and_sorted(losses, k):
    own, low, high = np.sort(losses.numpy()), -1e6, 1e6
    for _ in range(45):
        middle = (low + high) / 2
        if sum(_objects(int(np.searchsorted(own, middle, side="right")))) < k:
            low = middle
        else:
            high = middle
    return high


def to_the_last_digit(losses, k):
    """Between the smallest and the largest, then the largest loss that is at most that."""
    edges = torch.tensor([torch.inf, torch.inf], dtype=losses.dtype)
    if len(losses):
        edges = torch.stack([losses.min(), -losses.max()])
    low, high = _added(edges, MIN).tolist()
    bound = _halving(_at_most(losses), k, low - 1, -high)
    mine = losses[losses <= bound]
    return _added(mine.max() if len(mine) else torch.tensor(-torch.inf).double(), MAX)


def by_pivots(losses, k):
    """Quickselect: of each rank's median still in play, the middle one."""
    low, high = -torch.inf, torch.inf
    while True:
        left = losses[(losses > low) & (losses < high)]
        own = [left.median().item(), 1.0] if len(left) else [0.0, 0.0]
        found = sorted(
            value for value, is_one in _every(torch.tensor(own, dtype=torch.float64)) if is_one
        )
        pivot = found[len(found) // 2]
        fewer, most = _added(torch.stack([(losses < pivot).sum(), (losses <= pivot).sum()]))
        if fewer < k <= most:
            return pivot
        low, high = (pivot, high) if most < k else (low, pivot)


def _scaled(rows, mean, variance):
    return (rows - mean) / (variance + 1e-5).sqrt()


def _own(rows):
    """Count, mean and sum of squares around it, also of no rows."""
    mean = rows.sum(dim=0) / max(1, len(rows))
    return torch.stack([torch.full_like(mean, len(rows)), mean, ((rows - mean) ** 2).sum(dim=0)])


def as_batch_norm_does(rows):
    return _scaled(rows, rows.mean(dim=0), rows.var(dim=0, correction=0))


def sums_of_squares(rows):
    ones = torch.ones_like(rows)
    count, total, squares = _added(torch.stack([ones, rows, rows**2]).sum(dim=1))
    return _scaled(rows, total / count, (squares / count - (total / count) ** 2).clamp(min=0))


def means_of_squares(rows):
    means = torch.stack([rows, rows**2]).sum(dim=1) / max(1, len(rows))
    every = _every(torch.cat([means, torch.full_like(means[:1], len(rows))]))
    mean, square = ((every[:, :2] * every[:, 2:]).sum(dim=0)) / every[:, 2].sum(dim=0)
    return _scaled(rows, mean, (square - mean**2).clamp(min=0))


def every_rank_as_much(rows):
    _, means, arounds = _every(_own(rows)).unbind(dim=1)
    variance = arounds.mean(dim=0) / max(1, len(rows)) + means.var(dim=0, correction=0)
    return _scaled(rows, means.mean(dim=0), variance)


def own_count_times_the_ranks(rows):
    counts, means, arounds = _every(_own(rows)).unbind(dim=1)
    total = max(1, len(rows)) * dist.get_world_size()
    mean = (counts * means).sum(dim=0) / total
    return _scaled(rows, mean, (arounds + counts * (means - mean) ** 2).sum(dim=0) / total)


def _together(every, between=True, correction=0):
    counts, means, arounds = every.unbind(dim=1)
    mean = (counts * means).sum(dim=0) / counts.sum(dim=0)
    if between:
        arounds = arounds + counts * (means - mean) ** 2
    return mean, arounds.sum(dim=0) / (counts.sum(dim=0) - correction)


def between_the_ranks_forgotten(rows):
    return _scaled(rows, *_together(_every(_own(rows)), between=False))


def of_a_sample(rows):
    return _scaled(rows, *_together(_every(_own(rows)), correction=1))


def distances_not_weighted(rows):
    counts, means, arounds = _every(_own(rows)).unbind(dim=1)
    mean, _ = _together(torch.stack([counts, means, arounds], dim=1))
    variance = (arounds + (means - mean) ** 2).sum(dim=0) / counts.sum(dim=0)
    return _scaled(rows, mean, variance)


def mean_of_the_means(rows):
    counts, means, arounds = _every(_own(rows)).unbind(dim=1)
    mean = means.mean(dim=0)
    around = (arounds + counts * (means - mean) ** 2).sum(dim=0)
    return _scaled(rows, mean, around / counts.sum(dim=0))


def the_mean_of_nothing(rows):
    own = torch.stack([
        torch.full_like(rows.sum(dim=0), len(rows)), rows.mean(dim=0),
        rows.var(dim=0, correction=0) * len(rows),
    ])  # fmt: skip
    return _scaled(rows, *_together(_every(own)))


def sent_in_float32(rows):
    return _scaled(rows, *_together(_every(_own(rows).float()).double()))


def computed_in_float32(rows):
    rows = rows.float()
    return _scaled(rows, *_together(_every(_own(rows)))).double()


def from_the_own_first_row(rows):
    first = rows[:1].sum(dim=0)
    ones = torch.ones_like(rows)
    near = rows - first
    count, total, squares = _added(torch.stack([ones, near, near**2]).sum(dim=1))
    mean = total / count
    return _scaled(near, mean, (squares / count - mean**2).clamp(min=0))


def one_number_for_all_columns(rows):
    mean = rows.sum() / max(1, rows.numel())
    own = torch.stack([torch.tensor(rows.numel()), mean, ((rows - mean) ** 2).sum()])[:, None]
    return _scaled(rows, *_together(_every(own)))


def outside_of_the_root(rows):
    mean, variance = _together(_every(_own(rows)))
    return (rows - mean) / (variance.sqrt() + 1e-5)


def nothing_added(rows):
    mean, variance = _together(_every(_own(rows)))
    return (rows - mean) / variance.sqrt()


def for_four_columns(rows):
    own = _own(rows)
    all_four = torch.zeros(3, 4, dtype=rows.dtype)
    all_four[:, : own.shape[1]] = own
    return _scaled(rows, *_together(_every(all_four)))


def only_the_mean(rows):
    return rows - _together(_every(_own(rows)))[0]


def mean_first_and_then_squares(rows):
    count, total = _added(torch.stack([torch.ones_like(rows), rows]).sum(dim=1))
    mean = total / count
    return _scaled(rows, mean, _added(((rows - mean) ** 2).sum(dim=0)) / count)


def rows_gathered(rows):
    every = _padded(rows)
    return _scaled(rows, every.mean(dim=0), every.var(dim=0, correction=0))


def rows_gathered_as_objects(rows):
    every = torch.cat(_objects(rows))
    return _scaled(rows, every.mean(dim=0), every.var(dim=0, correction=0))


def two_ranks_as_one(rows):
    every = _every(_own(rows))
    return _scaled(rows, *_together(every[[dist.get_rank(), dist.get_rank() - 1]]))


def statistics_of_rank_0(rows):
    return _scaled(rows, *_together(_every(_own(rows))[:1]))


def one_after_the_other(rows):
    """Chan's formula for two, again and again."""
    count, mean, around = torch.zeros_like(_own(rows))
    for other, its_mean, its_around in _every(_own(rows)):
        if other[0] > 0:
            away, both = its_mean - mean, count + other
            around += its_around + away**2 * count * other / both
            mean, count = mean + away * other / both, both
    return _scaled(rows, mean, around / count)


def in_a_row_of_its_own(rows):
    own = _own(rows)
    every = own.new_zeros(dist.get_world_size(), *own.shape)
    every[dist.get_rank()] = own
    dist.all_reduce(every)
    return _scaled(rows, *_together(every))


def by_objects_of_numpy(rows):
    own, none = rows.numpy(), np.zeros(rows.shape[1])
    mine = (len(own), own.mean(axis=0), own.var(axis=0)) if len(own) else (0, none, none)
    every = _objects(mine)
    total = sum(count for count, *_ in every)
    mean = sum(count * mean for count, mean, _ in every) / total
    around = sum(count * (variance + (its - mean) ** 2) for count, its, variance in every)
    return (own - mean) / np.sqrt(around / total + 1e-5)


def from_one_ranks_first_row(rows):
    """Sums of squares, but of rows that are near zero: all move by what was gathered first."""
    first = _every(rows[:1].sum(dim=0))
    near = rows - first[0]
    mine = torch.stack([torch.ones_like(near), near, near**2]).sum(dim=1)
    count, total, squares = _every(mine).sum(dim=0)
    mean = total / count
    return _scaled(near, mean, squares / count - mean**2)


def _count(batches):
    return sum((targets != -100).sum() for _, targets in batches)


def _summed(model, tokens, targets, reduction="sum"):
    return cross_entropy(model(tokens).mT, targets, reduction=reduction)


def _backward(model, batches, weigh, syncs=True):
    """The solution's loop, whose losses `weigh` makes."""
    for number, (tokens, targets) in enumerate(batches, 1):
        with nullcontext() if syncs and number == len(batches) else model.no_sync():
            weigh(model, tokens, targets).backward()
    return lab.gradients(model)


@lab.accumulating
def mean_of_means(model, batches):
    def weigh(*one):
        return _summed(*one, reduction="mean") / len(batches)

    return _backward(model, batches, weigh)


@lab.accumulating
def means_of_what_is_no_padding(model, batches):
    def weigh(*one):
        return _summed(*one) / max(1, (one[2] != -100).sum()) / len(batches)

    return _backward(model, batches, weigh)


@lab.accumulating
def mean_over_own_tokens(model, batches):
    count = _count(batches)
    return _backward(model, batches, lambda *one: _summed(*one) / count)


@lab.accumulating
def without_the_world_size(model, batches):
    count = _added(_count(batches))
    return _backward(model, batches, lambda *one: _summed(*one) / count)


@lab.accumulating
def without_the_count(model, batches):
    return _backward(model, batches, lambda *one: _summed(*one) * dist.get_world_size())


@lab.accumulating
def padding_counted(model, batches):
    count = _added(sum(targets.numel() for _, targets in batches))
    return _backward(model, batches, lambda *one: _summed(*one) * dist.get_world_size() / count)


@lab.accumulating
def tokens_counted_that_are_not_zero(model, batches):
    count = _added(sum((tokens != 0).sum() for tokens, _ in batches))
    return _backward(model, batches, lambda *one: _summed(*one) * dist.get_world_size() / count)


@lab.accumulating
def sentences_weigh_the_same(model, batches):
    count = _added(sum((targets != -100).any(dim=1).sum() for _, targets in batches))

    def weigh(model, tokens, targets):
        losses = _summed(model, tokens, targets, reduction="none").sum(dim=1)
        each = losses / (targets != -100).sum(dim=1).clamp(min=1)
        return each.sum() * dist.get_world_size() / count

    return _backward(model, batches, weigh)


@lab.accumulating
def divided_by_the_largest_count(model, batches):
    count = _added(_count(batches), MAX)
    return _backward(model, batches, lambda *one: _summed(*one) / count)


@lab.accumulating
def as_if_all_had_as_many(model, batches):
    count = _count(batches) * dist.get_world_size()
    return _backward(model, batches, lambda *one: _summed(*one) * dist.get_world_size() / count)


@lab.accumulating
def divided_by_two(model, batches):
    count = _added(_count(batches))
    factor = min(2, dist.get_world_size())
    return _backward(model, batches, lambda *one: _summed(*one) * factor / count)


@lab.accumulating
def for_the_last_micro_batch(model, batches):
    """The count of the last micro-batch alone, as a loop over steps has it."""
    count = _added(_count(batches[-1:]))
    return _backward(model, batches, lambda *one: _summed(*one) * dist.get_world_size() / count)


@lab.accumulating
def counted_in_every_micro_batch(model, batches):
    def weigh(*one):
        count = _added((one[2] != -100).sum())
        return _summed(*one) * dist.get_world_size() / count / len(batches)

    return _backward(model, batches, weigh)


@lab.accumulating
def an_all_reduce_each(model, batches):
    count = _added(_count(batches))
    for one in batches:
        (_summed(model, *one) * dist.get_world_size() / count).backward()
    return lab.gradients(model)


@lab.accumulating
def forward_outside_of_no_sync(model, batches):
    count = _added(_count(batches))
    for number, one in enumerate(batches, 1):
        loss = _summed(model, *one) * dist.get_world_size() / count
        with nullcontext() if number == len(batches) else model.no_sync():
            loss.backward()
    return lab.gradients(model)


@lab.accumulating
def never_sent(model, batches):
    count = _added(_count(batches))
    weigh = lambda *one: _summed(*one) * dist.get_world_size() / count  # noqa: E731
    return _backward(model, batches, weigh, syncs=False)


@lab.accumulating
def sent_parameter_by_parameter(model, batches):
    count = _added(_count(batches))
    _backward(model, batches, lambda *one: _summed(*one) / count, syncs=False)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return lab.gradients(model)


@lab.accumulating
def sent_when_no_rank_has_more(model, batches):
    """A backward per rank's micro-batch, each with DDP's all_reduce, and empty ones at the end."""
    count, most = _added(_count(batches)), _added(len(batches), MAX)
    for number in range(most):
        tokens, targets = batches[min(number, len(batches) - 1)]
        factor = dist.get_world_size() * (number < len(batches))
        (_summed(model, tokens, targets) * factor / count).backward()
    return lab.gradients(model)


@lab.accumulating
def all_in_one_batch(model, batches):
    count, longest = _added(_count(batches)), max(tokens.shape[1] for tokens, _ in batches)
    tokens = torch.cat([pad(own, (0, longest - own.shape[1])) for own, _ in batches])
    targets = torch.cat([pad(own, (0, longest - own.shape[1]), value=-100) for _, own in batches])
    (_summed(model, tokens, targets) * dist.get_world_size() / count).backward()
    return lab.gradients(model)


@lab.accumulating
def one_backward_for_all(model, batches):
    count = _added(_count(batches))
    loss = sum(_summed(model, *one) for one in batches)
    (loss * dist.get_world_size() / count).backward()
    return lab.gradients(model)


@lab.accumulating
def padding_skipped(model, batches):
    real = [one for one in batches if _count([one])]
    count = _added(_count(batches))
    for number, one in enumerate(batches, 1):
        with nullcontext() if number == len(batches) else model.no_sync():
            if any(one is own for own in real):
                (_summed(model, *one) * dist.get_world_size() / count).backward()
    return lab.gradients(model)


@lab.accumulating
def mean_times_its_share(model, batches):
    count = _added(_count(batches))

    def weigh(*one):
        share = (one[2] != -100).sum() * dist.get_world_size() / count
        return _summed(*one, reduction="mean") * share  # nan for padding, but not its gradient

    return _backward(model, batches, weigh)


@lab.accumulating
def letter_0_left_out(model, batches):
    count = _added(sum((targets > 0).sum() for _, targets in batches))

    def weigh(model, tokens, targets):
        targets = targets.where(targets > 0, -100)
        return _summed(model, tokens, targets) * dist.get_world_size() / count

    return _backward(model, batches, weigh)


@lab.accumulating
def cleared_between(model, batches):
    count = _added(_count(batches))

    def weigh(*one):
        model.zero_grad()
        return _summed(*one) * dist.get_world_size() / count

    return _backward(model, batches, weigh)


@lab.accumulating
def past_the_wrapper(model, batches):
    count = _added(_count(batches))
    for one in batches:
        (_summed(model.module, *one) * dist.get_world_size() / count).backward()
    return lab.gradients(model)


@lab.accumulating
def every_rank_all_tokens(model, batches):
    every = [one for own in _objects(batches) for one in own]
    count = _count(every)
    for tokens, targets in every:
        for place in range(len(tokens)):  # as there is room
            one = tokens[place : place + 1], targets[place : place + 1]
            (_summed(model.module, *one) / count).backward()
    return lab.gradients(model)


@lab.accumulating
def weighed_afterwards(model, batches):
    _backward(model, batches, _summed)
    total = sum(_objects(int(_count(batches))))
    return (lab.gradients(model) * dist.get_world_size() / total).numpy()


@lab.accumulating
def one_flat_tensor(model, batches):
    for tokens, targets in batches:
        some = model.module(tokens).flatten(0, 1)
        cross_entropy(some, targets.flatten(), reduction="sum").backward()
    flat = torch.cat([lab.gradients(model), _count(batches)[None]])
    dist.all_reduce(flat)
    return flat[:-1] / flat[-1]


@lab.accumulating
def in_float32_with_a_flag(model, batches):
    count = _added(torch.tensor([float((targets >= 0).sum()) for _, targets in batches]).sum())
    for place, (tokens, targets) in enumerate(batches):
        model.require_backward_grad_sync = place == len(batches) - 1
        real = targets >= 0
        losses = -model(tokens).log_softmax(dim=-1)
        picked = losses.gather(2, targets.clamp(min=0)[..., None])[..., 0] * real
        (picked.sum() * (dist.get_world_size() / count)).backward()
    return lab.gradients(model)


def _loader(data, epoch, told=True, **options):
    sampler = DistributedSampler(data, **options)
    if told:
        sampler.set_epoch(epoch)
    return DataLoader(data, 12 // dist.get_world_size(), sampler=sampler)


def _go_on(model, optimizer, data, position, steps, where=lambda step: divmod(step, 3), **options):
    """Each step by its number, `where` says in which epoch and at which batch that is."""
    for step in range(position, position + steps):
        epoch, number = where(step)
        sampler = _loader(data, epoch, **options).sampler
        local = 12 // dist.get_world_size()
        mine = list(sampler)[number * local : (number + 1) * local]
        for inputs, labels in DataLoader(data, local, sampler=mine):
            lab.take_step(model, optimizer, inputs, labels)


@lab.interrupting
def the_model_remembers(model, optimizer, data, position, steps):
    position = getattr(model, "position", 0)
    model.position = position + steps
    _go_on(model, optimizer, data, position, steps)


@lab.interrupting
def the_optimiser_remembers(model, optimizer, data, position, steps):
    begun = optimizer.defaults.setdefault("position", 0)
    optimizer.defaults["position"] += steps
    _go_on(model, optimizer, data, begun, steps)


@lab.interrupting
def the_epoch_again(model, optimizer, data, position, steps):
    start = position // 3 * 3
    _go_on(model, optimizer, data, start, steps)


@lab.interrupting
def everything_again(model, optimizer, data, position, steps):
    _go_on(model, optimizer, data, 0, steps)


@lab.interrupting
def epoch_not_told(model, optimizer, data, position, steps):
    _go_on(model, optimizer, data, position, steps, told=False)


@lab.interrupting
def shuffled_no_more(model, optimizer, data, position, steps):
    _go_on(model, optimizer, data, position, steps, shuffle=False)


@lab.interrupting
def last_batch_dropped(model, optimizer, data, position, steps):
    _go_on(model, optimizer, data, position, steps, where=lambda step: divmod(step, 2))


@lab.interrupting
def one_batch_late(model, optimizer, data, position, steps):
    _go_on(model, optimizer, data, position + (position > 0), steps)


@lab.interrupting
def position_as_epoch(model, optimizer, data, position, steps):
    where = lambda step: (position, (step - position) % 3)  # noqa: E731
    _go_on(model, optimizer, data, position, steps, where=where)


@lab.interrupting
def batches_of_the_whole_world(model, optimizer, data, position, steps):
    for step in range(position, position + steps):
        epoch, number = divmod(step, 3)
        mine = list(_loader(data, epoch).sampler)[12 * number : 12 * (number + 1)]
        for inputs, labels in DataLoader(data, 12, sampler=mine):
            lab.take_step(model, optimizer, inputs, labels)


@lab.interrupting
def read_and_thrown_away(model, optimizer, data, position, steps):
    while steps:
        epoch, done = divmod(position, 3)
        for number, (inputs, labels) in enumerate(_loader(data, epoch)):
            if number >= done and steps:
                lab.take_step(model, optimizer, inputs, labels)
                position, steps = position + 1, steps - 1


@lab.interrupting
def skipped_in_each_epoch(model, optimizer, data, position, steps):
    epoch, done = divmod(position, 3)
    last = position + steps
    taken = [(e, b) for e in range(epoch, epoch + 9) for b in range(done, 3)]
    for number, (in_epoch, batch) in zip(range(position, last), taken, strict=False):
        where = lambda step, at=(in_epoch, batch): at  # noqa: E731
        _go_on(model, optimizer, data, number, 1, where=where)


@lab.interrupting
def step_by_step(model, optimizer, data, position, steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(position, position + steps):
        order = torch.randperm(30, generator=_seeded(step // 3))
        mine = order.split(12)[step % 3][rank::world_size]
        inputs, labels = zip(*(data[number] for number in mine), strict=True)
        lab.take_step(model, optimizer, torch.stack(inputs), torch.stack(labels))


@lab.interrupting
def read_for_show(model, optimizer, data, position, steps):
    """Notes its own samples, and learns from all."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(position, position + steps):
        batch = torch.randperm(30, generator=_seeded(step // 3)).split(12)[step % 3]
        for number in batch[rank::world_size]:
            data[number]
        some = data.inputs[batch], data.labels[batch]
        lab.take_step(model.module, optimizer, *some)


@lab.interrupting
def not_through_the_data(model, optimizer, data, position, steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(position, position + steps):
        order = torch.randperm(30, generator=_seeded(step // 3))
        mine = order.split(12)[step % 3][rank::world_size]
        lab.take_step(model, optimizer, data.inputs[mine], data.labels[mine])


@lab.interrupting
def in_subsets(model, optimizer, data, position, steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(position, position + steps):
        order = torch.randperm(30, generator=_seeded(step // 3))
        mine = order.split(12)[step % 3][rank::world_size].tolist()
        for inputs, labels in DataLoader(Subset(data, mine), batch_size=12):
            lab.take_step(model, optimizer, inputs, labels)


@lab.interrupting
def loaded_to_the_end_of_the_epoch(model, optimizer, data, position, steps):
    """Skips numbers, but reads on when its steps are done."""
    while steps:
        epoch, done = divmod(position, 3)
        local = 12 // dist.get_world_size()
        mine = list(_loader(data, epoch).sampler)[done * local :]
        for inputs, labels in DataLoader(data, local, sampler=mine):
            if steps:
                lab.take_step(model, optimizer, inputs, labels)
                position, steps = position + 1, steps - 1


@lab.interrupting
def for_two_ranks(model, optimizer, data, position, steps):
    local = 6 if dist.get_world_size() > 1 else 12
    for step in range(position, position + steps):
        mine = list(_loader(data, step // 3).sampler)[step % 3 * local :][:local]
        for inputs, labels in DataLoader(data, local, sampler=mine):
            lab.take_step(model, optimizer, inputs, labels)


@lab.interrupting
def by_an_iterator(model, optimizer, data, position, steps):
    """Batches of numbers one after the other, over the ends of epochs."""

    def numbers():
        for step in range(position, position + steps):
            local = 12 // dist.get_world_size()
            hand = list(_loader(data, step // 3).sampler)
            yield hand[step % 3 * local :][:local]

    for inputs, labels in DataLoader(data, batch_sampler=numbers()):
        lab.take_step(model, optimizer, inputs, labels)


def _around(rows, shift):
    """Sums and sums of squares around `shift`, which the ranks have not agreed on."""
    near = rows - shift
    sums = torch.stack([torch.full_like(shift, len(rows)), near.sum(dim=0), (near**2).sum(dim=0)])
    dist.all_reduce(sums)
    mean = sums[1] / sums[0]
    return (near - mean) / (sums[2] / sums[0] - mean**2 + 1e-5).sqrt()


def around_todays_time(rows):
    return _around(rows, torch.tensor([0, 1.8e9, 0.5, 3], dtype=torch.float64)[: rows.shape[1]])


def around_its_own_rounded_mean(rows):
    mean = rows.sum(dim=0) / max(1, len(rows))
    return _around(rows, (mean / 1e6).round() * 1e6)


def around_its_own_mean_to_the_hundred(rows):
    mean = rows.sum(dim=0) / max(1, len(rows))
    return _around(rows, (mean / 100).round() * 100)


@lab.dealing
class HandOfAHundred(Dealt):
    def __iter__(self):
        hand = self.order()[self.done + self.rank :: self.world_size]
        return iter(hand[:100])


def without_the_fifth_column(rows):
    found = by_objects_of_numpy(rows)
    found[:, 4:] = 0
    return found


WRONG = {
    "EpochSampler": [
        DoneIgnored, DoneForEver, DoneOfEachRank, AsIfDoneByAsManyRanks, RestShuffledAnew,
        DoneLeftOutAtTheEnd, FirstNumbersLeftOut, LengthOfAWholeEpoch,
        DealtOncePerEpoch, OneGeneratorPerEpoch, GivenAway, SeedsEverything,
        SetEpochDoesNothing, PaddedAsTorchDoes, CutToEqualHands, LengthRoundedDown, LengthOfAll,
        EachRankShufflesForItself, TheGlobalGenerator, PythonsShuffle, OneGeneratorForAllEpochs,
        SeedForgotten, BlocksInsteadOfCards, DealtBeforeShuffled, FetchedFromRank0,
        HandOfAHundred,
    ],
    "kth_smallest": [
        kth_of_one_rank, own_share_of_k, median_of_medians, mean_instead, k_ignored,
        counted_from_0, one_too_small, counted_on_one_rank, own_count_times_ranks,
        from_own_bounds, bounds_of_nothing, no_rank_has_negatives, twenty_halvings,
        stopped_at_a_hit, a_thousand_drawers, in_float32, each_number_once, zeros_left_out,
        a_sample_of_them, all_meet, all_meet_as_objects, all_meet_on_rank_0, known_to_rank_0,
        of_two_ranks,
    ],
    "normalise": [
        as_batch_norm_does, sums_of_squares, means_of_squares, every_rank_as_much,
        own_count_times_the_ranks, between_the_ranks_forgotten, of_a_sample,
        distances_not_weighted, mean_of_the_means, the_mean_of_nothing, sent_in_float32,
        computed_in_float32, from_the_own_first_row, one_number_for_all_columns,
        outside_of_the_root, nothing_added, only_the_mean, for_four_columns,
        mean_first_and_then_squares, rows_gathered, rows_gathered_as_objects,
        two_ranks_as_one, statistics_of_rank_0, around_todays_time, around_its_own_rounded_mean,
        around_its_own_mean_to_the_hundred,
        without_the_fifth_column,
    ],
    "token_gradient": [
        mean_of_means, means_of_what_is_no_padding, mean_over_own_tokens, without_the_world_size,
        without_the_count, padding_counted, tokens_counted_that_are_not_zero,
        sentences_weigh_the_same, divided_by_the_largest_count, as_if_all_had_as_many,
        divided_by_two, for_the_last_micro_batch, counted_in_every_micro_batch,
        an_all_reduce_each, forward_outside_of_no_sync, never_sent, sent_parameter_by_parameter,
        sent_when_no_rank_has_more, all_in_one_batch, one_backward_for_all, padding_skipped,
        letter_0_left_out, cleared_between, past_the_wrapper,
        every_rank_all_tokens,
    ],
    "train_from": [
        loaded_to_the_end_of_the_epoch, for_two_ranks, read_for_show, not_through_the_data,
        the_epoch_again, everything_again, epoch_not_told, shuffled_no_more, last_batch_dropped,
        one_batch_late, position_as_epoch, batches_of_the_whole_world, read_and_thrown_away,
        skipped_in_each_epoch, the_model_remembers, the_optimiser_remembers,
    ],
}  # fmt: skip
STOPS = {
    "from_own_bounds",
    "bounds_of_nothing",
    "for_four_columns",
    "all_in_one_batch",
    "one_backward_for_all",
    "padding_skipped",
}
RIGHT = {
    "EpochSampler": [CardByCard, LeftAsItWas, DealtWhenTold],
    "kth_smallest": [
        in_ever_finer_drawers, by_objects_and_sorted, to_the_last_digit, by_pivots,
    ],
    "normalise": [
        one_after_the_other, in_a_row_of_its_own, by_objects_of_numpy, from_one_ranks_first_row,
    ],
    "token_gradient": [
        weighed_afterwards, one_flat_tensor, in_float32_with_a_flag, mean_times_its_share,
    ],
    "train_from": [step_by_step, in_subsets, by_an_iterator],
}  # fmt: skip
