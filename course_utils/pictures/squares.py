"""Tensors per rank as squares, before and after a collective."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any, NamedTuple

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


class _Square(NamedTuple):
    """A value, and where its square begins in its row; None stands for values left out."""

    x: float
    value: float | None


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
    old_text = ", ".join(together(old_words))
    new_text = ", ".join(together(new_words))
    show(draw(old, new, undefined), f"Before: {old_text}. After: {new_text}.")


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
        least = min(values)
        largest = max(values)
        return f"{len(values)} values from {least:.4g} to {largest:.4g}"
    texts = []
    for part in rank_parts:
        numbers = ", ".join(f"{value:.4g}" for value in part)
        texts.append(f"[{numbers}]")
    return " ".join(texts) or "nothing"


def origins(old: list[Parts]) -> Origins:
    """By value, whose it may be: of a rank that had it, or of those whose values add up to it."""
    givers: Origins = defaultdict(set)
    shown_rows = []
    for rank, rank_parts in enumerate(old):
        row = _flat(rank_parts)
        for value in row:
            givers[value].add((rank,))
        shown_rows.append(row[:SHOWN])
    summed_ranks = _ranks_that_may_be_summed(len(old))
    for column in zip(*shown_rows, strict=False):
        for ranks in summed_ranks:
            total = sum(column[rank] for rank in ranks)
            givers[total].add(ranks)
    return givers


def _ranks_that_may_be_summed(world_size: int) -> list[tuple[int, ...]]:
    """Every two ranks or more; of many ranks only all of them."""
    fewest = 2 if world_size <= _FEW else world_size
    result: list[tuple[int, ...]] = []
    for count in range(fewest, world_size + 1):
        result += combinations(range(world_size), count)
    return result


def origin(givers: Origins, value: float, rank: int) -> tuple[int, ...]:
    """Whose a value is: the rank's own if it had it, or else of the only ones it can come from."""
    candidates = givers.get(value, set())
    if (rank,) in candidates:
        return (rank,)
    if not candidates:
        return ()
    fewest = min(map(len, candidates))
    shortest = [ranks for ranks in candidates if len(ranks) == fewest]
    return shortest[0] if len(shortest) == 1 else ()


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> Figure:
    """Draw both sides, a row per rank."""
    old_rows = [_row(rank_parts) for rank_parts in old]
    new_rows = [_row(rank_parts) for rank_parts in new]
    old_width = _width(old_rows)
    new_width = _width(new_rows)
    height = HIGH * len(old) + 0.5
    if old_width + new_width <= _SIDE_BY_SIDE:
        widths = [old_width, new_width]
        size = (HIGH * sum(widths) + 1.6, height)
        figure, (before, after) = plt.subplots(
            1, 2, figsize=size, width_ratios=widths, layout="constrained"
        )
        figure.get_layout_engine().set(wspace=0.08)
    else:  # one below the other, on one scale
        old_width = new_width = max(old_width, new_width)
        size = (HIGH * new_width + 0.8, 2 * height)
        figure, (before, after) = plt.subplots(2, 1, figsize=size, layout="constrained")
    givers = origins(old)
    _prepare(before, "before", len(old), old_width)
    _squares(before, old_rows, givers, undefined=())
    _prepare(after, "after", len(old), new_width)
    _squares(after, new_rows, givers, undefined)
    return figure


def _row(rank_parts: Parts) -> list[_Square]:
    """A rank's values, each in its place; after the first ones, a place for the others."""
    row: list[_Square] = []
    for number, part in enumerate(rank_parts):
        for value in part:
            x = len(row) + number * _GAP
            if len(row) == SHOWN:
                return [*row, _Square(x, None)]
            row.append(_Square(x, value))
    return row


def _width(rows: list[list[_Square]]) -> float:
    """Of all rows, in squares."""
    width = 1.5
    for row in rows:
        if row:
            width = max(width, row[-1].x + 1 + _GAP)
    return width


def _prepare(axes: Axes, title: str, world_size: int, width: float) -> None:
    rank_rows(axes, range(world_size), width)
    axes.set_title(title, loc="left", fontsize=10)


def _squares(
    axes: Axes, rows: list[list[_Square]], givers: Origins, undefined: Collection[int]
) -> None:
    for rank, row in enumerate(rows):
        if not row:
            axes.text(0.1, rank + 0.53, "nothing", va="center", fontsize=9, color="#777777")
        for x, value in row:
            if value is None:
                axes.text(x + 0.2, rank + 0.53, "…", va="center")
            elif rank in undefined:
                cell(axes, x, rank, "?", (), **_GARBAGE)
            else:
                ranks = origin(givers, value, rank)
                cell(axes, x, rank, f"{value:.4g}", ranks)


def rank_rows(axes: Axes, ranks: Sequence[int], width: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    axes.set(xlim=(-0.05, width), ylim=(len(ranks), 0), xticks=[])
    middles = [row + 0.5 for row in range(len(ranks))]
    names = [f"rank {rank}" for rank in ranks]
    axes.set_yticks(middles, names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: Axes, x: float, y: float, text: str, ranks: Sequence[int], width: float = 1, **box: object
) -> None:
    """Draw a cell with a stripe and a mark for each rank, or white; `box` has the last word."""
    edge = INK
    if len(ranks) == 1:
        edge = rank_style(ranks[0])["color"]
    face = "none" if ranks else "white"
    box = {"facecolor": face, "edgecolor": edge, "linewidth": 1.2} | box
    inner_width = width - 0.22
    corner = (x + 0.11, y + 0.11)
    around = FancyBboxPatch(corner, inner_width, 0.78, boxstyle=_ROUNDED, zorder=1.5, **box)
    axes.add_patch(around)
    for number, rank in enumerate(ranks):
        stripe_width = (inner_width + 0.08) / len(ranks)
        left = x + 0.07 + number * stripe_width
        _stripe(axes, around, (left, y), stripe_width, rank)
    background = None
    if "hatch" in box:  # the text is read on white
        background = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    style = {"ha": "center", "va": "center", "size": 9, "color": INK, "zorder": 3}
    middle = x + 0.11 + inner_width / 2
    axes.text(middle, y + 0.56, text, bbox=background, **style)


def _stripe(
    axes: Axes, around: FancyBboxPatch, corner: tuple[float, float], width: float, rank: int
) -> None:
    """Fill a part of a cell with a rank's colour, and put its mark there."""
    left, y = corner
    style = rank_style(rank)
    colour = style["color"]
    tint = [1 - 0.3 * (1 - channel) for channel in to_rgb(colour)]
    stripe = Rectangle((left, y + 0.07), width, 0.86, facecolor=tint, linewidth=0)
    axes.add_patch(stripe)
    stripe.set_clip_path(around)
    mark_x = left + min(0.15, width / 2)
    axes.plot(mark_x, y + 0.23, style["marker"], color=colour, markersize=3.5)
