"""What the rules ask of a wait graph: for each section of their table a dataclass of facts.

Fields stand in a rule's sentences by their names, such as {waiting} or {call.kind}. A field that
ends up there as text is text already: "rank 1" or "ranks 0 and 2", for example, and "" for none.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from course_utils.hang.wait_graph import WaitGraph
from course_utils.hang.whereabouts import (
    FILE_LOCK,
    LAUNCHER,
    LOOPS,
    STORE,
    Whereabouts,
    around,
    content,
    is_message,
    of_group,
)
from course_utils.launcher.language import N_, _, separated
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named
from course_utils.record.event import (
    ASYNC,
    BACKWARD,
    DDP_INIT,
    EVALUATES,
    FORWARD,
    UNFINISHED,
    Event,
    Meeting,
)

# Pauses per rank: how many must have been seen, and how many of the last ones count. A start is
# slow, so the first pauses say nothing.
_MANY_PAUSES, _LAST_PAUSES = 4, 16
_ADVICE = {  # by what holds a rank inside its own process
    "a lock": N_(
        "Nobody opens it: a thread cannot take the same Lock twice, and one that a thread of "
        "the notebook held at launch stays locked in its copies, the ranks."
    ),
    "a queue": N_("Nobody is at its other end: who was to put something in, or to take it out?"),
    "an event": N_(
        "Nobody sets it: a rank has copies of the notebook's objects, not of its threads."
    ),
    "a barrier of threads": N_(
        "It counts threads of one process: for ranks there is dist.barrier()."
    ),
    FILE_LOCK: N_(
        "Perhaps a rank has it that waits for others: let it go before a call that "
        "needs every rank."
    ),
    LAUNCHER: N_(
        "Each rank is a process already: call the training function "
        "itself, and not by mp.spawn, notebook_launcher or torchrun."
    ),
    "a future": N_(
        "Of a pool that was made in the notebook nobody computes it, since a rank has copies of "
        "the notebook's objects, not of its threads. Else look at why it does not come to an end."
    ),
    "else": N_("Look at why that does not come to an end."),
}
_BATCHES = N_(": as many batches, each with a backward pass")
_BACKWARDS = N_(": as many batches, each with a backward pass, and no_sync() for the same ones")

_HAS_RETURNED = N_("its function has returned")
_HAVE_RETURNED = N_("their functions have returned")


@dataclass
class Overview:
    """Whether anything hangs, and whether any rank waits for other ranks."""

    is_slow: bool  # the last pause is no longer than one before it, so perhaps nothing hangs
    some_wait: bool  # for other ranks
    some_held: bool  # by something of their own processes
    has_queued_messages: bool  # which may wait for each other on GPUs, where nobody sees it
    is_file_lock: bool  # the first held rank waits for one; a process outside may have it
    silent: str  # ranks that gave no answer
    silent_count: int
    starting: str  # ranks that have not come to the learner's function yet
    starting_count: int
    busy: str  # the ranks that are held or, if none is, all that have not returned
    held_count: int
    holder: str  # what holds the first rank that is held
    advice: str


def overview(graph: WaitGraph) -> list[Overview]:
    """These facts, for any graph."""
    held = _in_state(graph, "held")
    silent = _in_state(graph, "silent")
    waiting = _in_state(graph, "waiting")
    left = held + silent + waiting + _in_state(graph, "running")
    starting = [rank for rank in left if graph.ranks[rank].starts]
    holder = graph.ranks[held[0]].blocker if held else None
    facts = Overview(
        is_slow=_is_slow(graph),
        some_wait=bool(waiting),
        some_held=bool(held),
        has_queued_messages=_has_queued_messages(graph),
        is_file_lock=holder == FILE_LOCK,
        silent=_named(silent),
        silent_count=len(silent),
        starting=_named(starting),
        starting_count=len(starting),
        busy=ranks_named(held or left),
        held_count=len(held),
        holder=_(holder) if holder else "",
        advice=_advice(graph, held),
    )
    return [facts]


def _in_state(graph: WaitGraph, state: str) -> list[int]:
    return [rank for rank, whereabouts in graph.ranks.items() if whereabouts.state == state]


def _named(ranks: Collection[int]) -> str:
    """Such as `ranks 0 and 2`, and nothing for none."""
    return ranks_named(ranks) if ranks else ""


def _is_slow(graph: WaitGraph) -> bool:
    """Whether the pause at the end is no longer than one before it: perhaps nothing hangs.

    A pause is the time between two calls, of whatever ranks. Of those before, the last
    `_LAST_PAUSES` for each rank count.
    """
    if graph.hangs_for_ever:
        return False
    starts_s = []
    for whereabouts in graph.ranks.values():
        starts_s += [call.start_s for call in whereabouts.calls]
    starts_s.sort()
    pauses_s = [later - earlier for earlier, later in pairwise(starts_s)]
    world_size = len(graph.world)
    if len(pauses_s) < _MANY_PAUSES * world_size:
        return False
    longest_s = max(pauses_s[-_LAST_PAUSES * world_size :])
    return graph.now - starts_s[-1] <= longest_s


def _has_queued_messages(graph: WaitGraph) -> bool:
    for whereabouts in graph.ranks.values():
        if any(call.queued and is_message(call) for call in whereabouts.calls):
            return True
    return False


def _advice(graph: WaitGraph, held: Sequence[int]) -> str:
    """What to try where something holds some ranks; or what has ended a thread before that."""
    for rank in held:
        if graph.ranks[rank].ended:
            words, raised_at = graph.ranks[rank].ended
            return _(
                "A thread of rank {rank} has ended before, by {words} ({at}).",
                rank=rank,
                words=words,
                at=_cell_and_line(raised_at),
            )
    if not held:
        return ""
    holder = graph.ranks[held[0]].blocker
    return _(_ADVICE.get(holder, _ADVICE["else"]))


@dataclass
class HandledException:
    """An exception that has led a rank into an `except` or a `finally`."""

    rank: int
    words: str
    raised_at: str  # cell and line
    call: Event | None = None  # to which the rank came because of it


@dataclass
class ForeignCall:
    """A learner's call, matched with a stand-in call of DDP's `join` on a different rank."""

    call: Event
    place: str  # such as " (cell [3], line 5)"
    joiner: int  # that different rank


@dataclass
class Counts:
    """How often two ranks have made a call in the same line."""

    rank: int
    other: int
    call: Event
    count: int  # by the first one
    other_count: int  # by the other one; of a message, how often it was at the other end
    often: str  # the first count in words, such as "3 times"
    fewer_times: str  # the other count in words; "" where it's 0, or not smaller
    in_ddp: str  # " in DDP" for a call that DDP has made
    batches: str  # continues the advice that ends in "this call in each"


@dataclass
class Difference:
    """The first collective of a group that is not the same on all its ranks."""

    kind: str  # what differs, see `wait_graph.differs`
    name: str  # such as "Collective #3 of group 1 (ranks 0 and 2)"
    number: int
    by_rank: str  # such as "root 0 on rank 0, root 1 on ranks 1 and 2"
    call: Event  # one of its calls
    evaluating: str  # the ranks on which DDP's forward made it for an evaluation
    place: str  # of that evaluation, such as " (cell [3], line 5)"
    some_in_backward: bool  # DDP's backward made it on some ranks, but not on all
    exception: HandledException | None
    foreign: ForeignCall | None
    loop: int | None  # the first line of a loop that one rank has left, but not the other one
    counts: Counts | None  # of that loop


def differences(graph: WaitGraph) -> list[Difference]:
    """These facts, if there is such a collective."""
    difference = graph.difference()
    if difference is None:
        return []
    kind, meeting = difference
    calls = list(meeting.calls.values())
    in_evaluation = [call for call in calls if call.flags & EVALUATES]
    in_backward = [call for call in calls if call.flags & BACKWARD]
    loop, counts = _past_the_loop(graph, meeting)
    facts = Difference(
        kind=kind,
        name=_(
            "Collective #{number}{of_group}",
            number=meeting.number,
            of_group=of_group(calls[0], graph.world),
        ),
        number=meeting.number,
        by_rank=_by_rank(kind, meeting),
        call=calls[0],
        evaluating=_named([call.rank for call in in_evaluation]),
        place=_in_brackets((in_evaluation or calls)[0]),
        some_in_backward=0 < len(in_backward) < len(calls),
        exception=_exception_at(graph, meeting),
        foreign=foreign_call(graph, meeting),
        loop=loop,
        counts=counts,
    )
    return [facts]


def _by_rank(kind: str, meeting: Meeting) -> str:
    describe = _DESCRIPTIONS.get(kind, content)
    descriptions = {rank: describe(call) for rank, call in meeting.calls.items()}
    parts = on_ranks(descriptions)
    return separated(parts)


def foreign_call(graph: WaitGraph, meeting: Meeting) -> ForeignCall | None:
    """The first foreign call up to a meeting, if there is any."""
    met = graph.met_by_join(meeting)
    if met is None:
        return None
    call, joiner = met
    return ForeignCall(call, _in_brackets(call), joiner)


def _exception_at(graph: WaitGraph, meeting: Meeting) -> HandledException | None:
    """What has led a rank to its call, if no exception has led all of them there."""
    exceptions = []
    for rank, call in meeting.calls.items():
        whereabouts = graph.ranks[rank]
        if whereabouts.handles and call in whereabouts.open_calls:
            exceptions.append(_exception_of(whereabouts, call))
    if not exceptions or len(exceptions) == len(meeting.calls):
        return None
    return exceptions[0]


def _exception_of(whereabouts: Whereabouts, call: Event | None = None) -> HandledException:
    raised_at = _cell_and_line(whereabouts.raised_at)
    return HandledException(whereabouts.rank, whereabouts.handles, raised_at, call)


def in_short(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, `ranks 0 to 4` or `ranks 0, 2 and 5`."""
    ranks = list(numbers)
    if len(ranks) <= 2:
        return ranks_named(ranks)
    first = ranks[0]
    last = ranks[-1]
    if ranks != list(range(first, last + 1)):
        return ranks_named(ranks)
    return _("ranks {first} to {last}", first=first, last=last)


