"""Figures that chapter 00 shows: what is about to happen, who gets which digits, how losses fell.

Functions return a matplotlib figure, which the lesson displays with a sentence below; those called
`draw_...` display it themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch.utils.data import DistributedSampler

from course_lessons.drawing import answers_to_draw, draw_columns
from course_material.digits import digits
from course_utils import WorkerError, WorkerTimeout, show

# Rank 0, rank 1 and a process alone: colours of Okabe and Ito, each with a line and a mark.
COLOURS = ("#0072B2", "#D55E00", "#009E73")
LINES, MARKS = ("-", "--", "-."), ("o", "s", "^")
INK, GREY = "#222222", "#666666"
_BROUGHT = (10.0, 20.0, 60.0)  # by rank, whose average a learner's line is to return


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


def draw_average(average: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Draw what a learner's `average` returns in three ranks, and what it should return.

    Three, since on two ranks an average divided by 2 would look right. No rank brings a number that
    is the average, or that is the sum divided by 2, so neither is painted as that rank's own.

    Args:
        average: Of a gradient of one number, a wrong one as well.
    """

    def worker() -> float | str:
        gradient = torch.tensor([_BROUGHT[dist.get_rank()]])
        try:
            returned = average(gradient)
        except NotImplementedError:
            return "nothing yet"
        if isinstance(returned, torch.Tensor):
            return returned.flatten()[0].item()
        return repr(returned)[:12]

    returned = answers_to_draw(worker, world_size=len(_BROUGHT))
    if returned is None:
        return
    wanted = sum(_BROUGHT) / len(_BROUGHT)
    held = [(brought, result, wanted) for brought, result in zip(_BROUGHT, returned, strict=True)]
    caption = "A number in one colour is still the rank's own; a striped one is new."
    draw_columns(held, ["has", "average returns", "wanted"], caption)


def what_the_others_got(error: WorkerError) -> str:
    """What ranks got of a call that one of them forgot: one of the choices of chapter 00."""
    return "no answer" if isinstance(error, WorkerTimeout) else "an error"


def draw_one_step(training: torch.utils.data.Dataset, across: int = 16) -> None:
    """Draw the 64 digits of the first step, framed in the colour of the rank that takes them."""
    order = list(DistributedSampler(training, num_replicas=1, rank=0))[:64]
    of_rank = []
    for rank in range(2):
        sampler = DistributedSampler(training, num_replicas=2, rank=rank)
        of_rank.append(set(list(sampler)[:32]))
    figure, axes = plt.subplots(64 // across, across, figsize=(8, 2.4))
    for axis, index in zip(axes.flat, order, strict=True):
        rank = 0 if index in of_rank[0] else 1
        axis.imshow(training.data[index, 0], cmap="gray_r")
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set(color=COLOURS[rank], linewidth=2.5, linestyle=LINES[rank])
    figure.subplots_adjust(wspace=0.12, hspace=0.12)
    shared = len(set(order) & (of_rank[0] | of_rank[1]))
    show(
        figure,
        f"The 64 digits of one process's first step, in its order: rank 0 of two takes those with "
        f"a solid frame, rank 1 those with a dashed one, together {shared} of them.",
    )


@torch.no_grad()
def draw_misread(
    testing: torch.utils.data.Dataset, models: Mapping[str, torch.nn.Module], most: int = 10
) -> None:
    """Draw the test digits that a model misreads, each with what all models read.

    Args:
        testing: Digits with `data` and `targets`.
        models: By name.
        most: Digits, at most.
    """
    readings = [model(testing.data).argmax(dim=1) for model in models.values()]
    wrong = torch.stack([reading != testing.targets for reading in readings]).any(dim=0)
    shown = wrong.nonzero().flatten().tolist()[:most]
    figure, axes = plt.subplots(1, most, figsize=(9, 1.3))
    for axis in axes:
        axis.set_axis_off()
    for axis, index in zip(axes, shown, strict=False):
        axis.imshow(testing.data[index, 0], cmap="gray_r")
        read = ", ".join(str(reading[index].item()) for reading in readings)
        axis.set_title(f"is {testing.targets[index].item()}\nread {read}", fontsize=9)
    names = " and ".join(models)
    show(
        figure,
        f"Misread: about {wrong.sum().item()} test digits. Above each: what it is, and what "
        f"{names} read.",
    )
