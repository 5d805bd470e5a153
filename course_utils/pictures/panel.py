"""What `explore` and `animate` share: widgets, and what stands in their place without them."""

from typing import TYPE_CHECKING, Any

from course_utils.network.network import Network
from course_utils.pictures.bars import Activity
from course_utils.pictures.shapes import as_figure
from course_utils.pictures.style import picture
from course_utils.pictures.timeline import draw

if TYPE_CHECKING:
    from ipywidgets import VBox

NETWORK = Network(latency_us=10, gbit_s=80)  # where nobody names one


def panel(rows: list[Any], text: str, what: Activity) -> "VBox":
    """Rows of widgets; where widgets do not live, the timeline stands still, with a text."""
    from ipywidgets import VBox

    class Panel(VBox):
        def __repr__(self) -> str:
            return text

        def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            png, metadata = picture(as_figure(draw(what)))
            shown = super()._repr_mimebundle_(**options)
            return {**shown, "image/png": png, "text/plain": f"Figure: {text}"}, metadata

    return Panel(rows)
