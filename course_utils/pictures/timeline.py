"""Rank by time: who computes, communicates and waits when."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from course_utils.network.simulation import Interval, Replay
from course_utils.network.trace import Trace
from course_utils.pictures.activity import Activity, activity, real_text, spans, virtual_text
from course_utils.pictures.shapes import INK, Drawing, Line, Lines, Shape, Words, arrow, as_figure
from course_utils.pictures.style import rank_style, show, size

ARROWS = 150  # more than so many messages are not drawn
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 72, 22, 34, 44
_PIXEL, _GAP = 1.5, 8  # what the eye cannot tell apart; from one line of a hatch to the next
_MANY = 4000  # bars, at most, that are drawn one by one: in well under 100 ms
_THIN, _NARROW = 4, 2.5  # what is less high or wide has no hatch: one would not see it


class Style(NamedTuple):
    """How a kind of bar looks: in colour, and without colour by its hatch."""

    fill: str
    ink: str
    hatch: str
    height: float  # of a rank's row
    name: str


# From the top of a rank's row down; colours of Okabe and Ito, or tints of them.
KINDS = {
    "compute": Style("#009E73", "#009E73", "", 0.42, "own code"),
    "wait": Style("#FDEFD0", "#E69F00", "/", 0.42, "waiting in a call"),
    "collective": Style("#E6B8D2", "#9C3F76", "-", 0.18, "collective"),
    "send": Style("#0072B2", "#FFFFFF", "\\", 0.16, "sending"),
    "receive": Style("#56B4E9", "#003B5C", "|", 0.16, "receiving"),
}


def plot_timeline(source: Trace | Replay, text: str | None = None) -> None:
    """Show who does what when, a row per rank.

    Args:
        source: `results.trace`, in real time; or a replay of it, on the virtual clock.
        text: The sentence below the picture. By default what is the same in every run: of a replay
            who is done when and how long it waited in calls, of real time each rank's calls.

    Raises:
        TypeError: `source` is neither.
    """
    what = activity(source)
    if text is None:
        text = real_text(source) if isinstance(source, Trace) else virtual_text(what)
    show(as_figure(draw(what)), text)


def draw(what: Activity, end: float | None = None, step: int | None = None) -> Drawing:
    """Draw a timeline: up to `end` (us), or when the last rank is done.

    With a `step`, up to that message, from 0, arrows are drawn and each rank's bytes counted.
    """
    row = max(16, min(58, 640 // max(1, len(what.ends))))
    end = max(what.end, 1e-9) if end is None else end
    plan = _Plan(what, lanes(what.bars), (_WIDTH - _LEFT - _RIGHT) / end, row)
    arrows = what.arrows if len(what.arrows) <= ARROWS else []
    if step is not None:
        arrows = what.arrows[max(0, step - ARROWS) : step + 1]
    shapes = [*_axis(plan, end), *_ranks(plan, step), *_legend(plan, bool(arrows)), *_bars(plan)]
    for message in arrows:
        shapes += arrow(plan.way(message), INK + "AA", 0.8)
    if step is not None:
        shapes += arrow(plan.way(arrows[-1]), rank_style(arrows[-1].rank)["color"], 2.5)
    return Drawing(_WIDTH, plan.bottom + _BOTTOM, shapes, what.clock)


class _Plan(NamedTuple):
    what: Activity
    lanes: dict[str, tuple[float, float]]  # top and height
    scale: float  # pixels of a microsecond
    row: int  # pixels of a rank

    @property
    def bottom(self) -> int:
        return _TOP + self.row * len(self.what.ends)

    def lane(self, rank: int, kind: str) -> tuple[float, float]:
        top, high = self.lanes[kind]
        return _TOP + self.row * (rank + 0.9 * top), 0.9 * self.row * high

    def way(self, message: Interval) -> Line:
        """From the middle of the sender's port to that of the receiver's."""
        x1, x2 = (_LEFT + us * self.scale for us in (message.start_us, message.end_us))
        top1, high1 = self.lane(message.rank, "send")
        top2, high2 = self.lane(message.peer, "receive")
        return x1, top1 + high1 / 2, x2, top2 + high2 / 2


def lanes(bars: Iterable[Interval]) -> dict[str, tuple[float, float]]:
    """Of each kind that occurs: top and height in a rank's row, which is 0 to 1 from the top."""
    present, found, top = {bar.what for bar in bars}, {}, 0.0
    for what, style in KINDS.items():
        if what in ("compute", "wait") or what in present:  # these two share a lane that is kept
            found[what] = (top, style.height)
            top += 0.0 if what == "compute" else style.height + 0.03
    scale = 0.97 / top
    return {what: (scale * a, scale * b) for what, (a, b) in found.items() if what in present}


