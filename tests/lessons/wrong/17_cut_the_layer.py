"""Wrong answers to what a learner writes in chapter 17, and for each exercise right ones.

What people write: no sum in backward, which no output shows; a sum there although the loss is the
same on all ranks; a mean; results summed in place, which autograd has kept; both functions the
wrong way round. A bias that each rank adds before the sum, or a share of it; weights cut along
the other dimension; a layer without one of the functions; whole weights on every rank.
"""

import torch
import torch.distributed as dist
from lesson_answers import Exercise
from torch import nn
from torch.nn.functional import linear

from course_lessons import chapter_17
from course_lessons.tensor_parallel import (
    ColumnLinear,
    CopyToRanks,
    RowLinear,
    SumOverRanks,
    share,
)


def _summed(tensor, op=dist.ReduceOp.SUM):
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=op)
    return total


def _kept(tensor):
    return tensor.view_as(tensor)


def _mean(tensor):
    return _summed(tensor, dist.ReduceOp.AVG)


def _highest(tensor):
    return _summed(tensor, dist.ReduceOp.MAX)


def _in_place(tensor):
    dist.all_reduce(tensor)
    return tensor


def _divided(tensor):
    return tensor / dist.get_world_size()


def _zeros(tensor):
    return torch.zeros_like(tensor)


def _of_rank_0(tensor):
    total = tensor.contiguous().clone()
    dist.reduce(total, dst=0)
    return total


def _function(name, forwards, backwards):
    """A torch.autograd.Function of two plain functions."""

    def forward(ctx, x):
        return forwards(x)

    def backward(ctx, gradient):
        return backwards(gradient)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


_COPY, _SUM = (_kept, _summed), (_summed, _kept)


def _pair(name, copy=_COPY, total=_SUM):
    """What the check of both functions calls, under a name."""
    judged = chapter_17.functions(_function("Copy", *copy), _function("Sum", *total))
    judged.__name__ = name
    return judged


def _layers(column=ColumnLinear, row=RowLinear):
    """What the check of both layers calls, under the name of the one that is not ours."""
    judged = chapter_17.layers(column, row)
    judged.__name__ = row.__name__ if column is ColumnLinear else column.__name__
    return judged


# ---- layers --------------------------------------------------------------------------------------


class NoSumInBackward(ColumnLinear):
    def forward(self, x):
        return linear(x, self.weight, self.bias)


class SumBeforeA(ColumnLinear):
    def forward(self, x):
        return linear(SumOverRanks.apply(x), self.weight, self.bias)


class NoBias(ColumnLinear):
    def forward(self, x):
        return linear(CopyToRanks.apply(x), self.weight)


class BiasIsAConstant(ColumnLinear):
    def forward(self, x):
        return linear(CopyToRanks.apply(x), self.weight) + self.bias.detach()


class CutFromTheEnd(ColumnLinear):
    def __init__(self, whole):
        super().__init__(whole)
        world_size = dist.get_world_size()
        last = whole.weight.detach().chunk(world_size)[world_size - 1 - dist.get_rank()]
        self.weight = nn.Parameter(last.clone())


class EveryNthColumn(ColumnLinear):
    def __init__(self, whole):
        super().__init__(whole)
        every_nth = slice(dist.get_rank(), None, dist.get_world_size())
        self.weight = nn.Parameter(whole.weight.detach()[every_nth].clone())


class GatheredOutputs(ColumnLinear):
    def forward(self, x):
        hidden = super().forward(x)
        parts = [torch.empty_like(hidden) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, hidden.detach().contiguous())
        return hidden


class BiasBeforeTheSum(RowLinear):
    def forward(self, hidden):
        return SumOverRanks.apply(linear(hidden, self.weight, self.bias))


class DividedBias(RowLinear):
    def forward(self, hidden):
        bias = self.bias / dist.get_world_size()
        return SumOverRanks.apply(linear(hidden, self.weight, bias))


class BiasOfRank0(RowLinear):
    def forward(self, hidden):
        bias = self.bias if dist.get_rank() == 0 else None
        partial = linear(hidden, self.weight, bias)
        return SumOverRanks.apply(partial) + 0 * self.bias


class NoSum(RowLinear):
    def forward(self, hidden):
        return linear(hidden, self.weight, self.bias)


class CopyBehindB(RowLinear):
    def forward(self, hidden):
        return CopyToRanks.apply(linear(hidden, self.weight)) + self.bias


class PlainAllReduceOfACopy(RowLinear):
    def forward(self, hidden):
        total = linear(hidden, self.weight).detach()
        dist.all_reduce(total)
        return total + self.bias


class SummedTwice(RowLinear):
    def forward(self, hidden):
        partial = SumOverRanks.apply(linear(hidden, self.weight))
        return SumOverRanks.apply(partial) / dist.get_world_size() + self.bias


# ---- right ones ----------------------------------------------------------------------------------


class ByMatrixProduct(ColumnLinear):
    def __init__(self, whole):
        nn.Module.__init__(self)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        width = whole.out_features // world_size
        here = slice(rank * width, (rank + 1) * width)
        self.weight = nn.Parameter(whole.weight.data[here].clone())
        self.bias = nn.Parameter(whole.bias.data[here].clone())

    def forward(self, x):
        return CopyToRanks.apply(x) @ self.weight.T + self.bias


class AddedInPlace(RowLinear):
    def __init__(self, whole):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(share(whole.weight, dim=1))
        self.bias = nn.Parameter(whole.bias.data.clone())

    def forward(self, hidden):
        y = SumOverRanks.apply(hidden @ self.weight.T)
        y += self.bias
        return y


def _by_waiting(tensor):
    total = tensor.contiguous().clone()
    dist.all_reduce(total, async_op=True).wait()
    return total


def _itself(tensor):
    return tensor


EXERCISES = {
    "functions": Exercise(chapter_17.FUNCTIONS),
    "layers": Exercise(chapter_17.LAYERS),
}
WRONG = {
    "functions": [
        _pair("no_sum_in_backward", copy=(_kept, _kept)),
        _pair("mean_in_backward", copy=(_kept, _mean)),
        _pair("highest_in_backward", copy=(_kept, _highest)),
        _pair("sum_for_rank_0", copy=(_kept, _of_rank_0)),
        _pair("no_gradient", copy=(_kept, _zeros)),
        _pair("sums_on_both_ways", total=(_summed, _summed)),
        _pair("divided_gradient", total=(_summed, _divided)),
        _pair("mean_in_forward", total=(_mean, _kept)),
        _pair("summed_in_place", total=(_in_place, _kept)),
        _pair("nothing_is_summed", total=(_kept, _kept)),
        _pair("the_wrong_way_round", copy=_SUM, total=_COPY),
    ],
    "layers": [
        _layers(NoSumInBackward), _layers(SumBeforeA), _layers(NoBias), _layers(BiasIsAConstant),
        _layers(CutFromTheEnd), _layers(EveryNthColumn), _layers(GatheredOutputs),
        _layers(row=BiasBeforeTheSum), _layers(row=DividedBias), _layers(row=BiasOfRank0),
        _layers(row=NoSum), _layers(row=CopyBehindB), _layers(row=PlainAllReduceOfACopy),
        _layers(row=SummedTwice),
    ],
}  # fmt: skip
RIGHT = {
    "functions": [
        _pair("by_waiting", copy=(_kept, _by_waiting), total=(_by_waiting, _itself)),
        _pair("x_itself", copy=(_itself, _summed)),
    ],
    "layers": [_layers(ByMatrixProduct), _layers(row=AddedInPlace)],
}
STOPS: set[str] = set()  # none of them crashes or hangs
