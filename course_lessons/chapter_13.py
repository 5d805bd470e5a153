"""What chapter 13 measures sharded models with: judged stages, rows of a table, and pictures.

A stage is right if its gradients and weights are those that one process gets on all the data.
"""

import functools
import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lessons.sharding import Recompute, Shards, Wrap, cut
from course_material.language import SmallGPT, novel
from course_utils import Network, launch
from course_utils.network.trace import Trace

MIB = 2**20
Held = dict[str, Any]
_novel = functools.cache(novel)  # read in the kernel, before it forks


def my_device() -> str:
    """In a rank, "cuda" is the GPU that launch gave it."""
    return "cuda" if torch.cuda.is_available() else "cpu"


# ---- write it: bytes of a rank -------------------------------------------------------------------


def bytes_per_rank(parameters, world_size, stage):
    """Bytes of weights, gradients and optimiser under Adam in mixed precision; stage 0 is DDP."""
    weights, gradients, optimizer = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        optimizer /= world_size
    if stage >= 2:
        gradients /= world_size
    if stage >= 3:
        weights /= world_size
    return weights + gradients + optimizer


def _memory_spec(all_parameters, world_sizes, stages):
    """What each of 16 bytes is divided by, byte by byte."""
    answers = []
    for parameters, world_size, stage in zip(all_parameters, world_sizes, stages, strict=True):
        sharded_from = [3, 3, 2, 2] + [1] * 12  # the stage from which on a byte is sharded
        held = [1 / world_size if stage >= first else 1 for first in sharded_from]
        answers.append(parameters * math.fsum(held))
    return answers


def _memory_inputs(rank: int, world_size: int, case: str) -> tuple[int, int, int]:
    parameters = int(torch.randint(10**6, 10**9, ()))
    ranks = int(torch.randint(2, 65, ()))
    if case == "one rank":
        return parameters, 1, 3
    return parameters, ranks, int(case[-1])


MEMORY = {
    "spec": _memory_spec,
    "inputs": _memory_inputs,
    "cases": ("stage 0", "stage 1", "stage 2", "stage 3", "one rank"),
    "world_sizes": (1,),
    "hide": (bytes_per_rank,),
    "rtol": 1e-9,
}


# ---- write it: three stages ----------------------------------------------------------------------


class _Borrows(nn.Module):
    """Reads the weight of an inner layer, twice, as attention does, and does not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.inner.weight.dtype) @ self.inner.weight.T


class _Odd(nn.Module):
    """Sizes that no number of ranks divides, a frozen layer, a tied weight, one that rests."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 5).requires_grad_(False)
        self.tied = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.tied[1].weight = self.tied[0].weight
        self.borrows, self.rests, self.last = _Borrows(), nn.Linear(2, 2), nn.Linear(7, 3)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(inputs)
        for layer in self.tied:
            hidden = torch.tanh(layer(hidden))
        return self.last(self.borrows(hidden))


def _odd() -> _Odd:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return _Odd()


def _adam(model: nn.Module) -> torch.optim.Adam:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=0.05)


def _shares(model: nn.Module, shard_count: int = 1, rank: int = 0) -> Held:
    """Gradients (zeros for none) and weights, cut for a rank."""
    weights, gradients = [], []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        weights.append(parameter.detach().clone())
        gradients.append(gradient)
    if shard_count > 1:
        weights = [cut(weight, shard_count, rank) for weight in weights]
        gradients = [cut(gradient, shard_count, rank) for gradient in gradients]
    return {"gradients": gradients, "weights": weights}


def _alone(network: nn.Module, all_batches: Sequence[Sequence]) -> list[Held]:
    """One process trains on what all ranks have; returns each rank's shares."""
    optimizer, world_size = _adam(network), len(all_batches)
    for step in zip(*all_batches, strict=True):
        optimizer.zero_grad()
        losses = [mse_loss(network(inputs), targets) for inputs, targets in step]
        (sum(losses) / world_size).backward()
        optimizer.step()
    return [_shares(network, world_size, rank) for rank in range(world_size)]


