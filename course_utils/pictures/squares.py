"""Tensors per rank as squares, before and after a collective."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from course_utils.pictures.cells import HIGH, cell, rank_rows
from course_utils.pictures.style import show
from course_utils.pictures.words import together

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

PRINTED = 16  # values of a rank, at most, that are named one by one
Parts = list[list[float]]  # a rank's tensors, flattened; one for a single tensor
_GAP = 0.3  # between two tensors of a rank; a square has a place of 1


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
    _refuse_misfit(before, after, undefined)
    old, new = [parts(own) for own in before], [parts(own) for own in after]
    if text is None:
        text = f"Before: {_spoken(old)}. After: {_spoken(new, undefined)}."
    show(draw(old, new, undefined), text)


def _refuse_misfit(before: Sequence[Any], after: Sequence[Any], undefined: Collection[int]) -> None:
    """Raise ValueError unless both sides have the same ranks, and `undefined` is among them."""
    if not before or len(before) != len(after):
        raise ValueError(
            "plot_ranks needs one entry per rank, before and after: "
            f"got {len(before)} and {len(after)}"
        )
    for rank in undefined:
        if rank not in range(len(before)):
            raise ValueError(f"undefined={rank!r}: there are ranks 0 to {len(before) - 1}")


def parts(own: Any) -> Parts:
    """What a rank holds, as lists of numbers."""
    if own is None:
        return []
    if hasattr(own, "tolist"):
        own = own.tolist()
    if isinstance(own, (bool, int, float)):
        return [[own]]
    if not isinstance(own, (list, tuple)):
        raise TypeError(f"a rank holds tensors, numbers or None, not {own!r:.80}")
    if all(isinstance(value, (bool, int, float)) for value in own):
        return [list(own)]
    return [[value for part in parts(each) for value in part] for each in own]


def _spoken(held: list[Parts], undefined: Collection[int] = ()) -> str:
    """The numbers of all ranks."""
    said = ("undefined" if r in undefined else _numbers(own) for r, own in enumerate(held))
    return ", ".join(together(said))


def _numbers(own: Parts) -> str:
    values = [value for part in own for value in part]
    if len(values) > PRINTED:
        return f"{len(values)} values from {min(values):.4g} to {max(values):.4g}"
    texts = ["[" + ", ".join(f"{value:.4g}" for value in part) + "]" for part in own]
    return " ".join(texts) or "nothing"


def origins(old: list[Parts]) -> Callable[[float, int], int | None]:
    """A function of a value and the rank that has it now: which single rank had it before."""
    had = defaultdict(set)
    for rank, own in enumerate(old):
        for part in own:
            for value in part:
                had[value].add(rank)

    def origin(value: float, rank: int) -> int | None:
        owners = had.get(value, ())
        return rank if rank in owners else min(owners) if len(owners) == 1 else None

    return origin


def draw(old: list[Parts], new: list[Parts], undefined: Collection[int] = ()) -> "Figure":
    """Draw both sides, a row per rank."""
    import matplotlib.pyplot as plt

    wide = [max(1.5, *(sum(len(p) + _GAP for p in own) for own in side)) for side in (old, new)]
    printed = max(sum(map(len, own)) for own in (*old, *new)) <= PRINTED
    one = HIGH if printed else 9 / sum(wide)  # inches of a square
    shape = (one * sum(wide) + 1.6, HIGH * len(old) + 0.5)
    figure, sides = plt.subplots(1, 2, figsize=shape, width_ratios=wide, layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    for axes, width, title in zip(sides, wide, ("before", "after"), strict=True):
        rank_rows(axes, range(len(old)), width)
        axes.set_title(title, loc="left", fontsize=10)
    known = [[] if rank in undefined else own for rank, own in enumerate(new)]
    for axes, held, garbage in ((sides[0], old, ()), (sides[1], new, undefined)):
        for rank, own in enumerate(held):
            if not any(own) or (rank in garbage and not printed):
                said = "undefined" if any(own) else "nothing"
                axes.text(0.1, rank + 0.53, said, va="center", fontsize=9, color="#777777")
    if printed:
        _squares(sides[0], old, old)
        _squares(sides[1], new, old, undefined)
    else:
        scale = _scale(old + known)
        _strips(sides[0], old, scale)
        _strips(sides[1], known, scale)
        figure.colorbar(scale, ax=list(sides), label="value", pad=0.01)
    return figure


def _squares(
    axes: "Axes", held: list[Parts], old: list[Parts], undefined: Collection[int] = ()
) -> None:
    """Squares with their values, in the colours of the ranks that they come from."""
    origin = origins(old)
    grey = {"edgecolor": "#999999", "hatch": "xx", "linestyle": "--"}
    for rank, own in enumerate(held):
        x = 0.0
        for part in own:
            for value in part:
                if rank in undefined:
                    cell(axes, x, rank, "?", None, **grey)
                else:
                    cell(axes, x, rank, f"{value:.4g}", origin(value, rank))
                x += 1
            x += _GAP


def _scale(held: list[Parts]) -> "ScalarMappable":
    """From the least to the largest value that is finite."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = [v for own in held for part in own for v in part if math.isfinite(v)] or [0]
    return ScalarMappable(Normalize(min(values), max(values)), "cividis")


def _strips(axes: "Axes", held: list[Parts], scale: "ScalarMappable") -> None:
    """Squares too many for numbers, coloured by value."""
    for rank, own in enumerate(held):
        x = 0.0
        for part in filter(None, own):
            place = (x, x + len(part), rank + 0.9, rank + 0.1)
            axes.imshow([part], scale.cmap, norm=scale.norm, extent=place, aspect="auto")
            x += len(part) + _GAP
