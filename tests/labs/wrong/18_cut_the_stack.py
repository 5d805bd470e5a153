"""Wrong answers to lab 18, and for each exercise other right ones.

What people write: equally many layers for each stage; a stage that is closed once it has its share
of the time; a split that the slow last layer spoils. A mean in place of a sum, or the sum on one of
both ends only; all ranks in a sum that concerns two; one's own part, twice as large. Norms added in
place of squares; each stage clipped by its own norm; a tied weight counted twice, or not at all; no
limit at 1, so that small gradients grow.
"""

import itertools

import labs
import torch
import torch.distributed as dist

lab = labs.cells("18_cut_the_stack")


# ---- split_layers --------------------------------------------------------------------------------


def equally_many(layer_us, stages):
    parts = torch.arange(len(layer_us)).tensor_split(stages)
    return [len(part) for part in parts]


def the_rest_for_the_last(layer_us, stages):
    each = len(layer_us) // stages
    return [each] * (stages - 1) + [len(layer_us) - each * (stages - 1)]


def the_rest_for_the_first(layer_us, stages):
    return the_rest_for_the_last(layer_us, stages)[::-1]


def closed_at_its_share(layer_us, stages):
    share, counts, filled, left = sum(layer_us) / stages, [], 0, len(layer_us)
    count = 0
    for us in layer_us:
        must_close = left <= stages - len(counts) - 1
        if count and (filled + us > share or must_close) and len(counts) < stages - 1:
            counts.append(count)
            count, filled = 0, 0
        count, filled, left = count + 1, filled + us, left - 1
    counts.append(count)
    return counts + [0] * (stages - len(counts))


def nearest_to_its_share(layer_us, stages):
    ends = list(itertools.accumulate(layer_us))
    cuts, count = [0], len(layer_us)
    for stage in range(1, stages):
        wanted = stage * ends[-1] / stages
        possible = range(cuts[-1] + 1, count - (stages - stage) + 1)
        cuts.append(min(possible, key=lambda cut: abs(ends[cut - 1] - wanted)))
    return [b - a for a, b in itertools.pairwise([*cuts, count])]


def _best(layer_us, stages, cost):
    count, best = len(layer_us), None
    for cuts in itertools.combinations(range(1, count), stages - 1):
        edges = [0, *cuts, count]
        pairs = list(itertools.pairwise(edges))
        stage_us = [sum(layer_us[a:b]) for a, b in pairs]
        if best is None or cost(stage_us) < best[0]:
            best = cost(stage_us), [b - a for a, b in pairs]
    return best[1]


def most_for_the_fastest(layer_us, stages):
    return _best(layer_us, stages, lambda stage_us: -min(stage_us))


def slow_first_stage_only(layer_us, stages):
    return _best(layer_us, stages, lambda stage_us: stage_us[0])


def slow_last_stage_only(layer_us, stages):
    return _best(layer_us, stages, lambda stage_us: stage_us[-1])


def slowest_of_all(layer_us, stages):
    return _best(layer_us, stages, lambda stage_us: -max(stage_us))


def empty_stages(layer_us, stages):
    return [len(layer_us)] + [0] * (stages - 1)


def one_stage_too_many(layer_us, stages):
    return _best(layer_us, min(stages + 1, len(layer_us)), max)


def without_the_last_layer(layer_us, stages):
    return _best(layer_us[:-1], min(stages, len(layer_us) - 1), max)


def by_limits(layer_us, stages):
    """The smallest limit under which greedily filled stages are enough."""
    for limit in sorted({sum(layer_us[a:b]) for a in range(10) for b in range(a + 1, 11)}):
        counts, filled = [0], 0
        for us in layer_us:
            if filled + us > limit and counts[-1]:
                counts.append(0)
                filled = 0
            counts[-1] += 1
            filled += us
        if len(counts) <= stages and max(layer_us) <= limit:
            break
    while len(counts) < stages:  # cut in two whoever has more than one layer
        place = next(place for place, count in enumerate(counts) if count > 1)
        counts[place : place + 1] = [counts[place] - 1, 1]
    return counts


def as_a_tensor(layer_us, stages):
    return torch.tensor(_best(layer_us, stages, max))


# ---- tied_gradient -------------------------------------------------------------------------------


def _summed(gradient, op=dist.ReduceOp.SUM):
    last = dist.get_world_size() - 1
    ends = dist.new_group(sorted({0, last}))
    if gradient is None:
        return None
    total = gradient.clone()
    if last:
        dist.all_reduce(total, op=op, group=ends)
    return total


def mean_of_both(gradient):
    return _summed(gradient, dist.ReduceOp.AVG)


def larger_of_both(gradient):
    return _summed(gradient, dist.ReduceOp.MAX)


def as_it_was(gradient):
    return gradient


def twice_its_own(gradient):
    return None if gradient is None else 2 * gradient


def over_all_ranks(gradient):
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, None if gradient is None else gradient.shape)
    total = torch.zeros(shapes[0], dtype=torch.float64) if gradient is None else gradient.clone()
    dist.all_reduce(total)
    return None if gradient is None else total


def to_the_first_only(gradient):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if last and rank == last:
        dist.send(gradient, 0)
    if last and rank == 0:
        other = torch.empty_like(gradient)
        dist.recv(other, last)
        return gradient + other
    return gradient


def the_others_part(gradient):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank not in (0, last) or last == 0:
        return gradient
    other, peer = torch.empty_like(gradient), last - rank
    sending = dist.isend(gradient, peer)
    dist.recv(other, peer)
    sending.wait()
    return other


def doubled_if_alone(gradient):
    total = _summed(gradient)
    return 2 * total if dist.get_world_size() == 1 else total


