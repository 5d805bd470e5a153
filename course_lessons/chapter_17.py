"""What chapter 17 judges and measures: a layer that is cut among ranks, against one process.

A cut layer is right if its output, and every gradient, is that of the whole layer.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.functional import gelu, softmax

from course_lessons.chapter_04 import format_difference
from course_lessons.chapter_13 import activation_bytes
from course_lessons.tensor_parallel import (
    ColumnLinear,
    CopyToRanks,
    GatherRows,
    RowLinear,
    ScatterRows,
    SumOverRanks,
    share,
)
from course_utils import Network, launch
from course_utils.network.trace import Trace

WIDTH, HIDDEN = 64, 256
Outcome = dict[str, Any]


# ---- write it: two functions ---------------------------------------------------------------------


def functions(copy: type, total: type) -> Callable[..., Outcome]:
    """Let both functions work around what a rank computes; return the sum and all gradients."""

    @functools.wraps(copy, updated=())
    def computed(x: torch.Tensor, factors: torch.Tensor) -> Outcome:
        x.requires_grad_()
        factors.requires_grad_()
        copied = copy.apply(x)
        partial = torch.exp(factors * copied)  # autograd keeps the result of exp
        summed = total.apply(partial)
        summed.square().sum().backward()
        return {
            "what Copy returns": copied.detach(),
            "what Sum returns": summed.detach(),
            "gradient before Copy": x.grad,
            "gradient before Sum": factors.grad,
        }

    return computed


def _functions_spec(all_x, all_factors):
    x = all_x[0].requires_grad_()
    for factors in all_factors:
        factors.requires_grad_()
    summed = sum(torch.exp(factors * x) for factors in all_factors)
    summed.square().sum().backward()
    outcomes = []
    for factors in all_factors:
        outcomes.append(
            {
                "what Copy returns": x.detach(),
                "what Sum returns": summed.detach(),
                "gradient before Copy": x.grad,
                "gradient before Sum": factors.grad,
            }
        )
    return outcomes


def _on_all_ranks(*shape: int) -> torch.Tensor:
    """Numbers that are the same on every rank, whatever has been drawn before."""
    generator = torch.Generator().manual_seed(17)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _functions_inputs(rank: int, world_size: int, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = _on_all_ranks(6, 4)
    factors = torch.rand(6, 4, dtype=torch.float64)
    if case == "a transposed x":
        return x.T.contiguous().T, factors
    return x, factors


def _two_sums(numbers: Callable[[str], int]) -> Callable[[int, str], dict[str, float]]:
    """A budget: two ring all-reduces of so many float64 numbers."""

    def budget(world_size: int, case: str) -> dict[str, float]:
        ring_bytes = 2 * (world_size - 1) / world_size * 8 * numbers(case)
        return {"sent_bytes": 2 * ring_bytes}

    return budget


FUNCTIONS = {
    "spec": _functions_spec,
    "inputs": _functions_inputs,
    "cases": ("six rows of four", "a transposed x"),
    "world_sizes": (1, 2, 3, 4),
    "budget": _two_sums(lambda case: 24),
    "rtol": 1e-12,
}


# ---- write it: two layers ------------------------------------------------------------------------

_SIZES = {  # rows, width, hidden features
    "24 hidden features": (5, 4, 24),
    "12 hidden features": (3, 6, 12),
    "a batch of sequences": (4, 4, 12),
}


def layers(column: type[nn.Module], row: type[nn.Module]) -> Callable[..., Outcome]:
    """Compute a block with both layers; return its output and all gradients of this rank."""

    @functools.wraps(column, updated=())
    def computed(up: nn.Linear, down: nn.Linear, x: torch.Tensor) -> Outcome:
        first, second = column(up), row(down)
        x.requires_grad_()
        y = second(gelu(first(x)))
        y.square().sum().backward()
        return {
            "output": y.detach(),
            "gradient of x": x.grad,
            "first weight": first.weight.grad,
            "first bias": first.bias.grad,
            "second weight": second.weight.grad,
            "second bias": second.bias.grad,
        }

    return computed


def _layers_spec(all_up, all_down, all_x):
    up, down, x = all_up[0], all_down[0], all_x[0].requires_grad_()
    y = down(gelu(up(x)))
    y.square().sum().backward()
    outcomes = []
    for rank in range(len(all_x)):

        def cut(gradient: torch.Tensor, dim: int, rank: int = rank) -> torch.Tensor:
            return gradient.chunk(len(all_x), dim)[rank]

        outcomes.append(
            {
                "output": y.detach(),
                "gradient of x": x.grad,
                "first weight": cut(up.weight.grad, 0),
                "first bias": cut(up.bias.grad, 0),
                "second weight": cut(down.weight.grad, 1),
                "second bias": down.bias.grad,
            }
        )
    return outcomes


def _layers_inputs(rank: int, world_size: int, case: str) -> tuple[nn.Linear, nn.Linear, Any]:
    rows, width, hidden = _SIZES[case]
    up, down = nn.Linear(width, hidden).double(), nn.Linear(hidden, width).double()
    with torch.no_grad():
        up.weight.copy_(_on_all_ranks(hidden, width))
        up.bias.copy_(_on_all_ranks(hidden))
        down.weight.copy_(_on_all_ranks(width, hidden))
        down.bias.copy_(_on_all_ranks(width))
    if case == "a batch of sequences":
        return up, down, _on_all_ranks(2, rows, width)
    return up, down, _on_all_ranks(rows, width)


def _output_numbers(case: str) -> int:
    rows, width, _ = _SIZES[case]
    return rows * width * (2 if case == "a batch of sequences" else 1)


LAYERS = {
    "spec": _layers_spec,
    "inputs": _layers_inputs,
    "cases": tuple(_SIZES),
    "world_sizes": (1, 2, 3, 4),
    "budget": _two_sums(_output_numbers),
    "rtol": 1e-10,
}


# ---- measure: which gradients are wrong ----------------------------------------------------------

_NAMES = ("x", "first A", "first B", "second A", "second B")


def summed_in_place(partial: torch.Tensor) -> torch.Tensor:
    """Sum in the tensor itself, of which autograd knows nothing."""
    dist.all_reduce(partial)
    return partial


def summed_by_pytorch(partial: torch.Tensor) -> torch.Tensor:
    """Sum by an all_reduce that has a backward, which is an all_reduce too."""
    return functional.all_reduce(partial, "sum", dist.group.WORLD)


def _numbers() -> list[torch.Tensor]:
    """x and the weights of two blocks, the same in every process."""
    torch.manual_seed(0)
    shapes = [(32, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    scales = [1, 8, 16, 8, 16]
    drawn = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    return [(t / scale).requires_grad_() for t, scale in zip(drawn, scales, strict=True)]


def _two_blocks(block: Callable, copy: Callable, total: Callable) -> tuple[Any, list, int]:
    """In a rank: output, gradients of whole tensors, and how many warnings autograd has given."""
    x, *weights = _numbers()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = block(x, weights[0], weights[1], copy, total)
        y = block(y, weights[2], weights[3], copy, total)
        y.square().mean().backward()
    gradients = [x.grad]
    for weight in weights:  # zero outside of this rank's share
        whole = weight.grad.contiguous()
        dist.all_reduce(whole)
        gradients.append(whole)
    return y.detach(), gradients, len(caught)


@dataclass(frozen=True)
class Errors:
    """How far one way is from one process: of the output, and by name of each gradient.

    An error is relative to the largest number of what is compared.
    """

    output: float
    gradients: dict[str, float]
    warned: bool


def _apart(tensor: torch.Tensor, right: torch.Tensor) -> float:
    return ((tensor - right).abs().max() / right.abs().max()).item()


def _in_one_process() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The output of both blocks and all gradients, with nothing cut."""
    x, *weights = _numbers()
    y = gelu(x @ weights[0]) @ weights[1]
    y = gelu(y @ weights[2]) @ weights[3]
    y.square().mean().backward()
    return y.detach(), [tensor.grad for tensor in (x, *weights)]


