"""What several chapters draw: what a learner's answer returns in ranks, and who sends to whom."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from course_utils import WorkerError, show
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.launch import launch as launch_quietly
from course_utils.pictures.shapes import INK

_UNITS = {"MB": 1e6, "MiB": 2**20}
_DRAWING_S = 20.0  # on a quiet machine, for what is drawn; an answer that hangs ends then


def answers_to_draw(worker: Callable, world_size: int) -> list | None:
    """What the ranks return; None, below a line that says why, if an answer raises or hangs."""
    try:
        return launch_quietly(
            worker, world_size=world_size, backend="gloo", timeout=_DRAWING_S * slowness()
        )
    except WorkerError as error:
        print("No picture yet:", error.failures[0].headline if error.failures else error)
        return None


def reason_of(error: WorkerError) -> str:
    """The first failure's headline; of ranks that hang, what the report says last, which is why."""
    return error.failures[0].headline if error.failures else error.parts[-1]


def draw_pairs(
    bytes_by_name: Mapping[str, Sequence[Sequence[float]]], per_node: int, unit: str = "MB"
) -> None:
    """Draw who sends how much to whom, a matrix of ranks for each algorithm; boxes are nodes.

    Args:
        bytes_by_name: For each algorithm, row by row, what a rank sends to each of the others.
        per_node: How many ranks a node has.
        unit: "MB" or "MiB".
    """
    panels_across = len(bytes_by_name)
    size = (3.0 * panels_across + 0.8, 3.4)
    figure, panels = plt.subplots(1, panels_across, figsize=size, layout="constrained")
    matrices = {name: np.array(rows) / _UNITS[unit] for name, rows in bytes_by_name.items()}
    most = max(matrix.max() for matrix in matrices.values())
    sentences = []
    for axes, (name, sent) in zip(panels, matrices.items(), strict=True):
        count = len(sent)
        style = {"cmap": "viridis_r", "vmin": 0, "vmax": most}
        image = axes.imshow(np.ma.masked_equal(sent, 0), **style)
        crossing = sent.copy()
        for first in range(0, count, per_node):
            box = {"fill": False, "edgecolor": INK, "linewidth": 1}
            axes.add_patch(Rectangle((first - 0.5, first - 0.5), per_node, per_node, **box))
            crossing[first : first + per_node, first : first + per_node] = 0
        busiest = crossing.sum(axis=1).max()
        axes.set_title(f"{name}: {busiest:.3g} {unit}\nthrough the busiest card", size=10)
        axes.set(xticks=range(0, count, per_node), yticks=range(0, count, per_node))
        axes.set_xlabel("to rank")
        sentences.append(f"{name}: {busiest:.3g} {unit} leave a node by the busiest card")
    panels[0].set_ylabel("from rank")
    figure.colorbar(image, ax=panels, label=unit, shrink=0.8)
    show(figure, f"Boxes are nodes. {'. '.join(sentences)}.")
