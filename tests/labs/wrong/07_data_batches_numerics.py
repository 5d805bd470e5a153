"""Wrong answers to lab 07, and for each exercise another right one.

Published: `set_epoch` that does nothing; hands that are padded or cut; ranks that shuffle each for
itself; the loss of one rank; means of means; padded samples counted twice; a mean loss on unequal
batches; a run that starts its epoch again, or reads all that it skips.
"""

import random

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

lab = labs.cells("07_data_batches_numerics")


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


@lab.dealing
class SetEpochDoesNothing(lab.EpochSampler):
    def set_epoch(self, epoch):
        pass


@lab.dealing
class PaddedAsTorchDoes(lab.EpochSampler):
    def __iter__(self):
        sampler = DistributedSampler(range(self.length), seed=self.seed)
        sampler.set_epoch(self.epoch)
        return iter(sampler)

    def __len__(self):
        return -(-self.length // self.world_size)


@lab.dealing
class CutToEqualHands(lab.EpochSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[: len(self)])

    def __len__(self):
        return self.length // self.world_size


@lab.dealing
class LengthRoundedDown(lab.EpochSampler):
    def __len__(self):
        return self.length // self.world_size


@lab.dealing
class LengthOfAll(lab.EpochSampler):
    def __len__(self):
        return self.length


@lab.dealing
class EachRankShufflesForItself(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.seed + self.epoch + self.rank))
        return iter(order.tolist()[self.rank :: self.world_size])


@lab.dealing
class TheGlobalGenerator(lab.EpochSampler):
    def __iter__(self):
        return iter(torch.randperm(self.length).tolist()[self.rank :: self.world_size])


@lab.dealing
class PythonsShuffle(lab.EpochSampler):
    def __iter__(self):
        order = list(range(self.length))
        random.Random(self.seed + self.epoch).shuffle(order)
        return iter(order[self.rank :: self.world_size])


@lab.dealing
class OneGeneratorForAllEpochs(lab.EpochSampler):
    def __init__(self, length, seed):
        super().__init__(length, seed)
        self.generator = _seeded(seed)

    def __iter__(self):
        order = torch.randperm(self.length, generator=self.generator).tolist()
        return iter(order[self.rank :: self.world_size])


@lab.dealing
class SeedForgotten(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.epoch)).tolist()
        return iter(order[self.rank :: self.world_size])


@lab.dealing
class BlocksInsteadOfCards(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.seed + self.epoch))
        return iter(order.tensor_split(self.world_size)[self.rank].tolist())


@lab.dealing
class DealtBeforeShuffled(lab.EpochSampler):
    def __iter__(self):
        mine = torch.arange(self.rank, self.length, self.world_size)
        order = torch.randperm(len(mine), generator=_seeded(self.seed + self.epoch))
        return iter(mine[order].tolist())


@lab.dealing
class FetchedFromRank0(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.seed + self.epoch))
        dist.broadcast(order, src=0)
        return iter(order.tolist()[self.rank :: self.world_size])


@lab.dealing
class CardByCard(lab.EpochSampler):
    def __iter__(self):
        order = torch.randperm(self.length, generator=_seeded(self.seed + self.epoch))
        for place, sample in enumerate(order):
            if place % self.world_size == self.rank:
                yield sample

    def __len__(self):
        return (self.length - self.rank + self.world_size - 1) // self.world_size


def _figures(outputs, labels):
    right = (outputs.argmax(dim=1) == labels).double()
    return torch.stack([cross_entropy(outputs, labels), right.mean()])


def figures_of_one_rank(outputs, labels):
    return tuple(_figures(outputs, labels).tolist())


def means_of_means(outputs, labels):
    figures = _figures(outputs, labels)
    dist.all_reduce(figures, op=dist.ReduceOp.AVG)
    return tuple(figures.tolist())


def means_of_ranks_with_samples(outputs, labels):
    figures = torch.zeros(3, dtype=torch.float64)
    if len(labels):
        figures = torch.cat([_figures(outputs, labels), torch.ones(1, dtype=torch.float64)])
    dist.all_reduce(figures)
    return tuple((figures[:2] / figures[2]).tolist())


def mean_times_count(outputs, labels):
    count = torch.tensor([len(labels)])
    sums = torch.cat([_figures(outputs, labels) * count, count])  # nan * 0 is nan
    dist.all_reduce(sums)
    return tuple((sums[:2] / sums[2]).tolist())


def divided_by_own_count_times_ranks(outputs, labels):
    total = cross_entropy(outputs, labels, reduction="sum")
    sums = torch.stack([total, (outputs.argmax(dim=1) == labels).sum()])
    dist.all_reduce(sums)
    return tuple((sums / max(len(labels), 1) / dist.get_world_size()).tolist())


