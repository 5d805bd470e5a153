"""A timeline as inline SVG: drawn in milliseconds, sharp at any size, and it names what it shows.

Hatches are drawn as lines, not as SVG patterns: a pattern has an id, and two pictures of one page
would share it.
"""

import html
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from course_utils.pictures.bars import ARROWS, INK, KINDS, Activity, Bar, coarse, lanes

FAINT = "#DDDDDD"
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 62, 22, 34, 44
_PIXEL, _GAP = 1.5, 8
_MANY = 4000  # bars that are drawn one by one in well under 100 ms
_THIN = 4  # what is not as high as this has no hatch: one would not see it


def timeline_svg(what: Activity, end: float | None = None) -> str:
    """Draw a timeline.

    Args:
        what: To be drawn.
        end: Of the axis, if it shall not be when the last rank is done.

    Returns:
        An `<svg>` element on white, whose bars say on hovering what they are.
    """
    row = max(16, min(58, 640 // max(1, what.world_size)))
    high = _TOP + row * what.world_size + _BOTTOM
    end = max(what.end, 1e-9) if end is None else end
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    rows = lanes(what.bars)
    parts = [*_axis(what, end, scale, row, high), *_legend(rows)]
    if len(what.bars) > _MANY:
        parts += _in_strokes(what, scale, row, rows)
    else:
        for bar in coarse(what.bars, _PIXEL / scale):
            parts += _bar(bar, scale, row, rows)
    if len(what.arrows) <= ARROWS:
        parts += _arrows(what, scale, row, rows)
    return svg(_WIDTH, high, parts, what.clock)


def svg(width: int, height: int, parts: list[str], label: str) -> str:
    """An `<svg>` element with an opaque background."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(label)}" font-family="system-ui,sans-serif" font-size="12" '
        f'style="width:100%;max-width:{width}px;height:auto;background:#fff;border-radius:6px">'
        f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>{"".join(parts)}</svg>'
    )


def words(x: float, y: float, text: str, more: str = "") -> str:
    """A `<text>` element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" {more}>{html.escape(text)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, width: float = 0.9, more: str = "") -> str:
    """A line with a head, which ends at its second point."""
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    head = min(4 + 3 * width, length)
    dx, dy = (x2 - x1) / length * head, (y2 - y1) / length * head
    bx, by, side = x2 - dx, y2 - dy, 0.38
    return (
        f'<g {more}><path d="M{x1:.1f} {y1:.1f}L{bx:.1f} {by:.1f}" stroke="{INK}" '
        f'stroke-width="{width}" fill="none"/><path d="M{x2:.1f} {y2:.1f}L{bx - dy * side:.1f} '
        f'{by + dx * side:.1f}L{bx + dy * side:.1f} {by - dx * side:.1f}z" fill="{INK}"/></g>'
    )


def _axis(what: Activity, end: float, scale: float, row: int, high: int) -> Iterator[str]:
    bottom = high - _BOTTOM
    for tick in _ticks(end):
        x, middle = _LEFT + tick * scale, 'text-anchor="middle"'
        yield f'<path d="M{x:.1f} {_TOP}V{bottom + 4}" stroke="{FAINT}"/>'
        yield words(x, bottom + 17, f"{tick:,.10g}", middle)
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="{INK}"/>'
    yield words((_LEFT + _WIDTH) / 2, high - 9, what.clock, 'text-anchor="middle"')
    for rank in range(what.world_size):
        place = _TOP + row * (rank + 0.45) + 4
        yield words(_LEFT - 8, place, f"rank {rank}", 'text-anchor="end"')


def _ticks(end: float) -> list[float]:
    """About six round numbers from 0 to the end."""
    rough = end / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * 0.999)
    return [step * k for k in range(int(end / step * 1.0001) + 1)]


def _legend(rows: dict[str, tuple[float, float]]) -> Iterator[str]:
    x = float(_LEFT)
    for kind in rows:
        style = KINDS[kind]
        yield _box(x, 10, 26, 12, kind)
        yield words(x + 32, 20, style.name)
        x += 52 + 6.4 * len(style.name)


def _bar(bar: Bar, scale: float, row: int, rows: dict[str, tuple[float, float]]) -> Iterator[str]:
    top, height = rows[bar.what]
    wide = max(1.2, (bar.end - bar.start) * scale)
    y = _TOP + row * (bar.rank + 0.9 * top)
    yield _box(_LEFT + bar.start * scale, y, wide, 0.9 * row * height, bar.what, bar.label)


def _in_strokes(
    what: Activity, scale: float, row: int, rows: dict[str, tuple[float, float]]
) -> Iterator[str]:
    """All bars of a kind in one stroke: where there are many, nobody hovers over a single one."""
    fills, hatches = defaultdict(list), defaultdict(list)
    for (rank, kind), spans in _spans(what.bars, _PIXEL / scale).items():
        top, height = rows[kind]
        y, high, mark = _TOP + row * (rank + 0.9 * top), 0.9 * row * height, KINDS[kind].hatch
        middle = f"{y + high / 2:.1f}"
        for start, end in spans:
            x, wide = _LEFT + start * scale, max(1.2, (end - start) * scale)
            fills[kind].append(f"M{x:.1f} {middle}h{wide:.1f}")
            if high > _THIN and wide > 2.5:
                hatches[kind] += _hatch(x, y, wide, high, mark)
    for kind, (_, height) in rows.items():
        fill, ink = KINDS[kind][:2]
        for stroke, colour, wide in (fills, fill, 0.9 * row * height), (hatches, ink, 1.2):
            path = "".join(stroke[kind])
            yield f'<path d="{path}" stroke="{colour}" stroke-width="{wide:.1f}"/>'


def _spans(bars: Iterable[Bar], pixel: float) -> dict[tuple[int, str], list[list[float]]]:
    """From when to when, by rank and kind; what touches or is too near to tell apart is one."""
    found = defaultdict(list)
    for rank, start, end, kind, _ in bars:
        own = found[rank, kind]
        last = own[-1] if own else (-math.inf, -math.inf)
        if start <= last[1] or (start - last[1] < pixel and last[1] - last[0] < pixel):
            last[1] = max(last[1], end)
        else:
            own.append([start, end])
    return found


def _box(x: float, y: float, wide: float, high: float, kind: str, title: str = "") -> str:
    style = KINDS[kind]
    lines = "".join(_hatch(x, y, wide, high, style.hatch)) if wide > 2.5 else ""
    lines = lines and f'<path d="{lines}" stroke="{style.ink}" stroke-width="1.2"/>'
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" '
        f'fill="{style.fill if wide > 2.5 or kind != "wait" else style.ink}"/>'
    )
    return f"<g>{title and f'<title>{html.escape(title)}</title>'}{box}{lines}</g>"


