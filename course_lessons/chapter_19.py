"""What chapter 19 runs in pretended ranks, judges, and scores: when a training stops scaling."""

import functools
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lessons import scaling
from course_lessons.scaling import CLUSTER, MODELS, TOKENS, Chip, Cluster, Plan, Score, Transformer
from course_lessons.tensor_parallel import ColumnLinear, RowLinear
from course_utils import Network, dry_run, launch
from course_utils.dry_run import DryRun

# ---- run: calls of real and of pretended ranks ---------------------------------------------------


def sharded_step(blocks: int, width: int = 64) -> None:
    """In a rank: a step of FSDP2 over some blocks of 8 * width ** 2 weights."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential()
    for _ in range(blocks):
        up = nn.Linear(width, 4 * width, bias=False)
        down = nn.Linear(4 * width, width, bias=False)
        model.append(fully_shard(nn.Sequential(up, nn.GELU(), down), mesh=mesh))
    fully_shard(model, mesh=mesh)
    model(torch.randn(1, width)).sum().backward()


def cut_step(blocks: int, tensor: int, width: int = 64, rows: int = 32) -> None:
    """In a rank: a step of some blocks, each cut among `tensor` neighbours as in chapter 17."""
    group, _ = dist.new_subgroups(tensor)
    model = nn.Sequential()
    for _ in range(blocks):
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        model.extend([ColumnLinear(up, group), nn.GELU(), RowLinear(down, group)])
    x = torch.randn(rows, width, requires_grad=True)
    model(x).sum().backward()


def calls(events: Iterable[Any]) -> list[tuple]:
    """What each call is, for comparing: kind, bytes, group."""
    return [(event.kind, event.bytes, event.group) for event in events if event.kind != "wait"]


def count_calls(events: Iterable[Any]) -> None:
    """Print how often each call is made, and how many bytes are handed in."""
    counted = Counter(calls(events))
    for (kind, handed_in, group), times in counted.items():
        print(f"  {times} × {kind} of {handed_in:,} bytes, in a group of {len(group):,}")


def sent_bytes(events: Iterable[Any]) -> float:
    """What a rank sends if every call is a ring (course_utils/network/collectives.py)."""
    total = 0.0
    for event in events:
        others = len(event.group) - 1
        if event.kind == "all_gather":
            total += others * event.bytes
        elif event.kind == "reduce_scatter":
            total += others * event.bytes / len(event.group)
        elif event.kind == "all_reduce":
            total += 2 * others * event.bytes / len(event.group)
    return total


def compare(world_sizes: Sequence[int], blocks: int = 4) -> None:
    """Print whether pretended ranks make the calls of real ones, of as many bytes."""
    for world_size in world_sizes:
        launched = launch(sharded_step, blocks, world_size=world_size, backend="gloo", trace=True)
        pretended = dry_run(sharded_step, blocks, world_size=world_size)
        are_equal = True
        for rank in range(world_size):
            real = launched.trace.of_rank(rank)
            are_equal &= calls(real) == calls(pretended.of_rank(rank))
        really_sent = max(launched.trace.traffic().sent_bytes)
        counted = sent_bytes(pretended.of_rank(0))
        print(f"{world_size} ranks: {'the same' if are_equal else 'other'} calls; sent by a rank:")
        print(f"  {really_sent:,.0f} bytes by real ranks, {counted:,.0f} by pretended ones")


def timed(run: Callable[[], DryRun]) -> DryRun:
    """Run it, and print about how long it takes, and how large its largest process gets."""
    start = time.monotonic()
    pretended = run()
    seconds = time.monotonic() - start
    per_mib = 2**20 if sys.platform == "darwin" else 2**10
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / per_mib
    print(f"about {seconds:.1f} s, and at most about {mib:.0f} MiB in a process")
    return pretended


def enlarged(pretended: DryRun, block_bytes: float) -> DryRun:
    """The same calls for blocks of other sizes: a gather takes a shard, a scatter the whole."""
    share = round(block_bytes / pretended.world_size)
    events = []
    for event in pretended.events:
        if event.kind == "all_gather":
            event = replace(event, bytes=share)
        elif event.kind == "reduce_scatter":
            parts = (share,) * len(event.parts)
            event = replace(event, bytes=share * pretended.world_size, parts=parts)
        events.append(event)
    return replace(pretended, events=tuple(events))


def fsdp_seconds(model: Transformer, chips: int, cluster: Cluster = CLUSTER) -> float:
    """Seconds of all of FSDP2's calls in a step of a model, one after the other, by replay.

    One rank is run, of narrow blocks: its calls are all ranks', and their bytes are replaced.
    """
    run = dry_run(sharded_step, model.layers, 8, world_size=chips, ranks=[0])
    block_bytes = scaling.WEIGHT_BYTES * model.weights / model.layers
    latency_s, bytes_s = cluster.link(chips, apart=1)
    network = Network(latency_us=latency_s * 1e6, gbit_s=bytes_s * 8 / 1e9)
    return max(enlarged(run, block_bytes).replay(network).finish_us) / 1e6


# ---- write it: three formulas --------------------------------------------------------------------


def fsdp_bytes(weights: float, ranks: int, bytes_per_weight: float) -> float:
    """Our finished form."""
    two_gathers_and_a_scatter = 3
    return two_gathers_and_a_scatter * (ranks - 1) / ranks * bytes_per_weight * weights


def tokens_to_hide(flops_s: float, bytes_s: float) -> float:
    """Our finished form: 6 FLOPs per weight and token, and 3 * 2 bytes per weight."""
    return flops_s / bytes_s


def state_bytes(weights: float, dp: int, tp: int, pp: int, zero: int) -> float:
    """Our finished form: 2 bytes for a weight, 2 for its gradient, 12 for Adam."""
    part = weights / (tp * pp)
    if zero == 0:
        return 16 * part
    if zero == 1:
        return (4 + 12 / dp) * part
    return 16 / dp * part


_WIDTHS = (32, 64)  # of the recorded blocks, of which there are three
_BLOCKS = 3
RECORDED_RANKS = {2: "real", 4: "real", 32: "pretended"}


def bytes_check() -> dict[str, Any]:
    """The options of `check` for `fsdp_bytes`: recordings of real and pretended ranks."""
    sent = {}
    for ranks in RECORDED_RANKS:
        for width in _WIDTHS:
            sent[ranks, width] = recorded_bytes(ranks, width)

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        ranks = int(case.split()[0])
        width = _WIDTHS[int(torch.randint(2, ()))]
        per_weight = (2, 4)[int(torch.randint(2, ()))]
        return recorded_weights(width), ranks, per_weight

    def spec(all_weights: list, all_ranks: list, all_per_weight: list) -> list[float]:
        wanted = []
        for weights, ranks, per_weight in zip(all_weights, all_ranks, all_per_weight, strict=True):
            width = round((weights / recorded_weights(1)) ** 0.5)
            wanted.append(sent[ranks, width] * per_weight / 4)
        return wanted

    cases = ["2 ranks", "4 ranks", "32 ranks, pretended"]
    return {"spec": spec, "inputs": inputs, "cases": cases, "world_sizes": (1,), "rtol": 1e-6}


def recorded_weights(width: int) -> int:
    """Weights of the recorded blocks."""
    return _BLOCKS * 8 * width**2


@functools.cache  # the check and the picture ask for the same
def recorded_bytes(ranks: int, width: int) -> float:
    """Bytes of float32 that a rank sends in a step of FSDP2."""
    if ranks > 4:
        run = dry_run(sharded_step, _BLOCKS, width, world_size=ranks, ranks=[0])
        return sent_bytes(run.of_rank(0))
    run = launch(sharded_step, _BLOCKS, width, world_size=ranks, backend="gloo", trace=True)
    return max(run.trace.traffic().sent_bytes)


def _draw(low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), dtype=torch.float64).item()


def _tokens_inputs(rank: int, world_size: int, case: str) -> tuple[float, float]:
    return _draw(1e14, 2e15), _draw(1e10, 9e11)


def crossing_tokens(weights: float, flops_s: float, sending_s: float) -> float:
    """Tokens per chip at which computing takes as long as sending, found by halving."""
    low, high = 0.0, 1e9
    for _ in range(100):
        tokens = (low + high) / 2
        hides = 6 * weights * tokens / flops_s > sending_s
        low, high = (low, tokens) if hides else (tokens, high)
    return high


def _tokens_spec(all_flops_s: list, all_bytes_s: list) -> list[float]:
    """Where both times cross, for some number of weights."""
    wanted = []
    for flops_s, bytes_s in zip(all_flops_s, all_bytes_s, strict=True):
        sending_s = 3 * scaling.WEIGHT_BYTES * 7e9 / bytes_s
        wanted.append(crossing_tokens(7e9, flops_s, sending_s))
    return wanted


@dataclass(frozen=True)
class Crossing:
    """Where computing takes as long as what FSDP sends.

    Attributes:
        weights: Of the model.
        flops_s: What a chip computes per second.
        sending_s: Seconds that it sends in a step.
        tokens: Tokens per chip at which it computes as long.
    """

    weights: float
    flops_s: float
    sending_s: float
    tokens: float

    def computing_s(self, tokens: float) -> float:
        """Seconds that a chip computes, at 6 FLOPs per weight and token."""
        return 6 * self.weights * tokens / self.flops_s


def find_crossings(sent_bytes: Callable[..., float], chips: int) -> dict[str, Crossing]:
    """For each model, where computing takes as long as sending; print it."""
    flops_s = CLUSTER.chip.peak_flops_s * CLUSTER.chip.reached
    bytes_s = CLUSTER.link(chips, apart=1)[1]
    crossings = {}
    for name, model in MODELS.items():
        sending_s = sent_bytes(model.weights, chips, scaling.WEIGHT_BYTES) / bytes_s
        tokens = crossing_tokens(model.weights, flops_s, sending_s)
        crossings[name] = Crossing(model.weights, flops_s, sending_s, tokens)
        print(f"{name}: {sending_s:.2f} s to send, hidden by {tokens:,.0f} tokens per chip")
    return crossings


TOKENS_CHECK = {
    "spec": _tokens_spec,
    "inputs": _tokens_inputs,
    "cases": ("any chip and network",),
    "world_sizes": (1,),
    "hide": (crossing_tokens,),
    "rtol": 1e-6,
}

_SHAPES = ((2, 2), (2, 4), (4, 4), (2, 8))  # layers, and ranks that cut them


def tensor_s(
    layers: int, hidden: int, tokens: int, tp: int, latency_s: float, bytes_s: float
) -> float:
    """Our finished form: four all-reduces in each layer, of two bytes per number, as rings."""
    size = 2 * tokens * hidden
    ring_s = 2 * (tp - 1) * (latency_s + size / tp / bytes_s)
    return 4 * layers * ring_s


def tensor_check() -> dict[str, Any]:
    """The options of `check` for `tensor_s`: replays of real ranks, and of eight pretended ones."""
    traces = {}
    for layers, tp in _SHAPES:
        for rows in (16, 32):
            traces[layers, tp, rows] = _cut_trace(layers, tp, rows)

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        layers, tp = _SHAPES[_CUT_CASES.index(case)]
        rows = (16, 32)[int(torch.randint(2, ()))]
        # The recorded numbers have four bytes, so half as many of two bytes would be as long.
        return layers, 64, 2 * rows, tp, _draw(1e-6, 2e-5), _draw(1e9, 4e11)

    def spec(*arguments: list) -> list[float]:
        wanted = []
        for layers, _hidden, tokens, tp, latency_s, bytes_s in zip(*arguments, strict=True):
            network = Network(latency_us=latency_s * 1e6, gbit_s=bytes_s * 8 / 1e9)
            finish_us = traces[layers, tp, tokens // 2].replay(network).finish_us
            wanted.append(max(finish_us) / 1e6)
        return wanted

    return {
        "spec": spec,
        "inputs": inputs,
        "cases": _CUT_CASES,
        "world_sizes": (1,),
        "hide": (scaling.step_time, scaling.ring_s),
        "rtol": 1e-6,
    }


_CUT_CASES = (
    "2 layers, 2 ranks",
    "2 layers, 4 ranks",
    "4 layers, 4 ranks",
    "2 layers, 8 ranks, pretended",
)


def _cut_trace(layers: int, tp: int, rows: int) -> Any:
    """What `replay` needs of so many layers, each of two blocks, cut among all ranks."""
    if tp > 4:
        some = [0, tp - 1]  # the others make the same calls
        return dry_run(cut_step, 2 * layers, tp, 64, rows, world_size=tp, ranks=some)
    options = {"world_size": tp, "backend": "gloo", "trace": True}
    return launch(cut_step, 2 * layers, tp, 64, rows, **options).trace


def fastest_s(model: Transformer, cluster: Cluster, chips: int) -> float:
    """Our finished form: the shortest step of all plans that fit."""
    fitting_s = []
    for plan in scaling.plans(model, chips):
        scored = scaling.step_time(model, cluster, plan)
        if scored.fits:
            fitting_s.append(scored.step_s)
    return min(fitting_s)


def _fastest_inputs(rank: int, world_size: int, case: str) -> tuple:
    model, chips = case.split(" on ")
    between_bytes_s = _draw(5e9, 5e10)
    cluster = replace(CLUSTER, between_bytes_s=between_bytes_s)
    return MODELS[model], cluster, int(chips.split()[0])


def _fastest_spec(all_models: list, all_clusters: list, all_chips: list) -> list[float]:
    wanted = []
    for model, cluster, chips in zip(all_models, all_clusters, all_chips, strict=True):
        wanted.append(scaling.ranked(model, cluster, chips)[0][0].step_s)
    return wanted


FASTEST_CHECK = {
    "spec": _fastest_spec,
    "inputs": _fastest_inputs,
    "cases": ("7B on 64 chips", "70B on 128 chips", "70B on 512 chips"),
    "world_sizes": (1,),
    "hide": (scaling.ranked,),
    "rtol": 1e-6,
}
_ZERO = {"no ZeRO": 0, "ZeRO-1": 1, "ZeRO-3": 3}


def _state_inputs(rank: int, world_size: int, case: str) -> tuple:
    dp, tp, pp = [2 ** int(torch.randint(1, 5, ())) for _ in range(3)]
    return _draw(1e9, 1e11), dp, tp, pp, _ZERO[case]


def _state_spec(*arguments: list) -> list[float]:
    wanted = []
    for weights, dp, tp, pp, zero in zip(*arguments, strict=True):
        wanted.append(scaling.state_bytes(weights, Plan(dp, tp, pp, zero=zero)))
    return wanted


STATE_CHECK = {
    "spec": _state_spec,
    "inputs": _state_inputs,
    "cases": tuple(_ZERO),
    "world_sizes": (1,),
    "hide": (scaling.state_bytes,),
    "rtol": 1e-6,
}


def describe(cluster: Cluster) -> None:
    """Print what a cluster is."""
    chip = cluster.chip
    print(
        f"a chip: {chip.peak_flops_s / 1e12:.0f} TFLOP/s at its peak, of which it reaches", end=""
    )
    print(f" {chip.reached:.0%} (assumed), and {chip.memory_bytes / 1e9:.0f} GB")
    inside_us, between_us = cluster.inside_s * 1e6, cluster.between_s * 1e6
    print(f"inside a node of {cluster.per_node}: {cluster.inside_bytes_s / 1e9:.0f} GB/s", end="")
    print(f" from each chip, {inside_us:.0f} µs (assumed)")
    print(f"to other nodes: {cluster.between_bytes_s / 1e9:.0f} GB/s from each chip's card", end="")
    print(f", {between_us:.0f} µs (assumed)")
    print("a ring uses the cards of all its ranks in a node")


# ---- score: a plan among all plans ---------------------------------------------------------------


def score_plan(model: str, plan: Plan, cluster: Cluster = CLUSTER) -> Score:
    """Print what a plan comes to by the model, and its place among all plans that fit."""
    scored = scaling.step_time(MODELS[model], cluster, plan)
    print(f"{model} on {plan.chips} chips: {_named(plan)}")
    print(f"  holds {scored.bytes / 1e9:.0f} GB of {cluster.chip.memory_bytes / 1e9:.0f}", end="")
    print("" if scored.fits else ", so it doesn't fit")
    print(f"  step {scored.step_s:.2f} s, MFU {scored.mfu:.1%}")
    others = []
    for other, other_plan in scaling.ranked(MODELS[model], cluster, plan.chips):
        if other_plan.zero <= max(plan.zero, 1):
            others.append(other)
    faster = sum(other.step_s < scored.step_s - 1e-9 for other in others)
    without = "" if plan.zero == 3 else " without ZeRO-3"
    print(f"  {faster} of the {len(others)} plans{without} that fit are faster")
    return scored


def _named(plan: Plan) -> str:
    cut = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp}"
    return f"{cut}, {plan.microbatches} microbatches, ZeRO-{plan.zero}"


def best_by_tp(model: str, chips: int, cluster: Cluster = CLUSTER) -> dict[int, Score | None]:
    """Print and return the fastest plan for each tp, or None where none fits."""
    best: dict[int, Score | None] = {}
    for tp in (1, 2, 4, 8, 16):
        fitting = [
            pair for pair in scaling.ranked(MODELS[model], cluster, chips) if pair[1].tp == tp
        ]
        best[tp] = fitting[0][0] if fitting else None
        if fitting:
            scored, plan = fitting[0]
            print(f"tp {tp:2}: MFU {scored.mfu:.1%} with {_named(plan)}")
        else:
            print(f"tp {tp:2}: nothing fits")
    return best


def speed_by_chips(
    fastest: Callable[..., float], counts: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    """By model, for each count of chips: the shortest step in seconds, and the speed per chip.

    The speed is tokens per second and chip, relative to that of the first count.
    """
    speeds: dict[str, list[tuple[float, float]]] = {}
    for name, model in MODELS.items():
        steps_s = [fastest(model, CLUSTER, chips) for chips in counts]
        speeds[name] = []
        for chips, step_s in zip(counts, steps_s, strict=True):
            speeds[name].append((step_s, steps_s[0] * counts[0] / (step_s * chips)))
    return speeds


# ---- compare: what others have published ---------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """A run that its authors have described: the MFU that follows from what they measured."""

    name: str
    model: Transformer
    cluster: Cluster
    plan: Plan
    tokens: int
    mfu: float


def _gpt(layers: int, hidden: int) -> Transformer:
    return Transformer(layers, hidden, 4 * hidden, 2, 1.0, 51200, 1, 2048)


_SELENE = Cluster(Chip(312e12, 0.6, 80e9), 8, 300e9, 25e9, 2e-6, 5e-6)  # A100s
_LLAMA = Transformer(128, 16384, 53248, 3, 1 / 16, 128256, 2, 8192)


def _megatron(
    billions: str, shape: tuple[int, int], pp: int, chips: int, batch: int, tflops: float
) -> Published:
    """A row of Megatron-LM's table 1; its FLOPs count the forward pass again in backward."""
    dp = chips // 8 // pp
    plan = Plan(dp, 8, pp, batch // dp, zero=0, recompute=True)
    name = f"Megatron {billions}"
    return Published(name, _gpt(*shape), _SELENE, plan, batch * 2048, tflops / 312 * 3 / 4)


def _llama(chips: int, dp: int, batch: int, mfu: float) -> Published:
    plan = Plan(dp, 8, 16, batch, zero=1)
    return Published("Llama 3 405B", _LLAMA, CLUSTER, plan, dp * batch * 8192, mfu)


PUBLISHED = (
    _megatron("18B", (40, 6144), 1, 256, 1024, 135),
    _megatron("76B", (60, 10240), 4, 1024, 1792, 140),
    _megatron("146B", (80, 12288), 8, 1536, 2304, 148),
    _megatron("1008B", (128, 25600), 64, 3072, 3072, 163),
    _llama(8192, 64, 32, 0.43),
    _llama(16384, 128, 16, 0.41),
)


def compare_with_published() -> list[tuple[Published, Score]]:
    """Print published MFU beside the model's."""
    print("                  chips   dp x tp x pp    published   model   deviation   bubble")
    both = []
    for run in PUBLISHED:
        scored = scaling.step_time(run.model, run.cluster, run.plan, run.tokens)
        plan = run.plan
        cut = f"{plan.dp} x {plan.tp} x {plan.pp}"
        off = scored.mfu / run.mfu - 1
        numbers = (
            f"{run.mfu:9.1%}{scored.mfu:8.1%}{off:12.0%}{scored.bubble_s / scored.step_s:9.0%}"
        )
        print(f"{run.name:15}{plan.chips:8,}   {cut:14}{numbers}")
        both.append((run, scored))
    return both


def hidden_until(model: str, replayed_s: Mapping[int, float]) -> int:
    """Print computing beside sending by number of chips; return the last where it hides.

    Args:
        model: Its name.
        replayed_s: By number of chips, the seconds of all calls.
    """
    last = 0
    print("  chips   tokens per chip   computing   bytes alone   replayed   (s)")
    for n, sending_s in replayed_s.items():
        computing_s = computing(MODELS[model], n)
        alone_s = fsdp_bytes(MODELS[model].weights, n, 2) / CLUSTER.link(n, apart=1)[1]
        print(f"{n:7,}{TOKENS // n:18,}{computing_s:12.2f}{alone_s:14.2f}{sending_s:11.2f}")
        if sending_s <= computing_s:
            last = n
    return last


def computing(model: Transformer, chips: int, tokens: int = TOKENS) -> float:
    """Seconds that each of so many chips computes in a step."""
    chip = CLUSTER.chip
    return tokens * model.flops_per_token / chips / (chip.peak_flops_s * chip.reached)
