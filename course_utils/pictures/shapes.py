"""What a picture is made of, and its two forms: SVG under sliders, a matplotlib figure to be saved.

SVG is written in milliseconds and sharp at any size. What a notebook keeps is a PNG of the same
shapes: every viewer shows that, and strict tests skip it.
"""

import html
import math
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

INK = "#222222"
_FONT, _POINT = 12, 0.72  # height of letters in pixels; a pixel, of which an inch has 100
_HEAD = 7  # pixels of an arrow's head
Line = tuple[float, float, float, float]  # x1, y1, x2, y2


class Lines(NamedTuple):
    """Straight lines, all alike."""

    ends: list[Line]
    colour: str
    width: float = 1.0
    dash: tuple[float, float] | None = None  # pixels that are drawn, and that are left out


class Words(NamedTuple):
    """One line of text, `align`ed to x ("start", "middle" or "end"), standing on y."""

    x: float
    y: float
    text: str
    align: str = "start"


Shape = Lines | Words


class Drawing(NamedTuple):
    """Shapes on white, the later ones above the earlier; pixels, y grows downwards."""

    width: int
    height: int
    shapes: list[Shape]
    label: str


def arrow(line: Line) -> list[Line]:
    """A line, and two short ones at its end."""
    x1, y1, x2, y2 = line
    part = _HEAD / max(_HEAD, math.hypot(x2 - x1, y2 - y1))
    dx, dy, side = (x2 - x1) * part, (y2 - y1) * part, 0.38
    heads = [(x2, y2, x2 - dx - s * dy, y2 - dy + s * dx) for s in (side, -side)]
    return [line, *heads]


def as_svg(drawing: Drawing) -> str:
    """An `<svg>` without ids (patterns, markers), which two pictures of one page would share."""
    width, height, shapes, label = drawing
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(label)}" font-family="system-ui,sans-serif" '
        f'font-size="{_FONT}" style="width:100%;max-width:{width}px;display:block">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(map(_element, shapes))}'
        "</svg>"
    )


def _element(shape: Shape) -> str:
    if isinstance(shape, Words):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.align}"'
        return f'<text {place} fill="{INK}">{html.escape(shape.text)}</text>'
    style = f'stroke="{shape.colour}" stroke-width="{shape.width:.1f}"'
    style += f' stroke-dasharray="{shape.dash[0]} {shape.dash[1]}"' if shape.dash else ""
    way = "".join(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" for x1, y1, x2, y2 in shape.ends)
    return f'<path d="{way}" {style}/>'


def as_figure(drawing: Drawing) -> Figure:
    """The same for matplotlib, which writes it as PNG."""
    width, height, shapes, _ = drawing
    figure = plt.figure(figsize=(width / 100, height / 100))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for order, shape in enumerate(shapes):
        if isinstance(shape, Words):
            at = {"start": "left", "middle": "center", "end": "right"}[shape.align]
            how = {"ha": at, "size": _FONT * _POINT, "color": INK, "zorder": order}
            axes.text(shape.x, shape.y, shape.text, **how)
        else:
            ends, wide = [(end[:2], end[2:]) for end in shape.ends], shape.width * _POINT
            lines = LineCollection(ends, colors=shape.colour, linewidths=wide, capstyle="butt")
            if shape.dash:  # matplotlib counts in widths of the line
                lines.set_linestyle((0, [pixels / shape.width for pixels in shape.dash]))
            lines.set_zorder(order)
            axes.add_collection(lines, autolim=False)
    return figure
