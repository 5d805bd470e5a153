"""Tensors per rank as squares, before and after a collective."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
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
Origins = dict[float, set[tuple[int, ...]]]  # by value, the sets of ranks that it may come from
_FEW = 8  # ranks, of which each sum is looked for
_SIDE_BY_SIDE = 9.5  # squares, at most, that are still readable in a window of 900 px
_GAP = 0.3  # between two tensors of a rank; a square has a place of 1
_ROUNDED = "round,pad=0.04,rounding_size=0.1"
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
    world_size = len(before)
    if not world_size or world_size != len(after):
        counts = f"{world_size} and {len(after)}"
        raise ValueError(f"before and after need one entry per rank: got {counts}")
    for rank in undefined:
        if rank not in range(world_size):
            raise ValueError(f"undefined={rank!r}: there are ranks 0 to {world_size - 1}")
    old = [parts(value) for value in before]
    new = [parts(value) for value in after]
    old_words = [_numbers(rank_parts) for rank_parts in old]
    new_words = [_numbers(rank_parts) for rank_parts in new]
    for rank in undefined:
        new_words[rank] = "undefined"
    text = f"Before: {', '.join(together(old_words))}. After: {', '.join(together(new_words))}."
    show(draw(old, new, undefined), text)


def parts(value: Any) -> Parts:
    """What a rank holds, as lists of numbers."""
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (int, float)):
        return [[value]]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a rank holds tensors, numbers or None, not {value!r:.80}")
    if all(isinstance(number, (int, float)) for number in value):
        return [list(value)]
    return [_flat(parts(tensor)) for tensor in value]


def _flat(rank_parts: Parts) -> list[float]:
    return [number for part in rank_parts for number in part]


def _numbers(rank_parts: Parts) -> str:
    values = _flat(rank_parts)
    if len(values) > SHOWN:
        return f"{len(values)} values from {min(values):.4g} to {max(values):.4g}"
    texts = []
    for part in rank_parts:
        numbers = ", ".join(f"{value:.4g}" for value in part)
        texts.append(f"[{numbers}]")
    return " ".join(texts) or "nothing"


def origins(old: list[Parts]) -> Origins:
    """By value, whose it may be: of a rank that had it, or of those whose values add up to it."""
    givers: Origins = defaultdict(set)
    rows = [_flat(rank_parts) for rank_parts in old]
    for rank, row in enumerate(rows):
        for value in row:
            givers[value].add((rank,))
    world_size = len(rows)
    fewest = 2 if world_size <= _FEW else world_size  # of many ranks only the sum of all
    shown_rows = [row[:SHOWN] for row in rows]
    for column in zip(*shown_rows, strict=False):
        for count in range(fewest, world_size + 1):
            for ranks in combinations(range(world_size), count):
                givers[sum(column[rank] for rank in ranks)].add(ranks)
    return givers


def origin(givers: Origins, value: float, rank: int) -> tuple[int, ...]:
    """Whose a value is: the rank's own if it had it, or else of the only ones it can come from."""
    candidates = givers.get(value, set())
    if (rank,) in candidates:
        return (rank,)
    fewest = min((len(ranks) for ranks in candidates), default=0)
    shortest = [ranks for ranks in candidates if len(ranks) == fewest]
    return shortest[0] if len(shortest) == 1 else ()


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> Figure:
    """Draw both sides, a row per rank."""
    sides = [[_placed(rank_parts) for rank_parts in side] for side in (old, new)]
    widths = [_width(side) for side in sides]
    high = HIGH * len(old) + 0.5
    if sum(widths) <= _SIDE_BY_SIDE:
        size = (HIGH * sum(widths) + 1.6, high)
        figure, grids = plt.subplots(1, 2, figsize=size, width_ratios=widths, layout="constrained")
        figure.get_layout_engine().set(wspace=0.08)
    else:  # one below the other, on one scale
        widths = [max(widths)] * 2
        size = (HIGH * widths[0] + 0.8, 2 * high)
        figure, grids = plt.subplots(2, 1, figsize=size, layout="constrained")
    givers = origins(old)
    for axes, title, side, width, without_meaning in (
        (grids[0], "before", sides[0], widths[0], ()),
        (grids[1], "after", sides[1], widths[1], undefined),
    ):
        rank_rows(axes, range(len(old)), width)
        axes.set_title(title, loc="left", fontsize=10)
        _squares(axes, side, givers, without_meaning)
    return figure


