"""What chapter 18 judges and measures: layers cut into stages, texts cut into parts, experts.

Whatever is cut, outputs and gradients are to be those of one process.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lessons import pipeline
from course_lessons.chapter_04 import format_difference
from course_lessons.pipeline import Action, Neighbours, Schedule
from course_utils import Network, launch
from course_utils.network.simulation import Replay
from course_utils.network.trace import Trace

DEPTH, WIDTH, ROWS = 8, 16, 48
FORWARD_US, BACKWARD_US = 100.0, 200.0  # of a stage, for a microbatch
FREE = Network(latency_us=0, gbit_s=1e9)  # messages take no time that one could see
Outcome = dict[str, Any]


# ---- the model -----------------------------------------------------------------------------------


def make_layers() -> list[nn.Module]:
    """Eight layers, the same in every process."""
    layers: list[nn.Module] = []
    for number in range(DEPTH):
        torch.manual_seed(number)
        layers.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double())
    return layers


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of shape (48, 16), the same in every process."""
    generator = torch.Generator().manual_seed(18)
    shape = (2, ROWS, WIDTH)
    inputs, targets = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, targets


def part_of(layers: Sequence[nn.Module], stage: int, stages: int) -> nn.Sequential:
    """The layers of a stage: equally many for each."""
    size = len(layers) // stages
    return nn.Sequential(*layers[stage * size : (stage + 1) * size])


def gradients_of(module: nn.Module) -> list[torch.Tensor]:
    """The gradients of a module, zeros where it has none."""
    gradients = []
    for parameter in module.parameters():
        gradient = parameter.grad
        gradients.append(torch.zeros_like(parameter) if gradient is None else gradient)
    return gradients


def _in_one_process() -> list[torch.Tensor]:
    model = nn.Sequential(*make_layers())
    inputs, targets = make_batch()
    mse_loss(model(inputs), targets).backward()
    return gradients_of(model)


@functools.cache
def right_gradients() -> list[torch.Tensor]:
    """All gradients of the whole model, of the whole batch."""
    # Not in the kernel: where there is a GPU, none can be launched after a backward pass in it.
    return launch(_in_one_process, world_size=1, backend="gloo")[0]


def furthest(
    gradients: Sequence[torch.Tensor], others: Sequence[torch.Tensor] | None = None
) -> float:
    """The largest difference from other gradients, or from those of one process."""
    differences = []
    for gradient, other in zip(gradients, others or right_gradients(), strict=True):
        differences.append((gradient - other).abs().max().item())
    return max(differences)


def how_far(gradients: Sequence[torch.Tensor], others: Sequence[torch.Tensor] | None = None) -> str:
    """The same in words: only what isn't exactly 0 varies from one machine to another."""
    return format_difference(furthest(gradients, others))


# ---- write it: a stage ---------------------------------------------------------------------------

_ORDERS = {  # of microbatches: how many, and the order of their backward passes
    "one microbatch": [0],
    "three microbatches": [0, 1, 2],
    "three, backward in reverse": [2, 1, 0],
}


def stage(kind: type[Neighbours]) -> Callable[..., Outcome]:
    """Let a stage train on its microbatches; return its gradients and what it still holds."""

    @functools.wraps(kind, updated=())
    def trained(layers: nn.Module, inputs: Any, targets: Any, order: list[int]) -> Outcome:
        one_stage = kind(layers, list(inputs), list(targets))
        actions = [("F", k) for k in range(len(inputs))] + [("B", k) for k in order]
        one_stage.run(actions)
        return {
            "gradients": gradients_of(layers),
            "microbatches still held": len(one_stage.held),
        }

    return trained


def _stage_spec(all_layers, all_inputs, all_targets, all_order):
    model = nn.Sequential(*all_layers)
    x, target = all_inputs[0].flatten(0, 1), all_targets[-1].flatten(0, 1)
    mse_loss(model(x), target).backward()
    outcomes = []
    for layers in all_layers:
        outcomes.append({"gradients": gradients_of(layers), "microbatches still held": 0})
    return outcomes


def _stage_inputs(rank: int, world_size: int, case: str) -> tuple:
    order = _ORDERS[case]
    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
    inputs, targets = torch.randn(2, len(order), 4, 3, dtype=torch.float64)
    return layers, inputs, targets, list(order)


def _stage_budget(world_size: int, case: str) -> dict[str, float]:
    """Of a stage in the middle: activations to one side, gradients to the other."""
    sides = min(2, world_size - 1)
    return {"sent_bytes": sides * len(_ORDERS[case]) * 4 * 3 * 8}


