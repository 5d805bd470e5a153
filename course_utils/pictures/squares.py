"""Tensors per rank as squares, before and after a collective; cells in a row per rank."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
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


def plot_ranks(
    before: Sequence[Any], after: Sequence[Any], undefined: Collection[int] = ()
) -> None:
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
    if not before or len(before) != len(after):
        raise ValueError(
            "plot_ranks needs one entry per rank, before and after: "
            f"got {len(before)} and {len(after)}"
        )
    for rank in undefined:
        if rank not in range(len(before)):
            raise ValueError(f"undefined={rank!r}: there are ranks 0 to {len(before) - 1}")
    old, new = [parts(own) for own in before], [parts(own) for own in after]
    text = f"Before: {_spoken(old)}. After: {_spoken(new, undefined)}."
    show(draw(old, new, undefined), text)


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
    return [list(chain.from_iterable(parts(each))) for each in own]


def _spoken(held: list[Parts], undefined: Collection[int] = ()) -> str:
    said = ("undefined" if r in undefined else _numbers(own) for r, own in enumerate(held))
    return ", ".join(together(said))


def _numbers(own: Parts) -> str:
    values = list(chain.from_iterable(own))
    if len(values) > SHOWN:
        return f"{len(values)} values from {min(values):.4g} to {max(values):.4g}"
    texts = ["[" + ", ".join(f"{value:.4g}" for value in part) + "]" for part in own]
    return " ".join(texts) or "nothing"


def origins(old: list[Parts]) -> Callable[[float, int], int | None]:
    """A function of a value and the rank that has it now: which single rank had it before."""
    had = defaultdict(set)
    for rank, own in enumerate(old):
        for value in chain.from_iterable(own):
            had[value].add(rank)

    def origin(value: float, rank: int) -> int | None:
        owners = had.get(value, ())
        return rank if rank in owners else min(owners) if len(owners) == 1 else None

    return origin


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> Figure:
    """Draw both sides, a row per rank."""
    left, right = [_placed(own) for own in old], [_placed(own) for own in new]
    wide = [max(1.5, *(row[-1][0] + 1 + _GAP for row in side if row), 0) for side in (left, right)]
    shape = (HIGH * sum(wide) + 1.6, HIGH * len(old) + 0.5)
    figure, sides = plt.subplots(1, 2, figsize=shape, width_ratios=wide, layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    for axes, width, title in zip(sides, wide, ("before", "after"), strict=True):
        rank_rows(axes, range(len(old)), width)
        axes.set_title(title, loc="left", fontsize=10)
    _squares(sides[0], left, origins(old), ())
    _squares(sides[1], right, origins(old), undefined)
    return figure


def _placed(own: Parts) -> list[tuple[float, float | None]]:
    """Where each value stands; None stands for those that are left out."""
    values = [(k, value) for k, part in enumerate(own) for value in part]
    shown = values if len(values) <= SHOWN else [*values[:SHOWN], (values[SHOWN][0], None)]
    return [(x + k * _GAP, value) for x, (k, value) in enumerate(shown)]


def _squares(axes: Axes, held: list, origin: Callable, undefined: Collection[int]) -> None:
    for rank, placed in enumerate(held):
        if not placed:
            axes.text(0.1, rank + 0.53, "nothing", va="center", fontsize=9, color="#777777")
        for x, value in placed:
            if value is None:
                axes.text(x + 0.2, rank + 0.53, "…", va="center")
            elif rank in undefined:
                cell(axes, x, rank, "?", None, **_GARBAGE)
            else:
                cell(axes, x, rank, f"{value:.4g}", origin(value, rank))


def rank_rows(axes: Axes, ranks: Sequence[int], wide: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    axes.set(xlim=(-0.05, wide), ylim=(len(ranks), 0), xticks=[])
    axes.set_yticks([y + 0.5 for y in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: Axes, x: float, y: float, text: str, rank: int | None, wide: float = 1, **box: object
) -> None:
    """Draw a cell with the colour and the mark of a rank, or a white one; `box` has the last word.

    Its text keeps clear of a hatch.
    """
    style = {"color": INK} if rank is None else rank_style(rank)
    light = [1 - 0.3 * (rank is not None) * (1 - part) for part in to_rgb(style["color"])]
    box = {"facecolor": light, "edgecolor": style["color"], "linewidth": 1.2} | box
    shape = "round,pad=0.04,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((x + 0.11, y + 0.11), wide - 0.22, 0.78, boxstyle=shape, **box))
    if rank is not None:
        axes.plot(x + 0.22, y + 0.23, style["marker"], color=style["color"], markersize=3.5)
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1} if "hatch" in box else None
    axes.text(x + wide / 2, y + 0.53, text, ha="center", va="center", size=9, color=INK, bbox=clear)