def _placed(rank_parts: Parts) -> list[tuple[float, float | None]]:
    """Where each value stands; None stands for those that are left out."""
    values: list[tuple[int, float | None]] = []  # number of the part, and the value
    for number, part in enumerate(rank_parts):
        values += [(number, value) for value in part]
    if len(values) > SHOWN:
        first_left_out, _ = values[SHOWN]
        values = [*values[:SHOWN], (first_left_out, None)]
    return [(x + number * _GAP, value) for x, (number, value) in enumerate(values)]


def _width(side: list[list[tuple[float, float | None]]]) -> float:
    """Of all rows, in squares."""
    ends = [row[-1][0] + 1 + _GAP for row in side if row]
    return max([1.5, *ends])


def _squares(axes: Axes, rows: list, givers: Origins, undefined: Collection[int]) -> None:
    for rank, row in enumerate(rows):
        if not row:
            axes.text(0.1, rank + 0.53, "nothing", va="center", fontsize=9, color="#777777")
        for x, value in row:
            if value is None:
                axes.text(x + 0.2, rank + 0.53, "…", va="center")
            elif rank in undefined:
                cell(axes, x, rank, "?", (), **_GARBAGE)
            else:
                cell(axes, x, rank, f"{value:.4g}", origin(givers, value, rank))


def rank_rows(axes: Axes, ranks: Sequence[int], width: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    axes.set(xlim=(-0.05, width), ylim=(len(ranks), 0), xticks=[])
    middles = [row + 0.5 for row in range(len(ranks))]
    axes.set_yticks(middles, [f"rank {rank}" for rank in ranks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: Axes, x: float, y: float, text: str, ranks: Sequence[int], width: float = 1, **box: object
) -> None:
    """Draw a cell with a stripe and a mark for each rank, or white; `box` has the last word."""
    edge = rank_style(ranks[0])["color"] if len(ranks) == 1 else INK
    face = "none" if ranks else "white"
    box = {"facecolor": face, "edgecolor": edge, "linewidth": 1.2} | box
    inner_width = width - 0.22
    around = FancyBboxPatch(
        (x + 0.11, y + 0.11), inner_width, 0.78, boxstyle=_ROUNDED, zorder=1.5, **box
    )
    axes.add_patch(around)
    for number, rank in enumerate(ranks):
        stripe_width = (inner_width + 0.08) / len(ranks)
        left = x + 0.07 + number * stripe_width
        _stripe(axes, around, (left, y), stripe_width, rank)
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # of a hatch
    style = {"ha": "center", "va": "center", "size": 9, "color": INK, "zorder": 3}
    background = clear if "hatch" in box else None
    axes.text(x + 0.11 + inner_width / 2, y + 0.56, text, bbox=background, **style)


def _stripe(
    axes: Axes, around: FancyBboxPatch, corner: tuple[float, float], width: float, rank: int
) -> None:
    """Fill a part of a cell with a rank's colour, and put its mark there."""
    left, y = corner
    style = rank_style(rank)
    light = [1 - 0.3 * (1 - channel) for channel in to_rgb(style["color"])]
    stripe = Rectangle((left, y + 0.07), width, 0.86, facecolor=light, linewidth=0)
    axes.add_patch(stripe)
    stripe.set_clip_path(around)
    mark_x = left + min(0.15, width / 2)
    axes.plot(mark_x, y + 0.23, style["marker"], color=style["color"], markersize=3.5)
