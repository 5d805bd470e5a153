"""A layer cut among ranks, as chapter 17 builds it: linear layers, and rows between them.

The two functions and the two cuts are those of M. Shoeybi and others, Megatron-LM, 2019
(https://arxiv.org/abs/1909.08053); the cut of rows between layers is that of V. Korthikanti and
others, 2022 (https://arxiv.org/abs/2205.05198).
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear


class CopyToRanks(torch.autograd.Function):
    """Forward: every rank goes on with the same x. Backward: the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumOverRanks(torch.autograd.Function):
    """Forward: the sum of the ranks' partial results. Backward: every rank gets its gradient."""

    @staticmethod
    def forward(ctx, partial, group=None):
        total = partial.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def share(tensor: torch.Tensor, dim: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return this rank's share of a whole tensor, cut along `dim`, as a tensor of its own.

    Raises:
        ValueError: The ranks don't divide that size.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    size = tensor.shape[dim]
    if size % world_size:
        raise ValueError(f"{size} features can't be cut into {world_size} equal shares")
    return tensor.detach().chunk(world_size, dim)[rank].clone()


class ColumnLinear(nn.Module):
    """A linear layer of which each rank computes some outputs."""

    def __init__(self, full_layer, group=None):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(share(full_layer.weight, 0, group))
        self.bias = nn.Parameter(share(full_layer.bias, 0, group))

    def forward(self, x):
        x = CopyToRanks.apply(x, self.group)
        return linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer of which each rank sees some inputs; the bias is whole, and added once."""

    def __init__(self, full_layer, group=None):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(share(full_layer.weight, 1, group))
        self.bias = nn.Parameter(full_layer.bias.detach().clone())

    def forward(self, hidden):
        partial = linear(hidden, self.weight)
        return SumOverRanks.apply(partial, self.group) + self.bias


class GatherRows(torch.autograd.Function):
    """Forward: all rows, of everybody's share. Backward: this rank's rows of the summed gradient.

    It stands where `CopyToRanks` stands, if each rank has its share of the rows.
    """

    @staticmethod
    def forward(ctx, rows):
        world_size = dist.get_world_size()
        all_rows = rows.new_empty(world_size * rows.shape[0], *rows.shape[1:])
        dist.all_gather_into_tensor(all_rows, rows.contiguous())
        return all_rows

    @staticmethod
    def backward(ctx, gradient):
        return _reduce_scatter_rows(gradient)


class ScatterRows(torch.autograd.Function):
    """Forward: this rank's rows of the sum. Backward: the gradient of all rows.

    It stands where `SumOverRanks` stands.
    """

    @staticmethod
    def forward(ctx, partial):
        return _reduce_scatter_rows(partial)

    @staticmethod
    def backward(ctx, gradient):
        return GatherRows.forward(ctx, gradient)


def _reduce_scatter_rows(partial: torch.Tensor) -> torch.Tensor:
    """This rank's share of the rows of the sum over ranks."""
    world_size = dist.get_world_size()
    rows = partial.new_empty(partial.shape[0] // world_size, *partial.shape[1:])
    dist.reduce_scatter_tensor(rows, partial.contiguous())
    return rows
