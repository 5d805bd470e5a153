"""Ranks by chunks, before and after each step of an algorithm: a grid that fills up."""

import math
from collections.abc import Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.launcher.language import _
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import Origins, cell, origin, origins, rank_rows
from course_utils.pictures.style import show

_ACROSS = 3  # grids in a row of the figure, so that it isn't shrunk in a window of 900 px
_WIDE, _HIGH = 0.45, 0.42  # inches of a square
_SIZE = 9  # points of text
_SMALL = 7  # of a number that would touch the border of its square
_MOST_DIGITS = 4  # that fit into it in the larger size
_ARROW = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.5}
_BOLD = {"edgecolor": INK, "linewidth": 2.2}
State = Sequence[Sequence[float]]  # `state[rank][chunk]`


def plot_steps(held: Sequence[Sequence[Sequence[float]]], trace: Trace, caption: str = "") -> None:
    """Show what all ranks hold after each step; an arrow is a message, and what it changed is bold.

    Args:
        held: `held[rank][k][chunk]`, after k steps; a sum has the stripes of all that are in it.
        trace: The recording, in which each rank sends one message per step.
        caption: The sentence below it. By default how such a picture is read; what each step brings
            is its alternative text.
    """
    states = [list(state) for state in zip(*held, strict=True)]
    last_rank = len(held) - 1
    sentences = []
    for step, (old, new) in enumerate(pairwise(states), 1):
        changed = map(_changed, old, new)
        changes = ", ".join(changed)
        sentences.append(f"step {step}: {changes}")
    text = "; ".join(sentences)
    figure = draw(states, trace)
    how_to_read = _(
        "Each row is a rank. An arrow is a message, what it changed is bold, and a sum has a "
        "stripe for each rank in it."
    )
    show(figure, f"New on ranks 0 to {last_rank}, {text}.", caption or how_to_read)


def _changed(old: Sequence[float], new: Sequence[float]) -> str:
    """The new values of one rank, such as `5 and 7`."""
    values = []
    for before, after in zip(old, new, strict=True):
        if before != after:
            values.append(str(after))
    return " and ".join(values) or "nothing"


def draw(states: Sequence[State], trace: Trace) -> Figure:
    """Draw a grid for each state."""
    first = states[0]
    ranks = range(len(first))
    chunks = len(first[0])
    figure, grids = _grids(len(states), len(ranks), chunks)
    targets = [_targets(trace, rank) for rank in ranks]
    givers = origins([[list(row)] for row in first])
    old = first
    for step, new in enumerate(states):
        axes = grids[_place(step)]
        _prepare(axes, step, len(ranks), chunks)
        for rank in ranks:
            senders = _senders_to(rank, step, targets)
            _draw_row(axes, rank, old[rank], new[rank], givers, senders)
        old = new
    return figure


def _grids(states: int, world_size: int, chunks: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure, and the places for its grids, still empty.

    The first row has the beginning alone: in a ring of four, the other two are its halves.
    """
    steps = states - 1
    rows = 1 + math.ceil(steps / _ACROSS)
    grid_width = _WIDE * chunks + 0.1
    grid_height = _HIGH * world_size + 0.55
    size = (_ACROSS * grid_width + 0.45, rows * grid_height)
    figure, grids = plt.subplots(rows, _ACROSS, figsize=size, layout="constrained")
    engine = figure.get_layout_engine()
    engine.set(wspace=0, w_pad=0.02)
    for axes in grids.flat:
        axes.set_axis_off()
    return figure, grids.flat


def _place(step: int) -> int:
    """Which of the grids shows what ranks hold after a step."""
    if step == 0:
        return 0
    return _ACROSS + step - 1


def _targets(trace: Trace, rank: int) -> list[int | None]:
    """To whom a rank sent, message by message."""
    return [event.peer for event in trace.of_rank(rank) if event.kind == "send"]


def _senders_to(target: int, step: int, targets: list[list[int | None]]) -> list[int]:
    """Who sent to a rank in a step, that is with the message of this number, from 1."""
    senders = []
    if step == 0:
        return senders
    for sender, its_targets in enumerate(targets):
        has_sent = step <= len(its_targets)
        if has_sent and its_targets[step - 1] == target:
            senders.append(sender)
    return senders


def _draw_row(
    axes: Axes,
    rank: int,
    old: Sequence[float],
    new: Sequence[float],
    givers: Origins,
    senders: Sequence[int],
) -> None:
    """A rank's chunks after a step; what the step has changed is bold."""
    for chunk, (before, after) in enumerate(zip(old, new, strict=True)):
        ranks = origin(givers, after, rank)
        text = f"{after:g}"
        points = _SIZE if len(text) <= _MOST_DIGITS else _SMALL
        if before == after:
            cell(axes, chunk, rank, text, ranks, points=points)
        else:
            cell(axes, chunk, rank, text, ranks, points=points, **_BOLD)
            _draw_arrows(axes, chunk, senders, rank)


def _prepare(axes: Axes, step: int, world_size: int, chunks: int) -> None:
    axes.set_axis_on()
    rank_rows(axes, range(world_size), chunks)
    axes.set(ylim=(world_size + 0.15, -0.15))
    axes.set_title(_title(step), fontsize=10)
    is_first_of_its_row = step == 0 or (step - 1) % _ACROSS == 0
    if not is_first_of_its_row:  # which names the ranks
        axes.set_yticks([])
    middles = []
    names = []
    for chunk in range(chunks):
        middles.append(chunk + 0.5)
        names.append(str(chunk))
    names[0] = "chunk 0"  # there is no room for the word each time
    axes.set_xticks(middles, names)
    axes.tick_params(labelsize=_SIZE, pad=1)


def _title(step: int) -> str:
    if step == 0:
        return "before"
    if step == 1:
        return "after 1 step"
    return f"after {step} steps"


def _draw_arrows(axes: Axes, chunk: int, senders: Sequence[int], target: int) -> None:
    """Arrows down a column; one that goes up leaves at the bottom and comes in at the top."""
    for sender in senders:
        leaves_at = sender + 0.8
        arrives_at = target + 0.16
        if sender > target:
            _draw_arrow(axes, chunk, leaves_at, sender + 1.2)
            _draw_arrow(axes, chunk, target - 0.2, arrives_at)
        else:
            _draw_arrow(axes, chunk, leaves_at, arrives_at)


def _draw_arrow(axes: Axes, chunk: int, top: float, bottom: float) -> None:
    x = chunk + 0.82
    head = (x, bottom)
    tail = (x, top)
    axes.annotate("", head, tail, arrowprops=_ARROW, annotation_clip=False, zorder=4)