def _watched(kind: type[Shards], most_seen: dict[str, int], limits: Mapping[str, int]) -> type:
    """The class, noting the most of some things that exist at once."""
    alive: weakref.WeakSet = weakref.WeakSet()
    limit = limits.get("full weights", 99)

    def note(name: str, count: int) -> None:
        most_seen[name] = max(most_seen[name], count)

    class Watched(kind):
        def gather(self, local, shape):
            full = super().gather(local, shape)
            alive.add(full.untyped_storage())
            give_up_at = time.monotonic() + (most_seen["full weights"] <= limit)
            while len(alive) > limit and time.monotonic() < give_up_at:
                time.sleep(0.001)  # gloo's thread lets go of it a little later
            note("full weights", len(alive))
            return full

        def gradient_is_ready(self, full):
            with_gradient = [weight for weight in self.full.values() if weight.grad is not None]
            note("full gradients", len(with_gradient))
            super().gradient_is_ready(full)
            note("sums under way", len(self.pending))

    return Watched


def staged(kind: type[Shards], **limits: int) -> Callable[[Sequence], Held]:
    """Train with a stage; return this rank's shares, and whether few enough things existed."""

    @functools.wraps(kind, updated=())
    def trained(batches: Sequence) -> Held:
        most_seen = {"full weights": 0, "full gradients": 0, "sums under way": 0}
        model = _watched(kind, most_seen, limits)(_odd())
        optimizer = _adam(model)
        for inputs, targets in batches:
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            model.finish()
            optimizer.step()
        kept = {f"{most} {name} at most": most_seen[name] <= most for name, most in limits.items()}
        return _shares(model) | kept

    return trained


