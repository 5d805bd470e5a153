"""Wrong answers to what a learner writes in chapter 13, and for each exercise right ones.

Published: gradients added up and not averaged; a world of two, written into the code; an all-reduce
of which each rank keeps a part, "ZeRO" without its bytes; gradients that the optimiser's rank
reduces and everybody keeps; weights that are freed and that autograd holds all the same; an
optimiser made before the model is sharded; a norm that each rank takes of its own shards.
"""

from functools import partial

import torch
import torch.distributed as dist
from lesson_answers import Exercise
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import pad
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from course_lessons import chapter_13, sharding


def _kind(base, **methods):
    """A class for each function, by its name; the method it stands in for is the keyword."""
    (method,) = methods
    return type(methods[method].__name__, (base,), methods)


def _reduced(
    scale=lambda model: model.shard_count * model.copy_count, dtype=None, turn=lambda flat: flat
):
    """`reduce` as finished, but for one thing."""

    def reduce(self, shard, gradient):
        flat = gradient.flatten().to(dtype or shard.dtype) / scale(self)
        flat = turn(pad(flat, (0, self.shard_count * len(shard) - len(flat))))
        local = flat.new_empty(len(shard))
        work = dist.reduce_scatter_tensor(local, flat, async_op=True)
        self.pending.append((shard, local, work))

    return reduce


class AddedUp(sharding.Zero1):
    reduce = _reduced(scale=lambda model: 1)


class Halved(sharding.Zero1):
    reduce = _reduced(scale=lambda model: 2)


class InSinglePrecision(sharding.Zero1):
    def reduce(self, shard, gradient):
        super().reduce(shard, gradient.float())


class PartsTheOtherWayRound(sharding.Zero1):
    reduce = _reduced(turn=lambda flat: flat.flip(0))


class ItsOwnGradient(sharding.Zero1):
    def reduce(self, shard, gradient):
        done = dist.all_reduce(torch.zeros(1), async_op=True)
        self.pending.append(
            (shard, sharding.cut(gradient, self.shard_count, dist.get_rank()), done)
        )


class AnAllReduceOfWhichAPartIsKept(sharding.Zero1):
    def reduce(self, shard, gradient):
        flat = gradient.flatten() / self.shard_count
        flat = pad(flat, (0, self.shard_count * len(shard) - len(flat)))
        work = dist.all_reduce(flat, async_op=True)
        self.pending.append((shard, flat.view(self.shard_count, -1)[dist.get_rank()], work))


class WithoutFilling(sharding.Zero1):
    def reduce(self, shard, gradient):
        local = torch.empty_like(shard)
        flat = gradient.flatten() / self.shard_count
        flat = flat[: self.shard_count * len(shard)].contiguous()
        work = dist.reduce_scatter_tensor(local, flat, async_op=True)
        self.pending.append((shard, local, work))


class WithTheFilling(sharding.Zero1):
    def gather(self, local, shape):
        flat = local.new_empty(self.shard_count * len(local))
        dist.all_gather_into_tensor(flat, local)
        return flat[-shape.numel() :].view(shape)


class OwnShardAndZeros(sharding.Zero1):
    def gather(self, local, shape):
        flat = local.new_zeros(self.shard_count, len(local))
        flat[dist.get_rank()] = local
        return flat.flatten()[: shape.numel()].view(shape)


class GatheredByASum(sharding.Zero1):
    def gather(self, local, shape):
        flat = local.new_zeros(self.shard_count, len(local))
        flat[dist.get_rank()] = local
        dist.all_reduce(flat)
        return flat.flatten()[: shape.numel()].view(shape)


class GatheredAsObjects(sharding.Zero1):
    def gather(self, local, shape):
        every = [None] * self.shard_count
        dist.all_gather_object(every, local)
        return torch.cat(every)[: shape.numel()].view(shape)


