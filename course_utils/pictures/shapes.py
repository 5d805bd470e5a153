"""What a picture is made of, and its two forms: SVG under sliders, a matplotlib figure to be saved.

SVG is written in milliseconds and sharp at any size. What a notebook keeps is a PNG of the same
shapes: every viewer shows that, and strict tests skip it.
"""

import html
import math
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

INK = "#222222"
_FONT = 14  # pixels: height of letters
_POINTS = 0.72  # of a pixel: an inch has 100 pixels and 72 points
_HEAD = 7  # pixels of an arrow's head
_HEAD_SLOPE = 0.38  # how far its two strokes are spread
_ALIGNED = {"start": "left", "middle": "center", "end": "right"}  # as matplotlib calls it
Line = tuple[float, float, float, float]  # x1, y1, x2, y2


class Lines(NamedTuple):
    """Straight lines, all alike."""

    ends: list[Line]
    colour: str
    width: float = 1.0


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
    dx = x2 - x1
    dy = y2 - y1
    share = _HEAD / max(_HEAD, math.hypot(dx, dy))  # of the line that the head covers
    head_dx = dx * share
    head_dy = dy * share
    base_x = x2 - head_dx
    base_y = y2 - head_dy
    across_x = -_HEAD_SLOPE * head_dy
    across_y = _HEAD_SLOPE * head_dx
    one_side = (x2, y2, base_x + across_x, base_y + across_y)
    other_side = (x2, y2, base_x - across_x, base_y - across_y)
    return [line, one_side, other_side]


def as_svg(drawing: Drawing) -> str:
    """An `<svg>` without ids (patterns, markers), which two pictures of one page would share."""
    width, height, shapes, label = drawing
    elements = "".join(map(_element, shapes))
    spoken = html.escape(label)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{spoken}" font-family="system-ui,sans-serif" '
        f'font-size="{_FONT}" style="width:100%;max-width:{width}px;display:block">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{elements}</svg>'
    )


def _element(shape: Shape) -> str:
    if isinstance(shape, Words):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.align}"'
        text = html.escape(shape.text)
        return f'<text {place} fill="{INK}">{text}</text>'
    style = f'stroke="{shape.colour}" stroke-width="{shape.width:.1f}"'
    strokes = []
    for x1, y1, x2, y2 in shape.ends:
        strokes.append(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}")
    path = "".join(strokes)
    return f'<path d="{path}" {style}/>'


def as_figure(drawing: Drawing) -> Figure:
    """The same for matplotlib, which writes it as PNG."""
    width, height, shapes, _ = drawing
    inches = (width / 100, height / 100)
    figure = plt.figure(figsize=inches)
    whole_figure = (0, 0, 1, 1)
    axes = figure.add_axes(whole_figure, xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for order, shape in enumerate(shapes):
        if isinstance(shape, Words):
            _write(axes, shape, order)
        else:
            _draw_lines(axes, shape, order)
    return figure


def _write(axes: Axes, words: Words, order: int) -> None:
    size = _FONT * _POINTS
    align = _ALIGNED[words.align]
    axes.text(words.x, words.y, words.text, ha=align, size=size, color=INK, zorder=order)


def _draw_lines(axes: Axes, lines: Lines, order: int) -> None:
    ends = []
    for x1, y1, x2, y2 in lines.ends:
        start = (x1, y1)
        end = (x2, y2)
        ends.append((start, end))
    width = lines.width * _POINTS
    drawn = LineCollection(ends, colors=lines.colour, linewidths=width, capstyle="butt")
    drawn.set_zorder(order)
    axes.add_collection(drawn, autolim=False)