def _stage_check(times: Mapping[str, int], **limits: int) -> dict[str, Any]:
    """Options of a check; `times`: how often a parameter may be gathered or reduced in a step."""

    def spec(all_batches):
        kept = {f"{most} {name} at most": True for name, most in limits.items()}
        return [shares | kept for shares in _alone(_odd(), all_batches)]

    def inputs(rank, world_size, case):
        numbers = torch.randn(3, 5, 7, dtype=torch.float64)
        return ([(step[:, :4], step[:, 4:]) for step in numbers],)

    def budget(world_size, case):
        sent_bytes = 0
        for name, parameter in _odd().named_parameters():
            shard_bytes = -(-parameter.numel() // world_size) * 8
            step_bytes = times[name] * (world_size - 1) * shard_bytes
            sent_bytes += parameter.nbytes + 3 * step_bytes
        return {"sent_bytes": sent_bytes}

    options = {"cases": ("three steps",), "world_sizes": (2, 3), "rtol": 1e-9, "timeout": 10}
    return options | {"spec": spec, "inputs": inputs, "budget": budget}


# Stages 1 and 2; stage 3: forward, backward for the gradient of inputs, and a sum for each use.
_TWICE = {name: 2 for name, _ in _odd().named_parameters()}
_THREE_TIMES = _TWICE | {"tied.0.weight": 2 + 1 + 2, "borrows.inner.weight": 3, "last.weight": 3}
_THREE_TIMES |= {"frozen.weight": 1, "frozen.bias": 1, "rests.weight": 0, "rests.bias": 0}
ZERO1 = _stage_check(_TWICE)
ZERO2_LIMITS = {"full gradients": 1, "sums under way": 2}
ZERO2 = _stage_check(_TWICE, **ZERO2_LIMITS)
ZERO3_LIMITS = {"full weights": 2}
ZERO3 = _stage_check(_THREE_TIMES, **ZERO3_LIMITS)


# ---- write it: recompute -------------------------------------------------------------------------


class _Counting(nn.Module):
    """A block that counts how often it is computed."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.calls = nn.Sequential(*layers), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers(x)


def few_blocks() -> nn.Sequential:
    """Three blocks that count, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        sizes = (3, 7), (3, 5), (3, 4)
        layers = [(nn.Linear(a, b), nn.Tanh(), nn.Linear(b, a)) for a, b in sizes]
        return nn.Sequential(*[_Counting(*block) for block in layers]).double()


def activation_bytes(network: nn.Module, forward: Callable[[], Any]) -> tuple[Any, int]:
    """What `forward` returns, and the bytes that autograd keeps for it, without weights."""
    saved: dict[int, int] = {}
    keep_alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        weights = [p for p in network.parameters() if not isinstance(p, DTensor)]
        places = {weight.untyped_storage().data_ptr() for weight in weights}
        place = tensor.untyped_storage().data_ptr()
        if place not in places:
            saved[place] = tensor.untyped_storage().nbytes()
            keep_alive.append(tensor)  # so that nothing else gets its place
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = forward()
    return output, sum(saved.values())


def step_by_blocks(
    kind: type[torch.autograd.Function], blocks: nn.Sequential, x: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Forward and backward, one `kind` per block; the output, and bytes that autograd has kept."""

    def forward() -> torch.Tensor:
        y = x
        for block in blocks:
            y = kind.apply(block, y)
        return y

    y, saved_bytes = activation_bytes(blocks, forward)
    y.square().sum().backward()
    return y.detach(), saved_bytes


def recomputing(kind: type[torch.autograd.Function]) -> Callable[..., Held]:
    """Train one step with it in three blocks; return gradients, and what it kept and computed."""

    @functools.wraps(kind, updated=())
    def trained(x: torch.Tensor) -> Held:
        blocks, x = few_blocks(), x.requires_grad_()
        y, saved_bytes = step_by_blocks(kind, blocks, x)
        gradients = [parameter.grad for parameter in blocks.parameters()]
        for gradient in gradients:
            dist.all_reduce(gradient)
        return {
            "output": y,
            "gradients": gradients,
            "gradient of x": x.grad,
            "times each block is computed": [block.calls for block in blocks],
            "keeps the inputs and no more": saved_bytes <= len(blocks) * x.nbytes,
        }

    return trained


def _recompute_spec(all_x):
    blocks, outcomes = few_blocks(), []
    for x in all_x:
        y = blocks(x.requires_grad_())
        y.square().sum().backward()
        outcomes.append({"output": y.detach(), "gradient of x": x.grad})
    for outcome in outcomes:
        outcome["gradients"] = [parameter.grad for parameter in blocks.parameters()]
        outcome["times each block is computed"] = [2] * len(blocks)
        outcome["keeps the inputs and no more"] = True
    return outcomes


def _recompute_inputs(rank: int, world_size: int, case: str) -> torch.Tensor:
    return torch.randn(4, 3, dtype=torch.float64)


RECOMPUTE = {
    "spec": _recompute_spec,
    "inputs": _recompute_inputs,
    "cases": ("three blocks",),
    "world_sizes": (1, 2),
    "rtol": 1e-9,
}


# ---- write it: FSDP2 -----------------------------------------------------------------------------


def three_blocks() -> nn.Sequential:
    """A small network of blocks, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
        return nn.Sequential(*blocks).double()


def train_plain(network, batches, max_norm):
    """The loop in one process; returns its weights."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        nn.utils.clip_grad_norm_(network.parameters(), max_norm)
        optimizer.step()
    return network.state_dict()


def train_sharded(network, batches, max_norm):
    """The same, sharded over all ranks; each has its own part of every batch."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in network:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        nn.utils.clip_grad_norm_(network.parameters(), max_norm)
        optimizer.step()
    return {name: shard.full_tensor() for name, shard in network.state_dict().items()}


def judged_training(train: Callable) -> Callable[..., Held]:
    """What `train` returns, and how it has left the network."""

    @functools.wraps(train)
    def trained(network: nn.Sequential, batches: Sequence, max_norm: float) -> Held:
        weights = train(network, batches, max_norm)
        if not isinstance(weights, Mapping):
            raise TypeError(f"train returned {weights!r:.40}. Return a dict of full weights.")
        return {
            "full weights": dict(weights),
            "parameters are shards": [isinstance(p, DTensor) for p in network.parameters()],
            "each block is a unit": [isinstance(block, FSDPModule) for block in network],
        }

    return trained


def _training_spec(networks, all_batches, max_norms):
    batches = [torch.cat(step) for step in zip(*all_batches, strict=True)]
    weights = train_plain(networks[0], batches, max_norms[0])
    outcome = {
        "full weights": dict(weights),
        "parameters are shards": [True] * len(weights),
        "each block is a unit": [True] * len(networks[0]),
    }
    return [outcome] * len(networks)


def _training_inputs(rank: int, world_size: int, case: str) -> tuple[Any, ...]:
    batches = torch.randn(3, 4, 6, dtype=torch.float64)
    max_norm = 0.01 if case == "every step is clipped" else 100.0
    return three_blocks(), list(batches), max_norm


TRAINING = {
    "spec": _training_spec,
    "inputs": _training_inputs,
    "cases": ("every step is clipped", "no step is clipped"),
    "world_sizes": (1, 2, 3),
    "hide": (train_plain, train_sharded),
    "rtol": 1e-7,
    "timeout": 20,
}


# ---- measure: memory of a step -------------------------------------------------------------------


class Layer(nn.Module):
    """256 × 256 weights, a product and a relu."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight)


def stack() -> nn.Sequential:
    """Eight layers: 2 MiB of weights in single precision."""
    return nn.Sequential(*[Layer() for _ in range(8)])


class _Meter(TorchDispatchMode):
    """Knows all storages that operations of this rank have made and that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: weakref.WeakSet = weakref.WeakSet()
        self.peak_bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if DTensor in types:  # it comes back with the tensors that this rank holds
            return NotImplemented
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.alive.add(leaf.untyped_storage())
        now_bytes = sum(storage.nbytes() for storage in self.alive)
        self.peak_bytes = max(self.peak_bytes, now_bytes)
        return result


@dataclass(frozen=True)
class Row:
    """What a rank of one stage holds at the end of backward, in MiB, and what it sends.

    `sent` is a multiple of (n - 1)/n of the weights' bytes, per step.
    """

    weights: float
    gradients: float
    optimizer: float
    peak: float
    sent: float = 0.0

    @property
    def held(self) -> float:
        """Weights, gradients and optimiser together."""
        return self.weights + self.gradients + self.optimizer


def _mib(tensors: Iterable[torch.Tensor | None]) -> float:
    """What tensors take on this rank, shared memory once."""
    bytes_at = {}
    for tensor in tensors:
        if tensor is None:
            continue
        local = getattr(tensor, "_local_tensor", tensor)
        bytes_at[local.data_ptr()] = local.untyped_storage().nbytes()
    return sum(bytes_at.values()) / MIB


def train_stack(wrap: Wrap) -> Row:
    """Make two steps; return what was held at the end of the last backward, and the peak."""
    torch.manual_seed(dist.get_rank())
    with _Meter() as meter:
        model = wrap(stack().to(my_device()))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 256).to(my_device())).square().mean().backward()
            if hasattr(model, "finish"):
                model.finish()
            weights = [*model.parameters(), *getattr(model, "full", {}).values()]
            weights_mib = _mib(weights)
            gradients_mib = _mib(weight.grad for weight in weights)
            del weights  # of which a stage would let go
            optimizer.step()
    moments = []
    for state in optimizer.state.values():
        moments += [tensor for tensor in state.values() if tensor.numel() > 1]
    return Row(weights_mib, gradients_mib, _mib(moments), meter.peak_bytes / MIB)


