"""Rank by time: who computes, communicates and waits when."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from course_utils.network.simulation import Interval, Replay
from course_utils.network.trace import Trace
from course_utils.pictures.activity import Activity, activity, real_text, spans, virtual_text
from course_utils.pictures.shapes import INK, Drawing, Line, Lines, Shape, Words, arrow, as_figure
from course_utils.pictures.style import KINDS, rounded, show, us

ARROWS = 150  # more than so many messages are not drawn
# Pixels: the whole picture, which is shrunk to 500 in a small window, and where its rows are.
_WIDTH = 780
_UNCUT_WIDTH = 736  # where no row is cut, nothing is written at its right
_LEFT, _END = 72, 680
_TOP = 34
_BOTTOM = 48  # below the rows
_LETTER = 5.6  # pixels of a narrow one; the gap is large enough for wide ones
_HEIGHT = 350  # of up to 21 ranks together, so that sliders fit below on a small screen
_LEAST_ROW, _LARGEST_ROW = 16, 58
_OUTLINE = "#D55E00"
_ARROW = INK + "AA"  # one sees through it
_PIXEL = 1.5  # what the eye cannot tell apart
_THIN = 4  # what is less wide is all outline
_HATCH = 8  # pixels from one line of a hatching to the next
_TICKS = 7  # about so many on the axis
_ROUND_TICKS = (1, 2, 2.5, 5, 10)  # or ten times that, and so on


def plot_timeline(
    source: Trace | Replay,
    text: str | None = None,
    clock: str | None = None,
    caption: str = "",
) -> None:
    """Show who does what when, a row per rank.

    Args:
        source: `results.trace`, in real time; or a replay of it, on the virtual clock.
        text: The sentence below the picture. By default what is the same in every run: of a replay
            who is done when and how long it waited in calls, of real time each rank's calls.
        clock: What the axis is called instead, such as "time (ms)" where nobody measured it.
        caption: A shorter sentence, which is seen in the place of the text.

    Raises:
        TypeError: `source` is neither.
    """
    content = activity(source)
    if clock is not None:
        content = content._replace(clock=clock)
    if text is None and isinstance(source, Trace):
        text = real_text(source)
    elif text is None:
        text = virtual_text(content)
    drawing = draw(content)
    show(as_figure(drawing), text, caption)


def draw(content: Activity, end: float = 0, first: Iterable[float] = ()) -> Drawing:
    """Draw a timeline: up to `end` (µs), where bars are cut, or when the last rank is done.

    Outlines say when ranks were done `first`.
    """
    width = _WIDTH
    if not end:
        width = _UNCUT_WIDTH
        end = max(content.end, 1e-9)
    scale = (_END - _LEFT) / end
    plan = _Plan(content, end, scale, _row_height(content))
    messages = content.arrows
    if len(messages) > ARROWS:
        messages = []
    pixel_us = _PIXEL / scale
    spans_of_kind = spans(content.bars, pixel_us)
    kinds = [kind for kind in KINDS if kind in spans_of_kind]
    shapes = list(_axis(plan))
    shapes += _legend(kinds, has_messages=bool(messages))
    shapes += _names(plan)
    shapes += _outlines(plan, first)
    for kind in kinds:
        bars = plan.bars(kind, spans_of_kind[kind])
        height = plan.row * KINDS[kind].height
        shapes += _strokes(kind, bars, height)
    shapes.append(_arrows(plan, messages))
    height = plan.bottom + _BOTTOM
    return Drawing(width, height, shapes, content.clock)


def _row_height(content: Activity) -> int:
    ranks = max(1, len(content.ends))
    height = _HEIGHT // ranks
    return max(_LEAST_ROW, min(_LARGEST_ROW, height))


def _arrows(plan: "_Plan", messages: Iterable[Interval]) -> Lines:
    """An arrow for each message that has arrived before the axis ends."""
    lines: list[Line] = []
    for message in messages:
        if message.end_us <= plan.end:
            path = plan.path(message)
            lines += arrow(path)
    return Lines(lines, _ARROW, 0.8)


class _Plan(NamedTuple):
    """Where everything stands, in pixels."""

    content: Activity
    end: float  # of the axis
    scale: float  # pixels of a microsecond
    row: int  # pixels of a rank

    @property
    def bottom(self) -> int:
        ranks = len(self.content.ends)
        return _TOP + self.row * ranks

    def x(self, at_us: float) -> float:
        shown_us = min(at_us, self.end)
        return _LEFT + shown_us * self.scale

    def y(self, rank: int, kind: str) -> float:
        middle = KINDS[kind].middle
        return _TOP + self.row * (rank + middle)

    def bars(self, kind: str, spans_of_kind: Iterable[list]) -> list[Line]:
        """The middle of each, which is at least so wide that one sees it."""
        lines = []
        ranks = range(len(self.content.ends))
        y_of_rank = [self.y(rank, kind) for rank in ranks]
        for rank, start_us, end_us in spans_of_kind:
            if start_us > self.end:
                continue
            left = self.x(start_us)
            right = max(self.x(end_us), left + 1.2)
            y = y_of_rank[rank]
            lines.append((left, y, right, y))
        return lines

    def path(self, message: Interval) -> Line:
        """From the middle of the sender's port to that of the receiver's."""
        x1 = self.x(message.start_us)
        y1 = self.y(message.rank, "send")
        x2 = self.x(message.end_us)
        y2 = self.y(message.peer, "receive")
        return x1, y1, x2, y2


def _axis(plan: _Plan) -> Iterator[Shape]:
    """About seven round numbers, and which clock this is."""
    bottom = plan.bottom
    step_us = rounded(plan.end / _TICKS * 0.999, _ROUND_TICKS)
    last_number = int(plan.end / step_us * 1.0001)
    for number in range(last_number + 1):
        tick_us = number * step_us
        x = plan.x(tick_us)
        in_its_unit = tick_us / plan.content.tick_us
        label = f"{in_its_unit:,.10g}"
        tick = (x, _TOP, x, bottom + 4)
        yield Lines([tick], "#DDDDDD")
        yield Words(x, bottom + 19, label, "middle")
    axis = (_LEFT, bottom, _END, bottom)
    yield Lines([axis], INK)
    middle = (_LEFT + _END) / 2
    yield Words(middle, bottom + 39, plan.content.clock, "middle")


def _names(plan: _Plan) -> Iterator[Shape]:
    """Each rank's name, and where a row is cut, when the rank is done."""
    for rank, end_us in enumerate(plan.content.ends):
        middle = rank + 0.45
        y = _TOP + plan.row * middle + 4
        yield Words(_LEFT - 8, y, f"rank {rank}", "end")
        if end_us > plan.end:
            when = us(end_us)
            yield Words(_END + 4, y, f"▸ {when}")


