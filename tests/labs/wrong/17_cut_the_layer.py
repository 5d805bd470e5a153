"""Wrong answers to lab 17, and for each exercise other right ones.

What people write: rows of other ranks' words that are not masked, or masked before they are looked
up; a sum that autograd does not see, or sees twice; a mean in place of a sum; tables gathered.
Powers of logits as they are; the maximum of one's own words; a target that each rank takes for its
own; the gradient of a softmax over one's own words. Every gradient over all ranks, or none inside a
copy; means where a sum is wanted; groups the wrong way round.
"""

import labs
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy, one_hot

from course_lessons.tensor_parallel import CopyToRanks, SumOverRanks

lab = labs.cells("17_cut_the_layer")


# ---- embed ---------------------------------------------------------------------------------------


def _masked(shard, first, ids):
    """Rows of words that are here, zeros for others; and which words are here."""
    local = ids - first
    is_here = (local >= 0) & (local < len(shard))
    rows = shard[local.clamp(0, len(shard) - 1)]
    return rows * is_here.unsqueeze(-1), is_here


def not_masked(shard, first, ids):
    local = (ids - first).clamp(0, len(shard) - 1)
    return SumOverRanks.apply(shard[local])


def only_from_above(shard, first, ids):
    local = ids - first
    rows = shard[local.clamp(0, len(shard) - 1)]
    return SumOverRanks.apply(rows * (local < len(shard)).unsqueeze(-1))


def only_from_below(shard, first, ids):
    local = ids - first
    rows = shard[local.clamp(0, len(shard) - 1)]
    return SumOverRanks.apply(rows * (local >= 0).unsqueeze(-1))


def one_word_too_many(shard, first, ids):
    local = ids - first
    is_here = (local >= 0) & (local <= len(shard))
    rows = shard[local.clamp(0, len(shard) - 1)]
    return SumOverRanks.apply(rows * is_here.unsqueeze(-1))


def masked_ids(shard, first, ids):
    local = ids - first
    is_here = (local >= 0) & (local < len(shard))
    return SumOverRanks.apply(shard[local * is_here])


def wraps_around(shard, first, ids):
    return SumOverRanks.apply(shard[(ids - first) % len(shard)])


def no_sum(shard, first, ids):
    return _masked(shard, first, ids)[0]


def mean_of_ranks(shard, first, ids):
    return SumOverRanks.apply(_masked(shard, first, ids)[0]) / dist.get_world_size()


def sum_in_backward_too(shard, first, ids):
    rows = _masked(shard, first, ids)[0]
    return functional.all_reduce(rows, "sum", dist.group.WORLD).clone()


def copied_as_well(shard, first, ids):
    return CopyToRanks.apply(SumOverRanks.apply(_masked(shard, first, ids)[0]))


def without_autograd(shard, first, ids):
    rows = _masked(shard, first, ids)[0].detach()
    dist.all_reduce(rows)
    return rows


def gathers_the_table(shard, first, ids):
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, shard.detach())
    shards[dist.get_rank()] = shard
    return torch.cat(shards)[ids]


def the_highest(shard, first, ids):
    rows = _masked(shard, first, ids)[0]
    highest = rows.detach().clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return rows + (highest - rows.detach())


def by_where(shard, first, ids):
    local = ids - first
    is_here = (local >= 0) & (local < shard.shape[0])
    safe = torch.where(is_here, local, 0)
    rows = torch.where(is_here[..., None], shard[safe], 0.0)
    return SumOverRanks.apply(rows)


def by_filling(shard, first, ids):
    rows = shard.new_zeros(*ids.shape, shard.shape[1])
    here = ((ids >= first) & (ids < first + len(shard))).nonzero(as_tuple=True)
    rows[here] = shard[ids[here] - first]
    total = rows.detach().clone()
    dist.all_reduce(total)
    return rows + (total - rows.detach())


# ---- vocabulary_loss -----------------------------------------------------------------------------


