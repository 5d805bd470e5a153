"""What chapter 04 shows its results with: pictures, clocks, mistakes on purpose, and torchrun."""

import ast
import difflib
import inspect
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from course_lessons.ddp_exercises import few_digits, in_one_process, small_mlp
from course_lessons.drawing import answers_to_draw
from course_utils import launch
from course_utils.launcher.deadlines import slowness
from course_utils.network.trace import Trace
from course_utils.pictures.style import KINDS, plain_style, rank_style, show

ROUNDING = 1e-6  # of a weight in single precision, a rule of thumb
SHOWN_DIGITS = 16
MISTAKES = ("one sampler for all", "no broadcast", "no division", "one rank's loss")


def format_difference(difference: float | torch.Tensor) -> str:
    """Say "exactly 0", or the size of a difference in a power of ten."""
    number = float(difference)
    return f"about {number:.0e}" if number else "exactly 0"


def print_changed_lines(before: Callable, after: Callable) -> None:
    """Print the lines in which the sources of two functions differ."""
    lines_before = inspect.getsource(before).splitlines()
    lines_after = inspect.getsource(after).splitlines()
    for line in difflib.ndiff(lines_before, lines_after):
        if line[0] in "+-":
            print(line)


# ---- the learner's own answers, drawn ------------------------------------------------------------


