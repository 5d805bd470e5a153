"""The messages of a recording, one after the other."""

from typing import TYPE_CHECKING, Any

from course_utils.network.network import Network
from course_utils.network.replay import Replay
from course_utils.pictures.activity import activity
from course_utils.pictures.circle import circle_svg, circle_text
from course_utils.pictures.panel import NETWORK, panel

if TYPE_CHECKING:
    from ipywidgets import VBox

    from course_utils.network.trace import Trace


def animate(source: "Trace | Replay", network: Network = NETWORK) -> "VBox":
    """Step through the messages, one after the other: the ranks in a circle, each message an arrow.

    Args:
        source: `results.trace`, which is replayed on `network`; or a replay.
        network: Of a trace.

    Raises:
        TypeError: `source` is neither.
        ValueError: No message was sent.
        ReplayError: A message or a collective has no partner.
    """
    what = activity(source, None if isinstance(source, Replay) else network)
    if not what.arrows:
        raise ValueError("there is nothing to animate: these ranks sent no message")
    from ipywidgets import HTML, HBox, IntSlider, Layout, Play, jslink

    last = len(what.arrows)
    play = Play(value=1, min=1, max=last, interval=1100, description="messages")
    step = IntSlider(1, min=1, max=last, description="message", layout=Layout(width="420px"))
    picture = HTML(circle_svg(what, 0))

    def redraw(_: Any) -> None:
        picture.value = circle_svg(what, step.value - 1)

    step.observe(redraw, "value")
    jslink((play, "value"), (step, "value"))
    return panel([HBox([play, step]), picture], circle_text(what), what)