def ranks_by_text(texts: Mapping[int, str]) -> dict[str, list[int]]:
    """By text the ranks that have it, where `texts` has a text for each rank."""
    groups: dict[str, list[int]] = {}
    for rank, text in texts.items():
        groups.setdefault(text, []).append(rank)
    return groups


def on_ranks(descriptions: Mapping[int, str]) -> list[str]:
    """Such as `root 0 on rank 0`, for each description once, with all ranks that have it."""
    parts = []
    for description, ranks in ranks_by_text(descriptions).items():
        part = _("{description} on {ranks}", description=description, ranks=ranks_named(ranks))
        parts.append(part)
    return parts


def _past_the_loop(graph: WaitGraph, meeting: Meeting) -> tuple[int, Counts] | tuple[None, None]:
    """The loop that one rank goes round once more while a different one has left it."""
    for call, other_call in permutations(meeting.calls.values(), 2):
        if other_call.kind == call.kind or not call.line or not other_call.line:
            continue
        inside, after = _paths(graph, call, other_call)
        loop = _loop_between(inside, after)
        if loop is None:
            continue
        counts = _counts(graph, call, other_call.rank)
        if 0 < counts.other_count < counts.count:
            return loop, counts
    return None, None


def _paths(graph: WaitGraph, *calls: Event) -> list[Sequence[Frame]]:
    """The learner's frames that lead to calls, outermost first; at least the last of each."""
    paths = []
    last_frames_alone: list[Sequence[Frame]] = [[call.frame] for call in calls]
    for call in calls:
        whereabouts = graph.ranks[call.rank]
        lines_since = {later.line for later in whereabouts.calls if later.index >= call.index}
        may_have_gone_on = lines_since != {call.line}
        if whereabouts.path[-1:] != (call.frame,) or may_have_gone_on:
            return last_frames_alone
        paths.append(whereabouts.path)
    return paths


