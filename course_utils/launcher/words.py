"""Ranks and counts in words."""

from collections.abc import Iterable


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
