"""Tensors per rank as squares, before and after a collective."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from course_utils.pictures.held import PRINTED, Parts, origins, parts, refuse_misfit, spoken
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import rank_style, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP, _EDGE = 0.3, 0.86  # between two tensors of a rank; of a square, which has a place of 1


def plot_ranks(
    before: Sequence[Any],
    after: Sequence[Any],
    text: str | None = None,
    undefined: Collection[int] = (),
) -> None:
    """Show what every rank holds before and after a collective.

    A square has the colour and the mark of the rank that had its value before; a value that nobody
    had, such as a sum, is white. Of more than 16 values per rank, squares are coloured by value.

    Args:
        before: For each rank a tensor, a number, a list of tensors, or None if it holds nothing.
        after: Likewise.
        text: The sentence below the picture; by default the numbers.
        undefined: Ranks whose result means nothing, such as those off the root of a reduce.

    Raises:
        ValueError: The two lists differ in length, are empty, or lack a rank of `undefined`.
        TypeError: Something in them is neither numbers nor None.
    """
    refuse_misfit(before, after, undefined)
    old, new = [parts(own) for own in before], [parts(own) for own in after]
    if text is None:
        text = f"Before: {spoken(old)}. After: {spoken(new, undefined)}."
    show(draw(old, new, undefined), text)


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> "Figure":
    """Draw both sides, a row per rank."""
    import matplotlib.pyplot as plt

    most = max(sum(map(len, own)) for own in (*old, *new))
    wide = [max(1.5, *(x + 1 for x, _, _ in _places(side))) for side in (old, new)]
    one = 0.56 if most <= PRINTED else 9 / sum(wide)  # inches of a square
    shape = (one * sum(wide) + 1.6, 0.56 * len(old) + 0.5)
    figure, sides = plt.subplots(1, 2, figsize=shape, width_ratios=wide, layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    for axes, width, title in zip(sides, wide, ("before", "after"), strict=True):
        axes.set(xlim=(-0.05, width), ylim=(len(old), 0))
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([r + 0.5 for r in range(len(old))], [f"rank {r}" for r in range(len(old))])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    if most > PRINTED:
        _coloured(figure, sides, (old, new), undefined)
        return figure
    origin = origins(old)
    _printed(sides[0], old, lambda value, rank: rank)
    _printed(sides[1], new, origin, undefined)
    return figure


def _places(held: list[Parts]) -> Iterator[tuple[float, int, float]]:
    """Column, rank and value of every square; nothing for a rank that holds nothing."""
    for rank, own in enumerate(held):
        x = 0.0
        for part in own:
            for value in part:
                yield x, rank, value
                x += 1
            x += _GAP


def _printed(
    axes: "Axes",
    held: list[Parts],
    origin: Callable[[float, int], int | None],
    undefined: Collection[int] = (),
) -> None:
    """Squares with their values, in the colours of the ranks that they come from."""
    from matplotlib.patches import FancyBboxPatch

    for x, rank, value in _places(held):
        garbage = rank in undefined
        owner = None if garbage else origin(value, rank)
        style = {"color": "#999999" if garbage else INK} if owner is None else rank_style(owner)
        edge = _EDGE - 0.08
        square = FancyBboxPatch(
            (x + 0.11, rank + 0.11), edge, edge, boxstyle="round,pad=0.04,rounding_size=0.1",
            facecolor=tint(style["color"], owner), edgecolor=style["color"], linewidth=1.2,
            hatch="xx" if garbage else None, linestyle="--" if garbage else "-",
        )  # fmt: skip
        axes.add_patch(square)
        if owner is not None:
            axes.plot(x + 0.22, rank + 0.23, style["marker"], color=style["color"], markersize=3.5)
        axes.text(
            x + 0.5, rank + 0.53, "?" if garbage else f"{value:.4g}", ha="center", va="center",
            fontsize=9, color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1} if garbage else None,
        )  # fmt: skip
    _empty(axes, held)


def tint(color: str, owner: int | None) -> tuple[float, ...]:
    """A light tone of a rank's colour; white for what nobody had."""
    from matplotlib.colors import to_rgb

    return tuple(1 - 0.3 * (1 - part) * (owner is not None) for part in to_rgb(color))


def _empty(axes: "Axes", held: list[Parts]) -> None:
    for rank, own in enumerate(held):
        if not any(own):
            axes.text(0.1, rank + 0.53, "nothing", va="center", fontsize=9, color="#777777")


def _coloured(
    figure: "Figure", sides: Sequence["Axes"], both: Sequence[list[Parts]],
    undefined: Collection[int],
) -> None:  # fmt: skip
    """Squares too many for numbers, coloured by value on one scale."""
    from matplotlib.collections import PolyCollection

    known = [list(_places(both[0])), [p for p in _places(both[1]) if p[1] not in undefined]]
    values = [value for shown in known for _, _, value in shown]
    for after, (axes, held, shown) in enumerate(zip(sides, both, known, strict=True)):
        corners = [
            [(x, r + 0.1), (x + 1, r + 0.1), (x + 1, r + 0.9), (x, r + 0.9)] for x, r, _ in shown
        ]
        squares = PolyCollection(corners, array=[v for _, _, v in shown], cmap="cividis")
        squares.set_clim(min(values), max(values))
        axes.add_collection(squares)
        _empty(axes, held)
        for rank in undefined if after else ():
            axes.text(0.1, rank + 0.53, "undefined", va="center", fontsize=9, color="#777777")
    figure.colorbar(squares, ax=list(sides), label="value", pad=0.01)
