"""What a picture shows, in words: the same in every run, so that tests can compare it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from course_utils.pictures.bars import Activity

if TYPE_CHECKING:
    from course_utils.trace import Trace

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


def ranks(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, `ranks 0 to 4` or `ranks 0, 2 and 5`."""
    own = list(numbers)
    if len(own) == 1:
        return f"rank {own[0]}"
    if own == list(range(own[0], own[-1] + 1)) and len(own) > 2:
        return f"ranks {own[0]} to {own[-1]}"
    return f"ranks {', '.join(map(str, own[:-1]))} and {own[-1]}"


def ranks_named(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, or `ranks 0, 1 and 3`, in order, each by its number."""
    names = [str(number) for number in sorted(numbers)]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def times(count: int) -> str:
    """Such as `once`, `twice` or `5 times`."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
