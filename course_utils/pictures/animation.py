"""The messages of a recording, one after the other."""

from typing import TYPE_CHECKING, Any

from course_utils.network.network import Network
from course_utils.network.replay import Replay
from course_utils.pictures.activity import activity
from course_utils.pictures.bars import Activity, Arrow
from course_utils.pictures.panel import NETWORK, panel
from course_utils.pictures.shapes import as_svg
from course_utils.pictures.timeline import draw
from course_utils.pictures.words import size, us

if TYPE_CHECKING:
    from ipywidgets import VBox

    from course_utils.network.trace import Trace

_TOLD = 12  # messages, at most, that the text form names


def animate(source: "Trace | Replay", network: Network = NETWORK) -> "VBox":
    """Step through the messages, one after the other: arrows on a timeline, the last one thick.

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
    picture = HTML(animated(what, 0))

    def redraw(_: Any) -> None:
        picture.value = animated(what, step.value - 1)

    step.observe(redraw, "value")
    jslink((play, "value"), (step, "value"))
    return panel([HBox([play, step]), picture], _spoken(what), what)


def animated(what: Activity, step: int) -> str:
    """Message number `step`, from 0, and those before it."""
    now = what.arrows[step]
    start, end = (us(t) if what.unit == "us" else f"{t:.2f} ms" for t in (now.start, now.end))
    head = f"<b>message {step + 1} of {len(what.arrows)}</b>: {_told(now)}, from {start} to {end}"
    return f'<p style="margin:6px">{head}</p>{as_svg(draw(what, step=step))}'


def _told(message: Arrow) -> str:
    return f"rank {message.source} to {message.target}, {size(message.bytes)}"


def _spoken(what: Activity) -> str:
    """The first messages in words."""
    count = len(what.arrows)
    told = "; ".join(map(_told, what.arrows[:_TOLD]))
    more = f"; and {count - _TOLD} more" if count > _TOLD else ""
    return f"{count} message{'s' * (count > 1)} among {what.world_size} ranks: {told}{more}."
