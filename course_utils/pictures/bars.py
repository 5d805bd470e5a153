"""What every rank does when, as bars and arrows on one clock: what a timeline is drawn from."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from course_utils.network.replay import Interval


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


class Bar(NamedTuple):
    """One thing that a rank or its network port does, from `start` to `end`."""

    rank: int
    start: float
    end: float
    what: str
    source: "str | Interval"  # what it is, or what has a `label` that says so


class Arrow(NamedTuple):
    """A message, from when its sender sends it until its receiver has it."""

    source: int
    start: float
    target: int
    end: float
    bytes: float


class Activity(NamedTuple):
    """Everything on one clock.

    Attributes:
        world_size: Number of ranks.
        bars: What they do: "compute", "wait", "collective", "send" and "receive".
        arrows: The messages between them, in the order in which they were sent.
        ends: When each rank is done.
        unit: "us" or "ms".
        clock: Which clock this is, for an axis.
    """

    world_size: int
    bars: list[Bar]
    arrows: list[Arrow]
    ends: tuple[float, ...]
    unit: str
    clock: str

    @property
    def end(self) -> float:
        """When the last of all is done."""
        return max(max(self.ends, default=0.0), max((bar.end for bar in self.bars), default=0.0))


def lanes(bars: Iterable[Bar]) -> dict[str, tuple[float, float]]:
    """Of each kind that occurs: top and height in a rank's row, which is 0 to 1 from the top.

    A rank waits or does not, so both are in one lane, whose place is kept where there is neither.
    """
    present, found, top = {bar.what for bar in bars}, {}, 0.0
    for what, style in KINDS.items():
        if what in ("compute", "wait") or what in present:
            found[what] = (top, style.height)
            top += 0.0 if what == "compute" else style.height + 0.03
    scale = 0.97 / top
    return {what: (scale * a, scale * b) for what, (a, b) in found.items() if what in present}


def spans(bars: Iterable[Bar], pixel: float, whole: bool = True) -> dict[tuple[int, str], list]:
    """The same to the eye, with fewer bars: by rank and kind [start, end, source, how many].

    What is shorter than a pixel is joined with the next one within a pixel; unless bars shall stay
    `whole`, because somebody may hover over them, all that touch are joined.
    """
    found = defaultdict(list)
    for rank, start, end, kind, source in bars:
        own = found[rank, kind]
        if own:
            last = own[-1]
            gap = start - last[1]
            if gap < pixel and (last[1] - last[0] < pixel or not (whole or gap > 0)):
                last[1] = max(last[1], end)
                last[3] += 1
                continue
        own.append([start, end, source, 1])
    return found
