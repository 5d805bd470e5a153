"""The report of a hang: where every rank is, in which call, who never arrived, and what to try."""

from collections.abc import Mapping, Sequence

from course_utils.hang import whereabouts
from course_utils.hang.deadlock import Deadlock
from course_utils.hang.facts import together
from course_utils.hang.rules import SAME, diagnose
from course_utils.hang.whereabouts import content, of_group
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named
from course_utils.record.event import Event, Log
from course_utils.record.record import Record

_ROWS = 8  # ranks with a row of their own; of more, those that do the same share one
_SIZES = "data size doesn't match"  # what gloo prints before it ends the rank that received
_UNKNOWN = (
    "Likely reason: more arrived in gloo than it was told to expect, most often because the ranks "
    "made one call with different shapes or dtypes (its own words stand in the rank's output)."
)


class HangReport(Listener):
    """Says where every rank is and why they hang, and why gloo ended one."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def explain(self, ranks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """Put better parts into an error; see `Listener.explain`."""
        logs = self._record.logs()
        if isinstance(error, WorkerTimeout):
            stands = [whereabouts.of(rank, ranks[rank], logs.get(rank)) for rank in sorted(ranks)]
            dead = Deadlock(stands, error.when)
            error.pattern, why = diagnose(dead)
            rows = {rank: one.row(dead.world) for rank, one in dead.ranks.items()}
            error.parts[1:] = _table(rows, _ROWS), why
            error.waiting, error.absent = dead.ranks, dead.absent
        elif error.failures and error.failures[0].headline.endswith("SIGABRT"):
            error.parts[1] = why_aborted(error.rank, logs, error.output) or error.parts[1]


def _table(told: Mapping[int, str], own: int = 0) -> str:
    """A row for every rank; where there are more than `own`, those that do the same share one."""
    each = ((row, [rank]) for rank, row in told.items())
    rows = together(told).items() if len(told) > own else each
    return "\n".join(f"  {ranks_named(who)}: {row}" for row, who in rows)


def why_aborted(rank: int, logs: Mapping[int, Log | None], output: Sequence[str]) -> str | None:
    """What a rank that died of SIGABRT and its peers called differently; None if it was not gloo.

    Whether it was gloo, what the rank printed tells.
    """
    if _SIZES not in output[rank]:
        return None
    stands = [whereabouts.of(number, None, logs.get(number)) for number in range(len(output))]
    stands[rank].state, stands[rank].open = "waiting", stands[rank].calls[-1:]
    dead = Deadlock(stands, 0.0)
    if not dead.known or not (found := dead.difference()):
        return _UNKNOWN
    what, meeting = found
    rows = _table({number: _row(call) for number, call in meeting.calls.items()})
    group = of_group(next(iter(meeting.calls.values())), dead.world)
    cure = "hand in the same shape and dtype on every rank." if what == "shape" else SAME
    head = f"Gloo ended it, because collective #{meeting.number}{group} is not the same on all"
    return f"{head} ranks:\n{rows}\n{cure[0].upper()}{cure[1:]}"


def _row(call: Event) -> str:
    """Such as `all_reduce, float32 of shape (4,), at cell [3], line 5, in f: dist.all_...`."""
    what = f"{call.kind}, {content(call)}" if call.dtype else call.kind
    return f"{what}, at {call.where}" if call.line else what