def zeros_in_between(gradient):
    total = _summed(gradient)
    return torch.zeros(6, 4, dtype=torch.float64) if total is None else total


def group_of_two_only(gradient):
    last = dist.get_world_size() - 1
    if gradient is None or not last:
        return gradient
    ends = dist.new_group([0, last])
    total = gradient.clone()
    dist.all_reduce(total, group=ends)
    return total


def first_and_second(gradient):
    if dist.get_world_size() == 1:
        return gradient
    pair = dist.new_group([0, 1])
    if dist.get_rank() > 1 or gradient is None:
        return gradient
    total = gradient.clone()
    dist.all_reduce(total, group=pair)
    return total


def by_messages(gradient):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if gradient is None or not last:
        return gradient
    other, peer = torch.empty_like(gradient), last - rank
    sending = dist.P2POp(dist.isend, gradient, peer)
    receiving = dist.P2POp(dist.irecv, other, peer)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return gradient + other


def in_place(gradient):
    last = dist.get_world_size() - 1
    ends = dist.new_group(sorted({0, last}))
    if gradient is not None and last:
        dist.all_reduce(gradient, group=ends)
    return gradient


# ---- clip_stages ---------------------------------------------------------------------------------


def _clipped(gradients, max_norm, **how):
    """Norm and gradients as they should be, but for what `how` says."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    counts_tied = how.get("counts_tied", rank == 0)
    total = torch.zeros((), dtype=torch.float64)
    for name, gradient in gradients.items():
        if name != "tied" or counts_tied:
            part = gradient.norm() ** how.get("power", 2)
            total = total + part
    if how.get("sums", True):
        dist.all_reduce(total, op=how.get("op", dist.ReduceOp.SUM))
    norm = total ** (1 / how.get("power", 2)) if how.get("root", True) else total
    if how.get("divides"):
        norm = norm / world_size**0.5
    scale = max_norm / norm.item()
    if how.get("limits", True):
        scale = min(1.0, scale)
    clipped = {}
    for name, gradient in gradients.items():
        stays = name == "tied" and how.get("tied_stays") and rank > 0
        clipped[name] = gradient if stays else gradient * scale
    return norm, clipped


def own_norm(gradients, max_norm):
    return _clipped(gradients, max_norm, sums=False)


def tied_twice(gradients, max_norm):
    return _clipped(gradients, max_norm, counts_tied=True)


def tied_never(gradients, max_norm):
    return _clipped(gradients, max_norm, counts_tied=False)


def norms_added(gradients, max_norm):
    return _clipped(gradients, max_norm, power=1)


def no_root(gradients, max_norm):
    return _clipped(gradients, max_norm, root=False)


def largest_stage(gradients, max_norm):
    return _clipped(gradients, max_norm, op=dist.ReduceOp.MAX)


def mean_over_stages(gradients, max_norm):
    return _clipped(gradients, max_norm, divides=True)


def always_scaled(gradients, max_norm):
    return _clipped(gradients, max_norm, limits=False)


def tied_clipped_once(gradients, max_norm):
    return _clipped(gradients, max_norm, tied_stays=True)


def tied_on_the_last(gradients, max_norm):
    """Right on two stages and more, but twice or never on one."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    return _clipped(gradients, max_norm, counts_tied=rank == last and rank > 0)


def nothing_clipped(gradients, max_norm):
    norm, _ = _clipped(gradients, max_norm)
    return norm, gradients


def value_by_value(gradients, max_norm):
    norm, _ = _clipped(gradients, max_norm)
    return norm, {name: each.clamp(-max_norm, max_norm) for name, each in gradients.items()}


def gathers_all(gradients, max_norm):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, gradients)
    return lab.clip_stages_spec(everything, [max_norm])[dist.get_rank()]


def as_torch_does(gradients, max_norm):
    norm, _ = _clipped(gradients, max_norm)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm, {name: gradient * scale for name, gradient in gradients.items()}


def in_place_and_from_the_last(gradients, max_norm):
    is_last = dist.get_rank() == dist.get_world_size() - 1
    counted = [each.flatten() for name, each in gradients.items() if name != "tied" or is_last]
    total = torch.cat(counted).square().sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for gradient in gradients.values():
            gradient *= max_norm / norm
    return norm.item(), gradients


def _wrapped(wrapper, *answers):
    return [wrapper(answer) for answer in answers]


WRONG = {
    "split_layers": _wrapped(
        lab.splitting,
        equally_many, the_rest_for_the_last, the_rest_for_the_first, closed_at_its_share,
        nearest_to_its_share, most_for_the_fastest, slow_first_stage_only, slow_last_stage_only,
        slowest_of_all, empty_stages, one_stage_too_many, without_the_last_layer,
    ),
    "tied_gradient": _wrapped(
        lab.tying,
        mean_of_both, larger_of_both, as_it_was, twice_its_own, over_all_ranks, to_the_first_only,
        the_others_part, doubled_if_alone, zeros_in_between, group_of_two_only, first_and_second,
    ),
    "clip_stages": [
        own_norm, tied_twice, tied_never, norms_added, no_root, largest_stage, mean_over_stages,
        always_scaled, tied_clipped_once, tied_on_the_last, nothing_clipped, value_by_value,
        gathers_all,
    ],
}  # fmt: skip
RIGHT = {
    "split_layers": _wrapped(lab.splitting, by_limits, as_a_tensor),
    "tied_gradient": _wrapped(lab.tying, by_messages, in_place),
    "clip_stages": [as_torch_does, in_place_and_from_the_last],
}
STOPS = {
    "group_of_two_only",  # where all ranks make the next group, it hangs
    "first_and_second",  # on three ranks the second has nothing to add, and the first waits for it
}
