"""Sentences about calls that are to meet and do not fit: another kind, shape, root, tag or peer."""

from collections import defaultdict
from collections.abc import Callable

from course_utils.hang.absence import SAME, uneven
from course_utils.hang.deadlock import Deadlock, Difference
from course_utils.hang.places import loop_of
from course_utils.hang.whereabouts import content, of_group
from course_utils.launcher.words import ranks_named as ranks
from course_utils.record.notes import BACKWARD, EVALUATES, Call


def about_collectives(dead: Deadlock) -> tuple[str, str] | None:
    """The first collective of a group that is not the same on all its ranks."""
    for difference in dead.differences():
        found = difference.what == "order" and _rounds(dead, difference)
        return found or _told(dead, difference)
    return None


def _told(dead: Deadlock, difference: Difference) -> tuple[str, str]:
    number, what, calls = difference
    first = next(iter(calls.values()))
    name = f"collective #{number}{of_group(first, dead.world)}"
    if what == "new_group":
        text = f"New group #{number} is {_by(calls, lambda call: f'of {ranks(call.group)}')}: "
        return what, text + "every rank must call new_group for every group, member or not."
    if what == "evaluation":
        alone = {rank: call for rank, call in calls.items() if call.flags & EVALUATES}
        line = _line(next(iter(alone.values())))
        return what, (
            "DDP's forward agrees with every rank on the model's buffers, and once on its buckets. "
            f"{name.capitalize()} does it for an evaluation{line} on {ranks(alone)} only: the "
            "others train. Evaluate on every rank, or call model.module on one."
        )
    if what == "order":
        text = f"{name.capitalize()} is {_by(calls, _named)}: {SAME}"
        if len({call.flags & BACKWARD for call in calls.values()}) > 1:
            text += " In DDP's backward one is lost where a parameter takes no part in the loss."
        return what, text
    head = f"{name.capitalize()} ({first.kind})"
    if what == "root":
        text = f"{head} has {_by(calls, lambda call: f'root {call.root}')}: "
        return what, text + "name the same root on every rank."
    text = f"{head} has {_by(calls, content)}: "
    return what, text + "every rank must hand in the same shape and dtype."


def _named(call: Call) -> str:
    """Such as `all_reduce (cell [3], line 5)`."""
    return f"{call.kind}{_line(call)}"


def _line(call: Call) -> str:
    """Such as ` (cell [3], line 5)`."""
    return f" ({call.line.place.split(', in ')[0]})" if call.line else ""


def _by(calls: dict[int, Call], say: Callable[[Call], str]) -> str:
    """What is said of each rank's call, the same words once."""
    groups = defaultdict(list)
    for rank, call in calls.items():
        groups[say(call)].append(rank)
    return ", ".join(f"{words} on {ranks(who)}" for words, who in groups.items())


def _rounds(dead: Deadlock, difference: Difference) -> tuple[str, str] | None:
    """One rank goes round a loop once more, when another one has left that loop."""
    for rank, call in difference.calls.items():
        for other, its in difference.calls.items():
            if its.kind == call.kind or not (call.line and its.line):
                continue
            loop, same = loop_of(call.line), call.line.name == its.line.name
            after = loop and same and its.line.file == call.line.file
            often, rarer = dead.made(rank, call), dead.made(other, call)
            if after and its.line.line > loop.end_lineno and 0 < rarer < often:
                return uneven(rank, often, other, rarer, call, "is past the loop")
    return None


def about_messages(dead: Deadlock) -> tuple[str, str] | None:
    """A message that one rank sends, and the rank it goes to expects another one."""
    open_ = [(rank, call) for rank, pairs in dead.open.items() for call, _ in pairs]
    for rank, sent in open_:
        if sent.kind != "send":
            continue
        for other, taken in open_:
            if other != sent.peer or taken.kind != "recv":
                continue
            if taken.peer == rank and taken.tag != sent.tag:
                return "tag", (
                    f"Rank {rank} sends to rank {other} with tag {sent.tag}, and rank {other} "
                    f"receives from rank {rank} with tag {taken.tag}: both must name one tag."
                )
            if taken.peer == rank and taken.group_name != sent.group_name:
                return "groups", (
                    f"Rank {rank} sends to rank {other} in another group than that in which rank "
                    f"{other} receives: both must name one group."
                )
            if taken.peer != rank and not _may_send(dead, taken.peer, other):
                return "peer", (
                    f"Rank {rank} sends to rank {other}, which receives from rank {taken.peer} "
                    f"instead, and rank {taken.peer} sends it nothing: a peer is named wrongly, "
                    "or a send is left out."
                )
    return None


def _may_send(dead: Deadlock, rank: int, other: int) -> bool:
    """Whether a rank may still come to send something that another one waits for."""
    return dead.ranks[rank].state != "returned" and other not in dead.reachable(rank)