STAGE = {
    "spec": _stage_spec,
    "inputs": _stage_inputs,
    "cases": tuple(_ORDERS),
    "world_sizes": (1, 2, 3, 4),
    "budget": _stage_budget,
    "rtol": 1e-10,
    "atol": 1e-12,
}


# ---- write it: schedules -------------------------------------------------------------------------


def schedule(actions_of: Schedule) -> Callable[..., Outcome]:
    """Let stages do what a schedule says; return gradients, what is held, and how long it takes."""

    @functools.wraps(actions_of)
    def trained(layers: nn.Module, inputs: Any, targets: Any) -> Outcome:
        rank, stages, count = dist.get_rank(), dist.get_world_size(), len(inputs)
        by_stage = [list(actions_of(each, stages, count)) for each in range(stages)]
        pipeline.refuse_incomplete(by_stage[rank], count)
        one_stage = pipeline.Stage(layers, list(inputs), list(targets))
        one_stage.run(by_stage[rank])
        return {
            "gradients": gradients_of(layers),
            "microbatches held at most": one_stage.most_held,
            "time for all, in forwards": pipeline.ticks(by_stage),
        }

    return trained


def _schedule_options(held: Callable[[int, int, int], int]) -> dict[str, Any]:
    """The options of `check`; `held` says how many microbatches a stage holds at most."""

    def spec(all_layers, all_inputs, all_targets):
        count, stages = len(all_inputs[0]), len(all_layers)
        outcomes = _stage_spec(all_layers, all_inputs, all_targets, None)
        wanted = []
        for rank, outcome in enumerate(outcomes):
            wanted.append(
                {
                    "gradients": outcome["gradients"],
                    "microbatches held at most": held(rank, stages, count),
                    "time for all, in forwards": 3.0 * (stages - 1 + count),
                }
            )
        return wanted

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        layers, *_ = _stage_inputs(rank, world_size, "one microbatch")
        count = {"one": 1, "two": 2, "five": 5}[case.split()[0]]
        microbatches, targets = torch.randn(2, count, 4, 3, dtype=torch.float64)
        return layers, microbatches, targets

    return {
        "spec": spec,
        "inputs": inputs,
        "cases": ("one microbatch", "two microbatches", "five microbatches"),
        "world_sizes": (1, 2, 4),
        "rtol": 1e-10,
        "atol": 1e-12,
    }


GPIPE = _schedule_options(lambda rank, stages, count: count)
ONE_F_ONE_B = _schedule_options(lambda rank, stages, count: min(stages - rank, count))


# ---- measure: a step of real stages, on a clock --------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of a pipeline, as real ranks have done it.

    Attributes:
        stages, count: How many stages and microbatches there were.
        gradients: Of the whole model, layer by layer.
        most_held: By stage, the most microbatches that it held at once.
        trace: What the ranks called, with a mark wherever computing begins.
        marks: By (rank, index of an event), what is computed just before that event.
    """

    stages: int
    count: int
    gradients: list[torch.Tensor]
    most_held: list[int]
    trace: Trace
    marks: dict[tuple[int, int], Action]

    def replay(self, network: Network = FREE) -> Replay:
        """The step on a modelled network; a forward takes 100 µs, a backward 200."""

        def compute_us(event: Any) -> float:
            action = self.marks.get((event.rank, event.index))
            if action is None:
                return 0.0
            return FORWARD_US if action[0] == "F" else BACKWARD_US

        replay = self.trace.replay(network, compute_us)
        without_marks = [bar for bar in replay.intervals if bar.what != "collective"]
        return replace(replay, intervals=tuple(without_marks))

    def idle_share(self, network: Network = FREE) -> float:
        """The share of the step's time in which a rank doesn't compute, over all ranks."""
        replay = self.replay(network)
        computing_us = 0.0
        for bar in replay.intervals:
            if bar.what == "compute":
                computing_us += bar.end_us - bar.start_us
        return 1 - computing_us / (self.stages * max(replay.finish_us))


class _Marks:
    """In a rank: notes what is computed, and leaves an event in the recording where it begins.

    The event is a call in a group of this rank alone, which sends nothing.
    """

    def __init__(self, layers: nn.Module) -> None:
        world_size, rank = dist.get_world_size(), dist.get_rank()
        self.alone = [dist.new_group([each]) for each in range(world_size)][rank]
        self.actions: list[Action] = []
        self.forwards = 0
        layers.register_forward_hook(self.note_forward)

    def note_forward(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        k = self.forwards
        self.forwards += 1
        self.note(("F", k))
        output.register_hook(lambda _gradient: self.note(("B", k)))

    def note(self, action: Action) -> None:
        self.actions.append(action)
        dist.all_reduce(torch.zeros(1), group=self.alone)


def _train_stage(kind: type[Neighbours], actions_of: Schedule, count: int) -> tuple:
    """In a rank: gradients, what was held, and what was computed in which order."""
    rank, stages = dist.get_rank(), dist.get_world_size()
    layers = part_of(make_layers(), rank, stages)
    inputs, targets = make_batch()
    one_stage = kind(layers, inputs.chunk(count), targets.chunk(count))
    marks = _Marks(layers)
    dist.barrier()  # what follows is the step
    one_stage.run(actions_of(rank, stages, count))
    return gradients_of(layers), one_stage.most_held, marks.actions


def train(kind: type[Neighbours], actions_of: Schedule, stages: int, count: int) -> Step:
    """Train a step in real ranks, and record it; 48 rows are cut into `count` microbatches."""
    run = launch(
        _train_stage, kind, actions_of, count, world_size=stages, backend="gloo", trace=True
    )
    gradients, most_held, events, marks = [], [], [], {}
    for rank, (of_stage, held, actions) in enumerate(run):
        gradients += of_stage
        most_held.append(held)
        step = after_barrier(run.trace, rank)
        events += step
        marked = [event for event in step if event.kind == "all_reduce"]
        for event, action in zip(marked, actions, strict=True):
            marks[rank, event.index] = action
    trace = replace(run.trace, events=tuple(events))
    return Step(stages, count, gradients, most_held, trace, marks)


def after_barrier(trace: Trace, rank: int) -> list[Any]:
    """A rank's events after its last barrier."""
    events = trace.of_rank(rank)
    barriers = [event.index for event in events if event.kind == "barrier"]
    return [event for event in events if event.index > barriers[-1]]


