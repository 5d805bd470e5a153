"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

from typing import TYPE_CHECKING

from course_utils.launcher.errors import WorkerTimeout
from course_utils.network.trace import Trace
from course_utils.pictures.cells import HIGH, cell, rank_rows
from course_utils.pictures.sequence import Sequence
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE = 2.5  # of a cell, which is 1 high
_MISSING = {"linewidth": 2, "linestyle": "--"}
_DIFFERS = {"linewidth": 2, "edgecolor": INK}


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

    wide, high, row = len(sequence.numbers) * _WIDE, len(sequence.rows), 1.2 * HIGH
    figure, axes = plt.subplots(figsize=(row * wide + 0.7, row * high + 0.4), layout="constrained")
    rank_rows(axes, list(sequence.rows), wide)
    for column, number in enumerate(sequence.numbers):
        x = column * _WIDE
        axes.text(x + _WIDE / 2, -0.1, f"#{number}", ha="center", color=INK)
        _, blamed = sequence.different.get(number, ("", ()))
        for y, (rank, own) in enumerate(sequence.rows.items()):
            if number not in own:
                cell(axes, x, y, "missing", None, _WIDE, **_MISSING)
                continue
            said = [*filter(None, own[number].lines), *["waits here"] * own[number].waits]
            edge = _DIFFERS if rank in blamed else {}
            cell(axes, x, y, "\n".join(said), rank, _WIDE, **edge)
            if edge:
                axes.text(x + _WIDE - 0.25, y + 0.33, "≠", ha="center", weight="bold", color=INK)
    return figure
