"""A recording to play with: sliders for the network under it, or its messages one by one."""

import html
import math
from dataclasses import replace
from typing import Any

import ipywidgets as w

from course_utils.network.network import Network
from course_utils.network.simulation import Interval, Replay, without_gc
from course_utils.network.trace import Compute, Trace
from course_utils.pictures.activity import Activity, activity, virtual_text
from course_utils.pictures.shapes import as_figure, as_svg
from course_utils.pictures.style import picture, size, us
from course_utils.pictures.timeline import draw

NETWORK = Network(latency_us=10, gbit_s=80)  # where nobody names one
_TOLD = 12  # messages, at most, that the text form names
_ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def explore(trace: Trace, network: Network = NETWORK, compute: Compute = "zero") -> w.VBox:
    """Show a recording's timeline on a network whose latency, bandwidth and slow rank one drags.

    Args:
        trace: `results.trace`.
        network: Where the sliders begin; all else of it stays as it is.
        compute: As for `Trace.replay`; a slow rank computes longer or, if "zero", begins late.

    Raises:
        TypeError: This is not a trace.
        ReplayError: A message or a collective has no partner.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"explore needs a recording, results.trace, not {trace!r:.80}")
    start = activity(trace.replay(network, compute))
    sliders, shown = _sliders(start, network, late=compute == "zero"), w.HTML(_explored(start))

    def redraw(_: Any) -> None:
        latency_us, gbit_s, slow, how = (slider.value for slider in sliders)
        moved, computed = replace(network, latency_us=latency_us, gbit_s=gbit_s), compute
        if slow is not None and compute == "zero":
            computed = [how * (rank == slow) for rank in range(trace.world_size)]
        elif slow is not None:
            factor = how * network.slow_ranks.get(slow, 1.0)
            moved = replace(moved, slow_ranks={**network.slow_ranks, slow: factor})
        with without_gc():
            shown.value = _explored(activity(trace.replay(moved, computed)))

    for slider in sliders:
        slider.observe(redraw, "value")
    rows = [w.HBox(sliders[:2]), w.HBox(sliders[2:]), shown]
    return _panel(rows, f"Explore {trace.world_size} ranks: {virtual_text(start)}", start)


def _sliders(start: Activity, network: Network, late: bool) -> list[Any]:
    """Latency, bandwidth, which rank is slow, and by how much: it begins late, or is slower."""
    names = [("none", None), *((f"rank {rank}", rank) for rank in range(len(start.ends)))]
    whole = start.end or 1.0
    how = {"description": "late by (us)", "max": 2 * whole, "value": whole / 2, "step": whole / 100}
    if not late:
        how = {"description": "times slower", "min": 1, "max": 10, "value": 2, "step": 0.1}
    sliders = [
        w.SelectionSlider(**_around(network.latency_us), description="latency (us)"),
        w.SelectionSlider(**_around(network.gbit_s), description="Gbit/s"),
        w.Dropdown(options=names, description="slow rank"),
        w.FloatSlider(**how, readout_format=".1f"),
    ]
    for slider in sliders:
        slider.layout.width, slider.style.description_width = "340px", "100px"
    return sliders


def _around(value: float) -> dict[str, Any]:
    """The value, and round ones from a hundred times less to a hundred times more."""
    power = round(math.log10(value or 1.0))
    others = {by * 10.0**tens for tens in range(power - 2, power + 2) for by in _ROUND}
    options = sorted({float(f"{other:.3g}") for other in others} | {value})
    return {"options": [(f"{other:g}", other) for other in options], "value": value}


def _explored(what: Activity) -> str:
    """The picture, whose axis jumps seldom, so that one can compare; and the sentence below it."""
    end = max(what.end, 1e-9)
    step = 10 ** math.floor(math.log10(end))
    axis = next(step * by for by in _ROUND if step * by >= 0.9999 * end)
    said = html.escape(virtual_text(what))
    return f'{as_svg(draw(what, axis))}<p style="line-height:1.5;margin:6px">{said}</p>'


def animate(source: Trace | Replay, network: Network = NETWORK) -> w.VBox:
    """Step through the messages, one after the other: arrows on a timeline, the last one thick.

    Args:
        source: `results.trace`, which is replayed on `network`; or a replay.
        network: Of a trace.

    Raises:
        TypeError: `source` is neither.
        ValueError: No message was sent.
        ReplayError: A message or a collective has no partner.
    """
    what = activity(source.replay(network) if isinstance(source, Trace) else source)
    if not what.arrows:
        raise ValueError("there is nothing to animate: these ranks sent no message")
    count = len(what.arrows)
    play = w.Play(value=1, min=1, max=count, interval=1100, description="messages")
    step = w.IntSlider(1, min=1, max=count, description="message", layout=w.Layout(width="420px"))
    shown = w.HTML()

    def redraw(_: Any = None) -> None:
        now = what.arrows[step.value - 1]
        when = f"{_told(now)}, from {us(now.start_us)} to {us(now.end_us)}"
        head = f'<p style="margin:6px"><b>message {step.value} of {count}</b>: {when}</p>'
        shown.value = head + as_svg(draw(what, step=step.value - 1))

    redraw()
    step.observe(redraw, "value")
    w.jslink((play, "value"), (step, "value"))
    told = [_told(message) for message in what.arrows[:_TOLD]]
    told += [f"and {count - _TOLD} more"] * (count > _TOLD)
    head = f"{count} message{'s' * (count > 1)} among {len(what.ends)} ranks"
    return _panel([w.HBox([play, step]), shown], f"{head}: {'; '.join(told)}.", what)


def _told(message: Interval) -> str:
    return f"rank {message.rank} to {message.peer}, {size(message.bytes)}"


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
