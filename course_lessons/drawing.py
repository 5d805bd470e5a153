"""What several chapters draw with: what an answer's ranks return, boxes, who sends to whom."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils import WorkerError, show
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.launch import launch as launch_quietly
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import HIGH, cell, rank_rows
from course_utils.pictures.style import KINDS

_UNITS = {"MB": 1e6, "MiB": 2**20}
_WIDE = 2.4  # of a column, whose cells are 1 high
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


def first_answers(
    answers: Sequence[Any], worker_of: Callable[[Any], Callable], world_size: int
) -> tuple[Any, list] | None:
    """The first answer that neither raises nor hangs, and what its ranks return; None if all do.

    Args:
        answers: Below each that does, a line says why.
        worker_of: Makes of an answer what a rank runs.
        world_size: How many ranks.
    """
    for answer in answers:
        returned = answers_to_draw(worker_of(answer), world_size)
        if returned is not None:
            return answer, returned
    return None


def first_with_numbers(answers: Sequence[Callable], calls: Sequence[tuple]) -> Callable | None:
    """The first answer that returns a number whenever it's called; a line says why others don't.

    Args:
        answers: Functions.
        calls: Of each call that a picture will make, its arguments.
    """
    for answer in answers:
        try:
            for arguments in calls:
                _refuse_infinite(float(answer(*arguments)))
            return answer
        except Exception as error:  # whatever a learner's function raises
            print(f"No picture yet of {answer.__name__}: {error or type(error).__name__}")
    return None


def _refuse_infinite(number: float) -> None:
    if not math.isfinite(number):
        raise ValueError(f"it returns {number}")


def reason_of(error: WorkerError) -> str:
    """The first failure's headline; of ranks that hang, what the report says last, which is why."""
    return error.failures[0].headline if error.failures else error.parts[-1]


def bare(axes: Axes, **settings: Any) -> None:
    """Set what `Axes.set` takes, and leave the frame out at the top and at the right."""
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)


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


def paint(kind: str) -> dict[str, str]:
    """How bars of a kind look, as in timelines: `facecolor`, `edgecolor` and `hatch`."""
    style = KINDS[kind]
    hatch = "" if kind == "compute" else "////"
    return {"facecolor": style.fill, "edgecolor": style.ink, "hatch": hatch}


class Box(NamedTuple):
    """One box of a table of boxes: its words, and how it looks."""

    words: str = ""
    fill: str = "white"
    edge: str = "#999999"
    hatch: str = ""
    bold: bool = False


def draw_boxes(
    axes: Axes, rows: Mapping[str, Sequence[Box | None]], columns: Sequence[str]
) -> None:
    """Draw a table of boxes, each 1 wide and 1 high, without a frame.

    Args:
        axes: Where it is drawn.
        rows: By the row's name, its boxes; None leaves a place empty.
        columns: What stands above each column.
    """
    for y, boxes in enumerate(rows.values()):
        for x, box in enumerate(boxes):
            if box is not None:
                _draw_box(axes, x, y, box)
    middles = [x + 0.48 for x in range(len(columns))]
    axes.set(xlim=(-0.03, len(columns)), ylim=(len(rows), -0.04))
    axes.set_xticks(middles, columns, fontsize=9)
    names = [name.strip() for name in rows]  # spaces tell rows of the same name apart
    axes.set_yticks([y + 0.45 for y in range(len(rows))], names, fontsize=9)
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)


def _draw_box(axes: Axes, x: int, y: int, box: Box) -> None:
    look = {"facecolor": box.fill, "edgecolor": box.edge, "hatch": box.hatch}
    axes.add_patch(plt.Rectangle((x, y), 0.96, 0.9, **look))
    behind = None
    if box.hatch:
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    weight = "bold" if box.bold else "normal"
    place = {"ha": "center", "va": "center", "fontsize": 9, "weight": weight, "bbox": behind}
    axes.text(x + 0.48, y + 0.45, box.words, **place)


def box_figure(
    rows: Mapping[str, Sequence[Box | None]], columns: Sequence[str], width: float = 1.0
) -> Figure:
    """Make a figure of one table of boxes.

    Args:
        rows: As for `draw_boxes`.
        columns: As for `draw_boxes`.
        width: Inches of a column.
    """
    lines = 1
    for boxes in rows.values():
        for box in boxes:
            if box is not None:
                lines = max(lines, 1 + box.words.count("\n"))
    size = (width * len(columns) + 1, (0.2 + 0.18 * lines) * len(rows) + 0.3)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    draw_boxes(axes, rows, columns)
    return figure


def draw_columns(
    held: Sequence[Sequence[object]], titles: Sequence[str], caption: str = ""
) -> None:
    """Draw what every rank holds at several moments, a row for each rank, a column for a moment.

    A number that a rank held at first has that rank's colour, and any other number those of all.

    Args:
        held: `held[rank][moment]`, a number or a word; words are in grey.
        titles: What the moments are called.
        caption: One short line that says what to look for.
    """
    ranks, width = range(len(held)), _WIDE * len(titles)
    figure, axes = plt.subplots(
        figsize=(HIGH * width + 0.7, HIGH * len(held) + 0.4), layout="constrained"
    )
    rank_rows(axes, ranks, width)
    for column, title in enumerate(titles):
        left = _WIDE * column
        axes.text(left + _WIDE / 2, -0.12, title, ha="center", fontsize=10)
        values = [row[column] for row in held]
        for rank, value in enumerate(values):
            if isinstance(value, str):
                cell(axes, left, rank, value, (), _WIDE, edgecolor="#999999", linestyle="--")
                continue
            givers = [rank] if value == held[rank][0] else list(ranks)
            cell(axes, left, rank, f"{value:.4g}", givers, _WIDE)
    sentences = []
    for rank, values in enumerate(held):
        parts = []
        for title, value in zip(titles, values, strict=True):
            text = value if isinstance(value, str) else f"{value:.4g}"
            parts.append(f"{title} {text}")
        sentences.append(f"Rank {rank}: {', '.join(parts)}.")
    show(figure, " ".join(sentences), caption)