def _loss(logits, first, targets, **how):
    """The loss and the gradient as they should be, but for what `how` says."""
    highest = how.get("highest", _highest)(logits)
    shifted = logits - highest.unsqueeze(1)
    powers = shifted.exp()
    is_target = how.get("is_target", _is_target)(logits, first, targets)
    total, at_target = powers.sum(dim=1), (shifted * is_target).sum(dim=1)
    own_total = total.clone()
    if how.get("sums_powers", True):
        dist.all_reduce(total, op=how.get("op", dist.ReduceOp.SUM))
    if how.get("sums_targets", True):
        dist.all_reduce(at_target, op=how.get("target_op", dist.ReduceOp.SUM))
    divided_by = own_total if how.get("own_softmax") else total
    gradient = powers / divided_by.unsqueeze(1)
    if how.get("subtracts", True):
        gradient = gradient - is_target.to(powers.dtype)
    return total.log() - at_target, gradient * how.get("scale", 1)


def _highest(logits):
    highest = logits.max(dim=1).values
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return highest


def _is_target(logits, first, targets):
    return torch.arange(logits.shape[1], device=logits.device) == (targets - first).unsqueeze(1)


def no_maximum(logits, first, targets):
    return _loss(logits, first, targets, highest=lambda logits: logits.new_zeros(len(logits)))


def own_maximum(logits, first, targets):
    return _loss(logits, first, targets, highest=lambda logits: logits.max(dim=1).values)


def one_maximum_for_all_rows(logits, first, targets):
    def highest(logits):
        most = logits.max()
        dist.all_reduce(most, op=dist.ReduceOp.SUM)
        return most.expand(len(logits))

    return _loss(logits, first, targets, highest=highest)


def own_words_only(logits, first, targets):
    return _loss(logits, first, targets, sums_powers=False)


def own_target_only(logits, first, targets):
    return _loss(logits, first, targets, sums_targets=False)


def highest_of_the_targets(logits, first, targets):
    return _loss(logits, first, targets, target_op=dist.ReduceOp.MAX)


def mean_of_powers(logits, first, targets):
    return _loss(logits, first, targets, op=dist.ReduceOp.AVG)


def softmax_of_own_words(logits, first, targets):
    return _loss(logits, first, targets, own_softmax=True)


def nothing_subtracted(logits, first, targets):
    return _loss(logits, first, targets, subtracts=False)


def gradient_of_the_mean(logits, first, targets):
    return _loss(logits, first, targets, scale=1 / len(logits))


def everybodys_target(logits, first, targets):
    def is_target(logits, first, targets):
        return one_hot(targets % logits.shape[1], logits.shape[1]).bool()

    return _loss(logits, first, targets, is_target=is_target)


def target_clamped(logits, first, targets):
    def is_target(logits, first, targets):
        local = (targets - first).clamp(0, logits.shape[1] - 1)
        return one_hot(local, logits.shape[1]).bool()

    return _loss(logits, first, targets, is_target=is_target)


def gathers_the_logits(logits, first, targets):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, logits)
    whole = torch.cat(parts, dim=1).requires_grad_()
    losses = cross_entropy(whole, targets, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), whole)
    return losses.detach(), gradient[:, first : first + logits.shape[1]]


def by_logsumexp(logits, first, targets):
    own = logits.logsumexp(dim=1)
    highest = own.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    total = (own - highest).exp()
    dist.all_reduce(total)
    normaliser = highest + total.log()
    local = targets - first
    here = ((local >= 0) & (local < logits.shape[1])).nonzero().flatten()
    at_target = logits.new_zeros(len(logits))
    at_target[here] = logits[here, local[here]]
    dist.all_reduce(at_target)
    gradient = (logits - normaliser[:, None]).exp()
    gradient[here, local[here]] -= 1
    return normaliser - at_target, gradient


def in_three_calls(logits, first, targets):
    return _loss(logits, first, targets)


# ---- reduce_gradients ----------------------------------------------------------------------------


def _reduced(gradients, kinds, ways, **how):
    """The gradients as they should be, but for what `how` says."""
    copies = dist.get_world_size() // ways
    mesh = init_device_mesh("cpu", (copies, ways), mesh_dim_names=("data", "tensor"))
    inside, across = mesh["tensor"].get_group(), mesh["data"].get_group()
    if how.get("swapped"):
        inside, across = across, inside
    reduced = {}
    for name, gradient in gradients.items():
        total = gradient.clone()
        if kinds[name] in how.get("summed_inside", ("rows",)):
            dist.all_reduce(total, group=inside)
        if kinds[name] in how.get("summed_across", ("cut", "whole", "rows")):
            dist.all_reduce(total, group=across)
        reduced[name] = total / how.get("divisor", lambda kind: copies)(kinds[name])
    return reduced


