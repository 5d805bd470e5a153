"""A recording to play with: sliders for the network under it."""

import html
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from course_utils.network.network import Network
from course_utils.network.simulation import without_gc
from course_utils.network.trace import Trace
from course_utils.pictures.activity import activity
from course_utils.pictures.bars import Activity
from course_utils.pictures.panel import NETWORK, panel
from course_utils.pictures.shapes import as_svg
from course_utils.pictures.timeline import draw
from course_utils.pictures.words import virtual_text

if TYPE_CHECKING:
    from ipywidgets import VBox

    from course_utils.network.trace import Event

_ROUND = (1, 1.5, 2, 3, 4, 5, 6, 8)
_AXES = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # an axis that jumps seldom lets bars be compared


def explore(
    trace: Trace, network: Network = NETWORK, compute: "str | Callable[[Event], float]" = "zero"
) -> "VBox":
    """Show a recording's timeline on a network whose latency, bandwidth and slow rank one drags.

    Args:
        trace: `results.trace`.
        network: Where the sliders begin; all else of it stays as it is.
        compute: As for `Network.replay`; a slow rank computes longer or, if "zero", begins late.

    Raises:
        TypeError: This is not a trace.
        ReplayError: A message or a collective has no partner.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"explore needs a recording, results.trace, not {trace!r:.80}")
    from ipywidgets import HTML, HBox

    start = activity(trace.replay(network, compute))
    sliders = _sliders(start, network, late=compute == "zero")
    picture = HTML(explored(start))

    def redraw(_: Any) -> None:
        with without_gc():
            what = _moved(trace, network, compute, *(slider.value for slider in sliders))
            drawn = explored(what)
        picture.value = drawn

    for slider in sliders:
        slider.observe(redraw, "value")
    rows = [HBox(sliders[:2]), HBox(sliders[2:]), picture]
    return panel(rows, f"Explore {trace.world_size} ranks: {virtual_text(start)}", start)


def _sliders(start: Activity, network: Network, late: bool) -> list[Any]:
    """Latency, bandwidth, which rank is slow, and by how much: it begins late, or is slower."""
    from ipywidgets import Dropdown, FloatSlider, Layout, SelectionSlider

    shape = {"layout": Layout(width="340px"), "style": {"description_width": "100px"}}
    names = [("none", None), *((f"rank {rank}", rank) for rank in range(start.world_size))]
    whole = start.end or 1.0
    how = {"min": 0, "max": 2 * whole, "value": whole / 2, "step": whole / 100}
    if not late:
        how = {"min": 1, "max": 10, "value": 2, "step": 0.1}
    named = "late by (us)" if late else "times slower"
    return [
        SelectionSlider(**_around(network.latency_us), description="latency (us)", **shape),
        SelectionSlider(**_around(network.gbit_s), description="Gbit/s", **shape),
        Dropdown(options=names, description="slow rank", **shape),
        FloatSlider(**how, readout_format=".1f", description=named, **shape),
    ]


def _around(value: float) -> dict[str, Any]:
    """The value, and round ones from a hundred times less to a hundred times more."""
    power = round(math.log10(value or 1.0))
    others = {by * 10.0**tens for tens in range(power - 2, power + 2) for by in _ROUND}
    options = sorted({float(f"{other:.3g}") for other in others} | {value})
    return {"options": [(f"{other:g}", other) for other in options], "value": value}


def _moved(
    trace: Trace, network: Network, compute: Any,
    latency_us: float, gbit_s: float, slow: int | None, how: float,
) -> Activity:  # fmt: skip
    """The replay where the sliders are."""
    moved = replace(network, latency_us=latency_us, gbit_s=gbit_s)
    if slow is not None and compute == "zero":
        compute = [how * (rank == slow) for rank in range(trace.world_size)]
    elif slow is not None:
        factor = how * network.slow_ranks.get(slow, 1.0)
        moved = replace(moved, slow_ranks={**network.slow_ranks, slow: factor})
    return activity(trace.replay(moved, compute))


def explored(what: Activity) -> str:
    """The picture and the sentence below it."""
    end = max(what.end, 1e-9)
    step = 10 ** math.floor(math.log10(end))
    axis = next(step * by for by in _AXES if step * by >= 0.9999 * end)
    said = html.escape(virtual_text(what))
    return f'{as_svg(draw(what, axis))}<p style="line-height:1.5;margin:6px">{said}</p>'
