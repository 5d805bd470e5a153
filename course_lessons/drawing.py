"""Of a learner's answer, what chapters draw: what ranks return, or a line that says why not."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt

from course_utils import WorkerError, show
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.launch import launch as launch_quietly
from course_utils.pictures.squares import HIGH, cell, rank_rows

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


_WIDE = 2.4  # of a column, whose cells are 1 high


def draw_columns(held: Sequence[Sequence[object]], titles: Sequence[str]) -> None:
    """Draw what every rank holds at several moments, a row for each rank, a column for a moment.

    A number that a rank held at first has that rank's colour, and any other number those of all.

    Args:
        held: `held[rank][moment]`, a number or a word; words are in grey.
        titles: What the moments are called.
    """
    ranks, width = range(len(held)), _WIDE * len(titles)
    figure, axes = plt.subplots(
        figsize=(HIGH * width + 0.7, HIGH * len(held) + 0.4), layout="constrained"
    )
    rank_rows(axes, ranks, width)
    sentences = []
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
        said = [value if isinstance(value, str) else f"{value:.4g}" for value in values]
        sentences.append(f"{title}: {', '.join(said)}")
    show(figure, f"Ranks 0 to {len(held) - 1}, {'; '.join(sentences)}.")