def measure(wrap: Wrap, world_size: int = 4) -> Row:
    """Train the stack in real ranks; print and return what the fullest rank held and sent."""
    run = launch(train_stack, wrap, world_size=world_size, trace=True)
    # The broadcasts belong to the start.
    events = tuple(event for event in run.trace if event.kind != "broadcast")
    sent_bytes = max(replace(run.trace, events=events).traffic().sent_bytes) / 2
    sent = sent_bytes / (2 * MIB * (world_size - 1) / world_size)
    row = replace(max(run, key=lambda row: row.held), sent=sent)
    row = replace(row, peak=max(each.peak for each in run))
    print("MiB per rank  weights  gradients  optimiser    sum   peak        sent per step")
    figures = f"{row.weights:8.2f}{row.gradients:11.2f}{row.optimizer:11.2f}{row.held:7.2f}"
    share = f"{world_size - 1}/{world_size} of the weights"
    print(f"{wrap.__name__:13}{figures}   about {row.peak:.1f}   {row.sent:.3f} × {share}")
    return row


# ---- measure: the same model ---------------------------------------------------------------------


def _full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    if hasattr(model, "full_state_dict"):
        return model.full_state_dict()
    state = getattr(model, "module", model).state_dict()
    full = {}
    for name, tensor in state.items():
        full[name] = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full