def _axis(plan: _Plan, end: float) -> Iterator[Shape]:
    """About seven round numbers, and which clock this is."""
    power = 10 ** math.floor(math.log10(end / 7))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= end / 7 * 0.999)
    for k in range(int(end / step * 1.0001) + 1):
        x = _LEFT + k * step * plan.scale
        yield Lines([(x, _TOP, x, plan.bottom + 4)], "#DDDDDD")
        yield Words(x, plan.bottom + 17, f"{k * step / plan.what.tick_us:,.10g}", "middle")
    yield Lines([(_LEFT, plan.bottom, _WIDTH - _RIGHT, plan.bottom)], INK)
    yield Words((_LEFT + _WIDTH) / 2, plan.bottom + 35, plan.what.clock, "middle")


def _ranks(plan: _Plan, step: int | None) -> Iterator[Shape]:
    """Their names, and what they have been sent up to a message."""
    for rank in range(len(plan.what.ends)):
        y, sent = _TOP + plan.row * (rank + 0.45) + 4, 0.0
        if step is not None and plan.row > 30:
            sent = sum(a.bytes for a in plan.what.arrows[: step + 1] if a.peer == rank)
        yield Words(_LEFT - 8, y - 8 * bool(sent), f"rank {rank}", "end")
        if sent:
            yield Words(_LEFT - 8, y + 8, f"+ {size(sent)}", "end")


def _legend(plan: _Plan, arrows: bool) -> Iterator[Shape]:
    x = float(_LEFT)
    for kind in plan.lanes:
        yield from _boxes(kind, [(x, 10, 26)], 12)
        yield Words(x + 32, 20, KINDS[kind].name)
        x += 58 + 5.6 * len(KINDS[kind].name)
    if arrows:
        yield from arrow((x, 16, x + 26, 16), INK, 0.8)
        yield Words(x + 32, 20, "a message")


def _bars(plan: _Plan) -> Iterator[Shape]:
    """All bars of a kind at once; where there are many, nobody hovers over a single one."""
    few = len(plan.what.bars) <= _MANY
    found = spans(plan.what.bars, _PIXEL / plan.scale, whole=few)
    for kind in plan.lanes:
        boxes, titles = [], []
        for rank, start, end, bar, count in found[kind]:
            wide = max(1.2, (end - start) * plan.scale)
            boxes.append((_LEFT + start * plan.scale, plan.lane(rank, kind)[0], wide))
            titles.append(f"{bar.label}, and {count - 1} more" if count > 1 else bar.label)
        yield from _boxes(kind, boxes, plan.lane(0, kind)[1], titles if few else None)


def _boxes(kind: str, boxes: list, high: float, titles: list | None = None) -> Iterator[Shape]:
    """Boxes (left, top, width) of one height: a thick line each, the hatch in thin ones above."""
    style = KINDS[kind]
    middles = [(x, y + high / 2, x + wide, y + high / 2) for x, y, wide in boxes]
    yield Lines(middles, style.fill, high, titles)
    if high > _THIN:
        yield Lines([line for box in boxes for line in _hatch(*box, high, style.hatch)], style.ink)


def _hatch(x: float, y: float, wide: float, high: float, mark: str) -> Iterator[Line]:
    """Lines within a box, at places that do not depend on where the box begins."""
    if wide <= _NARROW:
        if mark == "/":  # its fill is too faint for a narrow box
            yield x + wide / 2, y, x + wide / 2, y + high
    elif mark == "-":
        for k in (1, 2):
            yield x, y + k * high / 3, x + wide, y + k * high / 3
    elif mark:
        slant = 0.0 if mark == "|" else high
        for k in range(math.ceil((x - slant) / _GAP), math.ceil((x + wide) / _GAP)):
            at = k * _GAP
            start, end = max(at, x), min(at + slant, x + wide)
            low, up = start - at, end - at if slant else high  # above the lower edge
            if mark == "\\":
                low, up = high - low, high - up
            yield start, y + high - low, end, y + high - up
