"""What the rules ask of a hang, section by section: the names that a section's rows use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from types import SimpleNamespace as Facts

from course_utils.hang.wait_graph import WaitGraph
from course_utils.hang.whereabouts import (
    LOOPS,
    STORE,
    Whereabouts,
    around,
    content,
    is_message,
    of_group,
)
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named as ranks
from course_utils.launcher.words import were
from course_utils.record.event import (
    ASYNC,
    BACKWARD,
    EVALUATES,
    FORWARD,
    UNFINISHED,
    WRAPS,
    Event,
    Meeting,
)

# Of each rank on average: pauses that must be seen, and those that count. A start is slow.
_MANY_PAUSES, _LAST_PAUSES = 4, 16
_HELD = {  # what to try for something that holds a rank by itself
    "a lock": "Nobody opens it: a thread cannot take the same Lock twice, and one that a thread of "
    "the notebook held at launch stays locked in its copies, the ranks.",
    "a queue": "Nobody is at its other end: who was to put something in, or to take it out?",
    "an event": "Nobody sets it: a rank has copies of the notebook's objects, not of its threads.",
    "a barrier of threads": "It counts threads of one process: for ranks there is dist.barrier().",
    "a file lock": "Perhaps a rank has it that waits for others: let it go before a call that "
    "needs every rank.",
    "a child process": "Each rank is a process already: call the training function "
    "itself, and not by mp.spawn, notebook_launcher or torchrun.",
    "a future": "Of a pool that was made in the notebook nobody computes it, since a rank has "
    "copies of the notebook's objects, not of its threads. Else look at why it does not come to an "
    "end.",
    "else": "Look at why that does not come to an end.",
}
_BATCHES = ": as many batches, each with a backward pass"
_BACKWARDS = ": as many batches, each with a backward pass, and no_sync() for the same ones"
_SAID: dict[str, Callable[[Event], str]] = {  # how calls that differ are told apart
    "new_group": lambda call: f"of {ranks(call.group)}",
    "order": lambda call: f"{call.kind}{_there(call)}",
    "root": lambda call: f"root {call.root}",
    "lines": lambda call: f"{content(call)}{_there(call)}",
}


def of_all(graph: WaitGraph) -> Iterator[Facts]:
    """Whether anything hangs, and whether anybody waits for another rank."""
    left = [one for one in graph.ranks.values() if one.state != "returned"]
    held = [one for one in left if one.state == "held"]
    what, alone = held[0].what if held else None, len(held) == 1
    silent = [one.rank for one in left if one.state == "silent"]
    starting = [one.rank for one in left if one.starts]
    yield Facts(
        slow=_is_slow(graph), messages=_has_queued_messages(graph), held=held,
        waiting=any(one.state == "waiting" for one in left),
        silent=silent and ranks(silent).capitalize(),
        Starting=starting and were(starting).capitalize(),
        they="it waits" if len(silent) == 1 else "they wait",
        who=ranks(one.rank for one in held or left), wait="waits" if alone else "wait",
        of_its=_of_its(what, alone), what=what, advice=_advice(held),
    )  # fmt: skip


def _of_its(what: str | None, alone: bool = True) -> str:
    """Where that is which holds a rank."""
    if what == "a file lock":
        return ""
    return f" of {'its' if alone else 'their'} own process"


def _advice(held: Iterable[Whereabouts]) -> str:
    """What to try for what holds the first of some ranks; first, what came before that."""
    for one in held:
        if one.ended:
            words, line = one.ended
            at = _cell_and_line(line)
            return f"A thread of rank {one.rank} has ended before, by {words} ({at})."
    return next((_HELD.get(one.what, _HELD["else"]) for one in held), "")


def _has_queued_messages(graph: WaitGraph) -> bool:
    """Whether messages may wait for each other on GPUs, where nobody sees them."""
    calls = [call for one in graph.ranks.values() for call in one.calls]
    return any(call.queued and is_message(call) for call in calls)


def _is_slow(graph: WaitGraph) -> bool:
    """Whether the silence at the end is shorter than one before it: perhaps nothing hangs."""
    n = len(graph.world)
    starts = sorted(call.start_s for one in graph.ranks.values() for call in one.calls)
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    enough, last = len(pauses) >= _MANY_PAUSES * n, pauses[-_LAST_PAUSES * n :]
    return enough and graph.now - starts[-1] <= max(last)


def of_difference(graph: WaitGraph) -> Iterator[Facts]:
    """The first collective of a group that is not the same on all its ranks."""
    if (found := graph.difference()) is None:
        return
    what, meeting = found
    call, said = next(iter(meeting.calls.values())), _SAID.get(what, content)
    by = ranks_by_text({rank: said(its) for rank, its in meeting.calls.items()}).items()
    alone = [its for its in meeting.calls.values() if its.flags & EVALUATES]
    handler = _handler(graph, meeting)
    yield Facts(
        handler=handler and handler.rank, handles=handler and handler.handles,
        raised_at=handler and _cell_and_line(handler.raised_at),
        stands=handler and meeting.calls[handler.rank].kind,
        number=meeting.number, what=what, by=", ".join(f"{words} on {ranks(r)}" for words, r in by),
        Name=f"Collective #{meeting.number}{of_group(call, graph.world)}",
        alone=alone and ranks(its.rank for its in alone), there=_there((alone or [call])[0]),
        one_in_backward=len({its.flags & BACKWARD for its in meeting.calls.values()}) > 1,
        **({"call": call, "rarer": 0} | _past_the_loop(graph, meeting)),
        **beside_join(graph, meeting),
    )  # fmt: skip


def beside_join(graph: WaitGraph, meeting: Meeting) -> dict[str, object]:
    """Up to a meeting, a call of the learner's that met what stands in for DDP's calls."""
    foreign, joiner = graph.beside_join(meeting) or (None, None)
    return {
        "foreign": foreign,
        "joiner": joiner,
        "foreign_there": _there(foreign) if foreign else "",
    }


def _handler(graph: WaitGraph, meeting: Meeting) -> Whereabouts | None:
    """The rank that an exception has led to its call, where another rank has none."""
    handling = []
    for rank, call in meeting.calls.items():
        one = graph.ranks[rank]
        if one.handles and call in one.open:
            handling.append(one)
    return handling[0] if 0 < len(handling) < len(meeting.calls) else None


def in_short(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, `ranks 0 to 4` or `ranks 0, 2 and 5`."""
    own = list(numbers)
    if len(own) > 2 and own == list(range(own[0], own[-1] + 1)):
        return f"ranks {own[0]} to {own[-1]}"
    return ranks(own)