def train_gpt(wrap: Wrap | None) -> list[dict[str, torch.Tensor]]:
    """All weights, in full, after two steps and after three."""
    tokens, alphabet = _novel()  # letters of Pride and Prejudice, as numbers
    torch.manual_seed(7)
    model = SmallGPT(len(alphabet), width=32, depth=1).double().to(my_device())
    model = wrap(model) if wrap else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, fused=True)  # in fewer calls
    states = []
    for step in range(3):
        drawn = tokens[torch.randint(len(tokens) - 33, (8, 1)) + torch.arange(33)]
        drawn = drawn[dist.get_rank() :: dist.get_world_size()].to(my_device())
        optimizer.zero_grad()
        cross_entropy(model(drawn[:, :-1]).mT, drawn[:, 1:]).backward()
        if hasattr(model, "finish"):
            model.finish()
        optimizer.step()
        if step > 0:
            states.append({name: full.clone() for name, full in _full_state(model).items()})
    return states


def apart(run: Iterable[Mapping], other: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of a weight to `other`, on any rank."""
    largest = 0.0
    for weights in run:
        for name, tensor in other.items():
            difference = (weights[name].cpu() - tensor.cpu()).abs().max().item()
            largest = max(largest, difference)
    return largest


def compare_training(wraps: Sequence[Wrap]) -> None:
    """Train a small GPT with each wrapper in four ranks, and print how far from one process."""

    def train_all() -> list:
        return [train_gpt(wrap) for wrap in wraps]

    _novel()
    ((_, alone),) = launch(train_gpt, None, world_size=1)
    ranks = launch(train_all, world_size=4)
    print("largest difference of a weight to one process, after 3 steps")
    for number, wrap in enumerate(wraps):
        last = [rank[number][1] for rank in ranks]
        print(f"{wrap.__name__:35}about {apart(last, alone):.0e}")
    before = [rank[-1][0] for rank in ranks]
    label = f"{wraps[-1].__name__} after 2 steps, as a control"
    print(f"{label:35}about {apart(before, alone):.0e}")


# ---- measure: activations ------------------------------------------------------------------------


class _Block(nn.Module):
    """As in a transformer: four times as wide inside."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.layers, self.calls = nn.Sequential(*layers), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers(x)


class _Blocks(nn.Module):
    def __init__(self, recompute: type[torch.autograd.Function] | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block() for _ in range(6)])
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.recompute.apply(block, x) if self.recompute else block(x)
        return x


@dataclass(frozen=True)
class Activations:
    """What one rank keeps for backward (KiB), how often its blocks ran, and its gradients."""

    saved_kib: float
    calls: int
    gradients: list[torch.Tensor]


def _train_blocks(recompute: type[torch.autograd.Function] | None) -> Activations:
    torch.manual_seed(0)
    network = _Blocks(recompute).double().to(my_device())
    mesh = init_device_mesh(my_device(), (dist.get_world_size(),))
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    model = fully_shard(network, mesh=mesh)
    torch.manual_seed(dist.get_rank())
    x = torch.randn(32, 64, dtype=torch.float64).to(my_device()).requires_grad_()
    output, saved_bytes = activation_bytes(network, lambda: model(x))
    output.square().mean().backward()
    gradients = [shard.grad.full_tensor().cpu() for shard in model.parameters()]
    calls = sum(block.calls for block in network.blocks)
    return Activations(saved_bytes / 1024, calls, gradients)


