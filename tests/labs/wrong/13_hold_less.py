"""Wrong answers to lab 13, and for each exercise other right ones.

What people write: a gather when it is needed; everything gathered at the start; weights that stay
because forward never lets go; the last layer freed and gathered again at once; reduce-scatters all
at the end, or each waited for. Plans that shard over everything, over a node whatever fits, over
as few ranks as fit, or that forget what is whole while computing. Norms of one's own shards,
sums of norms, squares in half precision. Checkpoints without moments, of rank 0 alone, of whole
weights; the newest folder instead of the newest that is complete.
"""

import labs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.nn.utils import clip_grad_norm_

lab = labs.cells("13_hold_less")


def _scheduled(units, x, target, **how):
    """The schedule as it should be, but for what `how` says."""
    ahead, back = how.get("ahead", 1), how.get("back", how.get("ahead", 1))
    units[0].gather()
    for number, unit in enumerate(units):
        last = number == len(units) - 1
        if ahead:
            _gather(units, number + 1, number + 1 + ahead)
        x = unit.forward(x)
        if not last or how.get("frees_the_last"):
            unit.free()
        if not ahead:
            _gather(units, number + 1, number + 2)
    if how.get("frees_the_last"):
        units[-1].gather()
    gradient, done = how.get("sign", 1) * (x - target), []
    for number, unit in reversed(list(enumerate(units))):
        if back:
            _gather(units, max(0, number - back), number)
        gradient = unit.backward(gradient)
        if how.get("reduces_first"):
            unit.reduce()
        unit.free()
        if not how.get("reduces_last") and not how.get("reduces_first"):
            unit.reduce()
        if how.get("waits"):
            done.append(unit.finish())
        if not back:
            _gather(units, number - 1, number)
    if how.get("reduces_last"):
        for unit in units:
            unit.reduce()
    return done[::-1] or [unit.finish() for unit in units]


def _gather(units, first, end):
    for unit in units[max(0, first) : end]:
        if not unit.work:
            unit.gather()


def when_it_is_needed(units, x, target):
    return _scheduled(units, x, target, ahead=0)


def ahead_in_forward_only(units, x, target):
    return _scheduled(units, x, target, back=0)


def ahead_in_backward_only(units, x, target):
    return _scheduled(units, x, target, ahead=0, back=1)


def two_ahead(units, x, target):
    return _scheduled(units, x, target, ahead=2)


def two_ahead_in_backward(units, x, target):
    return _scheduled(units, x, target, back=2)


def the_last_freed_and_gathered_again(units, x, target):
    return _scheduled(units, x, target, frees_the_last=True)


def each_sum_waited_for(units, x, target):
    return _scheduled(units, x, target, waits=True)


def all_sums_at_the_end(units, x, target):
    return _scheduled(units, x, target, reduces_last=True)


def the_wrong_way_round(units, x, target):
    return _scheduled(units, x, target, sign=-1)


def all_gathered_at_the_start(units, x, target):
    for unit in units:
        unit.gather()
    return _all_whole(units, x, target)


def _all_whole(units, x, target):
    for unit in units:
        x = unit.forward(x)
    gradient = x - target
    for unit in reversed(units):
        gradient = unit.backward(gradient)
        unit.free()
        unit.reduce()
    return [unit.finish() for unit in units]


def never_freed(units, x, target):
    _gather(units, 0, 1)
    for number, unit in enumerate(units):
        _gather(units, number + 1, number + 2)
        x = unit.forward(x)
    gradient = x - target
    for unit in reversed(units):
        gradient = unit.backward(gradient)
        unit.reduce()
    return [unit.finish() for unit in units]


def the_first_stays_whole(units, x, target):
    units[0].gather()
    _gather(units, 1, 2)
    x = units[0].forward(x)
    for number, unit in enumerate(units[1:], 1):
        x = unit.forward(x)
        if number < len(units) - 1:
            unit.free()
            units[number + 1].gather()
    gradient = x - target
    for number, unit in reversed(list(enumerate(units))):
        gradient = unit.backward(gradient)
        if number:
            unit.free()
        _gather(units, number - 1, number)
        unit.reduce()
    return [unit.finish() for unit in units]


def freed_before_backward(units, x, target):
    for unit in units:
        unit.gather()
        x = unit.forward(x)
        unit.free()
    gradient = x - target
    for unit in reversed(units):
        gradient = unit.backward(gradient)
        unit.reduce()
    return [unit.finish() for unit in units]


