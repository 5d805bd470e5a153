"""The report of a hang: where every rank is, in which call, who never arrived, and what to try."""

from collections.abc import Mapping

from course_utils.hang import whereabouts
from course_utils.hang.deadlock import Deadlock
from course_utils.hang.diagnosis import diagnose
from course_utils.launcher.errors import WorkerTimeout
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named as ranks
from course_utils.record.notes import Log

_ROWS = 8  # ranks with a row of their own; of more, those that do the same share one


def worker_timeout(
    seconds: float,
    running: Mapping[int, list[Frame]],
    done: set[int],
    output: list[str],
    logs: Mapping[int, Log | None] | None = None,
    now: float = 0.0,
) -> WorkerTimeout:
    """The error for ranks that are not done.

    Args:
        seconds: How long the ranks had.
        running: The frames of those that are not done, outermost first; none where one is silent.
        done: The ranks whose function has returned.
        output: What each rank printed.
        logs: What each rank has noted of its calls, where that is to be relied on.
        now: When time was up, on the system's monotonic clock; calls after that show life.
    """
    logs, frames = logs or {}, {**running, **dict.fromkeys(done)}
    stands = [whereabouts.of(rank, frames[rank], logs.get(rank)) for rank in sorted(frames)]
    dead = Deadlock(stands, now)
    pattern, why = diagnose(dead)
    were = "was" if len(running) == 1 else "were"
    head = f"{ranks(running)} {were} not done after {seconds:g} s."
    error = WorkerTimeout([head, _rows(dead), why], output, seconds, now)
    error.waiting, error.absent, error.pattern = dead.ranks, dead.absent, pattern
    return error


def _rows(dead: Deadlock) -> str:
    """Where every rank is; many ranks that do the same share a row."""
    told = {rank: one.row(dead.world) for rank, one in dead.ranks.items()}
    groups: dict[object, list[int]] = {}
    for rank, text in told.items():
        groups.setdefault(text if len(told) > _ROWS else rank, []).append(rank)
    return "\n".join(f"  {ranks(who)}: {told[who[0]]}" for who in groups.values())
