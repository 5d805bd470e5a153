"""What chapter 12 compares methods with: a training, a table of rows, and checks.

A method takes a network and returns two functions: what a step calls, and what happens after it.
"""

import copy
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_material.digits import digits
from course_material.language import SmallGPT, novel
from course_utils import Network, launch
from course_utils.network.trace import Trace

Method = Callable[[nn.Module], tuple[Callable, Callable[[int], None]]]
SEEDS = (0, 1)
PERIOD = 16  # steps that are recorded, and between two exchanges of local SGD
LETTERS = 32  # of a sequence
BACKWARD = 2 / 3  # of a step's computing
tokens, alphabet = novel()
text, held_out = tokens[:-4000], tokens[-3960:].view(120, LETTERS + 1)


def my_device() -> str:
    """In a rank, "cuda" is the GPU that launch gave it."""
    return "cuda" if torch.cuda.is_available() else "cpu"


# ---- the training --------------------------------------------------------------------------------


def small_gpt() -> SmallGPT:
    """The chapter's network: 56,768 weights, 227 KB."""
    return SmallGPT(len(alphabet), depth=1, context=LETTERS)


def batch(draw: torch.Generator, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of 32 letters, and what follows each letter; both (size, 32)."""
    starts = torch.randint(len(text) - LETTERS, (size, 1), generator=draw)
    drawn = text[starts + torch.arange(LETTERS + 1)].to(my_device())
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(network: nn.Module, sequences: torch.Tensor) -> float:
    """On text that nobody trains on."""
    with torch.inference_mode():
        return cross_entropy(network(sequences[:, :-1]).mT, sequences[:, 1:]).item()


def _read_alone(steps: int = 60) -> tuple[dict, float]:
    torch.manual_seed(0)
    network, draw = small_gpt().to(my_device()), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    for _ in range(steps):
        inputs, targets = batch(draw, size=16)
        optimizer.zero_grad()
        cross_entropy(network(inputs).mT, targets).backward()
        optimizer.step()
    return network.state_dict(), loss_of(network, held_out.to(my_device()))


@functools.cache
def begun() -> tuple[nn.Module, float]:
    """Where all methods start from: a GPT that has read for a while, alone; and its loss."""
    ((state, loss),) = launch(_read_alone, world_size=1)
    network = small_gpt()
    network.load_state_dict(state)
    return network, loss


def train(
    method: Method, seed: int = 0, steps: int = 48, rate: float = 0.003, look: int = 16
) -> tuple[list[float], torch.Tensor]:
    """Returns losses before and after every `look` steps, on a quarter of text, and weights."""
    device = my_device()
    start, loss_before = begun()
    network = copy.deepcopy(start).to(device)
    quarter = held_out[dist.get_rank() :: 4].to(device)
    model, after_step = method(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, fused=True)
    draw = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    losses = [loss_before]
    for step in range(1, steps + 1):
        inputs, targets = batch(draw)
        optimizer.zero_grad()
        cross_entropy(model(inputs).mT, targets).backward()
        optimizer.step()
        after_step(step)
        if step % look == 0:
            losses.append(loss_of(network, quarter))
    return losses, nn.utils.parameters_to_vector(network.parameters()).detach()


def marked(method: Method) -> Method:
    """The method, with a barrier before and after 16 of its steps."""

    def wrapped(network: nn.Module) -> tuple:
        model, after_step = method(network)

        def afterwards(step: int) -> None:
            after_step(step)
            if step in (2, 2 + PERIOD):
                dist.barrier()

        return model, afterwards

    return wrapped


def between_barriers(trace: Trace) -> Trace:
    """What was recorded between each rank's first two barriers."""
    kept = []
    for rank in range(trace.world_size):
        events = trace.of_rank(rank)
        barriers = [place for place, event in enumerate(events) if event.kind == "barrier"]
        kept += events[barriers[0] + 1 : barriers[1]]
    return replace(trace, events=tuple(kept))


def _train_all(method: Method, rate: float) -> torch.Tensor:
    losses = []
    for seed in SEEDS:
        recorded = marked(method) if seed == SEEDS[0] else method
        losses.append(train(recorded, seed, rate=rate)[0])
    return torch.tensor(losses)


def trained(method: Method, rate: float = 0.003) -> tuple[torch.Tensor, Trace]:
    """Losses by seed and look, over all held-out text; and the recording."""
    results = launch(_train_all, method, rate, world_size=4, timeout=120, trace=True)
    return torch.stack(list(results)).mean(dim=0), between_barriers(results.trace)


def half_apart(values: torch.Tensor) -> torch.Tensor:
    """Half the distance between the two seeds, which are the first dimension."""
    return (values[0] - values[1]).abs() / 2


def format_loss(losses: torch.Tensor) -> str:
    """The last loss, and half the distance between the seeds."""
    last = losses[:, -1]
    return f"about {last.mean():.3f} ± {half_apart(last):.3f}"


def _long_losses(method: Method, steps: int = 128) -> list[float]:
    return [train(method, seed, steps, look=steps)[0][-1] for seed in SEEDS]


def print_after_128(methods: Mapping[str, Method]) -> None:
    """Train for 128 steps, with two ranks and two seeds, and print the losses."""
    for name, method in methods.items():
        results = launch(_long_losses, method, world_size=2, timeout=120)
        print(f"{name:14} loss {format_loss(torch.tensor(list(results)).mean(dim=0)[:, None])}")


def weights_apart(first: Method, second: Method, steps: int = 8) -> float:
    """The largest difference of a weight after so many steps with one method or the other."""

    def differ() -> float:
        difference = train(first, steps=steps)[1] - train(second, steps=steps)[1]
        return difference.abs().max().item()

    return launch(differ, world_size=4)[0]


def _models_by_step(method: Method, steps: int) -> list[int]:
    counts = []

    def counted(network: nn.Module) -> tuple:
        model, after_step = method(network)

        def afterwards(step: int) -> None:
            after_step(step)
            weights = nn.utils.parameters_to_vector(network.parameters()).detach()
            of_all = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
            dist.all_gather(of_all, weights)
            counts.append(len(torch.stack(of_all).unique(dim=0)))

        return model, afterwards

    train(counted, steps=steps)
    return counts


def print_models(methods: Mapping[str, Method], steps: int = 9) -> None:
    """Print how many different models four ranks have after each step."""
    print(f"{'different models after step':28}", *range(1, steps + 1))
    every_row = launch(lambda: [_models_by_step(m, steps) for m in methods.values()], world_size=4)
    for name, counts in zip(methods, every_row[0], strict=True):
        print(f"{name:28}", *counts)


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A method's row.

    Attributes:
        kb: That a rank sends in a step.
        ms: Of a step, by network.
        losses: By seed and look.
        trace: The recording of 16 steps.
        exchanges: How often ranks talk in 16 steps.
        plain_steps: How many steps are plain DDP before the method begins.
    """

    kb: float
    ms: dict[str, float]
    losses: torch.Tensor
    trace: Trace
    exchanges: int = PERIOD
    plain_steps: int = 0

    @property
    def in_backward(self) -> bool:
        """Whether messages may travel while backward computes: no step's call waits for them."""
        every_step = self.exchanges == PERIOD
        return every_step and not any(event.blocking for event in self.trace)


class Table:
    """Methods side by side, on modelled networks.

    Args:
        networks: By name.
        compute_ms: Of a step; nothing overlaps with it unless a function says so.
    """

    def __init__(self, networks: Mapping[str, Network], compute_ms: float) -> None:
        begun()  # before ranks are forked, which know it then
        self.networks, self.compute_ms = networks, compute_ms
        self.rows: dict[str, Measured] = {}

    def measure(
        self, name: str, method: Method, exchanges: int = PERIOD, plain_steps: int = 0
    ) -> None:
        """Train with two seeds, replay 16 recorded steps, and print a row."""
        losses, trace = trained(method)
        kb = max(trace.traffic("ring").sent_bytes) / PERIOD / 1000
        ms = {}
        for network_name, network in self.networks.items():
            ms[network_name] = self.compute_ms + messages_ms(trace, network, PERIOD)
        self.rows[name] = Measured(kb, ms, losses, trace, exchanges, plain_steps)
        self.print([name])

    def print(self, names: Iterable[str] | None = None) -> None:
        """Print rows, all by default."""
        titles = "".join(f"{name:>12}" for name in self.networks)
        print(f"{'of a step':24}{'KB':>6}{titles}  loss (two seeds)")
        for name in names or self.rows:
            row = self.rows[name]
            times = "".join(f"{ms:9.2f} ms" for ms in row.ms.values())
            print(f"{name:24}{row.kb:6.1f}{times}  {format_loss(row.losses)}")

    def stretched(self, name: str, world_size: int) -> Trace:
        """One exchange of a method's recording, as so many ranks would make it."""
        row = self.rows[name]
        return stretch(row.trace, row.exchanges, world_size)

    def total(self, name: str, per_step: Callable[[str], float], steps: int = 48) -> float:
        """What so many steps take, given what one step of a method takes."""
        plain_steps = self.rows[name].plain_steps
        return (steps - plain_steps) * per_step(name) + plain_steps * per_step("DDP")

    def kb_of(self, name: str) -> float:
        """Of a step."""
        return self.rows[name].kb

    def us_of(self, name: str) -> float:
        """Of a step at 1 Gbit/s."""
        return 1000 * self.rows[name].ms["1 Gbit/s"]

    def steps_of_ddp(self, name: str) -> float:
        """After how many steps DDP had the loss that a method ends at, by straight lines.

        Steps are what to compare. The loss falls fast at first, and slower from then on, so half
        of its fall takes less than half of the steps.
        """
        losses_of_ddp = self.rows["DDP"].losses.mean(dim=0)
        last_loss = self.rows[name].losses[:, -1].mean()
        return np.interp(-last_loss.item(), (-losses_of_ddp).tolist(), (0, 16, 32, 48)).item()

    def print_price(self) -> None:
        """Print what each method takes in 48 steps, and what DDP takes to the same loss."""
        print(f"{'48 steps of':24}{'MB a rank':>10}{'ms (1 Gbit/s)':>15}  DDP to the same loss")
        for name in self.rows:
            steps = self.steps_of_ddp(name)
            mb = self.total(name, self.kb_of) / 1000
            ms = self.total(name, self.us_of) / 1000
            mb_of_ddp = steps * self.kb_of("DDP") / 1000
            ms_of_ddp = steps * self.us_of("DDP") / 1000
            print(
                f"{name:24}{mb:10.2f}{ms:15.0f}  about {steps:.0f} steps, "
                f"about {mb_of_ddp:.1f} MB, about {ms_of_ddp:.0f} ms"
            )

    def candidates(
        self,
        network_name: str,
        world_size: int,
        without: Sequence[str] = (),
        algorithm: str = "ring",
    ) -> dict[str, "Candidate"]:
        """What a decision needs, for so many ranks, from stretched recordings.

        Progress is rounded to tenths, since two seeds tell no finer differences apart.

        Args:
            network_name: One of the table's networks.
            world_size: How many ranks.
            without: Names of rows that are left out.
            algorithm: How collectives are carried out, "ring" or "halving".
        """
        time_ms = {"ring": messages_ms, "halving": halving_ms}[algorithm]
        candidates = {}
        for name, row in self.rows.items():
            if name in without:
                continue
            steps = PERIOD // row.exchanges
            trace = self.stretched(name, world_size)
            each_ms = time_ms(trace, self.networks[network_name], steps)
            progress = round(self.steps_of_ddp(name) / 48, 1)
            candidates[name] = Candidate(each_ms, progress, row.in_backward)
        return candidates


def stretch(trace: Trace, exchanges: int, world_size: int) -> Trace:
    """Rank 0's first exchange in a recording of several, made by so many ranks."""
    events = trace.of_rank(0)
    events = events[: len(events) // exchanges]
    ranks = tuple(range(world_size))
    copies = [replace(event, rank=rank, group=ranks) for rank in ranks for event in events]
    return Trace(tuple(copies), (0.0,) * world_size)


def messages_ms(trace: Trace, network: Network, steps: int) -> float:
    """Of a step, without computing."""
    return max(trace.replay(network).finish_us) / 1000 / steps


def halving_ms(trace: Trace, network: Network, steps: int) -> float:
    """The same, where all ranks make rank 0's calls one by one, by halving and doubling.

    The formulas are chapter 06's, for powers of two: an all_reduce halves and doubles, an
    all_gather only doubles.
    """
    n = trace.world_size
    us_per_byte = 8 / (1000 * network.gbit_s)
    latencies_us = math.log2(n) * network.latency_us
    total_us = 0.0
    for event in trace.of_rank(0):
        if event.kind == "all_reduce":
            total_us += 2 * latencies_us + 2 * (n - 1) / n * event.bytes * us_per_byte
        if event.kind == "all_gather":
            total_us += latencies_us + (n - 1) * event.bytes * us_per_byte
    return total_us / 1000 / steps


# ---- write it: the decision ----------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A method to choose.

    Attributes:
        messages_ms: Of a step, on average.
        progress: Of a step, where that of plain DDP is 1.
        in_backward: Whether its messages may travel while backward computes.
    """

    messages_ms: float
    progress: float
    in_backward: bool


def fastest(candidates, compute_ms, overlap):
    """The method that takes the least time per progress."""
    times = {}
    for name, candidate in candidates.items():
        hidden_ms = 0.0
        if overlap and candidate.in_backward:
            hidden_ms = min(candidate.messages_ms, 2 / 3 * compute_ms)
        exposed_ms = candidate.messages_ms - hidden_ms
        step_ms = compute_ms + exposed_ms
        times[name] = step_ms / candidate.progress
    return min(times, key=times.get)


def _fastest_spec(
    all_candidates: Sequence[Mapping[str, Candidate]],
    all_compute_ms: Sequence[float],
    overlaps: Sequence[bool],
) -> list[str]:
    """By progress per time, where what's exposed is what backward doesn't last for."""
    answers = []
    for candidates, compute_ms, overlap in zip(
        all_candidates, all_compute_ms, overlaps, strict=True
    ):
        speeds = {}
        for name, candidate in candidates.items():
            exposed_ms = candidate.messages_ms
            if overlap and candidate.in_backward:
                exposed_ms = max(0.0, exposed_ms - BACKWARD * compute_ms)
            speeds[name] = candidate.progress / (compute_ms + exposed_ms)
        fastest = max(speeds, key=speeds.get)
        answers.append(fastest)
    return answers


def _fastest_inputs(rank: int, world_size: int, case: str) -> tuple[dict, float, bool]:
    names = [chr(ord("A") + number) for number in torch.randperm(8).tolist()]
    in_backward = [number % 2 == 0 for number in torch.randperm(8).tolist()]
    scale_ms, overlap = _DECISIONS[case]
    candidates = {}
    for name, hides in zip(names, in_backward, strict=True):
        numbers = torch.rand(2).tolist()
        candidates[name] = Candidate(scale_ms * (0.3 + numbers[0]), 0.5 + numbers[1] / 4, hides)
    return candidates, 1.0 + torch.rand(()).item(), overlap


_DECISIONS = {  # how long messages take, and whether they overlap
    "no overlap": (1.0, False),
    "overlap, much to send": (4.0, True),
    "overlap, all of it may hide": (0.8, True),
    "overlap, between the two": (1.2, True),
    "almost nothing to send": (0.01, False),
}
FASTEST = {
    "spec": _fastest_spec,
    "inputs": _fastest_inputs,
    "cases": [f"{case}, {number}" for case in _DECISIONS for number in range(6)],
    "world_sizes": (1, 3),
    "hide": (fastest,),
}
_DECISIONS = {f"{case}, {number}": how for case, how in _DECISIONS.items() for number in range(6)}


def print_decisions(
    choose: Callable[[Mapping[str, Candidate], float, bool], str],
    candidates: Mapping[str, Candidate],
    all_compute_ms: Sequence[float],
) -> None:
    """Print what a learner's function chooses, with and without overlap, and what that takes."""
    print("the least time per progress, and the method that takes it")
    print(f"{'a step computes for':22}{'nothing overlaps':32}all that can overlap does")
    for compute_ms in all_compute_ms:
        cells = []
        for overlap in (False, True):
            name = choose(dict(candidates), compute_ms, overlap)
            ms = ms_per_progress(candidates[name], compute_ms, overlap)
            cells.append(f"about {ms:.2f} ms, {name}")
        print(f"{compute_ms:10g} ms{'':9}{cells[0]:32}{cells[1]}")


def ms_per_progress(candidate: Candidate, compute_ms: float, overlap: bool) -> float:
    """Of a step that computes for so long, with what is hidden behind backward or without."""
    exposed_ms = candidate.messages_ms
    if overlap and candidate.in_backward:
        exposed_ms = max(0.0, exposed_ms - BACKWARD * compute_ms)
    return (compute_ms + exposed_ms) / candidate.progress


def lines_of(candidates: Mapping[str, Candidate]) -> Iterator[str]:
    """A line for each method that may be chosen."""
    for name, candidate in candidates.items():
        hides = "may overlap" if candidate.in_backward else "never hidden"
        yield (
            f"{name:26}{candidate.messages_ms:5.2f} ms of messages per step, {hides:12} "
            f"progress about {candidate.progress:.1f}"
        )


# ---- write it: hooks -----------------------------------------------------------------------------


class _Given(nn.Module):
    """A network whose gradients are what it is given."""

    def __init__(self, gradients: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones_like(gradient) for gradient in gradients)

    def forward(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return sum((weight * gradient).sum() for weight, gradient in pairs)


def under_ddp(hook: Callable) -> Callable[..., dict[str, Any]]:
    """Let DDP call the hook; return the mean gradients of each step, and the dtypes sent."""

    @functools.wraps(hook)
    def run(steps: Sequence, state: Any, limit_mb: float) -> dict[str, Any]:
        network, sent = _Given(steps[0]), set()
        model = DistributedDataParallel(network, bucket_cap_mb=limit_mb)
        model.register_comm_hook(state, hook)

        def note(call: Any) -> None:
            if "BROADCAST" not in call.name.name:  # DDP's own, when it fills buckets anew
                sent.update(
                    str(tensor.dtype).removeprefix("torch.") for tensor in call.input_tensors
                )

        dist.group.WORLD.register_pre_hook(5, note)
        means = []
        for gradients in steps:
            model.zero_grad()
            model(gradients).backward()
            means.append(flat(weight.grad for weight in network.weights))
        dist.group.WORLD.unregister_pre_hook(5)
        # After its first step DDP fills its buckets anew.
        return {"means": torch.stack(means[1:]), "sent": ", ".join(sorted(sent))}

    return run


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All numbers of some tensors, in one row."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def half(dtype, bucket):
    """Send the bucket in another type."""
    short = (bucket.buffer() / dist.get_world_size()).to(dtype)
    work = dist.all_reduce(short, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].to(bucket.buffer().dtype))


def _half_spec(all_steps, dtypes, limits_mb):
    world_size, means = len(all_steps), []
    for step in zip(*all_steps, strict=True):
        short = [(flat(gradients) / world_size).to(dtypes[0]) for gradients in step]
        means.append(sum(tensor.float() for tensor in short))
    outcome = {"means": torch.stack(means[1:]), "sent": str(dtypes[0]).removeprefix("torch.")}
    return [outcome] * world_size


_HALF_CASES = {  # dtype, size of buckets in MB, and what gradients are like
    "bfloat16": (torch.bfloat16, 25, lambda rank: 1.0),
    "float16, many buckets": (torch.float16, 1e-4, lambda rank: 1.0),
    "bfloat16, very large gradients": (torch.bfloat16, 25, lambda rank: 1e7),
    "float16, a sum that does not fit": (torch.float16, 25, lambda rank: 4e4),
    "float16, only a mean that fits": (torch.float16, 25, lambda rank: 7e4 if rank == 0 else 0.1),
}


def _half_inputs(rank, world_size, case):
    dtype, limit_mb, size = _HALF_CASES[case]
    steps = []
    for _ in range(3):
        steps.append([size(rank) * (0.95 + torch.rand(shape) / 20) for shape in ((4, 5), (7,))])
    return steps, dtype, limit_mb


HALF = {"spec": _half_spec, "inputs": _half_inputs, "cases": list(_HALF_CASES)}
HALF |= {"world_sizes": (2, 3), "rtol": 0.02, "timeout": 30}


def mean_of_large(hook: Callable, state: Any) -> float:
    """What a hook makes of a gradient that is 70,000 on rank 0, and 0 on rank 1."""
    value = 0.0
    if dist.get_rank() == 0:
        value = 70_000.0
    large = torch.full((3,), value, device=my_device())
    gradients = [[large]] * 2
    return under_ddp(hook)(gradients, state, 25)["means"][0, 0].item()


def ready(tensor: torch.Tensor) -> torch.futures.Future:
    """A future that is done."""
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def largest(flat, share):
    """Places of the largest entries by absolute value; at least one."""
    return flat.abs().topk(max(1, int(share * len(flat))), sorted=False).indices


def top_k(share, bucket):
    """Send the largest entries of the bucket, each with its place."""
    flat, n = bucket.buffer(), dist.get_world_size()
    places = largest(flat, share)
    all_places = places.new_empty(n * len(places), dtype=torch.int32)
    all_values = flat.new_empty(n * len(places))
    dist.all_gather_into_tensor(all_places, places.int())
    dist.all_gather_into_tensor(all_values, flat[places])
    return ready(torch.zeros_like(flat).index_add_(0, all_places.long(), all_values / n))


def _top_k_spec(all_steps, shares, limits_mb):
    means = []
    for step in zip(*all_steps, strict=True):
        total = 0
        for gradients in step:
            buckets = [gradients] if limits_mb[0] > 1 else [[tensor] for tensor in gradients]
            sent = []
            for bucket in map(flat, buckets):
                kept = torch.zeros_like(bucket)
                places = largest(bucket, shares[0])
                kept[places] = bucket[places]
                sent.append(kept)
            total = total + torch.cat(sent)
        means.append(total / len(step))
    return [{"means": torch.stack(means[1:]), "sent": "float64, int32"}] * len(all_steps)


_TOP_K_CASES = {  # share, size of buckets in MB
    "three tenths": (0.3, 25),
    "less than one number": (0.01, 25),
    "everything": (1.0, 25),
    "a tenth, many buckets": (0.1, 1e-5),
}


def _top_k_inputs(rank, world_size, case):
    steps = []
    for _ in range(3):
        step = [torch.randn(shape, dtype=torch.float64) for shape in ((4, 5), (7,), (3, 3))]
        step[0][1] += 5  # some places are large on all ranks
        step[2][0] -= 5
        steps.append(step)
    return steps, *_TOP_K_CASES[case]


def _top_k_budget(world_size, case):
    share, limit_mb = _TOP_K_CASES[case]
    sizes = (36,) if limit_mb > 1 else (20, 7, 9)
    sent_bytes = sum(max(1, int(share * size)) for size in sizes) * (4 + 8)
    start_bytes = 8 * (world_size - 1) + 36 * 8 + 130  # DDP's own: checks, weights, new buckets
    return {"sent_bytes": 3 * (world_size - 1) * sent_bytes + start_bytes}


TOP_K = {"spec": _top_k_spec, "inputs": _top_k_inputs, "cases": list(_TOP_K_CASES)}
TOP_K |= {"budget": _top_k_budget, "world_sizes": (2, 3), "rtol": 1e-9, "timeout": 30}


class Remembering:
    """Error feedback around `top_k`: what was not sent is added to the next gradient.

    Lab 12 has the form for a network of several buckets, each of which needs a rest of its own.
    """

    def __init__(self, share: float) -> None:
        self.share, self.left_over, self.steps = share, 0, 0

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP calls.

        Raises:
            ValueError: The network has more than one bucket.
        """
        if not bucket.is_last() or bucket.index():
            raise ValueError("Remembering keeps one rest: give the network a single bucket.")
        buffer = bucket.buffer().add_(self.left_over)
        self.steps += 1
        if self.steps > 1:  # after its first step DDP fills the bucket in another order
            self.left_over = buffer.clone()
            self.left_over[largest(buffer, self.share)] = 0
        return top_k(self.share, bucket)


def two_weights(method: Method) -> list[list[float]]:
    """Two weights before and after each of 25 steps of SGD; ranks disagree about the first."""
    network = nn.Linear(2, 1, bias=False, device=my_device())
    nn.init.zeros_(network.weight)
    model, _ = method(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    first = 10.5 if dist.get_rank() == 0 else -10.5
    gradient = torch.tensor([first, 1.0], device=my_device())
    path = [[0.0, 0.0]]
    for _ in range(25):
        optimizer.zero_grad()
        model(gradient).backward()
        optimizer.step()
        path.append([round(weight, 3) + 0.0 for weight in network.weight[0].tolist()])
    return path


# ---- write it: low rank --------------------------------------------------------------------------

_ROUNDS = 3


def low_rank(matrix, q):
    """One step of the power method on the mean of all ranks' matrices."""
    p = matrix @ q
    dist.all_reduce(p)
    p = torch.linalg.qr(p).Q
    q = matrix.T @ p
    dist.all_reduce(q)
    q /= dist.get_world_size()
    return p @ q.T, q


def again_and_again(answer: Callable) -> Callable[..., torch.Tensor]:
    """Call the answer with what it returned last, a warm start; return all approximations."""

    @functools.wraps(answer)
    def run(matrix: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        approximations = []
        for _ in range(_ROUNDS):
            near, q = answer(matrix, q)
            approximations.append(near)
        return torch.stack(approximations)

    return run


def _low_rank_spec(matrices, qs):
    mean, q, approximations = sum(matrices) / len(matrices), qs[0], []
    for _ in range(_ROUNDS):
        span = mean @ q
        p = span @ torch.linalg.inv(torch.linalg.cholesky(span.T @ span)).T
        q = mean.T @ p
        approximations.append(p @ q.T)
    return [torch.stack(approximations)] * len(matrices)


def _low_rank_inputs(rank, world_size, case):
    rows, columns, r = case
    matrix = torch.randn(rows, columns, dtype=torch.float64)
    start = torch.arange(columns * r, dtype=torch.float64).add(1).sqrt().cos()  # alike on all
    return matrix, start.view(columns, r)


def _low_rank_budget(world_size, case):
    rows, columns, r = case
    sent_bytes = 2 * (world_size - 1) / world_size * (rows + columns) * r * 8
    return {"sent_bytes": _ROUNDS * sent_bytes}


LOW_RANK = {"spec": _low_rank_spec, "inputs": _low_rank_inputs, "budget": _low_rank_budget}
LOW_RANK |= {"cases": [(12, 5, 1), (5, 14, 2), (30, 20, 3)], "rtol": 1e-6}


def squared_shares() -> list[float]:
    """Of the squared norm of a real gradient, what the best product of each rank keeps."""
    inputs, targets = batch(torch.Generator().manual_seed(0))
    network = copy.deepcopy(begun()[0]).to(my_device())
    cross_entropy(network(inputs).mT, targets).backward()
    squares = torch.linalg.svdvals(network.blocks[0].linear1.weight.grad) ** 2
    return (squares.cumsum(0) / squares.sum()).tolist()


# ---- what compressing takes ----------------------------------------------------------------------


def _compress_ms(work: Callable[[torch.Tensor], Any], rounds: int = 30) -> float:
    gradient, seconds = torch.randn(56_768), []
    for _ in range(rounds):
        begin = time.perf_counter()
        work(gradient)
        seconds.append(time.perf_counter() - begin)
    return 1000 * sorted(seconds)[rounds // 2]


def _thin(gradient: torch.Tensor) -> None:
    """Both thin matrices of each gradient, without messages; not their product."""
    for parameter in begun()[0].parameters():
        if parameter.ndim == 2:
            matrix = gradient[: parameter.numel()].view(parameter.shape)
            p = torch.linalg.qr(matrix @ matrix[:4].T).Q
            _ = matrix.T @ p


def compressing(table: Table) -> dict[str, tuple[list[float], float]]:
    """Print and return ms that three methods save on each network, and ms that one core takes."""
    work = {
        "bfloat16": torch.Tensor.bfloat16,
        "top 1 %": lambda gradient: largest(gradient, 0.01),
        "PowerSGD, rank 4": _thin,
    }
    compared = {}
    for name, compress in work.items():
        # The clock is one for CPUs: it does not wait for a GPU.
        took_ms = launch(_compress_ms, compress, world_size=1, backend="gloo")[0]
        saved = [table.rows["DDP"].ms[each] - table.rows[name].ms[each] for each in table.networks]
        savings = ", ".join(f"{ms:5.2f}" for ms in saved)
        print(f"{name:18} saves {savings} ms on the three networks, takes about {took_ms:.2f} ms")
        compared[name] = (saved, took_ms)
    return compared


# ---- send less often -----------------------------------------------------------------------------


def diloco(period: int, rate: float = 0.7, momentum: float = 0.9) -> Method:
    """An outer step of SGD with Nesterov momentum on the mean displacement of all ranks."""

    def method(network: nn.Module) -> tuple:
        anchor = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
        velocity = torch.zeros_like(anchor)

        def outer_step(step: int) -> None:
            if step % period:
                return
            displacement = anchor - nn.utils.parameters_to_vector(network.parameters()).detach()
            dist.all_reduce(displacement)
            displacement /= dist.get_world_size()
            velocity.mul_(momentum).add_(displacement)
            anchor.sub_(rate * (displacement + momentum * velocity))
            nn.utils.vector_to_parameters(anchor.clone(), network.parameters())

        return network, outer_step

    return method


def after_averaging(with_buffers: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Train on digits of one's own, and take the mean.

    Returns:
        Answers to the same 100 images, and batch norm's running mean, of shape (784,).
    """
    training = digits(train=True)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)).to(my_device())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    data, targets = training.data.to(my_device()), training.targets.to(my_device())
    for images, labels in zip(data.split(32), targets.split(32)[:8], strict=False):
        on_this_rank = labels % 2 == dist.get_rank()  # even digits here, odd ones there
        cross_entropy(network(images[on_this_rank]), labels[on_this_rank]).backward()
        optimizer.step()
        optimizer.zero_grad()
    averaged = [*network.parameters()]
    if with_buffers:
        averaged += network.buffers()
    for tensor in averaged:
        if tensor.is_floating_point():  # one buffer counts batches
            dist.all_reduce(tensor.detach(), op=dist.ReduceOp.AVG)
    return network.eval()(data[:100]).detach(), network[1].running_mean


SLOW_MS = {
    "in turn": lambda rank, step: 4 if step % 4 == rank else 1,
    "always rank 2": lambda rank, step: 4 if rank == 2 else 1,
}


def straggling_ms(table: Table, name: str, who: str) -> float:
    """What 16 steps take on the fast network if a rank is slow, in turn or always."""
    row = table.rows[name]
    steps = PERIOD // row.exchanges  # from one exchange to the next
    first_step: dict[int, int] = {}

    def computing_us(event: Any) -> float:
        if event.kind != "all_reduce":
            return 0
        first = first_step.get(event.rank, 0)
        first_step[event.rank] = first + steps
        return 1000 * sum(SLOW_MS[who](event.rank, first + k) for k in range(steps))

    replay = row.trace.replay(table.networks["NVLink-like"], computing_us)
    return round(max(replay.finish_us) / 1000, 1)