def backwards_from_the_front(units, x, target):
    units[0].gather()
    for number, unit in enumerate(units):
        _gather(units, number + 1, number + 2)
        x = unit.forward(x)
        unit.free()
    gradient = x - target
    for unit in units:
        unit.gather()
        gradient = unit.backward(gradient)
        unit.free()
        unit.reduce()
    return [unit.finish() for unit in units]


def by_places(units, x, target):
    """The next gather is noted as a place; the gradient is reduced before the weight is freed."""
    return _scheduled(units, x, target, reduces_first=True)


def as_one_list(units, x, target):
    """A step is one list of layers, forward and back, and what is gathered next is next in it."""
    count = len(units)
    way = [*range(count), *reversed(range(count))]
    units[0].gather()
    value = x
    for place, number in enumerate(way):
        unit = units[number]
        following = units[way[place + 1]] if place + 1 < len(way) else None
        if following is not None and following is not unit:
            following.gather()
        if place == count:
            value = value - target
        value = unit.forward(value) if place < count else unit.backward(value)
        if following is not unit:
            unit.free()
        if place >= count:
            unit.reduce()
    return tuple(unit.finish() for unit in units)


# 2 · plan


def _needed(layers, layer_bytes, shard):
    return 4 * layers * layer_bytes / shard + 2 * layer_bytes * (shard > 1)


def _planned(
    network, ranks, layers, layer_bytes, memory_bytes, needed=_needed, among=None, by=None
):
    sizes = among or [s for s in range(1, ranks + 1) if ranks % s == 0]
    fits = [s for s in sizes if needed(layers, layer_bytes, s) <= memory_bytes]
    price = by or (lambda s: lab.step_us(network, ranks, s, layers, layer_bytes))
    return (lambda s: (s, ranks // s))(min(fits, key=price)) if fits else None


def over_all_ranks(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=[ranks])


def over_a_node(network, ranks, layers, layer_bytes, memory_bytes):
    among = [ranks // network.nodes]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def over_a_node_or_all(network, ranks, layers, layer_bytes, memory_bytes):
    among = [ranks // network.nodes, ranks]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def over_as_few_as_fit(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, by=lambda s: s)


def over_as_many_as_there_are(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, by=lambda s: -s)


def only_inside_a_node(network, ranks, layers, layer_bytes, memory_bytes):
    per_node = ranks // network.nodes
    among = [s for s in range(1, per_node + 1) if per_node % s == 0]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def powers_of_two(network, ranks, layers, layer_bytes, memory_bytes):
    among = [2**k for k in range(ranks.bit_length()) if ranks % 2**k == 0]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def always_sharded(network, ranks, layers, layer_bytes, memory_bytes):
    among = [s for s in range(2, ranks + 1) if ranks % s == 0] or [1]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def without_whole_layers(network, ranks, layers, layer_bytes, memory_bytes):
    def needed(layers, layer_bytes, shard):
        return 4 * layers * layer_bytes / shard

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, needed=needed)


def whole_layers_without_sharding(network, ranks, layers, layer_bytes, memory_bytes):
    def needed(layers, layer_bytes, shard):
        return 4 * layers * layer_bytes / shard + 2 * layer_bytes

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, needed=needed)


def weights_alone(network, ranks, layers, layer_bytes, memory_bytes):
    def needed(layers, layer_bytes, shard):
        return layers * layer_bytes / shard + 2 * layer_bytes * (shard > 1)

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, needed=needed)


def less_than_the_memory(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes - 1)


def the_fastest_whatever_fits(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, float("inf"))


def the_slowest(network, ranks, layers, layer_bytes, memory_bytes):
    def by(shard):
        return -lab.step_us(network, ranks, shard, layers, layer_bytes)

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, by=by)


def the_other_way_round(network, ranks, layers, layer_bytes, memory_bytes):
    found = _planned(network, ranks, layers, layer_bytes, memory_bytes)
    return found and found[::-1]


def nothing_fits_is_all_ranks(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes) or (ranks, 1)


def as_if_on_one_level(network, ranks, layers, layer_bytes, memory_bytes):
    flat = lab.Network(latency_us=network.latency_us, gbit_s=network.gbit_s)
    return _planned(flat, ranks, layers, layer_bytes, memory_bytes)


