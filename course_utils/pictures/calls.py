"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

from typing import TYPE_CHECKING

from course_utils.launcher.errors import WorkerTimeout
from course_utils.network.trace import Trace
from course_utils.pictures.sequence import Cell, Sequence
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import tint
from course_utils.pictures.style import rank_style, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE, _HIGH = 1.45, 0.68  # inches of a cell


def plot_calls(source: WorkerTimeout | Trace, text: str | None = None, last: int = 5) -> None:
    """Show the last collectives of every rank, in order; what is missing or differs is marked.

    Args:
        source: The error of ranks that hang, or `results.trace`.
        text: The sentence below the picture; by default what is missing or differs.
        last: How many collectives, at most.

    Raises:
        TypeError: `source` is neither.
        ValueError: No rank is known to have called a collective.
    """
    sequence = Sequence(source, last)
    show(draw(sequence), sequence.text() if text is None else text)


def draw(sequence: Sequence) -> "Figure":
    """Draw a row per rank and a column per collective."""
    import matplotlib.pyplot as plt

    wide, high = len(sequence.numbers), len(sequence.rows)
    figure, axes = plt.subplots(
        figsize=(_WIDE * wide + 0.7, _HIGH * high + 0.4), layout="constrained"
    )
    axes.set(xlim=(0, wide), ylim=(high, 0))
    axes.set_xticks([x + 0.5 for x in range(wide)], [f"#{n}" for n in sequence.numbers])
    axes.set_yticks([y + 0.5 for y in range(high)], [f"rank {rank}" for rank in sequence.rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for y, (rank, row) in enumerate(sequence.rows.items()):
        for x, number in enumerate(sequence.numbers):
            _, blamed = sequence.different.get(number, ("", ()))
            if number in row:
                _cell(axes, x, y, rank, row[number], rank in blamed)
            else:
                _box(axes, x, y, facecolor="white", edgecolor=INK, linewidth=2, linestyle="--")
                axes.text(x + 0.5, y + 0.5, "missing", ha="center", va="center", weight="bold")
    return figure


def _cell(axes: "Axes", x: int, y: int, rank: int, cell: Cell, differs: bool) -> None:
    """A collective that the rank called, in its colour and with its mark."""
    style = rank_style(rank)
    edge = {"edgecolor": INK, "linewidth": 2} if differs else {"edgecolor": style["color"]}
    _box(axes, x, y, facecolor=tint(style["color"], rank), **edge)
    axes.plot(x + 0.09, y + 0.2, style["marker"], color=style["color"], markersize=4)
    if differs:
        axes.text(x + 0.91, y + 0.22, "≠", ha="center", va="center", weight="bold", color=INK)
    rows = [*filter(None, cell.lines), *(["waits here"] if cell.waits else [])]
    axes.text(
        x + 0.5, y + 0.5, "\n".join(rows), ha="center", va="center", fontsize=8.5, color=INK
    )  # fmt: skip


def _box(axes: "Axes", x: int, y: int, **style: object) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x + 0.03, y + 0.07), 0.94, 0.86, boxstyle=shape, **style))