def _loop_between(inside: Sequence[Frame], after: Sequence[Frame]) -> int | None:
    """The first line of the outermost loop that one path is in and the other one is past."""
    for frame, later in zip(inside, after, strict=False):
        if (frame.file, frame.name) != (later.file, later.name):
            return None
        if frame != later:
            loops = around(frame, *LOOPS)
            first_lines = [loop.lineno for loop in loops if loop.end_lineno < later.line]
            return min(first_lines, default=None)
    return None


def _counts(graph: WaitGraph, call: Event, other: int) -> Counts:
    count = graph.count_in_line(call.rank, call)
    other_count = graph.count_in_line(other, call)
    in_ddp = batches = fewer_times = ""
    if call.flags & (FORWARD | BACKWARD):
        in_ddp = _(" in DDP")
        batches = _(_BACKWARDS if call.flags & BACKWARD else _BATCHES)
    if 0 < other_count < count:
        fewer_times = _times(other_count)
    often = _times(count)
    return Counts(call.rank, other, call, count, other_count, often, fewer_times, in_ddp, batches)


def _times(count: int) -> str:
    if count == 1:
        return _("once")
    if count == 2:
        return _("twice")
    return _("{count} times", count=count)


def _in_brackets(call: Event) -> str:
    """Such as ` (cell [3], line 5)`, and nothing for a call outside of the learner's code."""
    if not call.place:
        return ""
    return _(" ({place})", place=_cell_and_line(call.frame))


