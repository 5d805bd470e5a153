"""Ranks by chunks, before and after each step of an algorithm: a grid that fills up."""

from collections.abc import Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import cell, origin, origins, rank_rows
from course_utils.pictures.style import show

_ACROSS, _ARROW = 4, {"arrowstyle": "-|>", "color": INK, "linewidth": 1.5}


def plot_steps(held: Sequence[Sequence[Sequence[float]]], trace: Trace) -> None:
    """Show what all ranks hold after each step; an arrow is a message, and what it changed is bold.

    Args:
        held: `held[rank][k][chunk]`, after k steps; a sum has the stripes of all that are in it.
        trace: The recording, in which each rank sends one message per step.
    """
    said, states = [], [list(state) for state in zip(*held, strict=True)]
    for k, pairs in enumerate(pairwise(states), 1):
        rows = zip(*pairs, strict=True)
        new = [[v for u, v in zip(*both, strict=True) if u != v] for both in rows]
        said.append(
            f"step {k}: {', '.join(' and '.join(map(str, own)) or 'nothing' for own in new)}"
        )
    show(draw(states, trace), f"New on ranks 0 to {len(held) - 1}, {'; '.join(said)}.")


def draw(states: Sequence[Sequence[Sequence[float]]], trace: Trace) -> Figure:
    """Draw a grid for each state."""
    high, wide, down = len(states[0]), len(states[0][0]), -(-len(states) // _ACROSS)
    shape = (_ACROSS * (0.5 * wide + 0.1) + 0.3, down * (0.5 * high + 0.5))
    figure, grids = plt.subplots(down, _ACROSS, figsize=shape, layout="constrained")
    sent = [[e.peer for e in trace.of_rank(rank) if e.kind == "send"] for rank in range(high)]
    had = origins([[list(own)] for own in states[0]])
    for axes in grids.flat[len(states) :]:
        axes.set_axis_off()
    for k, (old, new) in enumerate(pairwise([states[0], *states])):
        axes = grids.flat[k]
        rank_rows(axes, range(high), wide)
        axes.set(
            ylim=(high + 0.15, -0.15), title=f"after {k} step{'s' * (k > 1)}" if k else "before"
        )
        if k % _ACROSS:
            axes.set_yticks([])
        axes.set_xticks([c + 0.5 for c in range(wide)], [f"chunk {c}" for c in range(wide)], size=7)
        for rank, chunk in ((rank, chunk) for rank in range(high) for chunk in range(wide)):
            value, moved = new[rank][chunk], new[rank][chunk] != old[rank][chunk]
            bold = {"edgecolor": INK, "linewidth": 2.2} if moved else {}
            cell(axes, chunk, rank, f"{value:g}", origin(had, value, rank), **bold)
            for giver in (r for r in range(high) if moved and sent[r][k - 1 : k] == [rank]):
                ends = [(giver + 0.8, giver + 1.2), (rank - 0.2, rank + 0.16)]
                for top, low in set(ends) if giver > rank else [(giver + 0.8, rank + 0.16)]:
                    how = {"xytext": (chunk + 0.82, top), "arrowprops": _ARROW, "zorder": 4}
                    axes.annotate("", (chunk + 0.82, low), annotation_clip=False, **how)
    return figure
