"""What chapter 06 works with: all-reduces made of messages, their recordings, checks, figures.

Each algorithm adds up a tensor `x` of one dimension over all ranks, in place, by messages alone.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from course_utils import Network, launch, show
from course_utils.network.trace import Trace
from course_utils.pictures.style import rank_style

# Made once, by NumPy: the ranks are copies of a kernel that has it, and that must start no threads.
PATTERN = torch.from_numpy(np.arange(4_000_000, dtype=np.float32) % 100)
RANK_COUNTS = (2, 3, 4, 5, 6, 7, 8, 9)
LAYOUTS = {4: [2], 6: [2, 3], 8: [2, 4], 12: [2, 3, 4]}  # ranks, and how many in a node
RECORDED_BYTES = 302_400  # whose parts, and a tenth's, are whole numbers at all eight rank counts


def tree(x: torch.Tensor) -> None:
    """Up in levels to rank 0 and down again, whole tensors."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    step = 1
    children = []
    while step < world_size and rank % (2 * step) == 0:
        if rank + step < world_size:
            children.append(rank + step)
            arrived = torch.empty_like(x)
            dist.recv(arrived, rank + step)
            x += arrived
        step *= 2
    if rank != 0:
        dist.send(x, rank - step)
        dist.recv(x, rank - step)
    for child in reversed(children):
        dist.send(x, child)