class ListsAndABlockingSum(sharding.Shards):
    """Right: other calls for the same."""

    def gather(self, local, shape):
        every = [torch.empty_like(local) for _ in range(self.shard_count)]
        dist.all_gather(every, local)
        return torch.cat(every)[: shape.numel()].view(shape)

    def reduce(self, shard, gradient):
        parts = [sharding.cut(gradient, self.shard_count, rank) for rank in range(self.shard_count)]
        local = torch.empty_like(parts[0])
        work = dist.reduce_scatter(local, parts, op=dist.ReduceOp.SUM, async_op=True)
        self.pending.append((shard, local.div_(1), work))
        self.collect()
        shard.grad /= self.shard_count


class BegunAndWaitedFor(sharding.Shards):
    """Right: an all-gather that is begun and waited for, and tensors filled in place."""

    def gather(self, local, shape):
        out = local.new_empty(self.shard_count, len(local))
        work = dist.all_gather_into_tensor(out.view(-1), local, async_op=True)
        work.wait()
        return out.view(-1)[: shape.numel()].reshape(shape)

    def reduce(self, shard, gradient):
        full = torch.zeros(self.shard_count * len(shard), dtype=shard.dtype)
        full[: gradient.numel()] = gradient.reshape(-1)
        full.mul_(1 / self.shard_count)
        local = torch.zeros_like(shard, requires_grad=False)
        handle = dist.reduce_scatter_tensor(local, full, async_op=True)
        self.pending += [(shard, local, handle)]


# stage 2


def reduced_and_kept(self, full):
    self.collect(keep=1)
    self.reduce(full.shard, full.grad)


def dropped(self, full):
    full.grad = None


def nothing_before_the_end(self, full):
    pass


def zeros_instead_of_nothing(self, full):
    self.collect(keep=1)
    self.reduce(full.shard, full.grad)
    full.grad = torch.zeros_like(full.grad)


def all_when_the_last_one_comes(self, full):
    ready = {shard: w for shard, w in self.full.items() if w.grad is not None}
    if len(ready) == 6:
        for shard, one in ready.items():
            self.collect(keep=1)
            self.reduce(shard, one.grad)
            one.grad = None


def never_collected(self, full):
    self.reduce(full.shard, full.grad)
    full.grad = None


def a_shard_alone(self, full):
    full.shard.grad = sharding.cut(full.grad, self.shard_count, dist.get_rank())
    full.grad = None


def summed_up_before(self, full):
    dist.all_reduce(full.grad)
    self.collect(keep=1)
    self.reduce(full.shard, full.grad / self.shard_count)
    full.grad = None


def collected_at_once(self, full):
    """Right: nothing is ever under way."""
    gradient, full.grad = full.grad, None
    self.reduce(full.shard, gradient)
    self.collect()


def collected_afterwards(self, full):
    """Right: the same, in another order."""
    self.reduce(full.shard, full.grad)
    full.grad = None
    self.collect(keep=1)


# stage 3


class FreesNothing(sharding.Zero3):
    def free(self, layer, inputs, output):
        pass


class PacksNothing(sharding.Zero3):
    def pack(self, tensor):
        return tensor


class KeepsTheWholeBesideTheShard(sharding.Zero3):
    def pack(self, tensor):
        kept = super().pack(tensor)
        return kept if isinstance(kept, torch.Tensor) else (*kept, tensor)

    def unpack(self, kept):
        return kept if isinstance(kept, torch.Tensor) else kept[-1]


class FreesWhatIsItsOwnOnly(sharding.Zero3):
    def free(self, layer, inputs, output):
        for shard in layer._parameters.values():
            self.full.pop(shard, None)


class FreesAtTheVeryEnd(sharding.Zero3):
    def free(self, layer, inputs, output):
        if layer is self.module:
            self.full.clear()


class ForgetsHowTheViewLies(sharding.Zero3):
    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        return self.weight(kept[0])


class OnlyTheSize(sharding.Zero3):
    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        shard, size, *_ = kept
        return self.weight(shard).reshape(size)


class GathersAtEveryRead(sharding.Zero3):
    def read(self, shard):
        return sharding.Gather.apply(shard, self)


class WithoutAutograd(sharding.Zero3):
    def read(self, shard):
        if shard not in self.full:
            self.full[shard] = self.weight(shard)
        return self.full[shard]


class TheShardItself(sharding.Zero3):
    def read(self, shard):
        return shard


