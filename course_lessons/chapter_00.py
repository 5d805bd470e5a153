"""Figures that chapter 00 shows: what is about to happen, who gets which digits, how losses fell.

Each function returns a matplotlib figure; the lesson displays it with a sentence below.
"""

from collections.abc import Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch.utils.data import DistributedSampler

from course_material.digits import digits

# Rank 0, rank 1 and a process alone: colours of Okabe and Ito, each with a line and a mark.
COLOURS = ("#0072B2", "#D55E00", "#009E73")
LINES, MARKS = ("-", "--", "-."), ("o", "s", "^")
INK, GREY = "#222222", "#666666"


def two_workers() -> Figure:
    """One notebook starts two workers, whose gradients are averaged: what chapter 00 is about."""
    figure, axes = plt.subplots(figsize=(10, 3.7))
    axes.set(xlim=(0, 18), ylim=(6.2, -0.5))
    axes.set_aspect("equal")
    axes.axis("off")
    _box(axes, (0.1, 1.9), (2.9, 1.8), GREY, "this notebook\nlaunch(train)")
    images = digits(train=True).data[:8, 0]
    for rank, colour in enumerate(COLOURS[:2]):
        top = 0.4 + 3.2 * rank
        middle = top + 0.9
        axes.annotate("", (4.0, middle), (3.1, 2.8), arrowprops=_arrow(colour))
        _box(axes, (4.1, top), (10.1, 1.8), colour)
        axes.text(4.3, top - 0.2, f"worker {rank}", color=colour, fontsize=11, weight="bold")
        for place, image in enumerate(images[4 * rank : 4 * rank + 4]):
            left = 4.35 + 0.75 * place
            extent = (left, left + 0.7, middle + 0.35, middle - 0.35)
            axes.imshow(image, cmap="gray_r", extent=extent, zorder=2)
        axes.annotate("", (8.1, middle), (7.4, middle), arrowprops=_arrow(INK))
        _network(axes, 8.4, middle, colour)
        axes.annotate("", (11.3, middle), (10.6, middle), arrowprops=_arrow(INK))
        axes.text(12.7, middle, "gradient", fontsize=11, ha="center", va="center")
        axes.annotate("", (15.0, 2.8), (14.3, middle), arrowprops=_arrow(colour, "<|-|>"))
    _box(axes, (15.1, 1.9), (2.7, 1.8), INK, "average of\nthe gradients")
    # imshow has set limits of its own.
    axes.set(xlim=(0, 18), ylim=(6.2, -0.5))
    return figure


def _box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], colour: str, words: str = ""
) -> None:
    rounded = "round,pad=0.02,rounding_size=0.25"
    patch = FancyBboxPatch(corner, *size, boxstyle=rounded, fc="white", ec=colour, linewidth=2)
    axes.add_patch(patch)
    middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axes.text(*middle, words, fontsize=11, ha="center", va="center", linespacing=1.5)


def _arrow(colour: str, style: str = "-|>") -> dict[str, object]:
    return {"arrowstyle": style, "color": colour, "linewidth": 1.8, "mutation_scale": 13}


def _network(axes: Axes, left: float, middle: float, colour: str) -> None:
    """Three layers of dots, each joined to all of the next."""
    layers = [
        [(left + column, middle + 0.42 * (row - (count - 1) / 2)) for row in range(count)]
        for column, count in enumerate((3, 4, 2))
    ]
    for before, after in pairwise(layers):
        for start in before:
            for end in after:
                axes.plot(*zip(start, end, strict=True), color="#BBBBBB", linewidth=0.7, zorder=1)
    for layer in layers:
        axes.scatter(*zip(*layer, strict=True), s=28, color=colour, zorder=2)


def shards(training: torch.utils.data.Dataset, shown: int = 8) -> Figure:
    """The first digits that each of two ranks is dealt, a row for each rank."""
    figure, axes = plt.subplots(2, shown, figsize=(8, 2.6))
    for rank in range(2):
        sampler = DistributedSampler(training, num_replicas=2, rank=rank)
        for axis, index in zip(axes[rank], sampler, strict=False):
            axis.imshow(training.data[index, 0], cmap="gray_r")
            axis.set(xticks=[], yticks=[], title=training.targets[index].item())
            axis.spines[:].set(color=COLOURS[rank], linewidth=3)
        axes[rank, 0].set_ylabel(f"rank {rank}", fontsize=12, labelpad=10)
    return figure


def losses(losses_by_run: dict[str, Sequence[float]], steps_per_epoch: int) -> Figure:
    """The mean loss of every epoch of up to three runs, which have names."""
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for number, (name, values) in enumerate(losses_by_run.items()):
        means = torch.tensor(values).view(-1, steps_per_epoch).mean(dim=1)
        style = {"color": COLOURS[number], "linestyle": LINES[number], "marker": MARKS[number]}
        epochs = range(1, len(means) + 1)
        axes.plot(epochs, means, label=name, markevery=(3 * number, 9), **style)
    axes.set(xlabel=f"epoch ({steps_per_epoch} steps each)", ylabel="loss (cross-entropy)")
    axes.set_yscale("log")
    axes.legend()
    return figure
