"""Rank by time: who computes, communicates and waits when."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from course_utils.network.simulation import Interval, Replay
from course_utils.network.trace import Trace
from course_utils.pictures.activity import Activity, activity, real_text, spans, virtual_text
from course_utils.pictures.shapes import INK, Drawing, Line, Lines, Shape, Words, arrow, as_figure
from course_utils.pictures.style import KINDS, rounded, show, us

ARROWS = 150  # more than so many messages are not drawn
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 72, 100, 34, 44  # right: when a cut row ends
_HIGH = 350  # of up to 21 ranks together: beside sliders on a small screen
_OUTLINE, _ARROW = "#D55E00", INK + "AA"  # the latter are seen through
_PIXEL = 1.5  # what the eye cannot tell apart
_THIN = 4  # what is less high has no strokes: one would not see them


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


def draw(what: Activity, end: float = 0, first: Iterable[float] = ()) -> Drawing:
    """Draw a timeline: up to `end` (µs), where bars are cut, or when the last rank is done.

    Outlines say when ranks were done `first`.
    """
    row, wide = max(16, min(58, _HIGH // max(1, len(what.ends)))), _WIDTH - (0 if end else 78)
    end = end or max(what.end, 1e-9)
    plan = _Plan(what, end, (_WIDTH - _LEFT - _RIGHT) / end, row)
    sent = what.arrows if len(what.arrows) <= ARROWS else []
    found = spans(what.bars, _PIXEL / plan.scale)
    bars = {kind: found[kind] for kind in KINDS if kind in found}
    shapes = [*_axis(plan), *_legend(bars, bool(sent)), *_ranks(plan, first)]
    for kind, own in bars.items():
        shapes += _strokes(kind, plan.bars(kind, own), row * KINDS[kind].height)
    arrows = [line for one in sent if one.end_us <= end for line in arrow(plan.way(one))]
    return Drawing(wide, plan.bottom + _BOTTOM, [*shapes, Lines(arrows, _ARROW, 0.8)], what.clock)


class _Plan(NamedTuple):
    what: Activity
    end: float  # of the axis
    scale: float  # pixels of a microsecond
    row: int  # pixels of a rank

    @property
    def bottom(self) -> int:
        return _TOP + self.row * len(self.what.ends)

    def x(self, at_us: float) -> float:
        return _LEFT + min(at_us, self.end) * self.scale

    def y(self, rank: int, kind: str) -> float:
        return _TOP + self.row * (rank + KINDS[kind].middle)

    def bars(self, kind: str, found: Iterable[list]) -> list[Line]:
        """The middle of each, which is at least so wide that one sees it."""
        seen = [(rank, self.x(a), self.x(b)) for rank, a, b in found if a <= self.end]
        rows = [self.y(rank, kind) for rank in range(len(self.what.ends))]
        return [(a, rows[rank], max(b, a + 1.2), rows[rank]) for rank, a, b in seen]

    def way(self, message: Interval) -> Line:
        """From the middle of the sender's port to that of the receiver's."""
        start, end = self.x(message.start_us), self.x(message.end_us)
        return start, self.y(message.rank, "send"), end, self.y(message.peer, "receive")


def _axis(plan: _Plan) -> Iterator[Shape]:
    """About seven round numbers, and which clock this is."""
    step = rounded(plan.end / 7 * 0.999, (1, 2, 2.5, 5, 10))
    for k in range(int(plan.end / step * 1.0001) + 1):
        x = plan.x(k * step)
        yield Lines([(x, _TOP, x, plan.bottom + 4)], "#DDDDDD")
        yield Words(x, plan.bottom + 17, f"{k * step / plan.what.tick_us:,.10g}", "middle")
    yield Lines([(_LEFT, plan.bottom, _WIDTH - _RIGHT, plan.bottom)], INK)
    yield Words((_LEFT + _WIDTH - _RIGHT) / 2, plan.bottom + 35, plan.what.clock, "middle")


def _ranks(plan: _Plan, first: Iterable[float]) -> Iterator[Shape]:
    """Their names, a mark where a row is cut, and outlines."""
    for rank, end in enumerate(plan.what.ends):
        y = _TOP + plan.row * (rank + 0.45) + 4
        yield Words(_LEFT - 8, y, f"rank {rank}", "end")
        if end > plan.end:
            yield Words(_WIDTH - _RIGHT + 4, y, f"▸ {us(end)}")
    for rank, end in enumerate(first):
        x, top = plan.x(end), _TOP + plan.row * rank - 2
        low = top + 0.95 * plan.row
        yield Lines([(_LEFT, top, x, top), (x, top, x, low), (_LEFT, low, x, low)], _OUTLINE, 1.5)


def _legend(kinds: Iterable[str], arrows: bool) -> Iterator[Shape]:
    x = float(_LEFT)
    for kind in kinds:
        yield from _strokes(kind, [(x, 16, x + 26, 16)], 12)
        yield Words(x + 32, 20, KINDS[kind].name)
        x += 58 + 5.6 * len(KINDS[kind].name)
    if arrows:
        yield Lines(arrow((x, 16, x + 26, 16)), _ARROW, 0.8)
        yield Words(x + 32, 20, "a message")


def _strokes(kind: str, bars: list[Line], high: float) -> Iterator[Shape]:
    """Bars of one height: a thick line each, and a dashed one above it."""
    style = KINDS[kind]
    yield Lines(bars, style.fill, high)
    if style.dash and high > _THIN:
        yield Lines(bars, style.ink, high, dash=style.dash)
