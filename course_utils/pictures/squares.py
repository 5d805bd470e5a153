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

from course_utils.launcher.language import _, listed, sentences
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
_TEXT = {"ha": "center", "va": "center", "color": INK, "zorder": 3}
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
_MARGIN = 0.11  # between the edge of a cell and its box


class _Square(NamedTuple):
    """A value, and where its square begins in its row; None stands for values left out."""

    x: float
    value: float | None


def plot_ranks(
    before: Sequence, after: Sequence, undefined: Collection[int] = (), caption: str = ""
) -> None:
    """Show what every rank holds before and after a collective.

    A square has the colour and the mark of the rank that had its value before, and a sum the
    stripes of all that are in it; white is what can come from several ranks, or from none. Of more
    than 16 values per rank the first ones are drawn.

    Args:
        before: For each rank a tensor, a number, a list of tensors, or None if it holds nothing.
        after: Likewise.
        undefined: Ranks whose result means nothing, such as those off the root of a reduce.
        caption: The sentence below it. By default how such a picture is read; the numbers are its
            alternative text.

    Raises:
        ValueError: The two lists differ in length, are empty, or lack a rank of `undefined`.
        TypeError: Something in them is neither numbers nor None.
    """
    _refuse_misfit(before, after, undefined)
    old = [parts(value) for value in before]
    new = [parts(value) for value in after]
    old_text = _in_words(old)
    new_text = _in_words(new, undefined)
    figure = draw(old, new, undefined)
    how_to_read = _how_to_read(_has_sums(old, new, undefined), bool(undefined))
    show(figure, f"Before: {old_text}. After: {new_text}.", caption or how_to_read)


def _how_to_read(has_sums: bool, is_partly_undefined: bool) -> str:
    colours = _("Each row is a rank. A number has the colour of the rank that it comes from.")
    if has_sums:
        colours = _(
            "Each row is a rank. A number has the colour of the rank that it comes from, and a "
            "sum a stripe for each rank in it."
        )
    if not is_partly_undefined:
        return colours
    return sentences(colours, _("Where a ? stands, the result means nothing."))


def _has_sums(old: list[Parts], new: list[Parts], undefined: Collection[int]) -> bool:
    """Whether a value that means something can only be a sum."""
    givers = origins(old)
    for rank, rank_parts in enumerate(new):
        if rank in undefined:
            continue
        for value in _flat(rank_parts):
            if len(origin(givers, value, rank)) > 1:
                return True
    return False


def _refuse_misfit(before: Sequence, after: Sequence, undefined: Collection[int]) -> None:
    world_size = len(before)
    if not world_size or world_size != len(after):
        counts = listed([world_size, len(after)])
        raise ValueError(_("before and after need one entry per rank: got {counts}", counts=counts))
    last_rank = world_size - 1
    for rank in undefined:
        if rank not in range(world_size):
            raise ValueError(
                _(
                    "undefined={rank!r}: there are ranks 0 to {last_rank}",
                    rank=rank,
                    last_rank=last_rank,
                )
            )


def _in_words(side: list[Parts], undefined: Collection[int] = ()) -> str:
    """What all ranks hold, in words."""
    words = [_numbers(rank_parts) for rank_parts in side]
    for rank in undefined:
        words[rank] = "undefined"
    return ", ".join(together(words))


def parts(value: Any) -> Parts:
    """What a rank holds, as lists of numbers."""
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (int, float)):
        return [[value]]
    if not isinstance(value, (list, tuple)):
        raise TypeError(_("a rank holds tensors, numbers or None, not {value!r:.80}", value=value))
    if all(isinstance(number, (int, float)) for number in value):
        return [list(value)]
    tensors = []
    for tensor in value:
        nested = parts(tensor)
        tensors.append(_flat(nested))
    return tensors


def _flat(rank_parts: Parts) -> list[float]:
    numbers: list[float] = []
    for part in rank_parts:
        numbers += part
    return numbers