def by_a_loop(network, ranks, layers, layer_bytes, memory_bytes):
    """Right: the best so far."""
    best, best_us = None, float("inf")
    for copies in range(1, ranks + 1):
        shard, rest = divmod(ranks, copies)
        if rest:
            continue
        held = 4 * layers * layer_bytes // shard
        held += 0 if shard == 1 else 2 * layer_bytes
        took_us = lab.step_us(network, ranks, shard, layers, layer_bytes)
        if held <= memory_bytes and took_us < best_us:
            best, best_us = [shard, copies], took_us
    return best


def of_one_layer(network, ranks, layers, layer_bytes, memory_bytes):
    """Right: layers are alike, so that one decides."""
    return _planned(
        network, ranks, layers, layer_bytes, memory_bytes,
        by=lambda shard: lab.step_us(network, ranks, shard, 1, layer_bytes),
    )  # fmt: skip


def _stepping(*answers):
    return [lab.stepping(answer) for answer in answers]


class Kept:
    """A unit that seems to let go of its weight."""

    def __init__(self, unit):
        self.unit = unit
        self.weights = []

    def __getattr__(self, name):
        return getattr(self.unit, name)

    def gather(self):
        if not self.weights:
            self.unit.gather()
            self.weights.append((self.unit.whole, self.unit.work))
        self.unit.whole, self.unit.work = self.weights[0]

    def free(self):
        self.unit.whole = self.unit.work = None


def kept_in_secret(units, x, target):
    return _scheduled([Kept(unit) for unit in units], x, target)


def after_muting_the_count(units, x, target):
    units[0].gather()
    for unit in units:
        unit.gathered = len  # takes a weight as well, and notes nothing
    for unit in units[1:]:
        unit.gather()
    return _all_whole(units, x, target)


def after_setting_the_count_back(units, x, target):
    for unit in units:
        unit.gather()
    for cell in getattr(units[0].gathered, "__closure__", None) or ():
        if isinstance(cell.cell_contents, list):
            cell.cell_contents[:] = [1]
    return _all_whole(units, x, target)


def from_copies_of_the_weights(units, x, target):
    copies = []
    for unit in units:
        unit.gather()
        x = unit.forward(x)
        copies.append(unit.whole.clone())
        unit.free()
    gradient = x - target
    for unit, copy in zip(units[::-1], copies[::-1], strict=True):
        unit.whole, unit.work = copy, True
        gradient = unit.backward(gradient)
        unit.free()
        unit.reduce()
    return [unit.finish() for unit in units]


# 3 · clip


def _squares(shards, dtype=torch.float32):
    square = torch.zeros((), dtype=dtype)
    for shard in shards:
        if shard.grad is not None:
            square += shard.grad.to(dtype).square().sum()
    return square


def _scale(shards, factor):
    for shard in shards:
        if shard.grad is not None:
            shard.grad *= factor


def by_its_own_norm(shards, max_norm, group):
    return clip_grad_norm_(shards, max_norm)


def _clipped(norm_of, factor_of=lambda norm, most: min(1.0, most / norm), check_finite=True):
    def clip(shards, max_norm, group):
        norm = norm_of(shards, group)
        if not check_finite or norm.isfinite():
            _scale(shards, factor_of(norm, max_norm))
        return norm

    return clip


def _norm(shards, group):
    square = _squares(shards)
    dist.all_reduce(square, group=group)
    return square.sqrt()


def _sum_of_norms(shards, group):
    norm = _squares(shards).sqrt()
    dist.all_reduce(norm, group=group)
    return norm


def _largest_norm(shards, group):
    norm = _squares(shards).sqrt()
    dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
    return norm


def _mean_of_squares(shards, group):
    square = _squares(shards)
    dist.all_reduce(square, group=group)
    return (square / dist.get_world_size(group)).sqrt()


def _over_all_copies(shards, group):
    square = _squares(shards)
    dist.all_reduce(square)
    return square.sqrt()


def _without_the_root(shards, group):
    square = _squares(shards)
    dist.all_reduce(square, group=group)
    return square


def _in_their_own_dtype(shards, group):
    square = torch.zeros(())
    for shard in shards:
        if shard.grad is not None:
            square += shard.grad.square().sum()
    dist.all_reduce(square, group=group)
    return square.sqrt()


def _only_who_has_gradients(shards, group):
    square = _squares(shards)
    if any(shard.grad is not None for shard in shards):
        dist.all_reduce(square, group=group)
    return square.sqrt()


def _always_scaled(norm, most):
    return most / norm


