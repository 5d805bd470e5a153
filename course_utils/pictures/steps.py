"""Ranks by chunks, before and after each step of an algorithm: a grid that fills up."""

import math
from collections.abc import Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import cell, origin, origins, rank_rows
from course_utils.pictures.style import show

_ACROSS = 3  # grids in a row of the figure, so that it isn't shrunk in a window of 900 px
_WIDE, _HIGH = 0.45, 0.42  # inches of a square
_SIZE = 9  # points of the smallest text
_ARROW = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.5}
_BOLD = {"edgecolor": INK, "linewidth": 2.2}
State = Sequence[Sequence[float]]  # `state[rank][chunk]`


def plot_steps(held: Sequence[Sequence[Sequence[float]]], trace: Trace) -> None:
    """Show what all ranks hold after each step; an arrow is a message, and what it changed is bold.

    Args:
        held: `held[rank][k][chunk]`, after k steps; a sum has the stripes of all that are in it.
        trace: The recording, in which each rank sends one message per step.
    """
    states = [list(state) for state in zip(*held, strict=True)]
    sentences = []
    for step, (old, new) in enumerate(pairwise(states), 1):
        changed = [_changed(old[rank], new[rank]) for rank in range(len(held))]
        sentences.append(f"step {step}: {', '.join(changed)}")
    text = f"New on ranks 0 to {len(held) - 1}, {'; '.join(sentences)}."
    show(draw(states, trace), text)


def _changed(old: Sequence[float], new: Sequence[float]) -> str:
    """The new values of one rank, such as `5 and 7`."""
    values = [str(after) for before, after in zip(old, new, strict=True) if before != after]
    return " and ".join(values) or "nothing"


def draw(states: Sequence[State], trace: Trace) -> Figure:
    """Draw a grid for each state."""
    ranks, chunks = range(len(states[0])), range(len(states[0][0]))
    rows = 1 + math.ceil((len(states) - 1) / _ACROSS)
    inches = (_ACROSS * (_WIDE * len(chunks) + 0.1) + 0.45, rows * (_HIGH * len(ranks) + 0.55))
    figure, grids = plt.subplots(rows, _ACROSS, figsize=inches, layout="constrained")
    figure.get_layout_engine().set(wspace=0, w_pad=0.02)
    for axes in grids.flat:
        axes.set_axis_off()
    targets = [_targets(trace, rank) for rank in ranks]
    givers = origins([[list(row)] for row in states[0]])
    for step, (old, new) in enumerate(pairwise([states[0], *states])):
        # The first row has the beginning alone: in a ring of four, the other two are its halves.
        axes = grids.flat[_ACROSS + step - 1] if step else grids.flat[0]
        _prepare(axes, step, ranks, chunks)
        for rank in ranks:
            for chunk in chunks:
                value = new[rank][chunk]
                moved = value != old[rank][chunk]
                edge = _BOLD if moved else {}
                cell(axes, chunk, rank, f"{value:g}", origin(givers, value, rank), **edge)
                if moved:
                    senders = [r for r in ranks if targets[r][step - 1 : step] == [rank]]
                    _draw_arrows(axes, chunk, senders, rank)
    return figure


def _targets(trace: Trace, rank: int) -> list[int | None]:
    """To whom a rank sent, message by message."""
    return [event.peer for event in trace.of_rank(rank) if event.kind == "send"]


def _prepare(axes: Axes, step: int, ranks: range, chunks: range) -> None:
    axes.set_axis_on()
    rank_rows(axes, ranks, len(chunks))
    title = "before"
    if step:
        title = f"after {step} step" if step == 1 else f"after {step} steps"
    axes.set(ylim=(len(ranks) + 0.15, -0.15))
    axes.set_title(title, fontsize=10)
    if (step - 1) % _ACROSS and step:  # the first grid of a row names the ranks
        axes.set_yticks([])
    middles = [chunk + 0.5 for chunk in chunks]
    names = ["chunk 0", *map(str, chunks[1:])]  # there is no room for the word each time
    axes.set_xticks(middles, names)
    axes.tick_params(labelsize=_SIZE, pad=1)


def _draw_arrows(axes: Axes, chunk: int, senders: Sequence[int], target: int) -> None:
    """Arrows down a column; one that goes up leaves at the bottom and comes in at the top."""
    for sender in senders:
        ends = {(sender + 0.8, target + 0.16)}
        if sender > target:
            ends = {(sender + 0.8, sender + 1.2), (target - 0.2, target + 0.16)}
        for top, bottom in ends:
            start, end = (chunk + 0.82, top), (chunk + 0.82, bottom)
            style = {"arrowprops": _ARROW, "annotation_clip": False, "zorder": 4}
            axes.annotate("", end, xytext=start, **style)
