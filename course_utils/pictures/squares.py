"""Tensors per rank as squares, before and after a collective."""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course_utils.pictures.shapes import INK
from course_utils.pictures.style import rank_style, show, together

SHOWN = 16  # values of a rank, at most, that are drawn and named one by one
HIGH = 0.56  # inches of a row
Parts = list[list[float]]  # a rank's tensors, flattened; one for a single tensor
_GAP = 0.3  # between two tensors of a rank; a square has a place of 1
_GARBAGE = {"edgecolor": "#999999", "hatch": "xx", "linestyle": "--"}


def plot_ranks(before: Sequence, after: Sequence, undefined: Collection[int] = ()) -> None:
    """Show what every rank holds before and after a collective, with the numbers below.

    A square has the colour and the mark of the rank that had its value before; a value that nobody
    had, such as a sum, is white. Of more than 16 values per rank the first ones are drawn.

    Args:
        before: For each rank a tensor, a number, a list of tensors, or None if it holds nothing.
        after: Likewise.
        undefined: Ranks whose result means nothing, such as those off the root of a reduce.

    Raises:
        ValueError: The two lists differ in length, are empty, or lack a rank of `undefined`.
        TypeError: Something in them is neither numbers nor None.
    """
    n = len(before)
    if not n or n != len(after):
        raise ValueError(f"before and after need one entry per rank: got {n} and {len(after)}")
    for rank in undefined:
        if rank not in range(n):
            raise ValueError(f"undefined={rank!r}: there are ranks 0 to {n - 1}")
    old, new = [parts(own) for own in before], [parts(own) for own in after]
    was = ", ".join(together(map(_numbers, old)))
    now = ("undefined" if r in undefined else _numbers(own) for r, own in enumerate(new))
    show(draw(old, new, undefined), f"Before: {was}. After: {', '.join(together(now))}.")


def parts(own: Any) -> Parts:
    """What a rank holds, as lists of numbers."""
    if own is None:
        return []
    if hasattr(own, "tolist"):
        own = own.tolist()
    if isinstance(own, (int, float)):
        return [[own]]
    if not isinstance(own, (list, tuple)):
        raise TypeError(f"a rank holds tensors, numbers or None, not {own!r:.80}")
    if all(isinstance(value, (int, float)) for value in own):
        return [list(own)]
    return [list(chain(*parts(each))) for each in own]


def _numbers(own: Parts) -> str:
    values = list(chain(*own))
    if len(values) > SHOWN:
        return f"{len(values)} values from {min(values):.4g} to {max(values):.4g}"
    texts = ["[" + ", ".join(f"{value:.4g}" for value in part) + "]" for part in own]
    return " ".join(texts) or "nothing"


def origin(had: list[set[float]], value: float, rank: int) -> int | None:
    """Whose a value is: the rank's own if it had it before, or else of the only one that had it."""
    owners = [r for r, values in enumerate(had) if value in values]
    return rank if rank in owners else owners[0] if len(owners) == 1 else None


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> Figure:
    """Draw both sides, a row per rank."""
    held = [[_placed(own) for own in side] for side in (old, new)]
    wide = [max(1.5, *(row[-1][0] + 1 + _GAP for row in side if row), 0) for side in held]
    shape = (HIGH * sum(wide) + 1.6, HIGH * len(old) + 0.5)
    figure, sides = plt.subplots(1, 2, figsize=shape, width_ratios=wide, layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    had = [set(chain(*own)) for own in old]
    for side, axes in enumerate(sides):
        rank_rows(axes, range(len(old)), wide[side])
        axes.set_title(("before", "after")[side], loc="left", fontsize=10)
        _squares(axes, held[side], had, undefined if side else ())
    return figure


def _placed(own: Parts) -> list[tuple[float, float | None]]:
    """Where each value stands; None stands for those that are left out."""
    values = [(k, value) for k, part in enumerate(own) for value in part]
    shown = values if len(values) <= SHOWN else [*values[:SHOWN], (values[SHOWN][0], None)]
    return [(x + k * _GAP, value) for x, (k, value) in enumerate(shown)]


def _squares(axes: Axes, held: list, had: list[set], undefined: Collection[int]) -> None:
    for rank, placed in enumerate(held):
        if not placed:
            axes.text(0.1, rank + 0.53, "nothing", va="center", fontsize=9, color="#777777")
        for x, value in placed:
            if value is None:
                axes.text(x + 0.2, rank + 0.53, "…", va="center")
            elif rank in undefined:
                cell(axes, x, rank, "?", None, **_GARBAGE)
            else:
                cell(axes, x, rank, f"{value:.4g}", origin(had, value, rank))


def rank_rows(axes: Axes, ranks: Sequence[int], wide: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    axes.set(xlim=(-0.05, wide), ylim=(len(ranks), 0), xticks=[])
    axes.set_yticks([y + 0.5 for y in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: Axes, x: float, y: float, text: str, rank: int | None, wide: float = 1, **box: object
) -> None:
    """Draw a cell in the colour and with the mark of a rank, or white; `box` has the last word."""
    style = {"color": INK} if rank is None else rank_style(rank)
    light = [1 - 0.3 * (rank is not None) * (1 - part) for part in to_rgb(style["color"])]
    box = {"facecolor": light, "edgecolor": style["color"], "linewidth": 1.2} | box
    shape = "round,pad=0.04,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((x + 0.11, y + 0.11), wide - 0.22, 0.78, boxstyle=shape, **box))
    if rank is not None:
        axes.plot(x + 0.22, y + 0.23, style["marker"], color=style["color"], markersize=3.5)
    # The text keeps clear of a hatch.
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1} if "hatch" in box else None
    axes.text(x + wide / 2, y + 0.53, text, ha="center", va="center", size=9, color=INK, bbox=clear)