def ring(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Chunks to the right, added up for n - 1 steps and passed on for n - 1 more."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.tensor_split(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for done in range(2 * (world_size - 1)):
        leaving = chunks[(rank - done) % world_size]
        chunk = chunks[(rank - done - 1) % world_size]
        arrived = torch.empty_like(chunk)
        sending = dist.isend(leaving, group=group, group_dst=right)
        dist.recv(arrived, group=group, group_src=left)
        sending.wait()
        if done < world_size - 1:
            chunk += arrived
        else:
            chunk.copy_(arrived)


def three_rings(x: torch.Tensor) -> None:
    """Three buckets, one ring after the other, as DDP reduces its gradients."""
    for bucket in x.tensor_split(3):
        ring(bucket)


def several_rings(x: torch.Tensor, per_node: int) -> None:
    """A ring for each card; ring k enters a node at its k-th rank, and visits the others."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rings = []
    for k, part in enumerate(x.tensor_split(per_node)):
        order = []
        for first in range(0, world_size, per_node):
            order += [first + (k + j) % per_node for j in range(per_node)]
        place = order.index(rank)
        left, right = order[place - 1], order[(place + 1) % world_size]
        rings.append((part.tensor_split(world_size), place, left, right))
    for done in range(2 * (world_size - 1)):
        sending = []
        for k, (chunks, place, _, right) in enumerate(rings):
            leaving = chunks[(place - done) % world_size]
            sending.append(dist.isend(leaving, right, tag=k))
        for k, (chunks, place, left, _) in enumerate(rings):
            chunk = chunks[(place - done - 1) % world_size]
            arrived = torch.empty_like(chunk)
            dist.recv(arrived, left, tag=k)
            if done < world_size - 1:
                chunk += arrived
            else:
                chunk.copy_(arrived)
        for work in sending:
            work.wait()


def halving(x: torch.Tensor) -> None:
    """Halving and doubling, for powers of two: far partners swap halves, near ones the rest."""
    rank = dist.get_rank()
    distance = dist.get_world_size() // 2
    part = x
    steps = []
    while distance:
        partner = rank ^ distance
        kept, given = part.chunk(2)
        if rank > partner:
            kept, given = given, kept
        arrived = torch.empty_like(kept)
        _swap(partner, given, arrived)
        steps.append((partner, kept, given))
        part = kept.add_(arrived)
        distance //= 2
    for partner, kept, given in reversed(steps):
        _swap(partner, kept, given)


def _swap(partner: int, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    sending = dist.isend(outgoing, partner)
    dist.recv(incoming, partner)
    sending.wait()


def add_up(algorithm: Callable, size_bytes: int) -> None:
    """In a rank: add up a known pattern, times rank + 1, and see that the sum is right."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pattern = PATTERN[: size_bytes // 4]
    x = (rank + 1) * pattern
    algorithm(x)
    x /= world_size * (world_size + 1) / 2  # exact, as all of these are whole numbers
    assert torch.equal(x, pattern), "a wrong sum"


def recorded(algorithm: Callable, world_size: int, size_bytes: int) -> Trace:
    """The trace of real ranks that add up so many bytes."""
    return recorded_all((algorithm,), world_size, (size_bytes,))[algorithm, size_bytes]


@functools.cache  # nothing is recorded twice
def recorded_all(
    algorithms: tuple[Callable, ...], world_size: int, sizes: tuple[int, ...]
) -> dict[tuple[Callable, int], Trace]:
    """Record each algorithm with each size in one launch, cut at its barriers."""
    choices = [(algorithm, size) for algorithm in algorithms for size in sizes]
    run = launch(_add_up_all, choices, world_size=world_size, backend="gloo", trace=True)
    events = {choice: [] for choice in choices}
    for rank in range(world_size):
        number = 0
        for event in run.trace.of_rank(rank):
            if event.kind == "barrier":
                number += 1
            else:
                events[choices[number]].append(event)
    return {choice: replace(run.trace, events=tuple(part)) for choice, part in events.items()}


def _add_up_all(choices: Sequence[tuple[Callable, int]]) -> None:
    for algorithm, size_bytes in choices:
        add_up(algorithm, size_bytes)
        dist.barrier()


def ring_by_direct(direct: Callable, size_bytes: int, rounds: int) -> list[float]:
    """What the ring takes on this machine, divided by the direct way: median, middle half."""
    per_rank = launch(_timed, direct, size_bytes, rounds, world_size=8, backend="gloo")
    seconds = torch.stack(list(per_rank))
    direct_s, ring_s = seconds.amax(dim=0).T
    return (ring_s / direct_s).quantile(torch.tensor([0.5, 0.25, 0.75])).tolist()


def _timed(direct: Callable, size_bytes: int, rounds: int) -> torch.Tensor:
    """In a rank: the seconds of each round, of shape (rounds, 2); the first round warms up."""
    x = torch.ones(size_bytes // 4)
    seconds = []
    for algorithm in [direct, ring] * (rounds + 1):
        dist.barrier()
        begun = time.perf_counter()
        algorithm(x.fill_(1))
        seconds.append(time.perf_counter() - begun)
    return torch.tensor(seconds[2:]).view(rounds, 2)


def all_reduce_us(algorithm: str, n: int, size: int, alpha: float, beta: float) -> float:
    """Our finished form: one all-reduce of `size` bytes on n ranks, in µs."""
    if algorithm == "direct":
        return 2 * (alpha + (n - 1) * size * beta)
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + size * beta)
    return 2 * (n - 1) * (alpha + size / n * beta)


def price_check(direct: Callable) -> dict[str, Any]:
    """The options of `check` for `all_reduce_us`: recordings of real ranks are what is right."""
    traces = {}
    cases = []
    for n in RANK_COUNTS:
        for algorithm, trace in _recorded_on(n, direct).items():
            traces[algorithm.__name__, n] = trace
        cases += [f"direct, {n} ranks", f"ring, {n} ranks"]
        if n in (2, 4, 8):
            cases.append(f"tree, {n} ranks")

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        name, count = case.removesuffix(" ranks").split(", ")
        times_as_large = (0.1, 1)[int(torch.randint(2, ()))]
        return name, int(count), int(times_as_large * RECORDED_BYTES), *_alpha_and_beta()

    def spec(names: list, counts: list, all_bytes: list, alphas: list, betas: list) -> list[float]:
        wanted = []
        for name, n, size, alpha, beta in zip(names, counts, all_bytes, alphas, betas, strict=True):
            network = _network(alpha, beta, size / RECORDED_BYTES)
            wanted.append(max(traces[name, n].replay(network).finish_us))
        return wanted

    return {"spec": spec, "inputs": inputs, "cases": cases, "world_sizes": (1,), "rtol": 1e-6}


def _recorded_on(n: int, direct: Callable) -> dict[Callable, Trace]:
    """All that both checks of formulas need of n real ranks, in one launch."""
    records = recorded_all((direct, tree, ring, three_rings), n, (RECORDED_BYTES,))
    return {algorithm: trace for (algorithm, _size), trace in records.items()}


def _network(alpha: float, beta: float, times_as_many_bytes: float) -> Network:
    """A network on which a recording takes as long as one of so many times as many bytes would.

    With so much less bandwidth a message takes just as long. Recording them all would take longer.
    """
    return Network(latency_us=alpha, gbit_s=8 / 1000 / beta / times_as_many_bytes)


def _alpha_and_beta() -> tuple[float, float]:
    """A latency of 1 to 30 µs, and what a byte takes at 10 to 200 Gbit/s."""
    latency_us, gbit_s = torch.rand(2, dtype=torch.float64).tolist()
    return 1 + 29 * latency_us, 8 / 1000 / (10 + 190 * gbit_s)


def fit(sizes: np.ndarray, times_us: np.ndarray) -> tuple[float, float]:
    """Our finished form: the line with the least sum of squared relative errors."""
    rows = np.stack([1 / times_us, sizes / times_us], axis=1)  # relative errors: divide by time
    fixed_us, us_per_byte = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    return fixed_us, us_per_byte


LINES = {  # µs at size 0, µs per byte, spread of the times
    "exact times": (20.0, 1e-4, 0.0),
    "times 20 % off": (20.0, 1e-4, 0.2),
    "high latency, times 20 % off": (900.0, 3e-5, 0.2),
    "hardly any latency, times 5 % off": (0.5, 2e-3, 0.05),
}


def _fit_spec(all_sizes: list, all_times_us: list) -> list[tuple[float, float]]:
    """What makes both derivatives of the sum of squared relative errors zero."""
    lines = []
    for sizes, times_us in zip(all_sizes, all_times_us, strict=True):
        u, v = 1 / times_us, sizes / times_us
        left = np.array([[u @ u, u @ v], [u @ v, v @ v]])
        right = np.array([u.sum(), v.sum()])
        lines.append(tuple(np.linalg.solve(left, right).tolist()))
    return lines


def _fit_inputs(rank: int, world_size: int, case: str) -> tuple[np.ndarray, np.ndarray]:
    fixed, per_byte, spread = LINES[case]
    sizes = 4.0 ** np.arange(5, 14)
    noise = 1 + spread * (2 * torch.rand(len(sizes), dtype=torch.float64).numpy() - 1)
    return sizes, (fixed + per_byte * sizes) * noise


fit_check = {
    "spec": _fit_spec, "inputs": _fit_inputs, "cases": list(LINES), "world_sizes": (1,),
    "rtol": 1e-3,
}  # fmt: skip


def crossing_us(algorithm: str, nodes: int, per_node: int, size: int, beta: float) -> float:
    """Our finished form: how long the busiest network card is busy, in µs."""
    n = nodes * per_node
    if algorithm == "one ring":
        return 2 * (n - 1) / n * size * beta
    if algorithm == "several rings":
        return 2 * (n - 1) / n * size / per_node * beta
    return 2 * (nodes - 1) / nodes * size / per_node * beta


def crossing_check(hierarchical: Callable) -> dict[str, Any]:
    """The options of `check` for `crossing_us`: eight layouts of real ranks, replayed."""
    traces = {}
    cases = []
    size = 92_160  # its parts are whole numbers in all eight layouts
    for n, per_nodes in LAYOUTS.items():
        ways = {}
        for per_node in per_nodes:
            ways["one ring", per_node] = ring
            ways["several rings", per_node] = functools.partial(several_rings, per_node=per_node)
            ways["two levels", per_node] = functools.partial(hierarchical, per_node=per_node)
        records = recorded_all(tuple(dict.fromkeys(ways.values())), n, (size,))
        for (name, per_node), algorithm in ways.items():
            nodes = n // per_node
            traces[name, nodes, per_node] = records[algorithm, size]
            cases.append(f"{name}, {nodes} nodes of {per_node}")

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        name, layout = case.split(", ")
        nodes, per_node = layout.split(" nodes of ")
        _, beta = _alpha_and_beta()
        return name, int(nodes), int(per_node), size, beta

    def spec(names: list, all_nodes: list, all_per_node: list, sizes: list, betas: list) -> list:
        wanted = []
        for name, nodes, per_node, beta in zip(names, all_nodes, all_per_node, betas, strict=True):
            # No latency, and nothing to wait for inside a node: what is left are the cards.
            cards = Network(0, 1e12, nodes=nodes, between=(0, 8 / 1000 / beta))
            wanted.append(max(traces[name, nodes, per_node].replay(cards).finish_us))
        return wanted

    return {"spec": spec, "inputs": inputs, "cases": cases, "world_sizes": (1,), "rtol": 1e-6}


def hiding_batch(
    n: int, gradient_bytes: int, buckets: int, backward_us: float, alpha: float, beta: float
) -> float:
    """Our finished form: samples whose backward pass takes as long as all the all-reduces."""
    steps = 2 * (n - 1)
    all_reduces_us = steps * (buckets * alpha + gradient_bytes / n * beta)
    return all_reduces_us / backward_us


def hiding_check(direct: Callable) -> dict[str, Any]:
    """The options of `check` for `hiding_batch`: one bucket or three, at eight rank counts."""
    scale = 3_000  # how many times as many bytes a model's gradients have as what is recorded
    forms = {1: ring, 3: three_rings}
    traces = {}
    cases = []
    for n in RANK_COUNTS:
        for buckets, form in forms.items():
            traces[n, buckets] = _recorded_on(n, direct)[form]
            cases.append(f"{n} ranks, buckets: {buckets}")

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        ranks, buckets = case.split(" ranks, buckets: ")
        backward_us = 1 + 5000 * torch.rand((), dtype=torch.float64).item()
        return int(ranks), scale * RECORDED_BYTES, int(buckets), backward_us, *_alpha_and_beta()

    def spec(*columns: list) -> list[float]:
        wanted = []
        for n, _, buckets, backward_us, alpha, beta in zip(*columns, strict=True):
            network = _network(alpha, beta, scale)
            wanted.append(max(traces[n, buckets].replay(network).finish_us) / backward_us)
        return wanted

    return {"spec": spec, "inputs": inputs, "cases": cases, "world_sizes": (1,), "rtol": 1e-6}


def draw_times(
    time_us: Callable[[Callable, int, float], float],
    measured_us: dict[Callable, list[float]],
    sizes: Sequence[int],
) -> None:
    """Draw the formulas over the size as lines, and what real ranks took as marks, for 8 ranks."""
    figure, axes = plt.subplots(figsize=(8, 4.4))
    line = np.geomspace(500, 12e6, 200)
    algorithms = list(measured_us)
    for i, algorithm in enumerate(algorithms):
        style = rank_style(i)
        formula_us = [time_us(algorithm, 8, size) for size in line]
        axes.plot(line, formula_us, color=style["color"], ls=style["linestyle"])
        axes.plot(sizes, measured_us[algorithm], style["marker"], color=style["color"])
        axes.plot([], [], **style, label=algorithm.__name__)
    for before, after in pairwise(algorithms):
        size = _crossover(time_us, before, after)
        axes.plot(size, time_us(before, 8, size), "o", ms=15, mfc="none", mec="#555555")
        print(f"{before.__name__} and {after.__name__} take the same time at {size:9,.0f} bytes")
    axes.set(xscale="log", yscale="log", xlabel="tensor (bytes)")
    axes.set_ylabel("virtual time (µs), 10 µs, 80 Gbit/s")
    axes.legend(title="lines: formula; marks: 8 real ranks", loc="upper left")
    words = "Every mark lies on its formula; circled, at 50,000 and 188,235 bytes, the winner "
    show(figure, words + "changes.")


def _crossover(time_us: Callable, before: Callable, after: Callable) -> float:
    """The size in bytes at which both take the same time on 8 ranks: one linear equation."""
    fixed = time_us(before, 8, 0) - time_us(after, 8, 0)
    per_byte = time_us(before, 8, 1) - time_us(after, 8, 1) - fixed
    return -fixed / per_byte


def draw_hiding(percent_longer: Callable[[str, int, int], float], models: Sequence[str]) -> None:
    """Draw by how many percent a step gets longer, over the local batch, a panel for each model."""
    figure, both = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True, layout="constrained")
    batches = 2 ** np.arange(0, 10)
    for axes, model in zip(both, models, strict=True):
        for i, n in enumerate((2, 16, 1_024, 16_384)):
            percent = [max(percent_longer(model, int(batch), n), 0.05) for batch in batches]
            axes.loglog(batches, percent, **rank_style(i), label=f"{n:,} ranks")
        axes.axhline(5, color="#777777", lw=4, alpha=0.4)
        axes.text(1, 3.6, "hidden", va="top")
        axes.set_xticks([1, 4, 16, 64, 256], [1, 4, 16, 64, 256])
        axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
        axes.minorticks_off()
        axes.set(xlabel="local batch", title=f"{model}, 100 Gbit/s per rank (model)")
    both[0].set_ylabel("step longer by (%)")
    both[1].legend()
    words = "On 16 ranks ResNet-50 falls below the grey line of 5 % at a batch of 11, GPT at 74."
    show(figure, words)