def each_parameter_by_itself(shards, max_norm, group):
    total = _norm(shards, group)
    for shard in shards:
        if shard.grad is not None and total.isfinite():
            square = shard.grad.float().square().sum()
            dist.all_reduce(square, group=group)
            shard.grad *= min(1.0, max_norm / square.sqrt())
    return total


def the_norm_afterwards(shards, max_norm, group):
    norm = _clipped(_norm)(shards, max_norm, group)
    return norm.clamp(max=max_norm) if norm.isfinite() else norm


def nothing_is_scaled(shards, max_norm, group):
    return _norm(shards, group)


def all_gradients_gathered(shards, max_norm, group):
    flat = [shard.grad.float().flatten() for shard in shards if shard.grad is not None]
    everything = [None] * dist.get_world_size(group)
    dist.all_gather_object(everything, flat, group=group)
    norm = torch.cat([part for parts in everything for part in parts]).norm()
    if norm.isfinite():
        _scale(shards, min(1.0, max_norm / norm))
    return norm


def _named(answer, name):
    answer.__name__ = name
    return answer


def in_double_precision(shards, max_norm, group):
    square = _squares(shards, torch.float64)
    dist.all_reduce(square, group=group)
    norm = square.sqrt().item()
    if max_norm < norm < float("inf"):
        _scale(shards, max_norm / norm)
    return norm


