"""A number of every rank against its step, as a small chart in SVG for the live panel."""

import math
from collections.abc import Sequence
from typing import Any

from course_utils.pictures.style import OKABE_ITO

Points = list[tuple[float, float]]  # a rank's steps and the numbers that it reported with them
_MOST = 400  # points of a rank, at most
_DASHES = ("none", "7 3", "7 3 1 3", "1 3")  # a second cue beside the colour
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 420, 130, 46, 10, 10, 22  # pixels


def note(points: Points, metrics: dict[str, Any]) -> None:
    """Add what a rank has just reported, if it has a new step and a loss."""
    step, loss = metrics.get("step"), metrics.get("loss")
    numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in (step, loss))
    if not numbers or (points and points[-1][0] == step):
        return
    points.append((step, loss))
    if len(points) > _MOST:
        del points[1:-1:2]


def curves(points_by_rank: Sequence[Points]) -> str:
    """Draw one line for each rank, from 0 up to the largest loss; empty while there is no line."""
    known = [point for points in points_by_rank for point in points]
    steps = [step for step, _ in known]
    largest = max((loss for _, loss in known), default=0.0)
    if largest <= 0 or max(steps) == min(steps):
        return ""
    first, last = min(steps), max(steps)
    across = (_WIDTH - _LEFT - _RIGHT) / (last - first)
    down = (_HEIGHT - _TOP - _BOTTOM) / largest
    floor = _HEIGHT - _BOTTOM
    lines = []
    for rank, points in enumerate(points_by_rank):
        places = [
            f"{_LEFT + across * (step - first):.1f},{floor - down * max(loss, 0.0):.1f}"
            for step, loss in points
        ]
        colour = OKABE_ITO[rank % len(OKABE_ITO)].replace("#000000", "currentColor")
        dash = _DASHES[rank % len(_DASHES)]
        lines.append(
            f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" '
            f'stroke-width="1.8" stroke-dasharray="{dash}"/>'
        )
    axes = f"M{_LEFT},{_TOP}V{floor}H{_WIDTH - _RIGHT}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="loss of every rank" '
        f'style="display:block;max-width:100%" font-size="11" fill="currentColor">'
        f'<path d="{axes}" fill="none" stroke="currentColor" opacity=".5"/>'
        f"{_text(_LEFT - 6, _TOP + 8, f'{largest:.3g}', 'end')}"
        f"{_text(_LEFT - 6, floor, '0', 'end')}"
        f"{_text(_LEFT - 6, (_TOP + floor) // 2, 'loss', 'end')}"
        f"{_text(_LEFT, _HEIGHT - 6, f'step {first:g}')}"
        f"{_text(_WIDTH - _RIGHT, _HEIGHT - 6, f'{last:g}', 'end')}{''.join(lines)}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