def accuracy_of_one_rank(outputs, labels):
    sums = torch.tensor([cross_entropy(outputs, labels, reduction="sum"), len(labels)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item(), _figures(outputs, labels)[1].item()


def sums_on_rank_0_only(outputs, labels):
    right = (outputs.argmax(dim=1) == labels).sum()
    loss = cross_entropy(outputs, labels, reduction="sum")
    sums = torch.tensor([loss, right, len(labels)], dtype=torch.float64)
    dist.reduce(sums, dst=0)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def _gathered(tensor, fill):
    """All ranks' tensors, padded to the longest, joined with their padding."""
    longest = torch.tensor(len(tensor))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = torch.cat([tensor, fill(tensor, int(longest) - len(tensor))])
    every = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(every, padded)
    return torch.cat(every)


def _zeros(tensor, count):
    return tensor.new_zeros(count, *tensor.shape[1:])


def _repeated(tensor, count):
    return tensor[torch.arange(count) % len(tensor)] if len(tensor) else _zeros(tensor, count)


def padding_counted_twice(outputs, labels):
    every = _gathered(outputs, _repeated), _gathered(labels, _repeated)
    return tuple(_figures(*every).tolist())


def all_samples_sent(outputs, labels):
    both = [None] * dist.get_world_size()
    dist.all_gather_object(both, (outputs, labels))
    every = [torch.cat(parts) for parts in zip(*both, strict=True)]
    return tuple(_figures(*every).tolist())


def sums_one_by_one(outputs, labels):
    right = (outputs.argmax(dim=1) == labels).sum()
    loss = cross_entropy(outputs, labels, reduction="none").sum()
    count = torch.tensor(len(labels))
    for number in (loss, right, count):
        dist.all_reduce(number)
    return loss.item() / count.item(), right.item() / count.item()


def median_of_one_rank(losses):
    return losses.median()


def median_of_medians(losses):
    every = [torch.empty((), dtype=losses.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(every, losses.median())
    return torch.stack(every).median()


def mean_of_medians(losses):
    middle = losses.median()
    dist.all_reduce(middle, op=dist.ReduceOp.AVG)
    return middle


def zeros_counted(losses):
    return _gathered(losses, _zeros).median()


def repeated_ones_counted(losses):
    return _gathered(losses, _repeated).median()


def nans_not_skipped(losses):
    return _gathered(losses, lambda own, count: own.new_full((count,), torch.nan)).median()


def gathered_as_they_are(losses):
    every = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
    dist.all_gather(every, losses)
    return torch.cat(every).median()


def cut_to_the_shortest(losses):
    shortest = torch.tensor(len(losses))
    dist.all_reduce(shortest, op=dist.ReduceOp.MIN)
    every = [losses.new_empty(shortest) for _ in range(dist.get_world_size())]
    dist.all_gather(every, losses[:shortest].contiguous())
    return torch.cat(every).median()


def mean_instead(losses):
    sums = torch.stack([losses.sum(), torch.tensor(float(len(losses)), dtype=losses.dtype)])
    dist.all_reduce(sums)
    return sums[0] / sums[1]


def mean_of_the_middle_two(losses):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, losses)
    return torch.cat(every).quantile(0.5)


def nans_skipped(losses):
    return _gathered(losses, lambda own, count: own.new_full((count,), torch.nan)).nanmedian()


def _count(labels, op=dist.ReduceOp.SUM):
    count = torch.tensor(float(len(labels)))
    dist.all_reduce(count, op=op)
    return count


def _total(model, inputs, labels):
    return cross_entropy(model(inputs), labels, reduction="sum")


@lab.in_ddp
def mean_loss(model, inputs, labels):
    cross_entropy(model(inputs), labels).backward()
    return lab.gradients(model)


@lab.in_ddp
def sum_loss(model, inputs, labels):
    _total(model, inputs, labels).backward()
    return lab.gradients(model)


@lab.in_ddp
def without_the_world_size(model, inputs, labels):
    (_total(model, inputs, labels) / _count(labels)).backward()
    return lab.gradients(model)


@lab.in_ddp
def without_the_count(model, inputs, labels):
    (_total(model, inputs, labels) * dist.get_world_size()).backward()
    return lab.gradients(model)


@lab.in_ddp
def divided_by_the_largest(model, inputs, labels):
    (_total(model, inputs, labels) / _count(labels, dist.ReduceOp.MAX)).backward()
    return lab.gradients(model)


@lab.in_ddp
def left_out_without_samples(model, inputs, labels):
    share = len(labels) * dist.get_world_size() / _count(labels)
    if len(labels):
        (cross_entropy(model(inputs), labels) * share).backward()
    return lab.gradients(model)


@lab.in_ddp
def past_the_wrapper(model, inputs, labels):
    total = _total(model.module, inputs, labels) * dist.get_world_size()
    (total / _count(labels)).backward()
    return lab.gradients(model)


@lab.in_ddp
def sums_of_gradients(model, inputs, labels):
    _total(model.module, inputs, labels).backward()
    count = _count(labels)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= count
    return lab.gradients(model)


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def _run(model, inputs, labels, count=None):
    optimizer = _sgd(model)
    for some_inputs, some_labels in list(zip(inputs, labels, strict=True))[:count]:
        lab.take_step(model, optimizer, some_inputs, some_labels)
    return lab.weights(model)


@lab.in_ddp
def without_join(model, inputs, labels):
    return _run(model, inputs, labels)


@lab.in_ddp
def until_the_first_has_none(model, inputs, labels):
    return _run(model, inputs, labels, int(_count(labels, dist.ReduceOp.MIN)))


@lab.in_ddp
def divided_by_those_who_are_left(model, inputs, labels):
    with Join([model], divide_by_initial_world_size=False):
        return _run(model, inputs, labels)


@lab.in_ddp
def last_batch_again(model, inputs, labels):
    count = int(_count(labels, dist.ReduceOp.MAX))
    if not len(labels):
        inputs, labels = torch.zeros(1, 4, 4).double(), torch.zeros(1, 4, dtype=torch.int64)
    places = torch.arange(count).clamp(max=len(labels) - 1)
    return _run(model, inputs[places], labels[places])


@lab.in_ddp
def the_rest_alone(model, inputs, labels):
    common = int(_count(labels, dist.ReduceOp.MIN))
    _run(model, inputs, labels, common)
    return _run(model.module, inputs[common:], labels[common:])


@lab.in_ddp
def read_inside_of_join(model, inputs, labels):
    with Join([model]):
        return _run(model, inputs, labels)


@lab.in_ddp
def join_stops_at_the_first(model, inputs, labels):
    with Join([model], throw_on_early_termination=True):
        _run(model, inputs, labels)
    return lab.weights(model)


@lab.in_ddp
def joined_in_each_step(model, inputs, labels):
    optimizer = _sgd(model)
    for some_inputs, some_labels in zip(inputs, labels, strict=True):
        with Join([model]):
            lab.take_step(model, optimizer, some_inputs, some_labels)
    return lab.weights(model)


@lab.in_ddp
def gradients_forgotten_at_the_end(model, inputs, labels):
    """Ranks without a batch take part in backward, but not in the step."""
    optimizer, steps = _sgd(model), int(_count(labels, dist.ReduceOp.MAX))
    for step in range(steps):
        if step < len(labels):
            lab.take_step(model, optimizer, inputs[step], labels[step])
        else:
            optimizer.zero_grad()
            model(torch.zeros(1, 4).double()).sum().mul(0).backward()
    return lab.weights(model)


@lab.in_ddp
def empty_steps(model, inputs, labels):
    return _empty_steps(model, inputs, labels, int(_count(labels, dist.ReduceOp.MAX)))


def _empty_steps(model, inputs, labels, steps):
    optimizer = _sgd(model)
    for step in range(steps):
        _empty_step(model, optimizer, inputs, labels, step)
    return lab.weights(model)


def _empty_step(model, optimizer, inputs, labels, step):
    optimizer.zero_grad()
    if step < len(labels):
        cross_entropy(model(inputs[step]), labels[step]).backward()
    else:
        model(torch.zeros(1, 4).double()).sum().mul(0).backward()
    optimizer.step()


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


@lab.dealing
class SeedsEverything(lab.EpochSampler):
    def __iter__(self):
        torch.manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.length).tolist()[self.rank :: self.world_size])


def _objects(mine):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


@lab.dealing
class DealtOncePerEpoch(lab.EpochSampler):
    def set_epoch(self, epoch):
        self.epoch = epoch
        self.hand = super().__iter__()

    def __iter__(self):
        return self.hand


@lab.dealing
class OneGeneratorPerEpoch(lab.EpochSampler):
    def set_epoch(self, epoch):
        self.generator = _seeded(self.seed + epoch)

    def __iter__(self):
        order = torch.randperm(self.length, generator=self.generator)
        return iter(order.tolist()[self.rank :: self.world_size])


@lab.dealing
class GivenAway(lab.EpochSampler):
    def set_epoch(self, epoch):
        self.epoch = epoch
        self.hand = list(super().__iter__())

    def __iter__(self):
        while self.hand:
            yield self.hand.pop(0)


@lab.dealing
class LeftAsItWas(lab.EpochSampler):
    def __iter__(self):
        before = torch.get_rng_state()
        torch.manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.length).numpy()[self.rank :: self.world_size]
        torch.set_rng_state(before)


