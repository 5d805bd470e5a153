"""Ranks in words."""

from collections.abc import Iterable


def ranks_named(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, or `ranks 0, 1 and 3`, in order, each by its number."""
    *names, last = map(str, sorted(numbers))
    return f"ranks {', '.join(names)} and {last}" if names else f"rank {last}"


def were(numbers: Iterable[int]) -> str:
    """Such as `rank 3 was`, or `ranks 0 and 1 were`."""
    names = ranks_named(numbers)
    return f"{names} {'were' if names.startswith('ranks') else 'was'}"
