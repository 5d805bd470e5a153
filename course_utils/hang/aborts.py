"""Why gloo ended a rank: the call to which its peers handed in another amount, rank by rank."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_utils.hang.absence import SAME
from course_utils.hang.deadlock import Deadlock, Difference
from course_utils.hang.whereabouts import Whereabouts, content, of_group
from course_utils.launcher.words import ranks_named as ranks
from course_utils.record.notes import Call, Log

_SIZES = "data size doesn't match"  # what gloo prints before it ends the rank that received
_UNKNOWN = (
    "Likely reason: more arrived in gloo than it was told to expect, most often because the ranks "
    "made one call with different shapes or dtypes (its own words stand in the rank's output)."
)


def reason(rank: int, logs: Mapping[int, Log | None], output: Sequence[str]) -> str | None:
    """What a rank that died of SIGABRT and its peers called differently.

    Args:
        rank: The one that died.
        logs: What each rank has noted of its calls, where that is to be relied on.
        output: What each rank printed; gloo's words stand in that of the one that died.

    Returns:
        A few lines; None if it was not gloo, or for another reason.
    """
    if _SIZES not in output[rank]:
        return None
    found = _difference(rank, logs) if all(map(logs.get, range(len(output)))) else None
    return _told(found, tuple(range(len(output)))) if found else _UNKNOWN


def _difference(rank: int, logs: Mapping[int, Log]) -> Difference | None:
    """The first collective that differs, in the group of the call in which the rank died."""
    stands = {
        number: Whereabouts(number, "running", calls=log.calls, complete=log.complete)
        for number, log in logs.items()
    }
    if last := logs[rank].calls[-1:]:
        stands[rank] = replace(stands[rank], state="waiting", open=last)
    return next(iter(Deadlock(stands.values(), 0.0).differences()), None)


def _told(difference: Difference, world: tuple[int, ...]) -> str:
    number, what, calls = difference
    rows = defaultdict(list)
    for rank, call in calls.items():
        rows[_row(call)].append(rank)
    group = of_group(next(iter(calls.values())), world)
    cure = "hand in the same shape and dtype on every rank." if what == "shape" else SAME
    return "\n".join(
        (
            f"Gloo ended it, because collective #{number}{group} is not the same on all ranks:",
            *(f"  {ranks(who)}: {row}" for row, who in rows.items()),
            cure[0].upper() + cure[1:],
        )
    )


def _row(call: Call) -> str:
    """Such as `all_reduce, float32 of shape (4,), at cell [3], line 5, in f: dist.all_...`."""
    what = f"{call.kind}, {content(call)}" if call.dtype else call.kind
    return f"{what}, at {call.line.place}: {call.line.code}" if call.line else what