def nothing_inside(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, summed_inside=())


def all_summed_inside(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, summed_inside=("cut", "whole", "rows"))


def whole_ones_inside(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, summed_inside=("whole", "rows"))


def cut_ones_stay(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, summed_across=("whole", "rows"))


def whole_ones_stay(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, summed_across=("cut", "rows"))


def rows_stay_in_their_copy(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, summed_across=("cut", "whole"))


def sums_over_copies(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, divisor=lambda kind: 1)


def mean_over_all(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, divisor=lambda kind: dist.get_world_size())


def mean_of_the_rows(gradients, kinds, ways):
    copies = dist.get_world_size() // ways

    def divisor(kind):
        return copies * ways if kind == "rows" else copies

    return _reduced(gradients, kinds, ways, divisor=divisor)


def groups_swapped(gradients, kinds, ways):
    return _reduced(gradients, kinds, ways, swapped=True)


def as_in_data_parallel(gradients, kinds, ways):
    reduced = {}
    for name, gradient in gradients.items():
        total = gradient.clone()
        dist.all_reduce(total)
        reduced[name] = total / dist.get_world_size()
    return reduced


def whole_ones_over_all(gradients, kinds, ways):
    right = _reduced(gradients, kinds, ways)
    for name, kind in kinds.items():
        if kind == "whole":
            total = gradients[name].clone()
            dist.all_reduce(total)
            right[name] = total / dist.get_world_size()
    return right


def copies_of_every_other_rank(gradients, kinds, ways):
    copies = dist.get_world_size() // ways
    return _reduced(gradients, kinds, copies, divisor=lambda kind: copies)


def kinds_by_their_names(gradients, kinds, ways):
    known = {"up": "cut", "down": "whole", "norm": "rows"}
    return _reduced(gradients, {name: known[name.split(".")[0]] for name in gradients}, ways)


def nothing_is_sent(gradients, kinds, ways):
    return gradients


def with_new_groups(gradients, kinds, ways):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for part in range(ways):
        group = dist.new_group(list(range(part, world_size, ways)))
        if rank % ways == part:
            across = group
    for first in range(0, world_size, ways):
        group = dist.new_group(list(range(first, first + ways)))
        if rank // ways == first // ways:
            inside = group
    for name in gradients:
        if kinds[name] == "rows":
            dist.all_reduce(gradients[name], group=inside)
        gradients[name] /= world_size // ways
        dist.all_reduce(gradients[name], group=across)
    return gradients


def rows_over_all_at_once(gradients, kinds, ways):
    copies = dist.get_world_size() // ways
    mesh = init_device_mesh("cpu", (copies, ways), mesh_dim_names=("copy", "part"))
    across = mesh.get_group("copy")
    reduced = {name: gradient / copies for name, gradient in gradients.items()}
    for name, gradient in reduced.items():
        dist.all_reduce(gradient, group=None if kinds[name] == "rows" else across)
    return reduced


def _wrapped(*answers):
    return [lab.embedding(answer) for answer in answers]


WRONG = {
    "embed": _wrapped(
        not_masked, only_from_above, only_from_below, one_word_too_many, masked_ids, wraps_around,
        no_sum, mean_of_ranks, sum_in_backward_too, copied_as_well, without_autograd,
        gathers_the_table, the_highest,
    ),
    "vocabulary_loss": [
        no_maximum, own_maximum, one_maximum_for_all_rows, own_words_only, own_target_only,
        highest_of_the_targets, mean_of_powers, softmax_of_own_words, nothing_subtracted,
        gradient_of_the_mean, everybodys_target, target_clamped, gathers_the_logits,
    ],
    "reduce_gradients": [
        nothing_inside, all_summed_inside, whole_ones_inside, cut_ones_stay, whole_ones_stay,
        rows_stay_in_their_copy, sums_over_copies, mean_over_all, mean_of_the_rows, groups_swapped,
        as_in_data_parallel, whole_ones_over_all, copies_of_every_other_rank, nothing_is_sent,
        kinds_by_their_names,
    ],
}  # fmt: skip
RIGHT = {
    "embed": _wrapped(by_where, by_filling),
    "vocabulary_loss": [by_logsumexp, in_three_calls],
    "reduce_gradients": [with_new_groups, rows_over_all_at_once],
}
