"""How a figure leaves a notebook: marks that tell ranks apart, and words that hold in every run."""

import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from IPython import get_ipython
from IPython.display import display

from course_utils.hang import facts
from course_utils.hang.facts import in_short as ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design, 2008; the first ones are the easiest to tell apart.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_STYLES = {"color": OKABE_ITO, "linestyle": ("-", "--", "-.", ":"), "marker": "os^DvPX*"}
_PLAIN_STYLES = {
    "color": ("#222222", "#777777", "#AAAAAA"),
    "linestyle": ("-", "--", ":"),
    "marker": "s^o",
}
ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
SPOKEN = 8  # groups of ranks, at most, that are named one by one
_ONLY_HEARD = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
_DPI = 192  # twice what is shown, so that text stays sharp on dense screens


class Style(NamedTuple):
    """How bars of one kind look, and where they stand in a rank's row."""

    fill: str  # a colour of Okabe and Ito, or a tint of one
    ink: str  # of a bar's outline and its hatching
    is_hatched: bool  # with slanted lines: upright ones would look like messages
    middle: float  # in a row, which is 0 at its top and 1 at its end
    height: float
    name: str


KINDS = {
    "compute": Style("#009E73", "#009E73", False, 0.19, 0.38, "own code"),
    "wait": Style("#FDEFD0", "#E69F00", True, 0.19, 0.38, "waiting in a call"),
    "collective": Style("#E6B8D2", "#9C3F76", False, 0.49, 0.16, "collective"),
    "send": Style("#0072B2", "#00304D", False, 0.67, 0.14, "sending"),
    "receive": Style("#56B4E9", "#003B5C", False, 0.84, 0.14, "receiving"),
}


def rank_style(rank: int) -> dict[str, str]:
    """Return `color`, `linestyle` and `marker` for `Axes.plot`, the same for a rank everywhere."""
    return _style_number(rank, _STYLES)


def plain_style(number: int) -> dict[str, str]:
    """Return `color`, `linestyle` and `marker` for what is no rank: greys, which no rank has."""
    return _style_number(number, _PLAIN_STYLES)


def _style_number(number: int, styles: Mapping[str, Sequence[str]]) -> dict[str, str]:
    style = {}
    for name, values in styles.items():
        style[name] = values[number % len(values)]
    return style


def show(figure: "Figure", text: str, caption: str = "") -> None:
    """Display a figure with one sentence below it that says what to see, and close the figure.

    The text is also the picture's text form: strict tests compare it, since they cannot compare
    pictures, so it may only say what holds in every run, and no number that depends on the clock.

    Args:
        figure: What is shown.
        text: The sentence; or, with a caption, the whole picture in words for who can't see it.
        caption: A shorter sentence, which is seen in the place of such a text.
    """
    png, metadata = picture(figure)
    if get_ipython() is None:  # a script has nowhere to show a picture
        print(text)
        return
    shown = {"image/png": png, "text/plain": f"Figure: {text}"}
    display(shown, metadata=metadata, raw=True)
    seen = caption or text
    markup = f'<p style="max-width:60em;margin:0 6px 1em">{html.escape(seen)}</p>'
    if seen != text:
        markup = f'<p style="{_ONLY_HEARD}">{html.escape(text)}</p>{markup}'
    display({"text/html": markup, "text/plain": seen}, raw=True)


def picture(figure: "Figure") -> tuple[bytes, dict[str, dict[str, int]]]:
    """Close a figure; return it as PNG, with the metadata that shows it at half its size."""
    import matplotlib.pyplot as plt  # a third of a second, so only for those who draw
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    # 256 colours take a third of the bytes, and look the same.
    in_full_colour = Image.open(drawn).convert("RGB")
    image = in_full_colour.quantize(256, dither=Image.Dither.NONE)
    png = io.BytesIO()
    image.save(png, format="png", optimize=True)
    shown_at = {"width": image.width // 2}
    return png.getvalue(), {"image/png": shown_at}


def together(sentences: Iterable[str], between: str = " ") -> list[str]:
    """What is said of each rank, once for all ranks of which the same is said."""
    texts = dict(enumerate(sentences))
    members_of = facts.ranks_by_text(texts)
    parts = []
    for sentence, members in members_of.items():
        named = ranks(members)
        parts.append(f"{named}{between}{sentence}")
    return parts


def first_of(parts: list[str]) -> str:
    """As a sentence; of very many parts only the first ones."""
    spoken = parts[:SPOKEN]
    if len(parts) > SPOKEN:
        spoken.append("and others")
    return "; ".join(spoken) + "."


def rounded(value: float, digits: Sequence[float] = ROUND) -> float:
    """Return the next number upwards that is round: a power of ten times one of `digits`."""
    exponent = math.floor(math.log10(value))
    power = 10.0**exponent
    choices = [power * digit for digit in digits]
    return min(choice for choice in choices if choice >= value)


def us(value: float) -> str:
    """Microseconds, with as many digits as one reads."""
    if value < 10:
        return f"{value:.3g} µs"
    return f"{value:,.1f} µs"
