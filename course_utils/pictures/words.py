"""What a picture shows, in words: the same in every run, so that tests can compare it."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from course_utils.launcher.words import ranks
from course_utils.network.trace import Trace
from course_utils.pictures.activity import Activity

_SPOKEN = 8  # groups of ranks, at most, that are named one by one


def together(said: Iterable[str], between: str = " ") -> list[str]:
    """What is said of each rank, once for all ranks of which the same is said."""
    groups = defaultdict(list)
    for rank, words in enumerate(said):
        groups[words].append(rank)
    return [f"{ranks(own)}{between}{words}" for words, own in groups.items()]


def first_of(said: list[str]) -> str:
    """As a sentence; of very many parts only the first ones."""
    return "; ".join([*said[:_SPOKEN], *["and others"] * (len(said) > _SPOKEN)]) + "."


def virtual_text(what: Activity) -> str:
    """Who is done when on the virtual clock, and how long it waited in calls."""
    held, ends = [0.0] * len(what.ends), what.ends
    for bar in what.bars:
        held[bar.rank] += bar.end_us - bar.start_us if bar.what == "wait" else 0.0
    pairs = zip(ends, held, strict=True)
    said = together(f"done at {us(end)}, waiting for {us(own)} of it" for end, own in pairs)
    if len(said) > _SPOKEN:
        first, last, most = ends.index(min(ends)), ends.index(max(ends)), held.index(max(held))
        said = [
            f"of {len(what.ends)} ranks rank {first} is done first, at {us(ends[first])}, "
            f"rank {last} last, at {us(ends[last])}",
            f"rank {most} waits longest, {us(held[most])}",
        ]
    return f"V{what.clock[1:]}: {first_of(said)}"


def real_text(trace: Trace) -> str:
    """How many calls of which kind each rank made: in every run the same, unlike the times."""
    calls = [Counter() for _ in range(trace.world_size)]
    for event in trace:
        calls[event.rank][event.kind] += 1
    counts = (", ".join(f"{n} {kind}" for kind, n in own.items()) or "no calls" for own in calls)
    return f"Real time, calls of {first_of(together(counts, ': '))}"


def us(value: float) -> str:
    """Microseconds, with as many digits as one reads."""
    return f"{value:,.1f} us" if value >= 10 else f"{value:.3g} us"


def size(count: float) -> str:
    """Such as `960 B`, `1.5 KB` or `25 MB`; a KB is 1,000 bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
