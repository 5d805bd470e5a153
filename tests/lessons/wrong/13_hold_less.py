"""Wrong answers to the three stages of chapter 13, and for each stage other right ones.

Published: gradients added up and not averaged; a world of two, written into the code; an all-reduce
of which each rank keeps a part, "ZeRO" without its bytes; gradients that the optimiser's rank
reduces and everybody keeps; weights that are freed and that autograd holds all the same.
"""

import ast
import linecache
from types import SimpleNamespace

import labs
import torch
import torch.distributed as dist
from torch.nn.functional import pad

SLUG = "13_hold_less"
HEAVY = ("device_mesh", "fsdp", "distributed.tensor")  # imports that nothing up to there needs
RUNS = ("launch(", "report(", "predict(", "last_step(", ".measured(", "check(", "on_two_nodes(")


def _lesson():
    """What the chapter's cells define up to stage 3; nothing is launched."""
    names = {"__name__": "__main__"}
    for number, source in enumerate(labs.sources(labs.ROOT / f"source/lessons/{SLUG}.py")):
        name, tree = f"<lesson {SLUG} {number}>", ast.parse(source)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        for line in tree.body:
            defines = isinstance(line, (ast.FunctionDef, ast.ClassDef))
            if defines or not any(word in ast.unparse(line) for word in RUNS + HEAVY):
                exec(compile(ast.Module([line], []), name, "exec"), names)
        if "class Sharded(" in source:
            return SimpleNamespace(**names)
    raise LookupError("the chapter has no class Sharded")


lesson = _lesson()


def _kind(base, **methods):
    """A class for each function, by its name; the method it stands in for is the keyword."""
    (method,) = methods
    return type(methods[method].__name__, (base,), methods)


def _reduced(scale=lambda model: model.n * model.copies, dtype=None, turn=lambda flat: flat):
    """`reduce` as finished, but for one thing."""

    def reduce(self, shard, gradient):
        flat = gradient.flatten().to(dtype or shard.dtype) / scale(self)
        flat = turn(pad(flat, (0, self.n * len(shard) - len(flat))))
        mine = flat.new_empty(len(shard))
        work = dist.reduce_scatter_tensor(mine, flat, async_op=True)
        self.sent.append((shard, mine, work))

    return reduce


class AddedUp(lesson.Zero1):
    reduce = _reduced(scale=lambda model: 1)


class Halved(lesson.Zero1):
    reduce = _reduced(scale=lambda model: 2)


class InSinglePrecision(lesson.Zero1):
    def reduce(self, shard, gradient):
        super().reduce(shard, gradient.float())


class PartsTheOtherWayRound(lesson.Zero1):
    reduce = _reduced(turn=lambda flat: flat.flip(0))


class ItsOwnGradient(lesson.Zero1):
    def reduce(self, shard, gradient):
        done = dist.all_reduce(torch.zeros(1), async_op=True)
        self.sent.append((shard, lesson.cut(gradient, self.n, dist.get_rank()), done))


class AnAllReduceOfWhichAPartIsKept(lesson.Zero1):
    def reduce(self, shard, gradient):
        flat = gradient.flatten() / self.n
        flat = pad(flat, (0, self.n * len(shard) - len(flat)))
        work = dist.all_reduce(flat, async_op=True)
        self.sent.append((shard, flat.view(self.n, -1)[dist.get_rank()], work))


class WithoutFilling(lesson.Zero1):
    def reduce(self, shard, gradient):
        mine = torch.empty_like(shard)
        flat = gradient.flatten() / self.n
        flat = flat[: self.n * len(shard)].contiguous()
        work = dist.reduce_scatter_tensor(mine, flat, async_op=True)
        self.sent.append((shard, mine, work))


class WithTheFilling(lesson.Zero1):
    def gather(self, mine, shape):
        flat = mine.new_empty(self.n * len(mine))
        dist.all_gather_into_tensor(flat, mine)
        return flat[-shape.numel() :].view(shape)


class OwnShardAndZeros(lesson.Zero1):
    def gather(self, mine, shape):
        flat = mine.new_zeros(self.n, len(mine))
        flat[dist.get_rank()] = mine
        return flat.flatten()[: shape.numel()].view(shape)


class GatheredByASum(lesson.Zero1):
    def gather(self, mine, shape):
        flat = mine.new_zeros(self.n, len(mine))
        flat[dist.get_rank()] = mine
        dist.all_reduce(flat)
        return flat.flatten()[: shape.numel()].view(shape)


class GatheredAsObjects(lesson.Zero1):
    def gather(self, mine, shape):
        every = [None] * self.n
        dist.all_gather_object(every, mine)
        return torch.cat(every)[: shape.numel()].view(shape)


class ListsAndABlockingSum(lesson.Shards):
    """Right: other calls for the same."""

    def gather(self, mine, shape):
        every = [torch.empty_like(mine) for _ in range(self.n)]
        dist.all_gather(every, mine)
        return torch.cat(every)[: shape.numel()].view(shape)

    def reduce(self, shard, gradient):
        parts = [lesson.cut(gradient, self.n, rank) for rank in range(self.n)]
        mine = torch.empty_like(parts[0])
        work = dist.reduce_scatter(mine, parts, op=dist.ReduceOp.SUM, async_op=True)
        self.sent.append((shard, mine.div_(1), work))
        self.collect()
        shard.grad /= self.n