def samples_sent_as_objects(outputs, labels):
    every = _objects((outputs, labels))
    return lab.evaluate_spec(*zip(*every, strict=True))[0]


def sums_in_whole_numbers(outputs, labels):
    loss = cross_entropy(outputs, labels, reduction="sum")
    sums = torch.tensor([loss, (outputs.argmax(dim=1) == labels).sum(), len(labels)]).long()
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def figures_as_objects(outputs, labels):
    loss = cross_entropy(outputs, labels, reduction="sum").float()
    mine = np.array([loss, (outputs.argmax(dim=1) == labels).sum(), len(labels)], dtype="float32")
    return sum(_objects(mine))[:2] / sum(_objects(mine))[2]


def zeros_skipped(losses):
    every = _gathered(losses, _zeros)
    return every[every != 0].median()


def negatives_skipped(losses):
    every = _gathered(losses, lambda own, count: own.new_full((count,), -1))
    return every[every >= 0].median()


def hundreds_skipped(losses):
    every = _gathered(losses, lambda own, count: own.new_full((count,), 100))
    return every[every < 100].median()


def each_number_once(losses):
    return torch.cat(_objects(losses)).unique().median()


def in_the_middle_of_a_list(losses):
    every = sorted(own for one in _objects(losses.tolist()) for own in one)
    return every[(len(every) - 1) // 2]


@lab.in_ddp
def samples_gathered(model, inputs, labels):
    """Each rank does the work of all."""
    every = _objects((inputs, labels))
    inputs, labels = (torch.cat(own) for own in zip(*every, strict=True))
    cross_entropy(model.module(inputs), labels).backward()
    return lab.gradients(model)


@lab.in_ddp
def weighed_afterwards(model, inputs, labels):
    cross_entropy(model(inputs), labels, reduction="sum").backward()
    return (lab.gradients(model) * dist.get_world_size() / sum(_objects(len(labels)))).numpy()


@lab.in_ddp
def five_steps_for_everybody(model, inputs, labels):
    return _empty_steps(model, inputs, labels, 5)


@lab.in_ddp
def batches_gathered(model, inputs, labels):
    every = _objects((inputs, labels))
    return lab.train_uneven_spec([model.module] * len(every), *zip(*every, strict=True))[0]


@lab.in_ddp
def asked_before_each_step(model, inputs, labels):
    optimizer, step = _sgd(model), 0
    while any(_objects(step < len(labels))):
        _empty_step(model, optimizer, inputs, labels, step)
        step += 1
    return lab.weights(model).numpy()


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


WRONG = {
    "EpochSampler": [
        DealtOncePerEpoch, OneGeneratorPerEpoch, GivenAway,
        SeedsEverything,
        SetEpochDoesNothing, PaddedAsTorchDoes, CutToEqualHands, LengthRoundedDown, LengthOfAll,
        EachRankShufflesForItself, TheGlobalGenerator, PythonsShuffle, OneGeneratorForAllEpochs,
        SeedForgotten, BlocksInsteadOfCards, DealtBeforeShuffled, FetchedFromRank0,
    ],
    "evaluate": [
        samples_sent_as_objects, sums_in_whole_numbers,
        figures_of_one_rank, means_of_means, means_of_ranks_with_samples, mean_times_count,
        divided_by_own_count_times_ranks, accuracy_of_one_rank, sums_on_rank_0_only,
        padding_counted_twice, all_samples_sent,
    ],
    "median": [
        zeros_skipped, negatives_skipped, hundreds_skipped, each_number_once,
        median_of_one_rank, median_of_medians, mean_of_medians, zeros_counted,
        repeated_ones_counted, nans_not_skipped, gathered_as_they_are, cut_to_the_shortest,
        mean_instead, mean_of_the_middle_two,
    ],
    "fair_gradient": [
        samples_gathered,
        mean_loss, sum_loss, without_the_world_size, without_the_count,
        divided_by_the_largest, left_out_without_samples, past_the_wrapper,
    ],
    "train_uneven": [
        five_steps_for_everybody, batches_gathered,
        without_join, until_the_first_has_none, divided_by_those_who_are_left, last_batch_again,
        the_rest_alone, read_inside_of_join, join_stops_at_the_first, joined_in_each_step,
        gradients_forgotten_at_the_end,
    ],
    "train_from": [
        read_for_show, not_through_the_data,
        the_epoch_again, everything_again, epoch_not_told, shuffled_no_more, last_batch_dropped,
        one_batch_late, position_as_epoch, batches_of_the_whole_world, read_and_thrown_away,
        skipped_in_each_epoch,
    ],
}  # fmt: skip
RIGHT = {
    "EpochSampler": [CardByCard, LeftAsItWas],
    "evaluate": [sums_one_by_one, figures_as_objects],
    "median": [nans_skipped, in_the_middle_of_a_list],
    "fair_gradient": [sums_of_gradients, weighed_afterwards],
    "train_uneven": [empty_steps, asked_before_each_step],
    "train_from": [step_by_step, in_subsets],
}