def ranks_by_text(said: Mapping[int, str]) -> dict[str, list[int]]:
    """The ranks of which the same words are said."""
    groups: dict[str, list[int]] = {}
    for rank, words in said.items():
        groups.setdefault(words, []).append(rank)
    return groups


def _past_the_loop(graph: WaitGraph, meeting: Meeting) -> dict[str, object]:
    """One rank goes round a loop once more, when another one has left that loop."""
    for call, its in permutations(meeting.calls.values(), 2):
        if its.kind == call.kind or not call.line or not its.line:
            continue
        loop = _loop_between(*_paths(graph, call, its))
        if loop and 0 < graph.made(its.rank, call) < graph.made(call.rank, call):
            return {"loop": loop} | _uneven(graph, call, its.rank, "is past the loop")
    return {}


def _paths(graph: WaitGraph, *calls: Event) -> list[Sequence[Frame]]:
    """The learner's lines that lead to calls, outermost first; at least the last of each."""
    paths = []
    for call in calls:
        stands, last = graph.ranks[call.rank], Frame(*call.line)
        since = {later.line for later in stands.calls if later.index >= call.index}
        if stands.path[-1:] != (last,) or since != {call.line}:  # it may have gone on
            return [[Frame(*call.line)] for call in calls]
        paths.append(stands.path)
    return paths


def _loop_between(inside: Sequence[Frame], after: Sequence[Frame]) -> int | None:
    """The first line of the outermost loop that one path is in and the other one is past."""
    for line, later in zip(inside, after, strict=False):
        if (line.file, line.name) != (later.file, later.name):
            return None
        if line != later:
            loops = [loop.lineno for loop in around(line, *LOOPS) if loop.end_lineno < later.line]
            return min(loops, default=None)
    return None


def _uneven(graph: WaitGraph, call: Event, other: int, then: str) -> dict[str, object]:
    """One rank comes to a line more often than another one."""
    often, rarer = graph.made(call.rank, call), graph.made(other, call)
    ddp, times = call.flags & (FORWARD | BACKWARD), {1: "once", 2: "twice"}
    return {
        "rank": call.rank, "other": other, "call": call, "then": then,
        "often": times.get(often, f"{often} times"),
        "rarer": 0 < rarer < often and times.get(rarer, f"{rarer} times"),
        "in_ddp": " in DDP" * bool(ddp),
        "batches": (_BACKWARDS if call.flags & BACKWARD else _BATCHES) if ddp else "",
    }  # fmt: skip


def _there(call: Event) -> str:
    """Such as ` (cell [3], line 5)`."""
    return f" ({call.place.split(', in ')[0]})" if call.place else ""


