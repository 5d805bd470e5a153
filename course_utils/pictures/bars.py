"""How the bars of a timeline look, and where in a rank's row they lie."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

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


def lanes(bars: Iterable[Interval]) -> dict[str, tuple[float, float]]:
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


def spans(bars: Iterable[Interval], pixel_us: float, whole: bool = True) -> dict[str, list]:
    """The same to the eye, with fewer bars: by kind [rank, start, end, the first bar, how many].

    What is shorter than a pixel is joined with the next one within a pixel; unless bars shall stay
    `whole`, because somebody may hover over them, all that touch are joined.
    """
    found, before = defaultdict(list), {}
    for bar in bars:
        rank, start, end, what = bar[:4]
        last = before.get((rank, what), [rank, -math.inf, -math.inf, bar, 0])
        gap, short = start - last[2], last[2] - last[1] < pixel_us
        if gap < pixel_us and (short or not (whole or gap > 0)):
            last[2], last[4] = max(last[2], end), last[4] + 1
        else:
            before[rank, what] = [rank, start, end, bar, 1]
            found[what].append(before[rank, what])
    return found
