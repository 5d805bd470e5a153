"""What a picture is made of, and its two forms: SVG under sliders, a matplotlib figure to be saved.

SVG is written in milliseconds, sharp at any size, and says on hovering what it shows. What a
notebook keeps is a PNG of the same shapes: every viewer shows that, and strict tests skip it.
"""

import html
import math
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

INK = "#222222"
_FONT, _POINT = 12, 0.72  # height of letters in pixels; a pixel, of which an inch has 100
Line = tuple[float, float, float, float]  # x1, y1, x2, y2


class Lines(NamedTuple):
    """Straight lines, all alike; with titles, each says its own on hovering."""

    ends: list[Line]
    colour: str
    width: float = 1.0
    titles: list[str] | None = None
    dash: tuple[float, float] | None = None  # pixels that are drawn, and that are left out


class Corners(NamedTuple):
    """A filled polygon."""

    points: list[tuple[float, float]]
    colour: str


class Words(NamedTuple):
    """One line of text, `align`ed to x ("start", "middle" or "end"), standing on y."""

    x: float
    y: float
    text: str
    align: str = "start"


Shape = Lines | Corners | Words


class Drawing(NamedTuple):
    """Shapes on white, the later ones above the earlier; pixels, y grows downwards."""

    width: int
    height: int
    shapes: list[Shape]
    label: str


def arrow(line: Line, colour: str, width: float) -> list[Shape]:
    """A line with a head at its end."""
    x1, y1, x2, y2 = line
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    head = min(4 + 3 * width, length)
    dx, dy = (x2 - x1) / length * head, (y2 - y1) / length * head
    x, y, side = x2 - dx, y2 - dy, 0.38
    points = [(x2, y2), (x - dy * side, y + dx * side), (x + dy * side, y - dx * side)]
    return [Lines([(x1, y1, x, y)], colour, width), Corners(points, colour)]


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
    if isinstance(shape, Corners):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polygon points="{points}" fill="{shape.colour}"/>'
    style = f'stroke="{shape.colour}" stroke-width="{shape.width:.1f}"'
    style += f' stroke-dasharray="{shape.dash[0]} {shape.dash[1]}"' if shape.dash else ""
    ways = [f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" for x1, y1, x2, y2 in shape.ends]
    if shape.titles is None:  # nobody can hover over it: what lies below answers
        return f'<path d="{"".join(ways)}" {style} pointer-events="none"/>'
    titled = (
        f'<path d="{way}"><title>{html.escape(title)}</title></path>'
        for way, title in zip(ways, shape.titles, strict=True)
    )
    return f"<g {style}>{''.join(titled)}</g>"


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
        elif isinstance(shape, Corners):
            points = zip(*shape.points, strict=True)
            axes.fill(*points, color=shape.colour, linewidth=0, zorder=order)
        else:
            ends, wide = [(end[:2], end[2:]) for end in shape.ends], shape.width * _POINT
            lines = LineCollection(ends, colors=shape.colour, linewidths=wide, capstyle="butt")
            if shape.dash:  # matplotlib counts in widths of the line
                lines.set_linestyle((0, [pixels / shape.width for pixels in shape.dash]))
            lines.set_zorder(order)
            axes.add_collection(lines, autolim=False)
    return figure