def compare_gradients(block: Callable, ways: Mapping[str, tuple[Callable, Callable]]) -> dict:
    """Run two blocks in two ranks in each way; print what is wrong, and return `Errors`."""

    def all_ways() -> list:
        return [_two_blocks(block, *functions) for functions in ways.values()]

    # Not in the kernel: where there is a GPU, none can be launched after a backward pass in it.
    whole_output, whole_gradients = launch(_in_one_process, world_size=1, backend="gloo")[0]
    by_way = launch(all_ways, world_size=2, backend="gloo")[0]
    errors = {}
    print("                          output   wrong gradients                          warned")
    for name, (output, gradients, warned) in zip(ways, by_way, strict=True):
        pairs = zip(gradients, whole_gradients, strict=True)
        apart = [_apart(gradient, whole) for gradient, whole in pairs]
        output_apart = _apart(output, whole_output)
        errors[name] = Errors(output_apart, dict(zip(_NAMES, apart, strict=True)), warned > 0)
        is_right = "right" if errors[name].output < 1e-12 else "wrong"
        wrong = ", ".join(wrong_ones(errors[name])) or "none"
        print(f"{name:26}{is_right:9}{wrong:41}{'yes' if warned else 'no'}")
    return errors


def wrong_ones(errors: Errors) -> list[str]:
    """Names of gradients that are off by more than rounding."""
    return [name for name, error in errors.gradients.items() if error > 1e-12]