def _outlines(plan: _Plan, ends_us: Iterable[float]) -> Iterator[Shape]:
    """Around each rank's row, up to when it was done before."""
    for rank, end_us in enumerate(ends_us):
        right = plan.x(end_us)
        top = _TOP + plan.row * rank - 2
        bottom = top + 0.95 * plan.row
        above = (_LEFT, top, right, top)
        at_its_end = (right, top, right, bottom)
        below = (_LEFT, bottom, right, bottom)
        yield Lines([above, at_its_end, below], _OUTLINE, 1.5)


def _legend(kinds: Iterable[str], has_messages: bool) -> Iterator[Shape]:
    x = float(_LEFT)
    for kind in kinds:
        name = KINDS[kind].name
        sample = _legend_line(x)
        yield from _strokes(kind, [sample], 12)
        yield Words(x + 25, 21, name)
        x += 56 + _LETTER * len(name)
    if has_messages:
        sample = _legend_line(x)
        yield Lines(arrow(sample), _ARROW, 0.8)
        yield Words(x + 25, 21, "a message")


def _legend_line(x: float) -> Line:
    y = 16
    return x, y, x + 20, y


def _strokes(kind: str, bars: list[Line], height: float) -> Iterator[Shape]:
    """Bars of one height, as thick lines: outlined, or hatched where one waits."""
    style = KINDS[kind]
    if style.is_hatched:
        yield Lines(bars, style.fill, height)
        yield Lines(_hatching(bars, height), style.ink)
        return
    yield Lines(bars, style.ink, height)
    insides = []
    for left, y, right, _ in bars:
        if right - left > _THIN:
            insides.append((left + 1, y, right - 1, y))
    yield Lines(insides, style.fill, height - 2)


def _hatching(bars: list[Line], height: float) -> list[Line]:
    """Lines that rise by 45 degrees, cut where a bar ends; bars that touch look like one."""
    hatching = []
    for left, y, right, _ in bars:
        bottom = y + height / 2
        first = math.floor((left - height) / _HATCH) + 1
        end = math.ceil(right / _HATCH)
        for number in range(first, end):
            foot = number * _HATCH  # where a line would begin, at the bottom
            enters = max(0, left - foot)
            leaves = min(height, right - foot)
            line = (foot + enters, bottom - enters, foot + leaves, bottom - leaves)
            hatching.append(line)
    return hatching
