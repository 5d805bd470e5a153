"""Rank by time: who computes, communicates and waits when."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from course_utils.network.simulation import Interval, Replay
from course_utils.network.trace import Trace
from course_utils.pictures.activity import Activity, activity, real_text, spans, virtual_text
from course_utils.pictures.shapes import INK, Drawing, Line, Lines, Shape, Words, arrow, as_figure
from course_utils.pictures.style import KINDS, rounded, show, us

ARROWS = 150  # more than so many messages are not drawn
# Pixels: of the whole picture, which is shrunk to 500 in a small window, and of its margins.
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 780, 72, 100, 34, 48
_UNCUT_WIDTH = 736  # where no row is cut, nothing is written at its right
_LETTER = 5.6  # pixels of a narrow one; the gap is large enough for wide ones
_HEIGHT = 350  # of up to 21 ranks together, so that sliders fit below on a small screen
_LEAST_ROW, _LARGEST_ROW = 16, 58
_OUTLINE = "#D55E00"
_ARROW = INK + "AA"  # one sees through it
_PIXEL = 1.5  # what the eye cannot tell apart
_THIN = 4  # what is less high has no strokes: one would not see them
_TICKS = 7  # about so many on the axis


def plot_timeline(source: Trace | Replay, text: str | None = None) -> None:
    """Show who does what when, a row per rank.

    Args:
        source: `results.trace`, in real time; or a replay of it, on the virtual clock.
        text: The sentence below the picture. By default what is the same in every run: of a replay
            who is done when and how long it waited in calls, of real time each rank's calls.

    Raises:
        TypeError: `source` is neither.
    """
    content = activity(source)
    if text is None and isinstance(source, Trace):
        text = real_text(source)
    elif text is None:
        text = virtual_text(content)
    show(as_figure(draw(content)), text)


def draw(content: Activity, end: float = 0, first: Iterable[float] = ()) -> Drawing:
    """Draw a timeline: up to `end` (µs), where bars are cut, or when the last rank is done.

    Outlines say when ranks were done `first`.
    """
    is_cut = bool(end)
    if not end:
        end = max(content.end, 1e-9)
    ranks = max(1, len(content.ends))
    row = max(_LEAST_ROW, min(_LARGEST_ROW, _HEIGHT // ranks))
    plan = _Plan(content, end, (_WIDTH - _LEFT - _RIGHT) / end, row)
    messages = content.arrows if len(content.arrows) <= ARROWS else []
    spans_of_kind = spans(content.bars, _PIXEL / plan.scale)
    kinds = [kind for kind in KINDS if kind in spans_of_kind]
    shapes = [*_axis(plan), *_legend(kinds, bool(messages)), *_ranks(plan, first)]
    for kind in kinds:
        bars = plan.bars(kind, spans_of_kind[kind])
        shapes += _strokes(kind, bars, row * KINDS[kind].height)
    arrows: list[Line] = []
    for message in messages:
        if message.end_us <= end:
            arrows += arrow(plan.path(message))
    shapes.append(Lines(arrows, _ARROW, 0.8))
    width = _WIDTH if is_cut else _UNCUT_WIDTH
    return Drawing(width, plan.bottom + _BOTTOM, shapes, content.clock)


class _Plan(NamedTuple):
    """Where everything stands, in pixels."""

    content: Activity
    end: float  # of the axis
    scale: float  # pixels of a microsecond
    row: int  # pixels of a rank

    @property
    def bottom(self) -> int:
        return _TOP + self.row * len(self.content.ends)

    def x(self, at_us: float) -> float:
        return _LEFT + min(at_us, self.end) * self.scale

    def y(self, rank: int, kind: str) -> float:
        return _TOP + self.row * (rank + KINDS[kind].middle)

    def bars(self, kind: str, spans_of_kind: Iterable[list]) -> list[Line]:
        """The middle of each, which is at least so wide that one sees it."""
        lines = []
        y_of_rank = [self.y(rank, kind) for rank in range(len(self.content.ends))]
        for rank, start_us, end_us in spans_of_kind:
            if start_us <= self.end:
                left, y = self.x(start_us), y_of_rank[rank]
                lines.append((left, y, max(self.x(end_us), left + 1.2), y))
        return lines

    def path(self, message: Interval) -> Line:
        """From the middle of the sender's port to that of the receiver's."""
        start = self.x(message.start_us), self.y(message.rank, "send")
        end = self.x(message.end_us), self.y(message.peer, "receive")
        return (*start, *end)


def _axis(plan: _Plan) -> Iterator[Shape]:
    """About seven round numbers, and which clock this is."""
    step_us = rounded(plan.end / _TICKS * 0.999, (1, 2, 2.5, 5, 10))
    ticks = int(plan.end / step_us * 1.0001) + 1
    for number in range(ticks):
        x = plan.x(number * step_us)
        label = f"{number * step_us / plan.content.tick_us:,.10g}"
        yield Lines([(x, _TOP, x, plan.bottom + 4)], "#DDDDDD")
        yield Words(x, plan.bottom + 19, label, "middle")
    yield Lines([(_LEFT, plan.bottom, _WIDTH - _RIGHT, plan.bottom)], INK)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield Words(middle, plan.bottom + 39, plan.content.clock, "middle")


def _ranks(plan: _Plan, first: Iterable[float]) -> Iterator[Shape]:
    """Their names, a mark where a row is cut, and outlines."""
    for rank, end in enumerate(plan.content.ends):
        y = _TOP + plan.row * (rank + 0.45) + 4
        yield Words(_LEFT - 8, y, f"rank {rank}", "end")
        if end > plan.end:
            yield Words(_WIDTH - _RIGHT + 4, y, f"▸ {us(end)}")
    for rank, end in enumerate(first):
        x = plan.x(end)
        top = _TOP + plan.row * rank - 2
        bottom = top + 0.95 * plan.row
        outline = [(_LEFT, top, x, top), (x, top, x, bottom), (_LEFT, bottom, x, bottom)]
        yield Lines(outline, _OUTLINE, 1.5)


def _legend(kinds: Iterable[str], arrows: bool) -> Iterator[Shape]:
    x = float(_LEFT)
    for kind in kinds:
        name = KINDS[kind].name
        yield from _strokes(kind, [(x, 16, x + 20, 16)], 12)
        yield Words(x + 25, 21, name)
        x += 56 + _LETTER * len(name)
    if arrows:
        yield Lines(arrow((x, 16, x + 20, 16)), _ARROW, 0.8)
        yield Words(x + 25, 21, "a message")


def _strokes(kind: str, bars: list[Line], height: float) -> Iterator[Shape]:
    """Bars of one height: a thick line each, and a dashed one above it."""
    style = KINDS[kind]
    yield Lines(bars, style.fill, height)
    if style.dash and height > _THIN:
        yield Lines(bars, style.ink, height, dash=style.dash)
