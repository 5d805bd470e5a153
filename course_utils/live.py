"""The panel that a notebook shows while workers run."""

import html
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.member import Member

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_EVERY_S = 0.12
_POINTS = 60  # of a loss curve as wide as a thumbnail


class Panel:
    """One line per rank: progress, numbers, the loss so far, and what it printed last."""

    def __init__(self, world_size: int) -> None:
        self.started, self.shown = time.monotonic(), 0.0
        self.view = _view(world_size)

    def show(self, members: "Iterable[Member]", final: bool = False) -> None:
        """Redraw, at most eight times a second."""
        now = time.monotonic()
        if self.view is None or (now - self.shown < _EVERY_S and not final):
            return
        self.shown = now
        self.view.value = render(members, now - self.started)


def _view(world_size: int) -> Any:
    """An HTML widget in a notebook, nothing elsewhere."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import display
    from ipywidgets import HTML

    class LivePanel(HTML):
        def __repr__(self) -> str:
            """What a notebook shows that was saved without its widgets."""
            return f"Live panel of {world_size} ranks: run this cell to see it move."

    if get_ipython() is None:
        return None
    view = LivePanel()
    display(view)
    return view


def render(members: "Iterable[Member]", seconds: float) -> str:
    """The panel as HTML."""
    rows = "".join(_row(member) for member in members)
    return (
        '<table style="border-spacing:12px 2px;font-family:monospace;font-size:13px;'
        f'line-height:1.5">{rows}<tr><td colspan="5" style="opacity:.7">{seconds:.1f} s</td>'
        "</tr></table>"
    )


def _row(member: "Member") -> str:
    colour = COLOURS[member.rank % len(COLOURS)]
    state = "failed" if member.failure else "done" if member.settled else "running"
    last = member.text().rstrip().rpartition("\n")[2][-60:]
    cells = [
        f'<b style="color:{colour}">rank {member.rank}</b>',
        _bar(member, colour),
        _curve([v for v in member.metrics.get("loss", []) if v == v], colour),
        _numbers(member.metrics),
        f"<b>{state}</b> {html.escape(last)}",
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _numbers(metrics: dict[str, list[Any]]) -> str:
    shown = {name: values[-1] for name, values in metrics.items() if name != "steps"}
    return html.escape("  ".join(f"{name} {_short(value)}" for name, value in shown.items()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bar(member: "Member", colour: str) -> str:
    steps, done = member.metrics.get("steps", [0])[-1], member.metrics.get("step", [0])[-1]
    if not steps:
        return ""
    share = 100 * min(1.0, done / steps)
    return (
        '<div style="width:140px;height:12px;border:1px solid #888;border-radius:3px">'
        f'<div style="width:{share:.0f}%;height:100%;background:{colour}"></div></div>'
    )


def _curve(values: list[float], colour: str) -> str:
    """A curve from 0 to the largest value, 120 x 26 pixels."""
    if len(values) < 2:
        return ""
    values = values[:: max(1, len(values) // _POINTS)]
    top = max(values) or 1.0
    points = " ".join(
        f"{120 * i / (len(values) - 1):.0f},{25 - 24 * value / top:.1f}"
        for i, value in enumerate(values)
    )
    return (
        f'<svg width="120" height="26" role="img" aria-label="loss so far">'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/></svg>'
    )