def measure_activations(
    recompute: type[torch.autograd.Function] = Recompute, world_sizes: Sequence[int] = (1, 2, 4)
) -> dict[str, list[Activations]]:
    """Train six blocks under FSDP2 with and without; print what a rank keeps and computes."""

    def train_both() -> tuple[Activations, Activations]:
        return _train_blocks(None), _train_blocks(recompute)

    table: dict[str, list[Activations]] = {"plain": [], "recompute": []}
    print("six blocks      ranks   KiB kept per rank   blocks computed   gradients differ by")
    for world_size in world_sizes:
        plain, again = launch(train_both, world_size=world_size)[0]
        table["plain"].append(plain)
        table["recompute"].append(again)
        pairs = zip(plain.gradients, again.gradients, strict=True)
        difference = max((a - b).abs().max().item() for a, b in pairs)
        print(f"plain{world_size:16}{plain.saved_kib:20.0f}{plain.calls:18}")
        line = f"recompute{world_size:12}{again.saved_kib:20.0f}{again.calls:18}"
        print(f"{line}   {'exactly 0' if difference == 0 else f'about {difference:.0e}'}")
    return table


# ---- measure: a step on a modelled network -------------------------------------------------------


class _Computes(torch.autograd.Function):
    """A call to nobody, once in forward and twice in backward: here a layer computes."""

    @staticmethod
    def forward(ctx, x, nobody):
        ctx.nobody = nobody
        dist.barrier(nobody)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dist.barrier(ctx.nobody)
        dist.barrier(ctx.nobody)
        return gradient, None


class _Timed(Layer):
    nobody: dist.ProcessGroup

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        return torch.relu(_Computes.apply(x, self.nobody) @ weight)


def _train_timed(wrap: Wrap, steps: int) -> None:
    nobody, _ = dist.new_subgroups(group_size=1)
    network = nn.Sequential(*[_Timed() for _ in range(8)])
    for layer in network:
        layer.nobody = nobody
    model = wrap(network)
    for _ in range(steps):
        dist.barrier()
        inputs = torch.randn(4, 256, requires_grad=True)  # so that all layers are alike
        model(inputs).mean().backward()
        model.finish()


def last_step(wrap: Wrap, steps: int = 1, world_size: int = 4) -> Trace:
    """The recording of a step of the stack, without what came before."""
    # Only recorded, to be replayed: no GPU need be there.
    run = launch(_train_timed, wrap, steps, world_size=world_size, backend="gloo", trace=True)
    trace, kept = run.trace, []
    for rank in range(world_size):
        events = trace.of_rank(rank)
        starts = []
        for event in events:
            if event.kind == "barrier" and len(event.group) == world_size:
                starts.append(event.index)
        kept += events[starts[-1] + 1 :]
    return replace(trace, events=tuple(kept))


def computing(layer_us: float) -> Callable[[Any], float]:
    """What a replay takes for the time of an event: a barrier with nobody is a layer."""
    return lambda event: layer_us if event.kind == "barrier" else 0.0


def step_us(trace: Trace, network: Network, layer_us: float = 60.0) -> float:
    """What a step takes if a layer computes so long forward, and twice as long back."""
    return max(trace.replay(network, computing(layer_us)).finish_us)


def price_two_nodes(trace: Trace) -> list[float]:
    """Print a step's times on two nodes; return the MiB that each rank sends to the other one."""
    for gbit_s in (80, 10):
        two_level = Network(latency_us=2, gbit_s=800, nodes=2, between=(10, gbit_s))
        print(f"    {gbit_s} Gbit/s between nodes: {step_us(trace, two_level):5.0f} µs")
    crossing = []
    for rank, row in enumerate(trace.traffic().bytes):
        other_node = row[4:] if rank < 4 else row[:4]
        crossing.append(sum(other_node) / MIB)
    return crossing
