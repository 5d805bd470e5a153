"""What README's pictures are made of: elements of SVG, and the colours of a page, light or dark."""

from typing import NamedTuple


class Theme(NamedTuple):
    """Colours of a page, light or dark; each ink has 4.5 times the contrast of what is below."""

    page: str
    panel: str
    border: str
    ink: str
    faint: str
    keyword: str
    text: str
    number: str
    name: str
    verdict: str  # below the last paragraph of a hang's report
    part: str  # what a rank has brought into a square
    complete: str  # the same where all ranks have


LIGHT = Theme(
    page="#ffffff",
    panel="#f6f8fa",
    border="#d0d7de",
    ink="#1f2328",
    faint="#59636e",
    keyword="#cf222e",
    text="#0a3069",
    number="#0550ae",
    name="#6639ba",
    verdict="#fff8c5",
    part="#a9d1f2",
    complete="#8fd9b6",
)
DARK = Theme(
    page="#0d1117",
    panel="#161b22",
    border="#3d444d",
    ink="#e6edf3",
    faint="#9198a1",
    keyword="#ff7b72",
    text="#a5d6ff",
    number="#79c0ff",
    name="#d2a8ff",
    verdict="#3b2e07",
    part="#1d4f7c",
    complete="#1c6b4a",
)
THEMES = {"light": LIGHT, "dark": DARK}
Value = str | float  # of an attribute


def element(tag: str, content: str = "", **attributes: Value) -> str:
    """Returns an element of SVG; `stroke_width` stands for stroke-width, `class_` for class."""
    opening = tag
    for name, value in attributes.items():
        stripped = name.strip("_")
        name_in_svg = stripped.replace("_", "-")
        text = value
        if not isinstance(value, str):
            text = f"{value:g}"
        opening += f' {name_in_svg}="{text}"'
    if content:
        return f"<{opening}>{content}</{tag}>\n"
    return f"<{opening}/>\n"


def rectangle(x: float, y: float, width: float, height: float, **style: Value) -> str:
    """Returns a rectangle; all lengths are pixels."""
    return element("rect", x=x, y=y, width=width, height=height, **style)


def words_at(x: float, y: float, words: str, **style: Value) -> str:
    """Returns a line of text that begins at x, or is centred there with `text_anchor="middle"`."""
    return element("text", words, x=x, y=y, **style)