class _ReadingDiary(Dataset):
    """Digits that note in which order they are read."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.read: list[int] = []

    def __len__(self) -> int:
        return SHOWN_DIGITS

    def __getitem__(self, index: int | torch.Tensor) -> Any:
        self.read += torch.as_tensor(index).flatten().tolist()  # a number, or those of a batch
        return self.data[index]


def draw_training(train: Callable[..., nn.Module]) -> None:
    """Run `train` in two ranks for two epochs of 16 digits, and draw who read which digit when.

    A training that is wrong is drawn as well. One that raises or hangs leaves a line that says why.

    Args:
        train: Called with a network, data, a global batch of 8 and 2 epochs; returns the network.
    """
    digits = few_digits(SHOWN_DIGITS)

    def worker() -> tuple[list[int], torch.Tensor]:
        torch.manual_seed(dist.get_rank())
        diary = _ReadingDiary(digits)
        network = train(small_mlp(), diary, 8, 2)
        return diary.read, nn.utils.parameters_to_vector(network.parameters()).detach()

    results = answers_to_draw(worker, world_size=2)
    if results is None:
        return
    read_by_rank, weights = zip(*results, strict=True)

    def worker_alone() -> torch.Tensor:
        torch.manual_seed(0)
        network = small_mlp()
        in_one_process(network, digits, 8, 2)
        return nn.utils.parameters_to_vector(network.parameters()).detach()

    # Not in the kernel: where there is a GPU, none can be launched after a backward pass in it.
    alone = launch(worker_alone, world_size=1, backend="gloo")[0]
    show(_readers(digits.tensors[0], read_by_rank), _verdict(read_by_rank, weights, alone))


def _readers(images: torch.Tensor, read_by_rank: Sequence[list[int]]) -> Figure:
    """A row of small digits for each rank and epoch, in the order in which the rank read them."""
    columns = max(1, max(len(read) // 2 for read in read_by_rank))
    figure, grid = plt.subplots(4, columns, figsize=(0.62 * columns, 3.0), squeeze=False)
    for axis in grid.flat:
        axis.axis("off")
    for row in range(4):
        epoch, rank = divmod(row, 2)
        half = len(read_by_rank[rank]) // 2
        read = read_by_rank[rank][epoch * half : (epoch + 1) * half]
        for column, index in enumerate(read):
            axis = grid[row, column]
            axis.imshow(images[index, 0], cmap="gray_r")
            axis.axis("on")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(color=rank_style(rank)["color"], linewidth=2.5)
        grid[row, 0].set_title(f"epoch {epoch}, rank {rank}", fontsize=9, loc="left")
    figure.subplots_adjust(hspace=0.6)
    return figure


def _verdict(
    read_by_rank: Sequence[list[int]], weights: Sequence[torch.Tensor], alone: torch.Tensor
) -> str:
    """What the picture shows, in a sentence."""
    first_epoch = [index for read in read_by_rank for index in read[: len(read) // 2]]
    missing = SHOWN_DIGITS - len(set(first_epoch))
    repeated = len(first_epoch) - len(set(first_epoch))
    between_ranks = "equal" if torch.equal(weights[0], weights[1]) else "different"
    is_same_model = torch.allclose(weights[0], alone, rtol=0, atol=1e-12)
    to_one_process = "the weights of one process" if is_same_model else "not those of one process"
    half = len(read_by_rank[0]) // 2
    is_new_order = read_by_rank[0][:half] != read_by_rank[0][half:]
    order = "a new order" if is_new_order else "the same order again"
    return (
        f"In epoch 0, {missing} of {SHOWN_DIGITS} digits are read by nobody and {repeated} twice; "
        f"epoch 1 has {order}. The ranks end with {between_ranks} weights, {to_one_process}."
    )


def draw_spread(spread: Callable[[torch.Tensor], Any]) -> None:
    """Call `spread` in three ranks on weights of two kinds, and draw weights and answers.

    In the first case one weight of rank 2 is larger by 0.25; in the second, rank 1 has a nan, at a
    place where gloo's MAX and MIN lose it: in three ranks they keep a nan only if it's the one of
    a certain rank, which is rank 0 for the first two of six weights.
    """
    case_rows = [torch.zeros(3, 6), torch.zeros(3, 6)]
    case_rows[0][2, 4] = 0.25
    case_rows[1][1, 0] = float("nan")

    def worker() -> list[float]:
        return [float(spread(rows[dist.get_rank()].clone())) for rows in case_rows]

    answers = answers_to_draw(worker, world_size=3)
    if answers is None:
        return
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.1), layout="constrained")
    sentences = []
    for case, (axis, rows) in enumerate(zip(panels, case_rows, strict=True)):
        axis.imshow((rows != 0).float(), cmap="Oranges", vmin=0, vmax=2)
        for rank in range(3):
            for place in range(6):
                axis.text(place, rank, f"{rows[rank, place]:g}", ha="center", va="center")
            axis.text(5.7, rank, f"returns {answers[rank][case]:g}", va="center")
        axis.set(xticks=[], yticks=range(3), yticklabels=["rank 0", "rank 1", "rank 2"])
        axis.spines[:].set_visible(False)
        sentences.append(", ".join(f"{answer[case]:g}" for answer in answers))
    show(
        figure,
        f"Left, wanted on every rank 0.25; yours: {sentences[0]}. "
        f"Right, wanted on every rank nan; yours: {sentences[1]}.",
    )


# ---- pictures ------------------------------------------------------------------------------------


def two_ways() -> Figure:
    """Data parallel and model parallel: which part of batch and model each process has."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.3), layout="constrained")
    for axis, title in zip(panels, ("data parallel", "model parallel"), strict=True):
        for rank in range(2):
            colour = rank_style(rank)["color"]
            if title == "data parallel":
                _block(axis, (0, 1.1 * rank), (2, 0.9), colour, "half of the batch")
                _block(axis, (2.6, 1.1 * rank), (3, 0.9), colour, f"whole model, rank {rank}")
            else:
                _block(axis, (2.6, 1.1 * rank), (3, 0.9), colour, f"half of the model, rank {rank}")
        if title == "model parallel":
            _block(axis, (0, 0), (2, 2.0), "#777777", "whole batch")
        axis.set(xlim=(-0.1, 5.7), ylim=(2.1, -0.1), title=title)
        axis.axis("off")
    return figure


def _block(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], colour: str, words: str
) -> None:
    axes.add_patch(plt.Rectangle(corner, *size, facecolor="white", edgecolor=colour, linewidth=2))
    middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axes.text(*middle, words, ha="center", va="center", fontsize=9)