def _cell_and_line(frame: Frame | None) -> str:
    """Such as `cell [3], line 5`."""
    return frame.file_and_line if frame else ""


# How calls that differ are told apart, by what differs.
_DESCRIPTIONS: dict[str, Callable[[Event], str]] = {
    "new_group": lambda call: _("of {ranks}", ranks=ranks_named(call.group)),
    "order": lambda call: f"{call.kind}{_in_brackets(call)}",
    "root": lambda call: _("root {root}", root=call.root),
    "lines": lambda call: f"{content(call)}{_in_brackets(call)}",
}


@dataclass
class MessageMismatch:
    """A message that one rank sends, and what the rank it goes to receives instead."""

    sent: Event
    received: Event
    may_come: bool  # what that rank receives may still be sent


def message_mismatches(graph: WaitGraph) -> list[MessageMismatch]:
    """These facts, for each such message."""
    mismatches = []
    calls = [unmet.call for unmet in graph.unmet]
    for sent, received in permutations(calls, 2):
        if (sent.kind, received.kind, sent.peer) != ("send", "recv", received.rank):
            continue
        sender = received.peer
        may_come = False
        if sender is not None and graph.ranks[sender].state != "returned":
            may_come = received.rank not in graph.reachable(sender)
        mismatches.append(MessageMismatch(sent, received, may_come))
    return mismatches


@dataclass
class LostMessage:
    """A message that a rank has sent by isend and not waited for, before it returned."""

    rank: int  # waits for it
    sent: Event
    place: str  # such as " (cell [3], line 5)"


def lost_messages(graph: WaitGraph) -> list[LostMessage]:
    """These facts, for each such message that a rank waits for."""
    lost = []
    for rank, whereabouts in graph.ranks.items():
        call = whereabouts.call
        if whereabouts.state != "waiting" or not call or call.kind != "recv":
            continue
        sent = graph.matching_send(call)
        if sent and sent.flags & ASYNC and graph.ranks[sent.rank].state == "returned":
            lost.append(LostMessage(rank, sent, _in_brackets(sent)))
    return lost


@dataclass
class Crossing:
    """A collective that two ranks called from different lines, one of which both call from."""

    name: str  # such as "collective #3 of group 1 (ranks 0 and 2)"
    by_rank: str  # such as "barrier (cell [3], line 4) on rank 0, barrier (cell [3], ..."


@dataclass
class MissedCall:
    """A call in which a rank waits for one that is absent."""

    call: Event
    other: int  # the first absent rank that has not come to it
    counts: Counts
    is_send: bool
    is_recv: bool
    group: str  # in which the rank waits
    other_group: str  # the group of the other rank's call in that line, if it's a different one
    is_certain: bool  # the line is known, and so are all calls of the other rank
    has_none_in_line: bool  # the other one has never made such a call in that line
    crossing: Crossing | None  # if the other one has called as often in that line
    is_in_thread: bool  # a thread waits, in a call that is neither DDP's nor a message
    ended_unfinished: bool  # the other rank has ended with a backward pass that is not finished
    place: str  # cell and line in which the rank waits


@dataclass
class Absence:
    """Some ranks wait for others, which wait for nobody."""

    waiting: str
    absent: str
    all_returned: bool  # all that are absent
    all_held: bool  # likewise, by something of their own processes
    is_file_lock: bool  # the first absent rank waits for one
    first_waits: str  # of the first absent rank: "it waits", or "rank 2 waits" if there are several
    holder: str  # what holds that rank
    advice: str
    key: str  # its line, if it waits for a key of the store
    have_returned: str  # "its function has returned" or "their functions have returned"
    exception: HandledException | None  # that one of the absent ranks handles
    missed: MissedCall | None  # the first call that is known to lack an absent rank


def absences(graph: WaitGraph) -> list[Absence]:
    """These facts, if any rank is absent."""
    absent = graph.absent
    if not absent:
        return []
    waiting = [rank for rank in graph.waits_for if not graph.reachable(rank).isdisjoint(absent)]
    first = graph.ranks[absent[0]]
    several = len(absent) > 1
    states = {graph.ranks[rank].state for rank in absent}
    facts = Absence(
        waiting=ranks_named(waiting),
        absent=ranks_named(absent),
        all_returned=states == {"returned"},
        all_held=states == {"held"},
        is_file_lock=first.blocker == FILE_LOCK,
        first_waits=_("rank {rank} waits", rank=first.rank) if several else _("it waits"),
        holder=_(first.blocker) if first.blocker else "",
        advice=_advice(graph, absent[:1]),
        key=_key(first),
        have_returned=_(_HAVE_RETURNED if several else _HAS_RETURNED),
        exception=_first_exception(graph),
        missed=_first_missed(graph),
    )
    return [facts]


