"""Sentences about ranks for which others wait, and which do something else instead."""

from course_utils.hang.deadlock import Deadlock
from course_utils.launcher.words import ranks_named as ranks
from course_utils.launcher.words import times
from course_utils.record import notes
from course_utils.record.notes import Call

SAME = "every rank of a group must make the same calls in the same order, as often as the others."


def never_arrived(dead: Deadlock) -> tuple[str, str] | None:
    """Some ranks wait for ranks that wait for nobody."""
    absent = dead.absent
    if not absent:
        return None
    waiting = [rank for rank in dead.waits_for if dead.reachable(rank) & set(absent)]
    head = f"{ranks(waiting).capitalize()} waited for {ranks(absent)}, which never arrived: "
    pattern, text = _why(dead, waiting, absent)
    return pattern, head + text


def _why(dead: Deadlock, waiting: list[int], absent: list[int]) -> tuple[str, str]:
    states = {dead.ranks[rank].state for rank in absent}
    for rank in waiting:
        for call, missing in dead.open[rank]:
            if missing & set(absent):
                one = min(missing & set(absent))
                found = _of_call(dead, call, one, states)
                if states == {"returned"} and not found:
                    found = _of_returned(dead, rank, call, one, len(absent) == 1)
                return found or _plain(dead, absent, states)
    return _plain(dead, absent, states)


def _plain(dead: Deadlock, absent: list[int], states: set[str]) -> tuple[str, str]:
    if states == {"held"}:
        what = str(dead.ranks[absent[0]].what)
        it = "it waits" if len(absent) == 1 else f"rank {absent[0]} waits"
        return "held", f"{it} for {what} of its own process. {held(what)}"
    return "missing", SAME


def _of_call(dead: Deadlock, call: Call, absent: int, states: set[str]) -> tuple[str, str] | None:
    """What the call alone tells about the reason, where it does."""
    if call.flags & notes.WRAPS:
        return "missing", "DDP(model) ends only when every rank has wrapped its model."
    if call.flags & notes.BACKWARD and dead.ranks[absent].last_flags & notes.UNFINISHED:
        return "unused", (
            "a backward pass ended there without a gradient for some parameter, so DDP has not "
            "averaged it. Let every parameter take part in the loss, or say "
            "DDP(model, find_unused_parameters=True)."
        )
    if call.flags & notes.BACKWARD and states != {"returned"}:
        return "backward", (
            "DDP averages gradients inside backward, on every rank. Is backward skipped there, or "
            "does a parameter take no part in its loss?"
        )
    return None


def _of_returned(
    dead: Deadlock, rank: int, call: Call, absent: int, alone: bool
) -> tuple[str, str] | None:
    """What a call that one rank waits in tells about another one, whose function has returned."""
    other, often = dead.ranks[absent], dead.made(absent, call)
    gone = "its function has returned" if alone else "their functions have returned"
    if call.is_message:
        did, way = ("sent", "to") if call.kind == "recv" else ("received", "from")
        return "returned", (
            f"{gone}, and rank {absent} never {did} message #{call.number} {way} rank {rank}. "
            f"A {'send' if did == 'sent' else 'receive'} is left out, or a peer or a tag is wrong."
        )
    if not call.line or not other.complete:
        return None
    if often:
        return uneven(rank, dead.made(rank, call), absent, often, call, "has returned")
    if call.flags & notes.EVALUATES:
        return "evaluation", (
            "DDP's forward agrees with every rank on the model's buffers, and once on its buckets, "
            "in evaluation as well. Evaluate on every rank, or call model.module on one."
        )
    if call.flags & notes.BACKWARD:
        return "backward", (
            f"{gone} without this backward pass, in which DDP averages gradients. Call it on "
            "every rank, as often."
        )
    return "returned", (
        f"{gone}, and rank {absent} never called {call.kind} in that line. Is the call in an `if` "
        "that only some ranks enter, or does one return early?"
    )


def uneven(rank: int, often: int, other: int, rarer: int, call: Call, then: str) -> tuple[str, str]:
    """One rank comes to a line more often than another one."""
    by = " in DDP" if call.flags & (notes.FORWARD | notes.BACKWARD) else ""
    return "uneven", (
        f"in line {call.line.line} rank {rank} has called {call.kind}{by} {times(often)}, "
        f"rank {other}, which {then}, {times(rarer)}. Give every rank as many rounds, with this "
        f"call in each{': as many batches, each with a backward pass' if by else ''}."
    )


def held(what: str) -> str:
    """What to try for something that holds a rank by itself."""
    if what == "a lock":
        return (
            "Nobody opens it: a thread cannot take the same Lock twice, and one that a thread of "
            "the notebook held at launch stays locked in its copies, the ranks."
        )
    if what == "a queue":
        return "Nobody is at its other end: who was to put something in, or to take it out?"
    return "Look at why that does not come to an end."
