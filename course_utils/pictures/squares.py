"""Tensors per rank as squares, before and after a collective."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import chain, combinations
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_utils.pictures.shapes import INK
from course_utils.pictures.style import rank_style, show, together

SHOWN = 16  # values of a rank, at most, that are drawn and named one by one
HIGH = 0.56  # inches of a row
Parts = list[list[float]]  # a rank's tensors, flattened; one for a single tensor
_FEW = 8  # ranks, of which each sum is looked for
_GAP = 0.3  # between two tensors of a rank; a square has a place of 1
_GARBAGE = {"edgecolor": "#999999", "hatch": "xx", "linestyle": "--"}


def plot_ranks(before: Sequence, after: Sequence, undefined: Collection[int] = ()) -> None:
    """Show what every rank holds before and after a collective, with the numbers below.

    A square has the colour and the mark of the rank that had its value before, and a sum the
    stripes of all that are in it; white is what can come from several ranks, or from none. Of more
    than 16 values per rank the first ones are drawn.

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


def origins(old: list[Parts]) -> dict[float, set[tuple[int, ...]]]:
    """By value, whose it may be: of a rank that had it, or of those whose values add up to it."""
    found, rows = defaultdict(set), [list(chain(*own)) for own in old]
    for rank, row in enumerate(rows):
        for value in row:
            found[value].add((rank,))
    for column in zip(*(row[:SHOWN] for row in rows), strict=False):
        for count in range(2 if len(rows) <= _FEW else len(rows), len(rows) + 1):
            for some in combinations(range(len(rows)), count):
                found[sum(column[rank] for rank in some)].add(some)
    return found


def origin(found: dict[float, set[tuple[int, ...]]], value: float, rank: int) -> tuple[int, ...]:
    """Whose a value is: the rank's own if it had it, or else of the only ones it can come from."""
    givers = found.get(value, set())
    fewest = [some for some in givers if len(some) == min(map(len, givers))]
    return (rank,) if (rank,) in givers else fewest[0] if len(fewest) == 1 else ()


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> Figure:
    """Draw both sides, a row per rank."""
    held = [[_placed(own) for own in side] for side in (old, new)]
    wide = [max(1.5, *(row[-1][0] + 1 + _GAP for row in side if row), 0) for side in held]
    shape = (HIGH * sum(wide) + 1.6, HIGH * len(old) + 0.5)
    figure, sides = plt.subplots(1, 2, figsize=shape, width_ratios=wide, layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    had = origins(old)
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


def _squares(axes: Axes, held: list, had: dict, undefined: Collection[int]) -> None:
    for rank, placed in enumerate(held):
        if not placed:
            axes.text(0.1, rank + 0.53, "nothing", va="center", fontsize=9, color="#777777")
        for x, value in placed:
            if value is None:
                axes.text(x + 0.2, rank + 0.53, "…", va="center")
            elif rank in undefined:
                cell(axes, x, rank, "?", (), **_GARBAGE)
            else:
                cell(axes, x, rank, f"{value:.4g}", origin(had, value, rank))


def rank_rows(axes: Axes, ranks: Sequence[int], wide: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    axes.set(xlim=(-0.05, wide), ylim=(len(ranks), 0), xticks=[])
    axes.set_yticks([y + 0.5 for y in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: Axes, x: float, y: float, text: str, ranks: Sequence[int], wide: float = 1, **box: object
) -> None:
    """Draw a cell with a stripe and a mark for each rank, or white; `box` has the last word."""
    edge = rank_style(ranks[0])["color"] if len(ranks) == 1 else INK
    box = {"facecolor": "none" if ranks else "white", "edgecolor": edge, "linewidth": 1.2} | box
    shape, wide = "round,pad=0.04,rounding_size=0.1", wide - 0.22
    around = FancyBboxPatch((x + 0.11, y + 0.11), wide, 0.78, boxstyle=shape, zorder=1.5, **box)
    axes.add_patch(around)
    for k, style in enumerate(map(rank_style, ranks)):
        light = [1 - 0.3 * (1 - part) for part in to_rgb(style["color"])]
        left = x + 0.07 + k * (part := (wide + 0.08) / len(ranks))
        stripe = Rectangle((left, y + 0.07), part, 0.86, facecolor=light, linewidth=0)
        axes.add_patch(stripe).set_clip_path(around)
        at = left + min(0.15, part / 2)
        axes.plot(at, y + 0.23, style["marker"], color=style["color"], markersize=3.5)
    # The text keeps clear of a hatch.
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1} if "hatch" in box else None
    how = {"ha": "center", "va": "center", "size": 9, "color": INK, "zorder": 3, "bbox": clear}
    axes.text(x + 0.11 + wide / 2, y + 0.56, text, **how)