def missed_calls(graph: WaitGraph) -> list[Absence]:
    """The same facts, if the call is known that an absent rank has missed."""
    return [facts for facts in absences(graph) if facts.missed]


def _first_exception(graph: WaitGraph) -> HandledException | None:
    for rank in graph.absent:
        if graph.ranks[rank].handles:
            return _exception_of(graph.ranks[rank])
    return None


def _first_missed(graph: WaitGraph) -> MissedCall | None:
    for unmet in graph.unmet:
        for rank in graph.absent:
            if rank in unmet.missing:
                return _missed(graph, unmet.call, rank)
    return None


def _missed(graph: WaitGraph, call: Event, other: int) -> MissedCall:
    whereabouts = graph.ranks[call.rank]
    other_whereabouts = graph.ranks[other]
    # What is neither a message nor made by DDP, a thread of the learner's may have called.
    may_be_in_thread = not is_message(call) and not call.flags & (FORWARD | BACKWARD | DDP_INIT)
    elsewhere = None if is_message(call) else graph.last_in_other_group(other, call)
    last_calls = other_whereabouts.calls[-1:]
    return MissedCall(
        call=call,
        other=other,
        counts=_counts(graph, call, other),
        is_send=call.kind == "send",
        is_recv=call.kind == "recv",
        group=ranks_named(call.group),
        other_group=ranks_named(elsewhere.group) if elsewhere else "",
        is_certain=bool(call.line) and other_whereabouts.complete,
        has_none_in_line=graph.count_in_line(other, call) == 0,
        crossing=_crossing(graph, call, other),
        is_in_thread=whereabouts.in_thread and may_be_in_thread,
        ended_unfinished=any(last.flags & UNFINISHED for last in last_calls),
        place=_cell_and_line(whereabouts.line),
    )


def _crossing(graph: WaitGraph, call: Event, other: int) -> Crossing | None:
    meeting = graph.first_crossing(call, other)
    if meeting is None:
        return None
    name = _(
        "collective #{number}{of_group}",
        number=meeting.number,
        of_group=of_group(call, graph.world),
    )
    return Crossing(name, _by_rank("order", meeting))


def _key(whereabouts: Whereabouts) -> str:
    """The line in which a rank waits for a key of the store, such as `store.get("best")`."""
    if whereabouts.blocker == STORE and whereabouts.line:
        return whereabouts.line.code
    return ""


@dataclass
class MutualWait:
    """Ranks that wait for each other, and for nobody else; or what the stacks tell."""

    in_circle: str  # ranks that wait for each other
    kinds: set[str]  # of the calls in which these wait
    group_count: int  # in how many groups these calls are
    blockers: set[str]  # what holds the ranks in the circle; if there's none, what holds all ranks
    blockers_text: str
    in_store: str  # ranks that wait for a key of the store
    store_count: int
    key: str  # the line of the first one
    known: bool  # whether the calls of all ranks are known
    is_alone: bool  # there is only one rank


def mutual_waits(graph: WaitGraph) -> list[MutualWait]:
    """These facts, for any graph."""
    in_circle = [rank for rank in graph.waits_for if rank in graph.reachable(rank)]
    kinds, group_names = set(), set()
    for unmet in graph.unmet:
        if unmet.call.rank in in_circle:
            kinds.add(unmet.call.kind)
            group_names.add(unmet.call.group_name)
    blockers = {str(graph.ranks[rank].blocker) for rank in in_circle or graph.world}
    keys = {}
    for rank in graph.waits_for:
        key = _key(graph.ranks[rank])
        if key:
            keys[rank] = key
    facts = MutualWait(
        in_circle=_named(in_circle),
        kinds=kinds,
        group_count=len(group_names),
        blockers=blockers,
        blockers_text=separated(_(blocker) for blocker in sorted(blockers)),
        in_store=_named(keys),
        store_count=len(keys),
        key=next(iter(keys.values()), ""),
        known=graph.known,
        is_alone=len(graph.world) == 1,
    )
    return [facts]