def norms_gathered(shards, max_norm, group):
    norm = _squares(shards).sqrt()
    norms = [torch.zeros(()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(norms, norm, group=group)
    norm = torch.stack(norms).norm()
    if torch.isfinite(norm):
        _scale(shards, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm.item()


# 4 · save


def _state(model, optimizer, done):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "done": done}


def without_the_moments(path, model, optimizer, done):
    dcp.save({"model": model.state_dict(), "done": done}, checkpoint_id=path)


def without_the_position(path, model, optimizer, done):
    state = _state(model, optimizer, done)
    del state["done"]
    dcp.save(state, checkpoint_id=path)


def a_position_of_zero(path, model, optimizer, done):
    dcp.save(_state(model, optimizer, 0), checkpoint_id=path)


def moments_by_numbers(path, model, optimizer, done):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    dcp.save(state, checkpoint_id=path)


def whole_weights(path, model, optimizer, done):
    options = StateDictOptions(full_state_dict=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    dcp.save({"model": weights, "optimizer": moments, "done": done}, checkpoint_id=path)


def a_file_for_each_rank(path, model, optimizer, done):
    path.mkdir(exist_ok=True)
    torch.save(_state(model, optimizer, done), path / f"rank_{dist.get_rank()}.pt")


def only_rank_0_saves(path, model, optimizer, done):
    if dist.get_rank() == 0:
        dcp.save(_state(model, optimizer, done), checkpoint_id=path)


def into_a_folder_for_each_rank(path, model, optimizer, done):
    dcp.save(_state(model, optimizer, done), checkpoint_id=path / str(dist.get_rank()))


def a_step_further(path, model, optimizer, done):
    state = _state(model, optimizer, done)
    optimizer.step()
    dcp.save(state, checkpoint_id=path)


def with_a_writer(path, model, optimizer, done):
    state = _state(model, optimizer, done)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path))


def weights_and_moments_each(path, model, optimizer, done):
    state = {"done": done, "model": get_model_state_dict(model)}
    state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    dcp.save(state, checkpoint_id=str(path))


# 5 · resume


def _resumed(choose, weights_too=True, moments_too=True):
    def resume(folder, model, optimizer):
        state = _state(model, optimizer, 0)
        dcp.load(state, checkpoint_id=choose(folder))
        if moments_too:
            set_state_dict(
                model,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        return state["done"]

    return resume


def _complete(folder):
    return sorted(path.parent for path in folder.glob("*/.metadata"))


def the_newest_folder(folder, model, optimizer):
    return _resumed(lambda folder: sorted(folder.iterdir())[-1])(folder, model, optimizer)


def the_oldest(folder, model, optimizer):
    return _resumed(lambda folder: _complete(folder)[0])(folder, model, optimizer)


def by_the_time_of_writing(folder, model, optimizer):
    def newest(folder):
        return max(_complete(folder), key=lambda path: path.stat().st_mtime)

    return _resumed(newest)(folder, model, optimizer)


def moments_never_handed_back(folder, model, optimizer):
    return _resumed(lambda folder: _complete(folder)[-1], moments_too=False)(
        folder, model, optimizer
    )


def weights_only(folder, model, optimizer):
    state = {"model": model.state_dict(), "done": 0}
    dcp.load(state, checkpoint_id=_complete(folder)[-1])
    model.load_state_dict(state["model"])
    return state["done"]


def begins_the_epoch_again(folder, model, optimizer):
    _resumed(lambda folder: _complete(folder)[-1])(folder, model, optimizer)
    return 0


def the_position_of_before_loading(folder, model, optimizer):
    state = _state(model, optimizer, 0)
    done = state["done"]
    dcp.load(state, checkpoint_id=_complete(folder)[-1])
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return done


def nothing_is_loaded(folder, model, optimizer):
    return 0


def backwards_through_the_folders(folder, model, optimizer):
    for path in sorted(folder.iterdir(), reverse=True):
        if (path / ".metadata").is_file():
            return _resumed(lambda folder, path=path: path)(folder, model, optimizer)
    return 0


def with_a_reader(folder, model, optimizer):
    state = _state(model, optimizer, None)
    state["done"] = -1
    dcp.load(state, storage_reader=dcp.FileSystemReader(_complete(folder)[-1]))
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(state["done"])


def _wrapped(wrap, *answers):
    return [wrap(answer) for answer in answers]


WRONG = {
    "step": _stepping(
        when_it_is_needed, ahead_in_forward_only, ahead_in_backward_only, two_ahead,
        two_ahead_in_backward, the_last_freed_and_gathered_again, each_sum_waited_for,
        all_sums_at_the_end, the_wrong_way_round, all_gathered_at_the_start, never_freed,
        the_first_stays_whole, freed_before_backward, backwards_from_the_front, kept_in_secret,
        after_muting_the_count, after_setting_the_count_back, from_copies_of_the_weights,
    ),
    "plan": [
        over_all_ranks, over_a_node, over_a_node_or_all, over_as_few_as_fit,
        over_as_many_as_there_are, only_inside_a_node, powers_of_two, always_sharded,
        without_whole_layers, whole_layers_without_sharding, weights_alone, less_than_the_memory,
        the_fastest_whatever_fits, the_slowest, the_other_way_round, nothing_fits_is_all_ranks,
        as_if_on_one_level,
    ],
    "clip": _wrapped(
        lab.clipping,
        by_its_own_norm,
        _named(_clipped(_sum_of_norms), "sum_of_norms"),
        _named(_clipped(_largest_norm), "largest_norm"),
        _named(_clipped(_mean_of_squares), "mean_of_squares"),
        _named(_clipped(_over_all_copies), "over_all_copies"),
        _named(_clipped(_without_the_root), "without_the_root"),
        _named(_clipped(_in_their_own_dtype), "in_their_own_dtype"),
        _named(_clipped(_only_who_has_gradients), "only_who_has_gradients"),
        _named(_clipped(_norm, _always_scaled), "short_ones_are_made_longer"),
        _named(_clipped(_norm, check_finite=False), "scaled_although_infinite"),
        each_parameter_by_itself, the_norm_afterwards, nothing_is_scaled, all_gradients_gathered,
    ),
    "save": _wrapped(
        lab.saving,
        without_the_moments, without_the_position, a_position_of_zero, moments_by_numbers,
        whole_weights, a_file_for_each_rank, only_rank_0_saves, into_a_folder_for_each_rank,
        a_step_further,
    ),
    "resume": _wrapped(
        lab.resuming,
        moments_never_handed_back, weights_only, the_oldest, by_the_time_of_writing,
        begins_the_epoch_again, the_position_of_before_loading, nothing_is_loaded,
        the_newest_folder,
    ),
}  # fmt: skip
STOPS = {
    "freed_before_backward", "backwards_from_the_front", "only_who_has_gradients",
    "without_the_moments", "without_the_position", "moments_by_numbers", "a_file_for_each_rank",
    "only_rank_0_saves", "into_a_folder_for_each_rank", "the_newest_folder",
}  # fmt: skip
RIGHT = {
    "step": _stepping(by_places, as_one_list),
    "plan": [by_a_loop, of_one_layer],
    "clip": _wrapped(lab.clipping, in_double_precision, norms_gathered),
    "save": _wrapped(lab.saving, with_a_writer, weights_and_moments_each),
    "resume": _wrapped(lab.resuming, backwards_through_the_folders, with_a_reader),
}