def last_digits(shards: Sequence[Sequence[int]], shown: int = 6) -> Figure:
    """The last digits that each rank is dealt; a digit that a rank had before is shaded."""
    seen_before: set[int] = set()
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(shards) + 0.6))
    for place in range(len(shards[0])):
        column = place - len(shards[0]) + shown
        for rank, shard in enumerate(shards):
            if column >= 0:
                colour = rank_style(rank)["color"]
                is_repeated = shard[place] in seen_before
                fill = "#F0E442" if is_repeated else "white"
                box = plt.Rectangle((column, rank), 0.92, 0.85, facecolor=fill, edgecolor=colour)
                axes.add_patch(box)
                axes.text(column + 0.46, rank + 0.43, str(shard[place]), ha="center", va="center")
            seen_before.add(shard[place])
    axes.set(xlim=(-0.1, shown), ylim=(len(shards), -0.1), xticks=[])
    axes.set(yticks=[rank + 0.43 for rank in range(len(shards))])
    axes.set_yticklabels([f"rank {rank}" for rank in range(len(shards))])
    axes.set_xlabel("index of the digit, the last ones of each shard")
    axes.spines[:].set_visible(False)
    return figure


def distances(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Largest difference of a weight after each step, on a logarithmic axis that also has a 0."""
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for number, (label, curve) in enumerate(curves.items()):
        axes.plot(curve, **plain_style(number), markevery=2, clip_on=False)
        axes.text(20.5, curve[-1], label, va="center")
    axes.axhline(ROUNDING, color="#777777", linewidth=0.8)
    axes.text(20.5, ROUNDING, "rounding usually stays below", color="#555555", va="center")
    axes.set_yscale("symlog", linthresh=1e-9)
    axes.set(ylim=(-3e-10, 1e-2), xlim=(-0.5, 20), xticks=range(0, 21, 5))
    axes.set(xlabel="step", ylabel="largest difference of a weight")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def difference_bars(differences: Mapping[str, float], compared_with: str) -> Figure:
    """A bar for each difference of weights, with the line below which rounding usually stays."""
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(differences) + 0.8))
    names = list(differences)
    for place, name in enumerate(names):
        is_rounding = differences[name] < ROUNDING
        axes.barh(place, differences[name], 0.6, color="#BBBBBB" if is_rounding else "#D55E00")
        axes.text(2, place, format_difference(differences[name]), va="center")
    axes.axvline(ROUNDING, color="#555555", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1e-9)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
    axes.set_yticklabels(names)
    axes.set_xlabel(f"largest difference of a weight from {compared_with} (line: 1e-6)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def buckets(diary: Sequence[str]) -> Figure:
    """One backward: gradients in the order they are computed, and the buckets they leave in."""
    figure, axes = plt.subplots(figsize=(8.6, 2.7))
    green, pink = KINDS["compute"], KINDS["collective"]
    moment, first_of_bucket, row = 0, 0, 0
    for name in diary:
        if name.startswith("bucket"):
            row += 1
            ends = [first_of_bucket + 0.05, moment - 0.11]
            axes.plot(ends, [0.5, 0.5], color=pink.ink, linewidth=2)
            axes.barh(row, 3.6, 0.62, moment, color=pink.fill, edgecolor=pink.ink)
            axes.text(moment + 1.8, row, name, ha="center", va="center", fontsize=9)
            first_of_bucket = moment
        else:
            axes.barh(0, 0.94, 0.7, moment, color=green.fill)
            label = {"ha": "center", "va": "center", "color": "white", "fontsize": 9}
            axes.text(moment + 0.47, 0, name.replace(".", "\n"), **label)
            moment += 1
    axes.set(yticks=[0, 2], yticklabels=["gradient of", "all_reduce of"], ylim=(3.6, -0.6))
    axes.set(xticks=[], xlabel="order of events in one backward (not to scale)")
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def mistakes(runs: Mapping[str, Any], alone: torch.Tensor) -> Figure:
    """Over the steps: how far the ranks are from each other and from one process, and the losses.

    Args:
        runs: What `mistaken` returned on both ranks, for "no mistake" and for each of `MISTAKES`.
        alone: Weights of one process after each step, of shape (steps + 1, weights).
    """
    figure, panels = plt.subplots(2, 2, figsize=(9, 5.4), sharex=True, layout="constrained")
    wide = {"color": "#BBBBBB", "linewidth": 7, "solid_capstyle": "round"}
    for axis, mistake in zip(panels.flat, MISTAKES[:3], strict=False):
        between_ranks, to_process = distances_of(runs[mistake], alone)
        axis.plot(between_ranks, label="rank to rank", **wide)
        axis.plot(to_process, label="to one process", **plain_style(0))
        without = distances_of(runs["no mistake"], alone)[1]
        axis.plot(without, label="the same, without the mistake", **plain_style(1))
        axis.set_yscale("symlog", linthresh=1e-9)
        axis.set(title=mistake, ylim=(-5e-10, 1), yticks=[0, 1e-8, 1e-6, 1e-4, 1e-2, 1])
        axis.set_ylabel("difference of weights")
    run, axis = runs[MISTAKES[3]], panels[1, 1]
    axis.plot(range(1, 9), run[0]["printed"], label="printed by rank 0", **plain_style(0))
    axis.plot(range(1, 9), loss_of_all(run), label="of all 32 digits", **plain_style(1))
    axis.set(title=MISTAKES[3], ylabel="loss (cross-entropy)")
    axis.legend(frameon=False, fontsize=9)
    panels[1, 0].legend(frameon=False, fontsize=9, loc="center right")
    for axis in panels[1]:
        axis.set_xlabel("step")
    return figure


def distances_of(run: Any, alone: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest difference of a weight after each step: rank to rank, and rank 1 to one process."""
    first, second = (result["weights"] for result in run)
    between_ranks = (first - second).abs().amax(dim=1)
    to_process = (second - alone[: len(second)].to(second.device)).abs().amax(dim=1)
    return between_ranks.cpu(), to_process.cpu()


def loss_of_all(run: Any) -> torch.Tensor:
    """The mean loss over the digits of both ranks, in each step."""
    return torch.tensor([result["losses"] for result in run]).mean(dim=0)


def resumed(undisturbed: Any, stopped: Any, continued: Any, first_step: int) -> Figure:
    """The mean loss of both ranks in each step: of one run, and of a run in two pieces."""
    figure, axes = plt.subplots(figsize=(8, 3.6))
    wide, thin = {"linewidth": 6, "color": "#BBBBBB"}, {"linewidth": 1.1, "color": "black"}
    dashed = {"linewidth": 1.4, "linestyle": ":", "color": "black"}
    for run, label, start, style in [
        (undisturbed, "undisturbed", 0, wide),
        (stopped, "until it was stopped", 0, thin),
        (continued, "resumed", first_step, dashed),
    ]:
        losses = loss_of_all(run)
        axes.plot(range(start, start + len(losses)), losses, label=label, **style)
    axes.axvline(first_step - 0.5, color="#555555", linewidth=0.8)
    axes.set(xlabel="step", ylabel="loss (cross-entropy), mean of both ranks", yscale="log")
    axes.legend(frameon=False)
    return figure


def wrong_digits(network: nn.Module, testing: Dataset, shown: int = 8) -> Figure:
    """The first test digits that a network gets wrong, with its answer above each."""
    # Not its `data`: of MNIST these are bytes, which a transform makes numbers when one asks.
    images, labels = next(iter(DataLoader(testing, 500)))
    with torch.no_grad():
        answers = network(images).argmax(1)
    figure, grid = plt.subplots(1, shown, figsize=(8, 1.5))
    for axis in grid:
        axis.axis("off")
    for axis, index in zip(grid, (answers != labels).nonzero().flatten(), strict=False):
        axis.imshow(images[index, 0], cmap="gray_r")
        axis.set_title(f"{labels[index]} or {answers[index]}?", fontsize=9)
    return figure


def cost_bars(cost: Mapping[str, tuple[float, float]]) -> Figure:
    """Calls of all_reduce in each step, and the megabytes that rank 0 gave to them."""
    figure, panels = plt.subplots(1, 2, figsize=(8.5, 0.4 * len(cost) + 0.9), sharey=True)
    for column, axis in enumerate(panels):
        for place, numbers in enumerate(cost.values()):
            axis.barh(place, numbers[column], 0.6, color=KINDS["collective"].ink)
            axis.text(numbers[column], place, f" {numbers[column]:.3g}", va="center")
        axis.set(xlabel=("all_reduce per step", "MB per step")[column])
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].set(yticks=range(len(cost)), yticklabels=list(cost), ylim=(len(cost) - 0.5, -0.5))
    return figure


