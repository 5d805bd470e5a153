"""A sentence or two about why ranks hang, and what to try.

Each rule looks for facts in a `Deadlock` and states them; the first that applies speaks. Where the
facts prove nothing, no rule names a cause: a wrong diagnosis costs more time than none.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from course_utils.hang import absence, disagreement
from course_utils.hang.absence import SAME
from course_utils.hang.deadlock import Deadlock
from course_utils.hang.whereabouts import Whereabouts
from course_utils.launcher.words import ranks_named as ranks

_MANY_PAUSES, _LAST_PAUSES = 8, 32  # a start is slow, which says nothing


class Diagnosis(NamedTuple):
    """The pattern's name, which does not change; None where nothing is proven. And the words."""

    pattern: str | None
    text: str


def diagnose(dead: Deadlock) -> Diagnosis:
    """Say why these ranks hang."""
    rules: tuple[Callable[[Deadlock], tuple[str | None, str] | None], ...] = (
        _still_at_work,
        _nobody_waits,
        disagreement.about_collectives,
        disagreement.about_messages,
        absence.never_arrived,
        _circle,
        _by_stacks,
    )
    for rule in rules:
        if found := rule(dead):
            return Diagnosis(*found)
    return Diagnosis(None, _all_wait(list(dead.ranks.values())))


def _still_at_work(dead: Deadlock) -> tuple[str, str] | None:
    """The silence at the end is shorter than one before it: perhaps nothing hangs."""
    times = sorted(call.when for one in dead.ranks.values() for call in one.calls)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    if len(pauses) < _MANY_PAUSES or dead.now - times[-1] > max(pauses[-_LAST_PAUSES:]):
        return None
    return "slow", (
        "The ranks made calls until shortly before that: perhaps nothing hangs. Raise timeout= if "
        "the work is long; look for an endless loop if it is not."
    )


def _nobody_waits(dead: Deadlock) -> tuple[str, str] | None:
    left = [one for one in dead.ranks.values() if one.state != "returned"]
    if any(one.state == "waiting" for one in left):
        return None
    if held := [one for one in left if one.state == "held"]:
        who, one = ranks(one.rank for one in held), len(held) == 1
        return "held", (
            f"No rank waits for another: {who} {'waits' if one else 'wait'} for {held[0].what} of "
            f"{'its' if one else 'their'} own process. {absence.held(held[0].what)}"
        )
    return "running", (
        f"No rank waits for another: {ranks(one.rank for one in left)} only needed longer. Raise "
        "timeout= if the work is long; look for an endless loop if it is not."
    )


def _circle(dead: Deadlock) -> tuple[str | None, str] | None:
    """Ranks that wait for each other, and for nobody else."""
    inside = [rank for rank in dead.waits_for if rank in dead.reachable(rank)]
    calls = [call for rank in inside for call, _ in dead.open[rank]]
    kinds = {call.kind for call in calls}
    if not inside:
        return None
    if calls and kinds <= {"send"}:
        return "send/send", (
            f"{ranks(inside).capitalize()} all send, and none receives: a blocking send ends only "
            "when its peer receives. Let one side receive first, or use isend and irecv."
        )
    if calls and kinds <= {"recv"}:
        return "recv/recv", (
            f"{ranks(inside).capitalize()} all receive, and none sends: a receive ends only when "
            "its peer has sent. Let one side send first."
        )
    groups = {call.group_name for call in calls}
    if len(groups) > 1 and not kinds & {"send", "recv", "new_group"}:
        return "groups", (
            f"{ranks(inside).capitalize()} wait for each other in different groups: every rank of "
            "a group must come to its calls, and all ranks to their groups in the same order."
        )
    what = sorted({str(dead.ranks[rank].what) for rank in inside})
    if len(what) > 1:
        return "order", (f"The ranks wait in different calls ({', '.join(what)}): {SAME}")
    return None


def _by_stacks(dead: Deadlock) -> tuple[None, str] | None:
    """What the stacks tell where the calls are not known, such as with an older torch."""
    kinds = {str(one.what) for one in dead.ranks.values()}
    if dead.known:
        return None
    if kinds <= {"send", "recv", "batch_isend_irecv"}:
        return None, (
            "Every rank waits in a point-to-point call: a blocking send ends only when its peer "
            "receives. Let one side receive first, or use isend and irecv."
        )
    if len(kinds) > 1:
        return None, f"The ranks wait in different calls ({', '.join(sorted(kinds))}): {SAME}"
    return None, (
        "Every rank waits in the same call: look for a call that one rank made more often than "
        "another, for different groups, and for a peer or a source that does not match."
    )


def _all_wait(ranks_: list[Whereabouts]) -> str:
    """What to look at where nothing is proven."""
    if {one.what for one in ranks_} == {"init_process_group"}:
        return (
            "Every rank waits in the same call: do all ranks use the same address, is each rank's "
            "number there once, and does world_size count them all?"
        )
    return (
        "No call is seen to lack its partner. If the work is long, raise timeout=; if it is not, "
        "look for different groups, and for a peer or a source that does not match."
    )