def where_wrong(errors: Errors) -> str:
    """The same in words: none, all, or x and one of the blocks."""
    wrong = wrong_ones(errors)
    blocks = []
    for block in ("first", "second"):
        if f"{block} A" in wrong and f"{block} B" in wrong:
            blocks.append(block)
    if not wrong or len(wrong) == len(_NAMES):
        return "all" if wrong else "none"
    if "x" in wrong and len(blocks) == 1 and len(wrong) == 3:
        return f"x and the {blocks[0]} block"
    return ", ".join(wrong)


# ---- measure: calls and bytes --------------------------------------------------------------------


def count_calls(trace: Trace) -> None:
    """Print what rank 0 called, and how many bytes it handed in."""
    calls = Counter((event.kind, event.bytes) for event in trace.of_rank(0))
    for (kind, handed_in), times in calls.items():
        print(f"  {times} × {kind} of {handed_in:,} bytes")


def sent_kib(trace: Trace) -> float:
    """KiB that the busiest rank sends, if a collective is a ring."""
    return max(trace.traffic().sent_bytes) / 1024


def data_parallel_step(rows: int) -> None:
    """In a rank: a step of the whole block on this rank's rows; gradients are summed."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    block(torch.randn(rows // dist.get_world_size(), WIDTH)).sum().backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in block.parameters()])
    dist.all_reduce(flat)


# ---- measure: against PyTorch --------------------------------------------------------------------


def one_step(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """In a rank: output and gradient of the input, of a batch that all ranks have."""
    x = _on_all_ranks(32, WIDTH).requires_grad_()
    dist.barrier()  # what follows is the step
    y = model(x)
    y.square().mean().backward()
    return y.detach(), x.grad


# ---- measure: heads ------------------------------------------------------------------------------


def attention(x: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, heads: int) -> torch.Tensor:
    """Attention by so many heads, without a mask.

    Args:
        x: (rows, width).
        qkv: (3 * inner, width), the rows of queries, keys and values one below the other.
        out: (width, inner).
        heads: They divide `inner`.
    """
    parts = (x @ qkv.T).chunk(3, dim=1)
    q, k, v = [part.unflatten(1, (heads, -1)).transpose(0, 1) for part in parts]
    scores = softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    mixed = (scores @ v).transpose(0, 1).flatten(1)
    return mixed @ out.T


# ---- measure: rows between layers ----------------------------------------------------------------


class _Between(nn.Module):
    """A norm, then the block: rows are whole on every rank, or each rank has its share."""

    def __init__(self, rows_are_cut: bool) -> None:
        super().__init__()
        up, down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Parameter(share(up.weight, 0))
        self.down = nn.Parameter(share(down.weight, 1))
        self.begin = GatherRows if rows_are_cut else CopyToRanks
        self.end = ScatterRows if rows_are_cut else SumOverRanks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.begin.apply(self.norm(x))
        hidden = gelu(whole @ self.up.T)
        y = self.end.apply(hidden @ self.down.T)
        return x + torch.tanh(y)  # what stands for dropout keeps its output


def _between(rows_are_cut: bool) -> tuple[torch.Tensor, int]:
    """In a rank: the output, and the bytes that autograd keeps of the forward pass."""
    torch.manual_seed(0)
    block = _Between(rows_are_cut).double()
    x = torch.randn(32, WIDTH, dtype=torch.float64)
    if rows_are_cut:
        x = share(x, 0)
    x.requires_grad_()
    y, kept = activation_bytes(block, lambda: block(x))
    y.square().sum().backward()
    return y.detach(), kept


def compare_rows(world_size: int = 4) -> dict[str, tuple[float, float]]:
    """Print calls, KiB sent and KiB kept with whole rows and with cut ones; return the KiB."""
    kib, outputs = {}, []
    for name, rows_are_cut in (("whole rows", False), ("cut rows", True)):
        run = launch(_between, rows_are_cut, world_size=world_size, backend="gloo", trace=True)
        print(f"{name}, calls of rank 0:")
        count_calls(run.trace)
        kib[name] = sent_kib(run.trace), run[0][1] / 1024
        print(f"  {kib[name][0]:.0f} KiB sent, {kib[name][1]:.1f} KiB kept for backward")
        outputs.append([y for y, _ in run])
    whole, in_shares = outputs[0][0], torch.cat(outputs[1])
    print("largest difference:", format_difference((whole - in_shares).abs().max()))
    return kib


# ---- measure: a plan on two nodes ----------------------------------------------------------------


def _plan_step(tensor: int) -> None:
    """In a rank of eight: a step of one block, cut among `tensor` neighbours."""
    world_size, rank, width, rows = dist.get_world_size(), dist.get_rank(), 256, 2048
    neighbours = torch.arange(world_size).view(-1, tensor)
    inside = [dist.new_group(ranks) for ranks in neighbours.tolist()][rank // tensor]
    across = [dist.new_group(ranks) for ranks in neighbours.T.tolist()][rank % tensor]
    up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    block = nn.Sequential(ColumnLinear(up, inside), nn.GELU(), RowLinear(down, inside))
    x = torch.randn(rows * tensor // world_size, width, requires_grad=True)
    dist.barrier()  # what follows is the step
    block(x).sum().backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in block.parameters()])
    dist.all_reduce(flat, group=across)


def last_step(trace: Trace) -> Trace:
    """The calls after the last barrier, without those in groups of one rank."""
    kept = []
    for rank in range(trace.world_size):
        events = trace.of_rank(rank)
        starts = [event.index for event in events if event.kind == "barrier"]
        for event in events[starts[-1] + 1 :]:
            if len(event.group) > 1:
                kept.append(event)
    return replace(trace, events=tuple(kept))


def price_plans(network: Network, plans: Sequence[int]) -> dict[int, dict[str, float]]:
    """Print and return, by how many ranks cut a layer, microseconds of both kinds of calls."""
    prices = {}
    print("cut among   copies   cutting the layer   summing gradients   (µs on the model)")
    for tensor in plans:
        run = launch(_plan_step, tensor, world_size=8, backend="gloo", trace=True)
        trace = last_step(run.trace)
        by_kind = {}
        for name, size in (("tensor", tensor), ("data", 8 // tensor)):
            # Of two kinds of groups with as many ranks, tensor-parallel ones come first.
            events = [event for event in trace if is_of(event, tensor, name) and size > 1]
            part = replace(trace, events=tuple(events))
            by_kind[name] = max(part.replay(network).finish_us) if events else 0.0
        prices[tensor] = by_kind
        print(f"{tensor:9}{8 // tensor:9}{by_kind['tensor']:20.1f}{by_kind['data']:20.1f}")
    return prices


def is_of(event: Any, tensor: int, name: str) -> bool:
    """Whether a call is one that cuts a layer ("tensor"), or one that sums gradients ("data")."""
    neighbours = len(event.group) == tensor and event.group[-1] - event.group[0] == tensor - 1
    return neighbours == (name == "tensor")