def _hatch(x: float, y: float, wide: float, high: float, mark: str) -> Iterator[str]:
    """Lines within a box, at places that do not depend on where the box begins."""
    if mark == "-":
        for k in (1, 2):
            yield f"M{x:.1f} {y + k * high / 3:.1f}h{wide:.1f}"
    elif mark:
        slant = high if mark in "/\\" else 0.0
        at = math.floor((x - slant) / _GAP) * _GAP
        while at < x + wide:
            a, b = max(at, x), min(at + slant, x + wide)
            if at + slant > x and (b > a or (not slant and at > x)):
                low, up = y + high - (a - at), y + high - (b - at if slant else high)
                if mark == "\\":
                    low, up = 2 * y + high - low, 2 * y + high - up
                yield f"M{a:.1f} {low:.1f}L{b:.1f} {up:.1f}"
            at += _GAP


def _arrows(
    what: Activity, scale: float, row: int, rows: dict[str, tuple[float, float]]
) -> Iterator[str]:
    port = {kind: _TOP + row * 0.9 * (top + height / 2) for kind, (top, height) in rows.items()}
    for a in what.arrows:
        y1, y2 = port["send"] + row * a.source, port["receive"] + row * a.target
        yield arrow(_LEFT + a.start * scale, y1, _LEFT + a.end * scale, y2, 0.8, 'opacity=".7"')