class PacksByTheSize(sharding.Zero3):
    """Every tensor that is as large as a shard's weight is taken for it."""

    def pack(self, tensor):
        for shard in self.parameters():
            if tensor.numel() == shard.full_shape.numel():
                return shard, tensor.size(), tensor.stride(), 0
        return tensor


class AsADict(sharding.Zero3):
    """Right: other containers, and a view made by hand."""

    def read(self, shard):
        if (full := self.full.get(shard)) is None:
            full = self.full[shard] = sharding.Gather.apply(shard, self)
        return full

    def free(self, layer, inputs, output):
        gone = set(layer.parameters())
        self.full = {shard: full for shard, full in self.full.items() if shard not in gone}

    def pack(self, tensor):
        if tensor.untyped_storage() in self.shard_of:
            view = {"size": tensor.shape, "stride": tensor.stride()}
            return {"shard": self.shard_of[tensor.untyped_storage()], **view}
        return {"tensor": tensor}

    def unpack(self, kept):
        if "tensor" in kept:
            return kept["tensor"]
        return torch.as_strided(self.weight(kept["shard"]), kept["size"], kept["stride"])


class ByAFunction(sharding.Zero3):
    """Right: what is packed is a function that brings the tensor back."""

    def pack(self, tensor):
        shard = self.shard_of.get(tensor.untyped_storage())
        if shard is None:
            return lambda: tensor
        size, stride = tensor.size(), tensor.stride()
        return lambda: self.weight(shard).as_strided(size, stride)

    def unpack(self, kept):
        return kept()


def _second(fn):
    return _kind(sharding.Zero1, gradient_is_ready=fn)


# the formula


def _memory(sharded_by_stage):
    """A formula from (bytes held by all, bytes that are divided) for each stage."""

    def bytes_per_rank(parameters, world_size, stage):
        fixed, divided = sharded_by_stage[stage]
        return parameters * (fixed + divided / world_size)

    return bytes_per_rank


def all_by_the_stage(parameters, world_size, stage):
    return 16 * parameters / (world_size if stage else 1)


def only_the_last_stage(parameters, world_size, stage):
    return 16 * parameters / (world_size if stage == 3 else 1)


def each_stage_only_its_own(parameters, world_size, stage):
    parts = [12, 2, 2]
    if stage:
        parts[stage - 1] /= world_size
    return parameters * sum(parts)


def whole_bytes_of_the_world(parameters, world_size, stage):
    return world_size * _memory(MEMORY_OF_STAGES)(parameters, world_size, stage)


MEMORY_OF_STAGES = [(16, 0), (4, 12), (2, 14), (0, 16)]
without_the_master_weights = _memory([(12, 0), (4, 8), (2, 10), (0, 12)])
in_single_precision_twice = _memory([(20, 0), (8, 12), (4, 16), (0, 20)])
weights_before_gradients = _memory([(16, 0), (4, 12), (2, 14), (2, 14)])
gradients_first = _memory([(16, 0), (14, 2), (2, 14), (0, 16)])
as_a_table = _memory(MEMORY_OF_STAGES)


def with_whole_numbers(parameters, world_size, stage):
    held = [2, 2, 4, 4, 4]
    first = [3, 2, 1, 1, 1]
    total = 0
    for size, sharded_from in zip(held, first, strict=True):
        total += size * parameters / (world_size if stage >= sharded_from else 1)
    return total


# recompute


def _function(forward, backward, name):
    return type(name, (torch.autograd.Function,), {
        "forward": staticmethod(forward), "backward": staticmethod(backward),
    })  # fmt: skip


def _kept(ctx, block, x):
    ctx.block = block
    ctx.save_for_backward(x)
    return block(x)


def _again(ctx, gradient):
    x = ctx.saved_tensors[0].detach().requires_grad_()
    with torch.enable_grad():
        return x, ctx.block(x)


def _recorded_and_kept(ctx, block, x):
    ctx.x = x.detach().requires_grad_()
    with torch.enable_grad():
        ctx.y = block(ctx.x)
    return ctx.y.detach()


def _backward_of_what_was_kept(ctx, gradient):
    ctx.y.backward(gradient)
    return None, ctx.x.grad


def _without_the_gradient(ctx, gradient):
    x, y = _again(ctx, gradient)
    y.sum().backward()
    return None, x.grad