def train_with(kind: type[Neighbours], actions_of: Schedule, count: int) -> None:
    """In a rank: a step without a recording, for what may hang."""
    layers = part_of(make_layers(), dist.get_rank(), dist.get_world_size())
    inputs, targets = make_batch()
    one_stage = kind(layers, inputs.chunk(count), targets.chunk(count))
    one_stage.run(actions_of(one_stage.rank, dist.get_world_size(), count))


# ---- write it: the bubble ------------------------------------------------------------------------


def bubble(stages: int, count: int) -> float:
    """Our finished form: the share of a step in which a stage idles, if messages take no time."""
    return (stages - 1) / (count + stages - 1)


def bubble_check(kind: type[Neighbours], actions_of: Schedule) -> dict[str, Any]:
    """The options of `check`: what is right is read off replays of real ranks."""
    shares = {}
    for stages, count in ((1, 3), (2, 1), (2, 4), (4, 3), (4, 8), (8, 2)):
        step = train(kind, actions_of, stages, count)
        shares[f"p = {stages}, m = {count}"] = step.idle_share()

    def inputs(rank: int, world_size: int, case: str) -> tuple[int, int]:
        stages, count = case.removeprefix("p = ").split(", m = ")
        return int(stages), int(count)

    def spec(all_stages: list[int], all_counts: list[int]) -> list[float]:
        wanted = []
        for stages, count in zip(all_stages, all_counts, strict=True):
            wanted.append(shares[f"p = {stages}, m = {count}"])
        return wanted

    cases = tuple(shares)
    options = {"spec": spec, "inputs": inputs, "cases": cases, "world_sizes": (1,)}
    return options | {"rtol": 1e-6, "atol": 1e-9}


def sign(number: float) -> int:
    """-1, 0 or 1."""
    return (number > 0) - (number < 0)


# ---- measure: against PyTorch --------------------------------------------------------------------


def count_messages(events: Sequence[Any], size: int) -> int:
    """How many messages of `size` bytes these events send."""
    return sum(event.kind == "send" and event.bytes == size for event in events)


# ---- measure: a text that is cut -----------------------------------------------------------------


def make_text(rows: int) -> torch.Tensor:
    """Queries, keys and values of a text, (3, rows, 16), the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(3, rows, WIDTH, generator=generator, dtype=torch.float64)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple:
    """Of each query: the highest score, the sum of exp, and the sum of values so weighted.

    Both sums are of exp(score - highest score). Shapes (rows, 1), (rows, 1), (rows, width).
    """
    scores = q @ k.T / math.sqrt(q.shape[1])
    highest = scores.max(dim=1, keepdim=True).values
    weights = (scores - highest).exp()
    return highest, weights.sum(dim=1, keepdim=True), weights @ v


def pass_on(tensor: torch.Tensor) -> torch.Tensor:
    """Send a tensor to the next rank of a ring, and return what the previous one has sent."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensor, arrived = tensor.contiguous(), torch.empty_like(tensor)
    sending = dist.P2POp(dist.isend, tensor, (rank + 1) % world_size)
    receiving = dist.P2POp(dist.irecv, arrived, (rank - 1) % world_size)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return arrived


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' rows of a tensor, one below the other."""
    world_size = dist.get_world_size()
    whole = tensor.new_empty(world_size * tensor.shape[0], *tensor.shape[1:])
    dist.all_gather_into_tensor(whole, tensor.contiguous())
    return whole


