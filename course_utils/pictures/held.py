"""What ranks hold before and after a collective, as plain numbers and in words."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from course_utils.pictures.words import together

PRINTED = 16  # values of a rank, at most, that are named one by one
Parts = list[list[float]]  # a rank's tensors, flattened; one for a single tensor


def refuse_misfit(before: Sequence[Any], after: Sequence[Any], undefined: Collection[int]) -> None:
    """Raise ValueError unless both sides have the same ranks, and `undefined` is among them."""
    if not before or len(before) != len(after):
        raise ValueError(
            "plot_ranks needs one entry per rank, before and after: "
            f"got {len(before)} and {len(after)}"
        )
    for rank in undefined:
        if rank not in range(len(before)):
            raise ValueError(f"undefined={rank!r}: there are ranks 0 to {len(before) - 1}")


def parts(own: Any) -> Parts:
    """What a rank holds, as lists of numbers."""
    if own is None:
        return []
    if hasattr(own, "tolist"):
        own = own.tolist()
    if isinstance(own, (bool, int, float)):
        return [[own]]
    if not isinstance(own, (list, tuple)):
        raise TypeError(f"a rank holds tensors, numbers or None, not {own!r:.80}")
    if all(isinstance(value, (bool, int, float)) for value in own):
        return [list(own)]
    return [[value for part in parts(each) for value in part] for each in own]


def spoken(held: list[Parts], undefined: Collection[int] = ()) -> str:
    """The numbers of all ranks."""
    said = ("undefined" if r in undefined else _numbers(own) for r, own in enumerate(held))
    return ", ".join(together(said))


def _numbers(own: Parts) -> str:
    values = [value for part in own for value in part]
    if len(values) > PRINTED:
        return f"{len(values)} values from {min(values):.4g} to {max(values):.4g}"
    texts = ["[" + ", ".join(f"{value:.4g}" for value in part) + "]" for part in own]
    return " ".join(texts) or "nothing"


def origins(old: list[Parts]) -> Callable[[float, int], int | None]:
    """A function of a value and the rank that has it now: which single rank had it before."""
    had = defaultdict(set)
    for rank, own in enumerate(old):
        for part in own:
            for value in part:
                had[value].add(rank)

    def origin(value: float, rank: int) -> int | None:
        owners = had.get(value, ())
        return rank if rank in owners else min(owners) if len(owners) == 1 else None

    return origin