def _numbers(rank_parts: Parts) -> str:
    values = _flat(rank_parts)
    if len(values) > SHOWN:
        least = min(values)
        largest = max(values)
        return f"{len(values)} values from {least:.4g} to {largest:.4g}"
    if not rank_parts:
        return "nothing"
    texts = []
    for part in rank_parts:
        numbers = [f"{value:.4g}" for value in part]
        listed = ", ".join(numbers)
        texts.append(f"[{listed}]")
    return " ".join(texts)


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
    ranks = range(world_size)
    if world_size > _FEW:
        return [tuple(ranks)]
    result: list[tuple[int, ...]] = []
    for count in range(2, world_size + 1):
        result += combinations(ranks, count)
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
    if len(shortest) > 1:
        return ()
    return shortest[0]


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> Figure:
    """Draw both sides, a row per rank."""
    old_rows = [_row(rank_parts) for rank_parts in old]
    new_rows = [_row(rank_parts) for rank_parts in new]
    old_width = _width(old_rows)
    new_width = _width(new_rows)
    height = HIGH * len(old) + 0.5
    if old_width + new_width <= _SIDE_BY_SIDE:
        figure, (before, after) = _side_by_side(old_width, new_width, height)
    else:
        old_width = new_width = max(old_width, new_width)
        figure, (before, after) = _one_below_the_other(new_width, height)
    givers = origins(old)
    _prepare(before, "before", len(old), old_width)
    _squares(before, old_rows, givers, undefined=())
    _prepare(after, "after", len(old), new_width)
    _squares(after, new_rows, givers, undefined)
    return figure


def _side_by_side(old_width: float, new_width: float, height: float) -> tuple[Figure, Sequence]:
    widths = [old_width, new_width]
    inches = HIGH * sum(widths) + 1.6
    figure, both = plt.subplots(
        ncols=2, figsize=(inches, height), width_ratios=widths, layout="constrained"
    )
    engine = figure.get_layout_engine()
    engine.set(wspace=0.08)
    return figure, both


def _one_below_the_other(width: float, height: float) -> tuple[Figure, Sequence]:
    """Both on one scale."""
    inches = HIGH * width + 0.8
    return plt.subplots(nrows=2, figsize=(inches, 2 * height), layout="constrained")


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
        middle = rank + 0.53
        if not row:
            axes.text(0.1, middle, "nothing", va="center", fontsize=9, color="#777777")
        for x, value in row:
            if value is None:
                axes.text(x + 0.2, middle, "…", va="center")
            elif rank in undefined:
                cell(axes, x, rank, "?", (), **_GARBAGE)
            else:
                ranks = origin(givers, value, rank)
                cell(axes, x, rank, f"{value:.4g}", ranks)


def rank_rows(axes: Axes, ranks: Sequence[int], width: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    across = (-0.05, width)
    downwards = (len(ranks), 0)
    axes.set(xlim=across, ylim=downwards, xticks=[])
    middles = []
    names = []
    for row, rank in enumerate(ranks):
        middles.append(row + 0.5)
        names.append(f"rank {rank}")
    axes.set_yticks(middles, names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    ranks: Sequence[int],
    width: float = 1,
    points: float = 9,
    **box: object,
) -> None:
    """Draw a cell with a stripe and a mark for each rank, or white; `box` has the last word.

    `points` is the size of the text's letters.
    """
    look = _plain_box(ranks)
    look.update(box)
    inner_width = width - 2 * _MARGIN
    left = x + _MARGIN
    corner = (left, y + _MARGIN)
    around = FancyBboxPatch(corner, inner_width, 0.78, boxstyle=_ROUNDED, zorder=1.5, **look)
    axes.add_patch(around)
    for number, rank in enumerate(ranks):
        stripe_width = (inner_width + 0.08) / len(ranks)
        stripe_left = x + 0.07 + number * stripe_width
        _stripe(axes, around, (stripe_left, y), stripe_width, rank)
    background = None
    if "hatch" in look:  # the text is read on white
        background = _ON_WHITE
    middle = left + inner_width / 2
    axes.text(middle, y + 0.56, text, size=points, bbox=background, **_TEXT)


def _plain_box(ranks: Sequence[int]) -> dict[str, object]:
    """How the box of a cell looks, unless its caller wants it otherwise."""
    look = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.2}
    if not ranks:
        look["facecolor"] = "white"
    if len(ranks) == 1:
        style = rank_style(ranks[0])
        look["edgecolor"] = style["color"]
    return look


def _stripe(
    axes: Axes, around: FancyBboxPatch, corner: tuple[float, float], width: float, rank: int
) -> None:
    """Fill a part of a cell with a rank's colour, and put its mark there."""
    left, y = corner
    style = rank_style(rank)
    colour = style["color"]
    tint = []
    for channel in to_rgb(colour):
        darkness = 1 - channel
        tint.append(1 - 0.3 * darkness)
    stripe_corner = (left, y + 0.07)
    stripe = Rectangle(stripe_corner, width, 0.86, facecolor=tint, linewidth=0)
    axes.add_patch(stripe)
    stripe.set_clip_path(around)
    mark_x = left + min(0.15, width / 2)
    mark_y = y + 0.23
    axes.plot(mark_x, mark_y, style["marker"], color=colour, markersize=3.5)