def _cell_and_line(line: Frame | None) -> str:
    """Such as `cell [3], line 5`."""
    return line.place.partition(", in ")[0] if line else ""


def of_messages(graph: WaitGraph) -> Iterator[Facts]:
    """A message that one rank sends, and what the rank it goes to waits for instead."""
    for (sent, _), (taken, _) in permutations(graph.open, 2):
        if (sent.kind, taken.kind, sent.peer) == ("send", "recv", taken.rank):
            lost = taken.peer is None or graph.ranks[taken.peer].state == "returned"
            may_come = not lost and taken.rank not in graph.reachable(taken.peer)
            yield Facts(rank=sent.rank, other=taken.rank, sent=sent, taken=taken, may_come=may_come)


def of_lost_messages(graph: WaitGraph) -> Iterator[Facts]:
    """A rank waits for a message that was sent by isend, by a rank that has returned."""
    for one in graph.ranks.values():
        if one.state != "waiting" or not one.call or one.call.kind != "recv":
            continue
        sent = graph.sent(one.call)
        if sent and sent.flags & ASYNC and graph.ranks[sent.rank].state == "returned":
            yield Facts(rank=one.rank, sent=sent, there=_there(sent))


def of_absence(graph: WaitGraph) -> Iterator[Facts]:
    """Some ranks wait for ranks that wait for nobody: of the first, the first such call."""
    if not (absent := set(graph.absent)):
        return
    alone, first = len(absent) == 1, graph.ranks[graph.absent[0]]
    handlers = [graph.ranks[rank] for rank in graph.absent if graph.ranks[rank].handles]
    handler = handlers[0] if handlers else first
    states = {graph.ranks[rank].state for rank in absent}
    facts = Facts(
        Waiting=ranks(r for r in graph.waits_for if graph.reachable(r) & absent).capitalize(),
        handler=handler.rank, handles=handler.handles, raised_at=_cell_and_line(handler.raised_at),
        absent=ranks(absent), over=states == {"returned"}, held=states == {"held"}, flags=0,
        message=False, sure=False, thread=False, elsewhere=None, here=0, met_here=0,
        what=first.what, of_its=_of_its(first.what), advice=_advice([first]),
        it="it waits" if alone else f"rank {first.rank} waits", key=_key(first),
        gone="its function has returned" if alone else "their functions have returned",
    )  # fmt: skip
    for call, other in [(call, min(own & absent)) for call, own in graph.open if own & absent][:1]:
        words = ("received", "from", "receive") if call.kind == "send" else ("sent", "to", "send")
        facts.did, facts.way, facts.deed = words
        facts.toward = "to" if call.kind == "send" else "from"
        facts.flags, facts.message = call.flags, is_message(call)
        facts.here, facts.met_here = graph.made(call.rank, call), graph.met_in_line(other, call)
        elsewhere = None if is_message(call) else graph.made_elsewhere(other, call)
        facts.group, facts.elsewhere = ranks(call.group), elsewhere and ranks(elsewhere.group)
        facts.there = _cell_and_line(graph.ranks[call.rank].line)
        by_ddp = call.flags & (FORWARD | BACKWARD | WRAPS)
        facts.thread = graph.ranks[call.rank].in_thread and not by_ddp and not facts.message
        facts.sure = bool(call.line and graph.ranks[other].complete)
        facts.unfinished = any(c.flags & UNFINISHED for c in graph.ranks[other].calls[-1:])
        vars(facts).update(_uneven(graph, call, other, "has returned"))
    yield facts


def _key(one: Whereabouts) -> str:
    """The line in which a rank waits for a key of the store, such as `store.get("best")`."""
    return one.line.code if one.what == STORE and one.line else ""


def of_waiting(graph: WaitGraph) -> Iterator[Facts]:
    """Ranks that wait for each other, and for nobody else; or what the stacks tell."""
    inside = [rank for rank in graph.waits_for if rank in graph.reachable(rank)]
    calls = [call for call, _ in graph.open if call.rank in inside]
    names = {str(graph.ranks[rank].what) for rank in inside or graph.world}
    keys = {rank: _key(graph.ranks[rank]) for rank in graph.waits_for if _key(graph.ranks[rank])}
    yield Facts(
        in_store=keys and ranks(keys).capitalize(), code=next(iter(keys.values()), ""),
        wait="waits" if len(keys) == 1 else "wait",
        Inside=inside and ranks(inside).capitalize(), kinds={call.kind for call in calls},
        groups=len({call.group_name for call in calls}), names=names, what=", ".join(sorted(names)),
        known=graph.known, alone=len(graph.world) == 1,
    )  # fmt: skip