def speedups(ratios: Mapping[str, float], world_size: int) -> Figure:
    """How many times as fast several ranks are as one, with the ideal as a line."""
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(ratios) + 0.9), layout="constrained")
    for place, (name, ratio) in enumerate(ratios.items()):
        axes.barh(place, ratio, 0.6, color=plain_style(int("DDP" not in name))["color"])
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.axvline(world_size, color="#555555", linestyle=":")
    axes.set(yticks=range(len(ratios)), yticklabels=list(ratios), ylim=(len(ratios) - 0.5, -0.5))
    axes.set_xlabel("times as fast as one rank (dotted: the ideal)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def batches_by_rank(digits_by_rank: Sequence[int], batch_size: int) -> Figure:
    """The batches of each rank as blocks; those that a rank has and rank 1 lacks are marked."""
    figure, axes = plt.subplots(figsize=(8, 1.5))
    for rank, count in enumerate(digits_by_rank):
        for number, first in enumerate(range(0, count, batch_size)):
            size = min(batch_size, count - first)
            colour = rank_style(rank)["color"]
            _block(axes, (2 * number, rank), (1.9, 0.85), colour, f"batch of {size}")
    axes.set(xlim=(-0.1, 6), ylim=(2, -0.1), xticks=[], yticks=[0.43, 1.43])
    axes.set_yticklabels(["rank 0", "rank 1"])
    axes.spines[:].set_visible(False)
    return figure


# ---- part 4: mistakes ----------------------------------------------------------------------------


def mistaken(
    mistake: str, make_model: Callable[[], nn.Module], training: Dataset, steps: int = 8
) -> dict[str, Any]:
    """In a rank: train with DDP's work done by hand, and with one of `MISTAKES`.

    Returns:
        Per step: the weights, of shape (steps + 1, weights), the loss this rank would print, and
        the loss of its own digits.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(rank)
    model = make_model().to(device)
    if mistake != "no broadcast":
        with torch.no_grad():
            for parameter in model.parameters():
                dist.broadcast(parameter, src=0)
    sampler = DistributedSampler(training, world_size, rank)
    if mistake == "one sampler for all":
        sampler = DistributedSampler(training, num_replicas=1, rank=0)
    loader = DataLoader(training, 32 // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    history, printed, losses = [_weights(model)], [], []
    for _, (images, labels) in zip(range(steps), loader, strict=False):
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            if mistake != "no division":
                parameter.grad /= world_size
        optimizer.step()
        history.append(_weights(model))
        printed_loss = loss.detach().clone()
        if mistake != "one rank's loss":
            dist.all_reduce(printed_loss)
            printed_loss /= world_size
        printed.append(printed_loss.item())
        losses.append(loss.item())
    return {"weights": torch.stack(history), "printed": printed, "losses": losses}


def _weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


# ---- what it costs -------------------------------------------------------------------------------


def cost_per_step(trace: Trace, steps: int) -> tuple[float, float]:
    """How often rank 0 called all_reduce in a step, and how many megabytes it gave to the calls."""
    sizes = [event.bytes for event in trace.of_rank(0) if event.kind == "all_reduce"]
    return len(sizes) / steps, sum(sizes) / steps / 1e6


def images_per_second(
    model: nn.Module,
    batch: Sequence[torch.Tensor],
    ways: Mapping[str, Callable[[], AbstractContextManager]],
    steps: int = 20,
) -> dict[str, float]:
    """In a rank: time forward and backward of one rank, and of all together in several ways.

    They take turns. Whatever else the machine does can only slow a step down, so the quickest
    counts.

    Args:
        model: A DDP.
        batch: Images and labels, the same on every rank. Rank 0 alone takes them all; together,
            each rank takes its share.
        ways: By name, in which context the ranks take a step together.

    Returns:
        By name, images per second; "one rank" is rank 0 alone.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    share = [tensor[rank::world_size] for tensor in batch]

    def step(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
        cross_entropy(network(images), labels).backward()

    def alone() -> None:
        if rank == 0:
            step(model.module, *batch)

    def together(name: str) -> None:
        with ways[name]():
            step(model, *share)

    steps_by_name = {"one rank": alone} | {name: partial(together, name) for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in steps_by_name}
    order = list(steps_by_name)
    for _ in range(steps):
        order.reverse()  # none is always the first
        for name in order:
            dist.barrier()
            start = time.perf_counter()
            steps_by_name[name]()
            dist.barrier()
            seconds[name].append(time.perf_counter() - start)
    return {name: len(batch[1]) / min(durations) for name, durations in seconds.items()}


# ---- the script ----------------------------------------------------------------------------------


def write_script(path: str | Path, original: str | Path, *functions: Callable) -> list[str]:
    """Write a copy of a script in which functions are replaced by others of the same name.

    A function that only raises NotImplementedError isn't written yet, so the script keeps its own.

    Returns:
        The names of the functions that were replaced.
    """
    text = Path(original).read_text(encoding="utf-8")
    replaced = []
    for function in functions:
        source = inspect.getsource(function)
        if "raise NotImplementedError" in source:
            continue
        old = next(
            ast.get_source_segment(text, node)
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__
        )
        text = text.replace(old, source.rstrip())
        replaced.append(function.__name__)
    Path(path).write_text(text, encoding="utf-8")
    return replaced


def torchrun(script: str | Path, *arguments: str, timeout_s: float = 100) -> str:
    """Run `torchrun --standalone --nproc-per-node=2` on a script, on the CPU and on loopback only.

    Args:
        timeout_s: How long it may take on a quiet machine.

    Returns:
        What the ranks have printed.

    Raises:
        RuntimeError: The script failed; the message is what it has printed.
        subprocess.TimeoutExpired: It was not done in time.
    """
    environment = dict(os.environ)
    environment["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    environment["OMP_NUM_THREADS"] = "1"
    environment["CUDA_VISIBLE_DEVICES"] = ""
    # The script may lie in a different folder; the modules that it imports lie here.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(script), *arguments]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment["TMPDIR"] = folder
        process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output = process.communicate(timeout=timeout_s * slowness())[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    if process.returncode:
        raise RuntimeError(output)
    return output


def same_tensors(train: Callable[..., Any], script: str | Path) -> tuple[int, int]:
    """Train for an epoch with `train` under `launch`, and with a script under torchrun.

    Returns:
        How many tensors of the two checkpoints are the same bit for bit, and how many there are.
    """
    with tempfile.TemporaryDirectory() as folder:
        launched, started = f"{folder}/launched.pt", f"{folder}/started.pt"
        # On the CPU both times, to compare bit for bit.
        launch(train, launched, 1, backend="gloo")
        torchrun(script, f"--path={started}", "--epochs=1")
        first, second = (torch.load(path)["model"].values() for path in (launched, started))
        same = sum(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return same, len(first)
