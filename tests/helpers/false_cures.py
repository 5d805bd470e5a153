"""False cures of the museum's exhibits, five at least of each, and some right ones in other styles.

Each is something that people try: the symptom goes away, and the result is still wrong.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course_museum import EXHIBITS, gradient_of_a_gather, gradient_of_a_sum, mean_of_means


def _sum(value, op=dist.ReduceOp.SUM):
    total = torch.as_tensor(value).clone()
    dist.all_reduce(total, op=op)
    return total


def _mean(value):
    return _sum(value) / dist.get_world_size()


# validation_of_uneven_length


def as_many_rounds_as_the_shortest(batches):
    rounds = _sum(len(batches), dist.ReduceOp.MIN)
    return EXHIBITS["validation_of_uneven_length"].bug(batches[: int(rounds)])


def mean_of_own_means(batches):
    return _mean(torch.cat(batches).mean()).item()


def own_mean_alone(batches):
    return torch.cat(batches).mean().item()


def the_last_batch_once_more(batches):
    rounds = int(_sum(len(batches), dist.ReduceOp.MAX))
    filled = batches + batches[-1:] * (rounds - len(batches))
    return EXHIBITS["validation_of_uneven_length"].bug(filled)


def mean_of_all_rounds(batches):
    rounds = int(_sum(len(batches), dist.ReduceOp.MAX))
    means = []
    for number in range(rounds):
        mine = batches[number].mean() if number < len(batches) else torch.zeros(())
        means.append(_mean(mine))
    return torch.stack(means).mean().item()


def divided_by_batches(batches):
    losses = _sum(torch.cat(batches).sum())
    return (losses / _sum(len(batches))).item()


def empty_rounds_at_the_end(batches):
    """Right: who is done goes on with batches of nothing."""
    rounds = int(_sum(len(batches), dist.ReduceOp.MAX))
    filled = batches + [torch.zeros(0)] * (rounds - len(batches))
    return EXHIBITS["validation_of_uneven_length"].bug(filled)


def gathered_and_joined(batches):
    """Right: rank by rank, all losses."""
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, batches)
    return torch.cat([torch.cat(of_rank) for of_rank in everybody]).mean().item()


# stops_on_its_own


def never_stops(losses):
    for _ in losses:
        _sum(torch.ones(2))
    return len(losses)


def _stops_when(losses, decide):
    steps = 0
    for loss in losses:
        steps += 1
        if decide(loss):
            break
    return steps


def stops_with_the_first(losses):
    return _stops_when(losses, lambda loss: _sum(loss, dist.ReduceOp.MIN) <= 0.5)


def stops_with_the_last(losses):
    return _stops_when(losses, lambda loss: _sum(loss, dist.ReduceOp.MAX) <= 0.5)


def stops_by_the_sum(losses):
    return _stops_when(losses, lambda loss: _sum(loss) <= 0.5)


def stops_with_rank_0(losses):
    def decide(loss):
        of_rank_0 = loss.clone()
        dist.broadcast(of_rank_0, src=0)
        return of_rank_0 <= 0.5

    return _stops_when(losses, decide)


def stops_a_step_later(losses):
    return min(len(losses), 1 + EXHIBITS["stops_on_its_own"].cure(losses))


def stops_when_most_do(losses):
    return _stops_when(losses, lambda loss: 2 * _sum(int(loss <= 0.5)) >= dist.get_world_size())


# order_of_a_dictionary


def reversed_order(gradients):
    for name in reversed(gradients):
        dist.all_reduce(gradients[name])
    return gradients


def all_in_one(gradients):
    flat = _sum(torch.cat(list(gradients.values())))
    return dict(zip(gradients, flat.split(3), strict=True))


def with_barriers_between(gradients):
    for name in gradients:
        dist.barrier()
        dist.all_reduce(gradients[name])
    return gradients


def all_begun_then_all_awaited(gradients):
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients.values()]
    for work in works:
        work.wait()
    return gradients


def sorted_by_value(gradients):
    for name in sorted(gradients, key=lambda name: gradients[name].tolist()):
        dist.all_reduce(gradients[name])
    return gradients


def averaged_in_order(gradients):
    return {name: _sum(gradients[name]) // dist.get_world_size() for name in sorted(gradients)}


def in_the_order_of_rank_0(gradients):
    """Right: rank 0 says which comes next."""
    order = [list(gradients)]
    dist.broadcast_object_list(order, src=0)
    return {name: _sum(gradients[name]) for name in order[0]}


# labels_of_nobody


def _loss(logits, labels):
    return F.cross_entropy(logits, labels).item()


def labels_by_remainder(first, second):
    labels = (torch.arange(len(first)) + dist.get_rank()) % len(first)
    return _loss(first @ second.T, labels)


def labels_cut_off(first, second):
    labels = torch.arange(len(first)) + dist.get_rank() * len(first)
    return _loss(first @ second.T, labels.clamp(max=len(first) - 1))


def all_the_first_pair(first, second):
    return _loss(first @ second.T, torch.zeros(len(first), dtype=torch.long))


def ignored_where_out_of_bounds(first, second):
    labels = torch.arange(len(first)) + dist.get_rank() * len(first)
    labels[labels >= len(first)] = -100
    return _loss(first @ second.T, labels)


def padded_with_zeros(first, second):
    labels = torch.arange(len(first)) + dist.get_rank() * len(first)
    empty = torch.zeros(len(first) * (dist.get_world_size() - 1), second.shape[1])
    return _loss(first @ torch.cat([second, empty]).T, labels)


def mean_over_ranks(first, second):
    return _mean(F.cross_entropy(first @ second.T, torch.arange(len(first)))).item()


# gradient_of_a_sum


def twice(weights, batch):
    return 2 * EXHIBITS["gradient_of_a_sum"].bug(weights, batch)


def times_its_square(weights, batch):
    return dist.get_world_size() ** 2 * EXHIBITS["gradient_of_a_sum"].bug(weights, batch)


def no_average(weights, batch):
    weights = weights.clone().requires_grad_()
    means = (batch * weights).mean(0)
    (means**2).sum().backward()
    return weights.grad


def loss_of_own_means(weights, batch):
    return _mean(no_average(weights, batch))


def sum_put_in_by_data(weights, batch):
    weights = weights.clone().requires_grad_()
    means = (batch * weights).mean(0)
    means.data = _mean(means.data)
    means.sum().backward()
    return gradient_of_a_sum.averaged(weights.grad)


def with_gradient_and_factor(weights, batch):
    return dist.get_world_size() * EXHIBITS["gradient_of_a_sum"].cure(weights, batch)


def only_the_factor(weights, batch):
    """Right: here every rank lacks the same factor."""
    return dist.get_world_size() * EXHIBITS["gradient_of_a_sum"].bug(weights, batch)


# gradient_of_a_gather


def times_world_size(weights, batch):
    return EXHIBITS["gradient_of_a_gather"].bug(weights, batch) * dist.get_world_size()


class _Averages(gradient_of_a_gather.Gather):
    @staticmethod
    def backward(ctx, gradient):
        return _mean(gradient)[dist.get_rank()]


class _SumsAll(gradient_of_a_gather.Gather):
    @staticmethod
    def backward(ctx, gradient):
        return _sum(gradient).sum(0)


class _NextRanks(gradient_of_a_gather.Gather):
    @staticmethod
    def backward(ctx, gradient):
        return _sum(gradient)[(dist.get_rank() + 1) % dist.get_world_size()]


class _Nothing(gradient_of_a_gather.Gather):
    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient[0])


def averages_in_backward(weights, batch):
    return gradient_of_a_gather.gradient_with(_Averages.apply, weights, batch)


def sums_all_in_backward(weights, batch):
    return gradient_of_a_gather.gradient_with(_SumsAll.apply, weights, batch)


def the_next_ranks_gradient(weights, batch):
    return gradient_of_a_gather.gradient_with(_NextRanks.apply, weights, batch)


def detached(weights, batch):
    return gradient_of_a_gather.gradient_with(_Nothing.apply, weights, batch)


def no_gather(weights, batch):
    return gradient_of_a_gather.gradient_with(lambda mine: mine[None], weights, batch)


# loss_of_a_part


def divided_by_own_count(losses, samples_in_dataset):
    return losses.mean().item()


def summed_means(losses, samples_in_dataset):
    return _sum(losses.mean()).item()


def times_ranks_of_own(losses, samples_in_dataset):
    return (losses.sum() * dist.get_world_size() / samples_in_dataset).item()


def mean_of_parts(losses, samples_in_dataset):
    return _mean(losses.sum() / samples_in_dataset).item()


def of_the_best_rank(losses, samples_in_dataset):
    return _sum(losses.mean(), dist.ReduceOp.MIN).item()


def reduced_to_rank_0(losses, samples_in_dataset):
    total = losses.sum()
    dist.reduce(total, dst=0)
    return (total / samples_in_dataset).item()


# model_without_its_wrapper


def _model():
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def _own_gradient(batch):
    model = _model()
    model(batch).square().mean().backward()
    return model.weight.grad


def without_ddp(batch):
    return _sum(_own_gradient(batch))


def the_same_on_all_from_rank_0(batch):
    gradient = _own_gradient(batch)
    dist.broadcast(gradient, src=0)
    return gradient


def wrapped_too_late(batch):
    model = _model()
    loss = model(batch).square().mean()
    DistributedDataParallel(model)
    loss.backward()
    return model.weight.grad


def without_sync(batch):
    wrapped = DistributedDataParallel(_model())
    with wrapped.no_sync():
        wrapped(batch).square().mean().backward()
    return wrapped.module.weight.grad


def averaged_twice(batch):
    wrapped = DistributedDataParallel(_model())
    wrapped(batch).square().mean().backward()
    return wrapped.module.weight.grad / dist.get_world_size()


def a_barrier_before(batch):
    dist.barrier()
    return _own_gradient(batch)


def averaged_by_hand(batch):
    """Right: what the wrapper does."""
    return _mean(_own_gradient(batch))


# sum_of_norms


def mean_of_norms(shard):
    return _mean(shard.norm()).item()


def mean_of_squares(shard):
    return _mean(shard.square().sum()).sqrt().item()


def largest_norm(shard):
    return _sum(shard.norm(), dist.ReduceOp.MAX).item()


def root_of_norms(shard):
    return _sum(shard.norm()).sqrt().item()


def norm_of_sums(shard):
    return _sum(shard).norm().item()


def root_of_world_size(shard):
    return (shard.norm() * dist.get_world_size() ** 0.5).item()


def norm_of_norms(shard):
    """Right: norms, put together as one vector."""
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, shard.norm())
    return torch.stack(norms).norm().item()


# counted_on_every_rank


def divided_by_world_size(shard, replicated):
    squares = _sum(shard.square().sum() + replicated.square().sum())
    return (squares / dist.get_world_size()).sqrt().item()


def without_the_replicated(shard, replicated):
    return _sum(shard.square().sum()).sqrt().item()


def shard_of_this_rank(shard, replicated):
    return torch.cat([shard, replicated]).norm().item()


def norms_added(shard, replicated):
    return (_sum(shard.square().sum()).sqrt() + replicated.norm()).item()


def replicated_over_its_square(shard, replicated):
    part = replicated.square().sum() / dist.get_world_size() ** 2
    return _sum(shard.square().sum() + part).sqrt().item()


def both_divided_by_the_root(shard, replicated):
    scaled = replicated / dist.get_world_size()
    return _sum(torch.cat([shard, scaled]).square().sum()).sqrt().item()


def a_share_of_the_replicated(shard, replicated):
    """Right: each rank counts its share."""
    share = replicated.square().sum() / dist.get_world_size()
    return _sum(shard.square().sum() + share).sqrt().item()


# mean_of_means


def without_the_factor(weights, tokens):
    weights = weights.clone().requires_grad_()
    count = _sum(float(len(tokens)))
    ((tokens @ weights).square().sum() / count).backward()
    return mean_of_means.averaged(weights.grad)


def _gradient_of(weights, tokens, scale):
    weights = weights.clone().requires_grad_()
    (scale * (tokens @ weights).square().sum()).backward()
    return weights.grad


def summed_not_averaged(weights, tokens):
    return _sum(_gradient_of(weights, tokens, 1 / len(tokens)))


def divided_by_the_mean_of_counts_of_rank_0(weights, tokens):
    count = torch.tensor(float(len(tokens)))
    dist.broadcast(count, src=0)
    return _mean(_gradient_of(weights, tokens, 1 / count))


def divided_by_the_largest(weights, tokens):
    largest = _sum(float(len(tokens)), dist.ReduceOp.MAX)
    return _mean(_gradient_of(weights, tokens, 1 / largest))


def weighed_twice(weights, tokens):
    count = _sum(float(len(tokens)))
    share = len(tokens) * dist.get_world_size() / count
    return _mean(share * _gradient_of(weights, tokens, 1 / count))


def sum_of_all(weights, tokens):
    return _sum(_gradient_of(weights, tokens, 1.0))


def weighed_by_its_share(weights, tokens):
    """Right: means, weighed by how many tokens they are of."""
    own_mean = _gradient_of(weights, tokens, 1 / len(tokens))
    return _sum(own_mean * len(tokens)) / _sum(len(tokens))


# the_same_epoch_again


def _seen(samples, epochs, sampler_of):
    seen = []
    for epoch in range(epochs):
        seen.append([samples[index].item() for index in sampler_of(epoch)])
    return seen


def another_seed_each_epoch(samples, epochs):
    rank = dist.get_rank()
    return _seen(samples, epochs, lambda epoch: DistributedSampler(samples, seed=rank + epoch))


def a_new_sampler_each_epoch(samples, epochs):
    return _seen(samples, epochs, lambda epoch: DistributedSampler(samples))


def not_shuffled(samples, epochs):
    return _seen(samples, epochs, lambda epoch: DistributedSampler(samples, shuffle=False))


def a_plain_shuffle(samples, epochs):
    length = len(samples) // dist.get_world_size()
    return _seen(samples, epochs, lambda epoch: torch.randperm(len(samples))[:length])


def one_epoch_late(samples, epochs):
    sampler = DistributedSampler(samples)
    seen = []
    for epoch in range(epochs):
        seen.append([samples[index].item() for index in sampler])
        sampler.set_epoch(epoch)
    return seen


def set_once(samples, epochs):
    sampler = DistributedSampler(samples)
    sampler.set_epoch(epochs)
    return _seen(samples, epochs, lambda epoch: sampler)


def seeds_that_are_epochs(samples, epochs):
    """Right: torch adds seed and epoch."""
    return _seen(samples, epochs, lambda epoch: DistributedSampler(samples, seed=epoch))


FALSE = {
    "validation_of_uneven_length": [
        as_many_rounds_as_the_shortest, mean_of_own_means, own_mean_alone,
        the_last_batch_once_more, mean_of_all_rounds, divided_by_batches,
    ],
    "stops_on_its_own": [
        never_stops, stops_with_the_first, stops_with_the_last, stops_by_the_sum,
        stops_with_rank_0, stops_a_step_later, stops_when_most_do,
    ],
    "order_of_a_dictionary": [
        reversed_order, all_in_one, with_barriers_between, all_begun_then_all_awaited,
        sorted_by_value, averaged_in_order,
    ],
    "labels_of_nobody": [
        labels_by_remainder, labels_cut_off, all_the_first_pair, ignored_where_out_of_bounds,
        padded_with_zeros, mean_over_ranks,
    ],
    "gradient_of_a_sum": [
        twice, times_its_square, no_average, loss_of_own_means, sum_put_in_by_data,
        with_gradient_and_factor,
    ],
    "gradient_of_a_gather": [
        times_world_size, averages_in_backward, sums_all_in_backward, the_next_ranks_gradient,
        detached, no_gather,
    ],
    "loss_of_a_part": [
        divided_by_own_count, summed_means, times_ranks_of_own, mean_of_parts, of_the_best_rank,
        reduced_to_rank_0,
    ],
    "model_without_its_wrapper": [
        without_ddp, the_same_on_all_from_rank_0, wrapped_too_late, without_sync, averaged_twice,
        a_barrier_before,
    ],
    "sum_of_norms": [
        mean_of_norms, mean_of_squares, largest_norm, root_of_norms, norm_of_sums,
        root_of_world_size,
    ],
    "counted_on_every_rank": [
        divided_by_world_size, without_the_replicated, shard_of_this_rank, norms_added,
        replicated_over_its_square, both_divided_by_the_root,
    ],
    "mean_of_means": [
        without_the_factor, summed_not_averaged, divided_by_the_mean_of_counts_of_rank_0,
        divided_by_the_largest, weighed_twice, sum_of_all,
    ],
    "the_same_epoch_again": [
        another_seed_each_epoch, a_new_sampler_each_epoch, not_shuffled, a_plain_shuffle,
        one_epoch_late, set_once,
    ],
}  # fmt: skip
RIGHT = {
    "validation_of_uneven_length": [empty_rounds_at_the_end, gathered_and_joined],
    "order_of_a_dictionary": [in_the_order_of_rank_0],
    "gradient_of_a_sum": [only_the_factor],
    "model_without_its_wrapper": [averaged_by_hand],
    "sum_of_norms": [norm_of_norms],
    "counted_on_every_rank": [a_share_of_the_replicated],
    "mean_of_means": [weighed_by_its_share],
    "the_same_epoch_again": [seeds_that_are_epochs],
}
