"""What a picture shows, in words: the same in every run, so that tests can compare it."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from course_utils.launcher.words import ranks
from course_utils.pictures.bars import Activity

if TYPE_CHECKING:
    from course_utils.network.trace import Trace

_SPOKEN = 8  # groups of ranks that are named one by one


def virtual_text(what: Activity) -> str:
    """Who is done when on the virtual clock, and how long it waited in calls."""
    held = [0.0] * what.world_size
    for bar in what.bars:
        held[bar.rank] += bar.end - bar.start if bar.what == "wait" else 0.0
    groups = defaultdict(list)
    for rank, (end, own) in enumerate(zip(what.ends, held, strict=True)):
        groups[f"done at {us(end)}, waiting for {us(own)} of it"].append(rank)
    if len(groups) > _SPOKEN:
        first, last = what.ends.index(min(what.ends)), what.ends.index(max(what.ends))
        most = held.index(max(held))
        said = (
            f"of {what.world_size} ranks rank {first} is done first, at {us(what.ends[first])}, "
            f"rank {last} last, at {us(what.ends[last])}; rank {most} waits longest, "
            f"{us(held[most])}"
        )
    else:
        said = "; ".join(f"{ranks(own)} {said}" for said, own in groups.items())
    return f"V{what.clock[1:]}: {said}."


def real_text(trace: "Trace") -> str:
    """How many calls of which kind each rank made: in every run the same, unlike the times."""
    groups = defaultdict(list)
    for rank in range(trace.world_size):
        calls = Counter(event.kind for event in trace.of_rank(rank))
        said = ", ".join(f"{n} {kind}" for kind, n in calls.items()) or "no calls"
        groups[said].append(rank)
    said = "; ".join(f"{ranks(own)}: {said}" for said, own in list(groups.items())[:_SPOKEN])
    more = "; and others" if len(groups) > _SPOKEN else ""
    return f"Real time, calls of {said}{more}."


def us(value: float) -> str:
    """Microseconds, with as many digits as one reads."""
    return f"{value:,.1f} us" if value >= 10 else f"{value:.3g} us"


def size(count: float) -> str:
    """Such as `960 B`, `1.5 KB` or `25 MB`; a KB is 1,000 bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
