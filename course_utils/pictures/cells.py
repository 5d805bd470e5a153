"""Rounded cells in rows, a row per rank: what `plot_ranks` and `plot_calls` share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_utils.pictures.shapes import INK
from course_utils.pictures.style import rank_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIGH = 0.56  # inches of a row


def rank_rows(axes: "Axes", ranks: Sequence[int], wide: float) -> None:
    """Make room for a row per rank, named at its left, without a frame; a row is 1 high."""
    axes.set(xlim=(-0.05, wide), ylim=(len(ranks), 0), xticks=[])
    axes.set_yticks([y + 0.5 for y in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cell(
    axes: "Axes", x: float, y: float, text: str, rank: int | None, wide: float = 1, **box: object
) -> None:
    """Draw a cell with the colour and the mark of a rank, or a white one; `box` has the last word.

    Its text keeps clear of a hatch.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import FancyBboxPatch

    style = {"color": INK} if rank is None else rank_style(rank)
    light = [1 - 0.3 * (rank is not None) * (1 - part) for part in to_rgb(style["color"])]
    box = {"facecolor": light, "edgecolor": style["color"], "linewidth": 1.2} | box
    shape = "round,pad=0.04,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((x + 0.11, y + 0.11), wide - 0.22, 0.78, boxstyle=shape, **box))
    if rank is not None:
        axes.plot(x + 0.22, y + 0.23, style["marker"], color=style["color"], markersize=3.5)
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1} if "hatch" in box else None
    axes.text(x + wide / 2, y + 0.53, text, ha="center", va="center", size=9, color=INK, bbox=clear)