def _for_x_alone(ctx, gradient):
    x, y = _again(ctx, gradient)
    return None, torch.autograd.grad(y, x, gradient)[0]


def _gradient_passed_on(ctx, gradient):
    _, y = _again(ctx, gradient)
    y.backward(gradient)
    return None, gradient


def _twice_back(ctx, gradient):
    x, y = _again(ctx, gradient)
    y.backward(gradient, retain_graph=True)
    y.backward(gradient)
    return None, x.grad / 2


def _computed_once_more(ctx, gradient):
    ctx.block(ctx.saved_tensors[0])
    x, y = _again(ctx, gradient)
    y.backward(gradient)
    return None, x.grad


def _not_recorded(ctx, gradient):
    (x,) = ctx.saved_tensors
    y = ctx.block(x)
    y.backward(gradient)
    return None, x.grad


def _output_is_kept_too(ctx, block, x):
    ctx.block = block
    y = block(x)
    ctx.save_for_backward(x, y)
    return y


def _right(ctx, gradient):
    x, y = _again(ctx, gradient)
    y.backward(gradient)
    return None, x.grad


def _by_autograd_grad(ctx, gradient):
    (x,) = ctx.saved_tensors
    x = x.detach().requires_grad_(True)
    weights = list(ctx.block.parameters())
    with torch.set_grad_enabled(True):
        gradients = torch.autograd.grad(ctx.block(x), [x, *weights], gradient)
    for weight, new in zip(weights, gradients[1:], strict=True):
        weight.grad = new if weight.grad is None else weight.grad + new
    return None, gradients[0]


# FSDP2


def _sharded(network, root=True, blocks=True):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in network if blocks else ():
        fully_shard(block, mesh=mesh)
    if root:
        fully_shard(network, mesh=mesh)
    return network


def _steps(network, batches, max_norm, optimizer=None, clip=clip_grad_norm_):
    optimizer = optimizer or torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        clip(network.parameters(), max_norm)
        optimizer.step()


def _full(network):
    return {name: shard.full_tensor() for name, shard in network.state_dict().items()}


def as_it_was(network, batches, max_norm):
    _steps(network, batches, max_norm)
    return network.state_dict()


def with_ddp(network, batches, max_norm):
    _steps(DistributedDataParallel(network), batches, max_norm)
    return network.state_dict()


def the_optimiser_first(network, batches, max_norm):
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    _steps(_sharded(network), batches, max_norm, optimizer)
    return _full(network)


def without_clipping(network, batches, max_norm):
    _steps(_sharded(network), batches, max_norm, clip=lambda parameters, norm: None)
    return _full(network)


def clipped_by_its_own_norm(network, batches, max_norm):
    def clip(parameters, norm):
        shards = [shard.grad.to_local() for shard in parameters]
        total = torch.stack([shard.norm() for shard in shards]).norm()
        for shard in shards:
            shard *= min(1.0, norm / (total + 1e-6))

    _steps(_sharded(network), batches, max_norm, clip=clip)
    return _full(network)


def shards_instead_of_weights(network, batches, max_norm):
    _steps(_sharded(network), batches, max_norm)
    return {name: shard.to_local() for name, shard in network.state_dict().items()}


def only_the_network_is_a_unit(network, batches, max_norm):
    _steps(_sharded(network, blocks=False), batches, max_norm)
    return _full(network)


