"""What the ranks of a replay compute between their events."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from course_utils.matching import COMPUTE, Step

if TYPE_CHECKING:
    from course_utils.trace import Event, Trace

Compute = "str | Callable[[Event], float] | Sequence[float]"


def compute_us(trace: "Trace", compute: Compute) -> "Callable[[int, Event | None], float]":
    """A function of rank and event, the event None at the end of the rank's program."""
    if callable(compute):
        return lambda rank, event: _checked(compute(event)) if event else 0.0
    if compute == "zero":
        return lambda rank, event: 0.0
    if compute == "measured":
        return lambda rank, event: 1e6 * (event.cpu_s if event else trace.ended[rank][1])
    if isinstance(compute, str) or len(compute) != trace.world_size:
        raise ValueError(
            f"compute={compute!r}: choose 'zero', 'measured', one number of microseconds for each "
            f"of the {trace.world_size} ranks, or a function of an event"
        )
    begins = [_checked(us) for us in compute]
    quiet = set(range(trace.world_size)) - {event.rank for event in trace.events}
    return lambda rank, event: (
        begins[rank] if (event.index == 0 if event else rank in quiet) else 0.0
    )


def _checked(us: float) -> float:
    if not math.isfinite(us) or us < 0:
        raise ValueError(f"compute gave {us!r}: microseconds must be finite and at least 0")
    return us


def with_compute(steps: list[Step], think: "Callable[[Event | None], float]") -> list[Step]:
    """The steps of a program, and before those of each event what the rank computes."""
    program, last = [], None
    for step in steps:
        if step[2] is not last:
            last = step[2]
            if us := think(last):
                program.append((COMPUTE, us, last))
        program.append(step)
    if us := think(None):
        program.append((COMPUTE, us, None))
    return program
