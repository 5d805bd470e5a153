"""What every rank does when, as bars and arrows on one clock: what a timeline is drawn from."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from course_utils.network.replay import Interval

INK = "#222222"
ARROWS = 150  # more than so many messages are not drawn


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
    source: "str | Interval"  # what it is, or what can tell

    @property
    def label(self) -> str:
        """What it is, in words."""
        return self.source if isinstance(self.source, str) else self.source.label


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
        return max((*self.ends, *(bar.end for bar in self.bars)), default=0.0)


def lanes(bars: Iterable[Bar]) -> dict[str, tuple[float, float]]:
    """Of each kind that occurs: top and height in a rank's row, which is 0 to 1 from the top."""
    present = {bar.what for bar in bars}
    found, top = {}, 0.0
    for what, style in KINDS.items():
        if what == "wait":  # a rank waits or does not: one lane for both
            found[what] = found.get("compute", (0.0, style.height))
            top = style.height + 0.03
        elif what == "compute" or what in present:
            found[what] = (top, style.height)
            top += 0.0 if what == "compute" else style.height + 0.03
    scale = 0.97 / max(top, 0.42)
    return {
        what: (top * scale, height * scale)
        for what, (top, height) in found.items()
        if what in present
    }


def coarse(bars: Iterable[Bar], pixel: float) -> list[Bar]:
    """The same to the eye, with fewer bars: neighbours less than a pixel apart become one."""
    last: dict[tuple[int, str], Bar] = {}
    done = []
    for bar in bars:
        key = bar.rank, bar.what
        before = last.get(key)
        if before and bar.start - before.end < pixel and before.end - before.start < pixel:
            source = before.source if before.label == bar.label else "several"
            last[key] = before._replace(end=max(before.end, bar.end), source=source)
        else:
            if before:
                done.append(before)
            last[key] = bar
    return done + list(last.values())
