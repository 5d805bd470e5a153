"""Where pictures land in tests."""

from collections.abc import Callable

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from recordings import shown  # noqa: F401, a fixture

from course_utils.pictures import style

NARROW_PX = 515  # of an output in JupyterLab, in a window of 900 px with its list of files


@pytest.fixture
def smallest_px() -> Callable[[Figure], float]:
    """Measures how high a figure's smallest letters are on the screen where a page is narrow.

    It closes the figure.
    """

    def measured(figure: Figure) -> float:
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        points = min(text.get_fontsize() for text in texts)
        _, metadata = style.picture(figure)
        shrunk = min(1, NARROW_PX / metadata["image/png"]["width"])
        return points / 72 * 96 * shrunk

    return measured
