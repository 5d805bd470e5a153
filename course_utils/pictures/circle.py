"""Ranks in a circle, and one message on its way from one to another, as inline SVG."""

import math
from collections.abc import Iterator

from course_utils.pictures.bars import INK, Activity, Arrow
from course_utils.pictures.style import rank_style
from course_utils.pictures.svg import arrow, svg, words
from course_utils.pictures.words import size, us

_WIDTH, _HEIGHT, _RADIUS = 620, 450, 140
_TOLD = 12  # messages, at most, that the text form names


def circle_svg(what: Activity, step: int) -> str:
    """Draw message number `step`, from 0, and those that are on their way with it."""
    n, now = what.world_size, what.arrows[step]
    node = max(9.0, min(27.0, 2.2 * _RADIUS / max(n, 1)))
    got = [0.0] * n
    for past in what.arrows[: step + 1]:
        got[past.target] += past.bytes
    parts = [
        _message(other, n, node, 'opacity=".22"')
        for other in what.arrows
        if other is not now and other.start < now.end and now.start < other.end
    ]
    parts += [_message(now, n, node, "", 2.2), _packet(now, n, node)]
    for rank in range(n):
        parts += _rank(rank, n, node, got[rank])
    head = f"message {step + 1} of {len(what.arrows)}"
    when = f"from {_time(now.start, what.unit)} to {_time(now.end, what.unit)}"
    parts.append(words(16, 24, head, 'font-weight="600" font-size="14"'))
    parts.append(words(16, 43, f"{_told(now)}, {when}"))
    parts.append(words(16, _HEIGHT - 12, what.clock, 'fill-opacity=".65" font-size="11"'))
    return svg(_WIDTH, _HEIGHT, parts, f"{head}: {_told(now)}")


def circle_text(what: Activity) -> str:
    """The first messages in words."""
    told = "; ".join(_told(message) for message in what.arrows[:_TOLD])
    more = f"; and {len(what.arrows) - _TOLD} more" if len(what.arrows) > _TOLD else ""
    plural = "s" * (len(what.arrows) > 1)
    return f"{len(what.arrows)} message{plural} among {what.world_size} ranks: {told}{more}."


def _told(message: Arrow) -> str:
    return f"rank {message.source} to {message.target}, {size(message.bytes)}"


def _time(value: float, unit: str) -> str:
    return us(value) if unit == "us" else f"{value:.2f} ms"


def _place(rank: int, n: int, radius: float = _RADIUS) -> tuple[float, float]:
    """Rank 0 at the top, then clockwise."""
    angle = 2 * math.pi * rank / n - math.pi / 2
    return _WIDTH / 2 + radius * math.cos(angle), _HEIGHT / 2 + 24 + radius * math.sin(angle)


def _ends(message: Arrow, n: int, node: float) -> tuple[float, float, float, float]:
    """From the edge of one rank to the edge of the other, a little to the right of the middle."""
    (x1, y1), (x2, y2) = _place(message.source, n), _place(message.target, n)
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    aside, near = 4.0, node + 4
    return (
        x1 + near * dx - aside * dy, y1 + near * dy + aside * dx,
        x2 - near * dx - aside * dy, y2 - near * dy + aside * dx,
    )  # fmt: skip


def _message(message: Arrow, n: int, node: float, more: str, width: float = 1.6) -> str:
    return arrow(*_ends(message, n, node), width, more)


def _packet(message: Arrow, n: int, node: float) -> str:
    """A label with the bytes, which travels once along the arrow and stays in its middle."""
    x1, y1, x2, y2 = _ends(message, n, node)
    x, y, text = x1 + 0.5 * (x2 - x1), y1 + 0.5 * (y2 - y1), size(message.bytes)
    wide = 14 + 7 * len(text)
    colour = rank_style(message.source)["color"]
    label = words(0, 4, text, 'text-anchor="middle" font-weight="600"')
    return (
        f'<g transform="translate({x:.1f} {y:.1f})"><g><animateTransform '
        f'attributeName="transform" type="translate" from="{x1 - x:.1f} {y1 - y:.1f}" to="0 0" '
        f'dur="0.45s" calcMode="spline" keyTimes="0;1" keySplines=".2 .6 .3 1"/>'
        f'<rect x="{-wide / 2}" y="-11" width="{wide}" height="22" rx="11" fill="#fff" '
        f'stroke="{colour}" stroke-width="2"/>'
        f"{label}</g></g>"
    )


def _rank(rank: int, n: int, node: float, got: float) -> Iterator[str]:
    (x, y), colour = _place(rank, n), rank_style(rank)["color"]
    dark = colour in ("#0072B2", "#000000", "#D55E00", "#009E73")
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{node:.1f}" fill="{colour}" stroke="#fff"/>'
    yield (
        f'<text x="{x:.1f}" y="{y + node / 4.5:.1f}" text-anchor="middle" font-weight="600" '
        f'font-size="{node * 0.62:.1f}" fill="{"#fff" if dark else INK}">{rank}</text>'
    )
    if n <= 16:
        x, y = _place(rank, n, _RADIUS + node + 12)
        side = "middle" if abs(x - _WIDTH / 2) < 9 else "start" if x > _WIDTH / 2 else "end"
        yield words(x, y + 4, f"got {size(got)}" if got else "", f'text-anchor="{side}"')
