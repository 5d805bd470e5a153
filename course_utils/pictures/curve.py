"""A number of every rank against its step, as a small chart in SVG for the live panel."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from course_utils.pictures.style import OKABE_ITO

Points = list[tuple[float, float]]  # a rank's steps and the numbers that it reported with them
MOST_POINTS = 400  # of a rank
_DASHES = ("none", "7 3", "7 3 1 3", "1 3")  # a second cue beside the colour
# Pixels: the whole chart, and where the axes stand in it.
_WIDTH, _HEIGHT = 420, 130
_LEFT, _TOP = 46, 10
_END = _WIDTH - 10
_FLOOR = _HEIGHT - 22


class _Scale(NamedTuple):
    """Where steps and losses stand in the chart."""

    first_step: float
    across: float  # pixels of a step
    down: float  # pixels of a loss of 1

    def place(self, step: float, loss: float) -> str:
        steps = step - self.first_step
        height = max(loss, 0.0)
        x = _LEFT + self.across * steps
        y = _FLOOR - self.down * height
        return f"{x:.1f},{y:.1f}"


def note(points: Points, metrics: dict[str, Any]) -> None:
    """Add what a rank has just reported, if it has a new step and a loss."""
    step = metrics.get("step")
    loss = metrics.get("loss")
    if not _is_finite(step) or not _is_finite(loss):
        return
    if points:
        last_step, _ = points[-1]
        if step == last_step:
            return
    points.append((step, loss))
    if len(points) > MOST_POINTS:
        del points[1:-1:2]


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def curves(points_by_rank: Sequence[Points]) -> str:
    """Draw one line for each rank, from 0 up to the largest loss; empty while there is no line."""
    steps = []
    losses = []
    for points in points_by_rank:
        for step, loss in points:
            steps.append(step)
            losses.append(loss)
    largest = max(losses, default=0.0)
    if largest <= 0 or max(steps) == min(steps):
        return ""
    first = min(steps)
    last = max(steps)
    across = (_END - _LEFT) / (last - first)
    down = (_FLOOR - _TOP) / largest
    scale = _Scale(first, across, down)
    lines = []
    for rank, points in enumerate(points_by_rank):
        lines.append(_line(rank, points, scale))
    drawn = "".join(lines)
    axes = f"M{_LEFT},{_TOP}V{_FLOOR}H{_END}"
    middle = (_TOP + _FLOOR) // 2
    words = [
        _text(_LEFT - 6, _TOP + 8, f"{largest:.3g}", "end"),
        _text(_LEFT - 6, _FLOOR, "0", "end"),
        _text(_LEFT - 6, middle, "loss", "end"),
        _text(_LEFT, _HEIGHT - 6, f"step {first:g}"),
        _text(_END, _HEIGHT - 6, f"{last:g}", "end"),
    ]
    labels = "".join(words)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="loss of every rank" '
        f'style="display:block;max-width:100%" font-size="11" fill="currentColor">'
        f'<path d="{axes}" fill="none" stroke="currentColor" opacity=".5"/>'
        f"{labels}{drawn}</svg>"
    )


def _line(rank: int, points: Points, scale: _Scale) -> str:
    places = []
    for step, loss in points:
        places.append(scale.place(step, loss))
    corners = " ".join(places)
    colour = on_any_theme(rank)
    dash = _DASHES[rank % len(_DASHES)]
    return (
        f'<polyline points="{corners}" fill="none" stroke="{colour}" '
        f'stroke-width="1.8" stroke-dasharray="{dash}"/>'
    )


def on_any_theme(rank: int) -> str:
    """A rank's colour, as CSS has it: black would not be seen on black."""
    colour = OKABE_ITO[rank % len(OKABE_ITO)]
    return colour.replace("#000000", "currentColor")


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