class _Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.bytes = max(self.bytes, leaf.nbytes)
        return result


def with_largest(compute: Callable, *arguments: Any) -> tuple[Any, int]:
    """In a rank: what a function returns, and the bytes of the largest tensor it has made."""
    with _Largest() as largest:
        result = compute(*arguments)
    return result, largest.bytes


@dataclass(frozen=True)
class Attended:
    """One way of attending to a text in parts.

    Attributes:
        is_right: Whether the outcome is that of one process.
        sent_kib: What a rank sends.
        largest_kib: The largest tensor that a rank makes.
    """

    is_right: bool
    sent_kib: float
    largest_kib: float


def compare_attention(ways: Sequence[Callable], rows: int, world_size: int) -> dict[str, Attended]:
    """Let real ranks attend to a text in each way; return what came out, by the way's name."""
    _, total, mixed = attend(*make_text(rows))
    right = mixed / total

    def worker(way: Callable) -> tuple[Any, int]:
        rank = dist.get_rank()
        parts = [tensor.chunk(world_size)[rank].clone() for tensor in make_text(rows)]
        return with_largest(way, *parts)

    attended = {}
    for way in ways:
        run = launch(worker, way, world_size=world_size, backend="gloo", trace=True)
        result = torch.cat([of_rank for of_rank, _ in run])
        is_right = bool((result - right).abs().max() < 1e-12)
        sent_kib = max(run.trace.traffic().sent_bytes) / 1024
        largest_kib = max(of_rank for _, of_rank in run) / 1024
        attended[way.__name__] = Attended(is_right, sent_kib, largest_kib)
    return attended


# ---- measure: experts ----------------------------------------------------------------------------

TOKENS, TOKEN_US = 64, 1.0  # of each rank; what an expert takes for a token


def make_experts(count: int) -> list[torch.Tensor]:
    """A weight (16, 16) for each expert, the same in every process."""
    generator = torch.Generator().manual_seed(4)
    shape = (count, WIDTH, WIDTH)
    return list(torch.randn(shape, generator=generator, dtype=torch.float64))


def tokens_of(rank: int) -> torch.Tensor:
    """A rank's tokens, (64, 16)."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def choices_of(name: str) -> torch.Tensor:
    """The expert of each of a rank's tokens, as a router might have chosen."""
    numbers = torch.arange(TOKENS)
    if name == "balanced":
        return numbers % 4
    return torch.where(numbers % 2 == 0, 0, (numbers // 2) % 3 + 1)  # half of them to expert 0


@dataclass(frozen=True)
class Routed:
    """A layer of experts in real ranks.

    Attributes:
        is_right: Whether all outputs are those of one process.
        received: By rank, how many tokens its expert got.
        replay: The layer on a network where messages take next to no time.
    """

    is_right: bool
    received: list[int]
    replay: Replay


def route(layer: Callable, name: str, world_size: int = 4) -> Routed:
    """Send tokens to experts and back; `layer(tokens, choice, expert)` returns outputs, count."""

    def worker() -> tuple[torch.Tensor, int]:
        rank = dist.get_rank()
        return layer(tokens_of(rank), choices_of(name), make_experts(world_size)[rank])

    run = launch(worker, world_size=world_size, backend="gloo", trace=True)
    experts, choice = torch.stack(make_experts(world_size)), choices_of(name)
    furthest_off = 0.0
    for rank, (outputs, _) in enumerate(run):
        right = torch.tanh(torch.einsum("ti,tij->tj", tokens_of(rank), experts[choice]))
        furthest_off = max(furthest_off, (outputs - right).abs().max().item())
    received = [count for _, count in run]
    last = {}  # by rank, the call that sends outputs back
    for event in run.trace:
        if event.kind == "all_to_all":
            last[event.rank] = event.index

    def compute_us(event: Any) -> float:
        is_last = event.index == last[event.rank]
        return TOKEN_US * received[event.rank] if is_last else 0.0

    return Routed(furthest_off < 1e-12, received, run.trace.replay(FREE, compute_us))


def waits_us(replay: Replay) -> list[float]:
    """By rank, microseconds that it waits in calls."""
    waited = [0.0 for _ in replay.finish_us]
    for bar in replay.intervals:
        if bar.what == "wait":
            waited[bar.rank] += bar.end_us - bar.start_us
    return waited
