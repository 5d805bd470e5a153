"""A recording to play with: sliders for the network under it."""

import html
import math
import time
from dataclasses import replace
from typing import Any

import ipywidgets as w

from course_utils.network.network import Network
from course_utils.network.trace import Compute, Trace
from course_utils.pictures.activity import Activity, activity, virtual_text
from course_utils.pictures.shapes import as_figure, as_svg
from course_utils.pictures.style import ROUND, picture, rounded, us
from course_utils.pictures.timeline import draw

NETWORK = Network(latency_us=10, gbit_s=80)  # where nobody names one
_PAUSE_S = 1.0  # a slider that rests for so long has been let go
_SAID = 'style="line-height:1.4;margin:6px"'


def explore(trace: Trace, network: Network = NETWORK, compute: Compute | None = None) -> w.VBox:
    """Show a recording's timeline on a network whose latency, bandwidth and slow rank one drags.

    The axis stays, so that bars grow, until the button *fit* is pressed; an outline shows when each
    rank was done before.

    Args:
        trace: `results.trace`.
        network: Where the sliders begin; all else of it stays as it is.
        compute: As for `Trace.replay`; a slow rank computes longer or, if none does, begins late.

    Raises:
        TypeError: This is not a trace.
        ReplayError: A message or a collective has no partner.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"explore needs a recording, results.trace, not {trace!r:.80}")
    now = start = activity(trace.replay(network, compute))
    sliders = _sliders(start, network, late=compute is None)
    fit = w.Button(description="fit", layout=w.Layout(width="50px"))
    before, axis_us, held, shown = None, 0.0, (None, 0.0), w.HTML()

    def redraw(change: Any) -> None:
        nonlocal now, before, axis_us, held
        if change is fit:
            axis_us = rounded(max(now.end, 1e-9))
        else:
            if change.owner is not held[0] or time.monotonic() > held[1]:
                before = now  # else this is the same drag
            latency_us, gbit_s, slow, how = (slider.value for slider in sliders)
            moved, computed = replace(network, latency_us=latency_us, gbit_s=gbit_s), compute
            if slow is not None and compute is None:
                computed = [how * (rank == slow) for rank in range(trace.world_size)]
            elif slow is not None:
                factor = how * network.slow_ranks.get(slow, 1.0)
                moved = replace(moved, slow_ranks={**network.slow_ranks, slow: factor})
            now = activity(trace.replay(moved, computed))
            held = change.owner, time.monotonic() + _PAUSE_S
        shown.value = _explored(now, before, axis_us)

    redraw(fit)
    fit.on_click(redraw)
    for slider in sliders:
        slider.observe(redraw, "value")
    rows = [w.HBox([*sliders[:2], fit]), w.HBox(sliders[2:]), shown]
    return _panel(rows, f"Explore {trace.world_size} ranks: {virtual_text(start)}", start)


def _sliders(start: Activity, network: Network, late: bool) -> list[Any]:
    """Latency, bandwidth, which rank is slow, and by how much: it begins late, or is slower."""
    names = [("none", None), *((f"rank {rank}", rank) for rank in range(len(start.ends)))]
    whole = start.end or 1.0
    how = {"description": "late by (µs)", "max": 2 * whole, "value": whole / 2, "step": whole / 100}
    if not late:
        how = {"description": "times slower", "min": 1, "max": 10, "value": 2, "step": 0.1}
    sliders = [
        w.SelectionSlider(**_around(network.latency_us), description="latency (µs)"),
        w.SelectionSlider(**_around(network.gbit_s), description="Gbit/s"),
        w.Dropdown(options=names, description="slow rank", index=0),
        w.FloatSlider(**how, readout_format=".1f"),
    ]
    for slider in sliders:
        slider.layout.width, slider.style.description_width = "340px", "90px"
    return sliders


def _around(value: float) -> dict[str, Any]:
    """The value, and round ones from a hundred times less to a hundred times more."""
    power = round(math.log10(value or 1.0))
    others = {by * 10.0**tens for tens in range(power - 2, power + 2) for by in ROUND}
    options = sorted({float(f"{other:.3g}") for other in others} | {value})
    return {"options": [(f"{other:g}", other) for other in options], "value": value}


def _explored(now: Activity, before: Activity | None, axis_us: float) -> str:
    """When all are done, the picture, and the sentence below it."""
    told = f"<b>All are done at {us(now.end)}</b>"
    told += f"; before, at {us(before.end)} (outlined)" if before else ""
    told += f". ▸ The axis ends at {us(axis_us)}: press <b>fit</b>" if now.end > axis_us else ""
    drawn = as_svg(draw(now, axis_us, before.ends if before else ()))
    return f"<p {_SAID}>{told}.</p>{drawn}<p {_SAID}>{html.escape(virtual_text(now))}</p>"


def _panel(rows: list[Any], text: str, what: Activity) -> w.VBox:
    """Rows of widgets; where widgets do not live, the timeline stands still, with a text."""

    class Panel(w.VBox):
        def __repr__(self) -> str:
            return text

        def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            png, metadata = picture(as_figure(draw(what)))
            shown = super()._repr_mimebundle_(**options)
            return {**shown, "image/png": png, "text/plain": f"Figure: {text}"}, metadata

    return Panel(rows)