class BegunAndWaitedFor(lesson.Shards):
    """Right: an all-gather that is begun and waited for, and tensors filled in place."""

    def gather(self, mine, shape):
        out = mine.new_empty(self.n, len(mine))
        work = dist.all_gather_into_tensor(out.view(-1), mine, async_op=True)
        work.wait()
        return out.view(-1)[: shape.numel()].reshape(shape)

    def reduce(self, shard, gradient):
        full = torch.zeros(self.n * len(shard), dtype=shard.dtype)
        full[: gradient.numel()] = gradient.reshape(-1)
        full.mul_(1 / self.n)
        mine = torch.zeros_like(shard, requires_grad=False)
        handle = dist.reduce_scatter_tensor(mine, full, async_op=True)
        self.sent += [(shard, mine, handle)]


# stage 2


def reduced_and_kept(self, whole):
    self.collect(keep=1)
    self.reduce(whole.shard, whole.grad)


def dropped(self, whole):
    whole.grad = None


def nothing_before_the_end(self, whole):
    pass


def zeros_instead_of_nothing(self, whole):
    self.collect(keep=1)
    self.reduce(whole.shard, whole.grad)
    whole.grad = torch.zeros_like(whole.grad)


def all_when_the_last_one_comes(self, whole):
    ready = {shard: w for shard, w in self.whole.items() if w.grad is not None}
    if len(ready) == 6:
        for shard, one in ready.items():
            self.collect(keep=1)
            self.reduce(shard, one.grad)
            one.grad = None


def never_collected(self, whole):
    self.reduce(whole.shard, whole.grad)
    whole.grad = None


def a_shard_alone(self, whole):
    whole.shard.grad = lesson.cut(whole.grad, self.n, dist.get_rank())
    whole.grad = None


def summed_up_before(self, whole):
    dist.all_reduce(whole.grad)
    self.collect(keep=1)
    self.reduce(whole.shard, whole.grad / self.n)
    whole.grad = None


def collected_at_once(self, whole):
    """Right: nothing is ever under way."""
    gradient, whole.grad = whole.grad, None
    self.reduce(whole.shard, gradient)
    self.collect()


def collected_afterwards(self, whole):
    """Right: the same, in another order."""
    self.reduce(whole.shard, whole.grad)
    whole.grad = None
    self.collect(keep=1)


# stage 3


class FreesNothing(lesson.Sharded):
    def free(self, layer, inputs, output):
        pass


class PacksNothing(lesson.Sharded):
    def pack(self, tensor):
        return tensor


class KeepsTheWholeBesideTheShard(lesson.Sharded):
    def pack(self, tensor):
        kept = super().pack(tensor)
        return kept if isinstance(kept, torch.Tensor) else (*kept, tensor)

    def unpack(self, kept):
        return kept if isinstance(kept, torch.Tensor) else kept[-1]


class FreesWhatIsItsOwnOnly(lesson.Sharded):
    def free(self, layer, inputs, output):
        for shard in layer._parameters.values():
            self.whole.pop(shard, None)


class FreesAtTheVeryEnd(lesson.Sharded):
    def free(self, layer, inputs, output):
        if layer is self.module:
            self.whole.clear()


class ForgetsHowTheViewLies(lesson.Sharded):
    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        return self.weight(kept[0])


class OnlyTheSize(lesson.Sharded):
    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        shard, size, *_ = kept
        return self.weight(shard).reshape(size)


class GathersAtEveryRead(lesson.Sharded):
    def read(self, shard):
        return lesson.Gather.apply(shard, self)


class WithoutAutograd(lesson.Sharded):
    def read(self, shard):
        if shard not in self.whole:
            self.whole[shard] = self.weight(shard)
        return self.whole[shard]


class TheShardItself(lesson.Sharded):
    def read(self, shard):
        return shard


class PacksByTheSize(lesson.Sharded):
    """Every tensor that is as large as a shard's weight is taken for it."""

    def pack(self, tensor):
        for shard in self.parameters():
            if tensor.numel() == shard.whole_shape.numel():
                return shard, tensor.size(), tensor.stride(), 0
        return tensor


class AsADict(lesson.Sharded):
    """Right: other containers, and a view made by hand."""

    def read(self, shard):
        if (whole := self.whole.get(shard)) is None:
            whole = self.whole[shard] = lesson.Gather.apply(shard, self)
        return whole

    def free(self, layer, inputs, output):
        gone = set(layer.parameters())
        self.whole = {shard: whole for shard, whole in self.whole.items() if shard not in gone}

    def pack(self, tensor):
        if tensor.untyped_storage() in self.shard_of:
            view = {"size": tensor.shape, "stride": tensor.stride()}
            return {"shard": self.shard_of[tensor.untyped_storage()], **view}
        return {"tensor": tensor}

    def unpack(self, kept):
        if "tensor" in kept:
            return kept["tensor"]
        return torch.as_strided(self.weight(kept["shard"]), kept["size"], kept["stride"])


class ByAFunction(lesson.Sharded):
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
    return _kind(lesson.Zero1, gradient_is_here=fn)


STEPS = {
    "zero1": (lesson.sharded, {}, lesson.zero1_judged, lesson.MyZero1),
    "zero2": (lesson.sharded, lesson.zero2_limits, lesson.zero2_judged, lesson.MyZero2),
    "zero3": (lesson.sharded, lesson.zero3_limits, lesson.zero3_judged, lesson.MyZero3),
}
WRONG = {
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
STOPS = {"WithoutFilling", "ForgetsHowTheViewLies", "WithoutAutograd", "TheShardItself"}
RIGHT = {
    "zero1": [ListsAndABlockingSum, BegunAndWaitedFor],
    "zero2": [_second(collected_at_once), _second(collected_afterwards)],
    "zero3": [AsADict, ByAFunction],
}