def clipped_after_the_step(network, batches, max_norm):
    _sharded(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
        clip_grad_norm_(network.parameters(), max_norm)
    return _full(network)


def gradients_add_up(network, batches, max_norm):
    _sharded(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        network(inputs).square().mean().backward()
        clip_grad_norm_(network.parameters(), max_norm)
        optimizer.step()
    return _full(network)


def losses_divided_once_more(network, batches, max_norm):
    _sharded(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        optimizer.zero_grad()
        (network(inputs).square().mean() / dist.get_world_size()).backward()
        clip_grad_norm_(network.parameters(), max_norm)
        optimizer.step()
    return _full(network)


def in_another_order_and_by_names(network, batches, max_norm):
    """Right: the last block first, and weights gathered one by one."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in reversed(network):
        fully_shard(block, mesh=mesh)
    network = fully_shard(network, mesh=mesh, reshard_after_forward=False)
    _steps(network, batches, max_norm)
    weights = {}
    for name, shard in network.named_parameters():
        weights[name] = shard.detach().full_tensor()
    return weights


def the_norm_by_hand(network, batches, max_norm):
    """Right: squares of local shards, added up."""

    def clip(parameters, norm):
        shards = [shard.grad.to_local() for shard in parameters]
        square = sum(shard.square().sum() for shard in shards)
        dist.all_reduce(square)
        for shard in shards:
            shard *= min(1.0, norm / (square.sqrt() + 1e-6))

    _steps(_sharded(network), batches, max_norm, clip=clip)
    return _full(network)


EXERCISES = {
    "memory": Exercise(chapter_13.MEMORY),
    "zero1": Exercise(chapter_13.ZERO1, chapter_13.staged),
    "zero2": Exercise(chapter_13.ZERO2, partial(chapter_13.staged, **chapter_13.ZERO2_LIMITS)),
    "zero3": Exercise(chapter_13.ZERO3, partial(chapter_13.staged, **chapter_13.ZERO3_LIMITS)),
    "recompute": Exercise(chapter_13.RECOMPUTE, chapter_13.recomputing),
    "train": Exercise(chapter_13.TRAINING, chapter_13.judged_training),
}
WRONG = {
    "memory": [
        all_by_the_stage, only_the_last_stage, each_stage_only_its_own, whole_bytes_of_the_world,
        without_the_master_weights, in_single_precision_twice, weights_before_gradients,
        gradients_first,
    ],
    "recompute": [
        _function(_recorded_and_kept, _backward_of_what_was_kept, "recorded_and_kept"),
        _function(_kept, _without_the_gradient, "without_the_gradient"),
        _function(_kept, _for_x_alone, "for_x_alone"),
        _function(_kept, _gradient_passed_on, "gradient_passed_on"),
        _function(_kept, _twice_back, "twice_back"),
        _function(_kept, _computed_once_more, "computed_once_more"),
        _function(_kept, _not_recorded, "not_recorded"),
        _function(_output_is_kept_too, _right, "output_is_kept_too"),
    ],
    "train": [
        as_it_was, with_ddp, the_optimiser_first, without_clipping, clipped_by_its_own_norm,
        shards_instead_of_weights, only_the_network_is_a_unit, clipped_after_the_step,
        gradients_add_up, losses_divided_once_more,
    ],
    "zero1": [
        AddedUp, Halved, InSinglePrecision, PartsTheOtherWayRound, ItsOwnGradient,
        AnAllReduceOfWhichAPartIsKept, WithoutFilling, WithTheFilling,
        OwnShardAndZeros, GatheredByASum, GatheredAsObjects,
    ],
    "zero2": [
        *map(_second, (
            reduced_and_kept, dropped, nothing_before_the_end, zeros_instead_of_nothing,
            all_when_the_last_one_comes, never_collected, a_shard_alone, summed_up_before,
        )),
    ],
    "zero3": [
        FreesNothing, PacksNothing, KeepsTheWholeBesideTheShard, FreesWhatIsItsOwnOnly,
        FreesAtTheVeryEnd, ForgetsHowTheViewLies, OnlyTheSize,
        GathersAtEveryRead, WithoutAutograd, TheShardItself, PacksByTheSize,
    ],
}  # fmt: skip
STOPS = {
    "WithoutFilling", "ForgetsHowTheViewLies", "WithoutAutograd", "TheShardItself",
    "for_x_alone", "not_recorded",
}  # fmt: skip
RIGHT = {
    "memory": [as_a_table, with_whole_numbers],
    "zero1": [ListsAndABlockingSum, BegunAndWaitedFor],
    "zero2": [_second(collected_at_once), _second(collected_afterwards)],
    "zero3": [AsADict, ByAFunction],
    "recompute": [
        _function(_kept, _by_autograd_grad, "by_autograd_grad"),
        _function(_kept, _right, "in_small_functions"),
    ],
    "train": [in_another_order_and_by_names, the_norm_by_hand],
}
