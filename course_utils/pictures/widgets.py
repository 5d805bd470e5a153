"""A recording to play with: sliders for the network under it."""

import html
import math
import time
from dataclasses import replace
from typing import Any

import ipywidgets as w

from course_utils.launcher.language import _, sentences
from course_utils.network.network import Network
from course_utils.network.simulation import Replay
from course_utils.network.trace import Compute, Trace
from course_utils.pictures.activity import Activity, activity, virtual_text
from course_utils.pictures.shapes import as_figure, as_svg
from course_utils.pictures.style import ROUND, picture, rounded, us
from course_utils.pictures.timeline import draw

NETWORK = Network(latency_us=10, gbit_s=80)  # where nobody names one
_PAUSE_S = 1.0  # a slider that rests for so long has been let go
_STYLE = 'style="line-height:1.4;margin:6px"'


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
        raise TypeError(
            _("explore needs a recording, results.trace, not {trace!r:.80}", trace=trace)
        )
    exploration = _Exploration(trace, network, compute)
    start = exploration.now
    text = f"Explore {trace.world_size} ranks: {virtual_text(start)}"
    return _panel(exploration.rows(), text, start)


class _Exploration:
    """Sliders, the button and the picture, and what they have shown so far.

    Attributes:
        now: What is shown.
        before: What was shown before this drag, which is outlined; None before the first drag.
        axis_us: Where the axis ends.
    """

    def __init__(self, trace: Trace, network: Network, compute: Compute | None) -> None:
        self._trace = trace
        self._network = network
        self._compute = compute
        self.now = activity(trace.replay(network, compute))
        self.before: Activity | None = None
        self.axis_us = 0.0
        self._moving: Any = None  # the slider of the latest drag
        self._let_go_at = 0.0  # when it counts as let go, in seconds of the monotonic clock
        self._sliders = _sliders(self.now, network, late=compute is None)
        narrow = w.Layout(width="50px")
        self._fit = w.Button(description="fit", layout=narrow)
        self._picture = w.HTML()
        self._fit_axis()
        self._fit.on_click(lambda button: self._fit_axis())
        for slider in self._sliders:
            slider.observe(self._slide, "value")

    def rows(self) -> list[Any]:
        latency, bandwidth, slow_rank, amount = self._sliders
        above = _row([latency, bandwidth, self._fit])
        below = _row([slow_rank, amount])
        return [above, below, self._picture]

    def _fit_axis(self) -> None:
        end_us = max(self.now.end, 1e-9)
        self.axis_us = rounded(end_us)
        self._redraw()

    def _slide(self, change: Any) -> None:
        slider = change.owner
        has_rested = time.monotonic() > self._let_go_at
        if has_rested or slider is not self._moving:  # a new drag
            self.before = self.now
        replay = self._replay()
        self.now = activity(replay)
        self._moving = slider
        self._let_go_at = time.monotonic() + _PAUSE_S
        self._redraw()

    def _replay(self) -> Replay:
        latency_us, gbit_s, slow_rank, amount = [slider.value for slider in self._sliders]
        network = replace(self._network, latency_us=latency_us, gbit_s=gbit_s)
        if slow_rank is None:
            return self._trace.replay(network, self._compute)
        if self._compute is None:  # nobody computes, so the rank begins late
            late_us = [0.0] * self._trace.world_size
            late_us[slow_rank] = amount
            return self._trace.replay(network, late_us)
        slow_ranks = dict(network.slow_ranks)
        factor = slow_ranks.get(slow_rank, 1.0)
        slow_ranks[slow_rank] = amount * factor
        network = replace(network, slow_ranks=slow_ranks)
        return self._trace.replay(network, self._compute)

    def _redraw(self) -> None:
        self._picture.value = _explored(self.now, self.before, self.axis_us)


def _sliders(start: Activity, network: Network, late: bool) -> list[Any]:
    """Latency, bandwidth, which rank is slow, and by how much: it begins late, or is slower."""
    latencies = _around(network.latency_us)
    latency = w.SelectionSlider(**latencies, description="latency (µs)")
    bandwidths = _around(network.gbit_s)
    bandwidth = w.SelectionSlider(**bandwidths, description="Gbit/s")
    ranks = [("none", None)]
    for rank in range(len(start.ends)):
        choice = (f"rank {rank}", rank)
        ranks.append(choice)
    slow_rank = w.Dropdown(options=ranks, description="slow rank", index=0)
    if late:
        amount = _lateness(start.end or 1.0)
    else:
        amount = _slowness()
    sliders = [latency, bandwidth, slow_rank, amount]
    for slider in sliders:
        slider.layout.width = "340px"
        slider.style.description_width = "90px"
    return sliders


def _row(controls: list[Any]) -> w.HBox:
    """Side by side; one below the other in a narrow window, so that sliders keep their tracks."""
    wrapping = w.Layout(flex_flow="row wrap")
    return w.HBox(controls, layout=wrapping)


def _lateness(end_us: float) -> w.FloatSlider:
    return w.FloatSlider(
        description="late by (µs)",
        max=2 * end_us,
        value=end_us / 2,
        step=end_us / 100,
        readout_format=".1f",
    )


def _slowness() -> w.FloatSlider:
    return w.FloatSlider(
        description="times slower", min=1, max=10, value=2, step=0.1, readout_format=".1f"
    )


def _around(value: float) -> dict[str, Any]:
    """The value, and round ones from a hundred times less to a hundred times more."""
    nearest = round(math.log10(value or 1.0))
    choices = {float(value)}
    for exponent in range(nearest - 2, nearest + 2):
        power = 10.0**exponent
        for digit in ROUND:
            in_three_digits = f"{digit * power:.3g}"
            choices.add(float(in_three_digits))
    options = []
    for choice in sorted(choices):
        label = f"{choice:g}"
        options.append((label, choice))
    return {"options": options, "value": value}


def _explored(now: Activity, before: Activity | None, axis_us: float) -> str:
    """When all are done, the picture, and the sentence below it."""
    end = us(now.end)
    heading = _("<b>All are done at {end}</b>.", end=end)
    outlined: tuple[float, ...] = ()
    if before is not None:
        end_before = us(before.end)
        heading = _(
            "<b>All are done at {end}</b>; before, at {end_before} (outlined).",
            end=end,
            end_before=end_before,
        )
        outlined = before.ends
    if now.end > axis_us:
        axis_end = us(axis_us)
        beyond = _("▸ The axis ends at {axis_end}: press <b>fit</b>.", axis_end=axis_end)
        heading = sentences(heading, beyond)
    drawing = draw(now, axis_us, outlined)
    svg = as_svg(drawing)
    caption = html.escape(virtual_text(now))
    return f"<p {_STYLE}>{heading}</p>{svg}<p {_STYLE}>{caption}</p>"


def _panel(rows: list[Any], text: str, start: Activity) -> w.VBox:
    """Rows of widgets; where widgets do not live, the timeline stands still, with a text."""

    class Panel(w.VBox):
        def __repr__(self) -> str:
            return text

        def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            drawing = draw(start)
            png, metadata = picture(as_figure(drawing))
            shown = super()._repr_mimebundle_(**options)
            standing_still = {"image/png": png, "text/plain": f"Figure: {text}"}
            return shown | standing_still, metadata

    return Panel(rows)
