"""Who waits for whom: the record of all ranks, its calls matched as torch matches them."""

from collections.abc import Iterable
from math import inf

from course_utils.hang import queues
from course_utils.hang.whereabouts import STORE_CALLS, Whereabouts, is_message
from course_utils.record.event import (
    ASYNC,
    EVALUATES,
    FORWARD,
    JOINS,
    KINDS,
    WAKES,
    Event,
    Meeting,
    key_of,
    meetings,
)


class WaitGraph:
    """All ranks at a moment `now`, on the clock of their calls; `ranks` says where each one is."""

    def __init__(self, all_: Iterable[Whereabouts], now: float) -> None:
        self.ranks, self.now = {one.rank: one for one in all_}, now
        self.world, everybody = tuple(sorted(self.ranks)), self.ranks.values()
        self.known = all(one.known for one in everybody)  # else calls cannot be matched
        calls = [call for one in everybody for call in one.calls]
        self._takers = {c.rank for c in calls if c.kind == "recv" and c.peer is None} | {None}
        met = meetings(calls, len(self.world))
        self._met = {(one.key, one.number): one for one in met}
        self._last = {(rank, one.key): one.number for one in met for rank in one.calls}
        self._stuck = queues.stuck(calls, self._meeting, self._missing, _differ)
        for rank, first in self._stuck.items():
            self.ranks[rank].needs(first[0])
        # Calls in which ranks wait, each with those who have not come to it; and by rank all these.
        self.open: list[tuple[Event, set[int]]] = []
        self.waits_for = {one.rank: self._look(one) for one in everybody if one.state == "waiting"}
        if not self.known:
            self.waits_for = dict.fromkeys(self.waits_for, set(self.world) - set(self.waits_for))
        reached = set().union(*map(self.reachable, self.waits_for))
        # Whom others wait for, and who wait for none themselves.
        self.absent = sorted(rank for rank in reached if not self.waits_for.get(rank))

    def _look(self, one: Whereabouts) -> set[int]:
        """Whom a rank waits for; of the calls that may keep it, those that have met do not."""
        unmet = [(call, missing) for call in one.open if (missing := self._lacking(call))]
        self.open += unmet
        if one.what in ("wait", "backward") and not one.queued:
            first = 1 if one.what == "backward" else None  # DDP waits for its buckets in order
            one.open = tuple(call for call, _ in unmet)[:first]
        if one.what in STORE_CALLS:
            return {other.rank for other in self.ranks.values() if other.what != one.what}
        return set().union(*(missing for _, missing in unmet))

    def sent(self, taken: Event) -> Event | None:
        """The send that a receive from one rank is given, if that has been called."""
        return None if taken.peer is None else self._meeting(taken).calls.get(taken.peer)

    def beside_join(self, until: Meeting) -> tuple[Event, int] | None:
        """A call of the learner's own that met one by which another rank stood in for DDP's.

        It is the first of the group, up to a meeting; with it comes that rank.
        """
        for meeting in self._met.values():
            if meeting.key != until.key or meeting.number > until.number:
                continue
            calls = meeting.calls.values()
            joiners = [call.rank for call in calls if call.flags & JOINS]
            others = [call for call in calls if call.rank not in joiners]
            foreign = [call for call in others if call.kind in call.code]  # not in a library
            if joiners and foreign:
                return foreign[0], joiners[0]
        return None

    @property
    def hangs_for_ever(self) -> bool:
        """Whether all that are left wait in calls, nobody is on the way to them, and that is known.

        No other thread may make the call that is missing, no timer of a group of the learner's may
        end the wait, and what is waited for may not be one of several: data of another may still
        be on its way. Threads of a rank that has returned may still make calls.
        """
        left = [one for one in self.ranks.values() if one.state != "returned"]
        over = [one for one in self.ranks.values() if one.state == "returned"]
        return bool(left) and all(map(self._waits_for_ever, left)) and all(map(_is_over, over))

    def _waits_for_ever(self, one: Whereabouts) -> bool:
        in_call = one.state == "waiting" and one.what in KINDS and one.complete
        if not in_call or not one.call or one.call.flags & (ASYNC | WAKES):
            return False
        return bool(self.waits_for[one.rank]) or len(self.world) == 1

    def reachable(self, rank: int) -> set[int]:
        """Whom a rank waits for, directly or through others."""
        found, new = set(), {rank}
        while new := set().union(*(self.waits_for.get(one, ()) for one in new)) - found:
            found |= new
        return found

    def made(self, rank: int, call: Event) -> int:
        """How many such calls a rank is known to have made in the same line and group."""
        return sum(key_of(other) == key_of(call) for other in self._like(rank, call))

    def met_in_line(self, rank: int, call: Event) -> int:
        """How often a rank was, in the same line, at the other end of such messages."""
        calls = self.ranks[rank].calls
        return sum(its.line == call.line and key_of(its) == key_of(call) for its in calls)

    def made_elsewhere(self, rank: int, call: Event) -> Event | None:
        """The last such call of a rank in the same line, but in a group of other ranks."""
        others = [other for other in self._like(rank, call) if other.group != call.group]
        return others[-1] if others else None

    def _like(self, rank: int, call: Event) -> list[Event]:
        here = call.line, call.kind
        return [other for other in self.ranks[rank].calls if (other.line, other.kind) == here]

    def _lacking(self, call: Event) -> set[int]:
        """Who has not come to a call, or has it in its queue behind one that cannot end."""
        if not call.queued or self._missing(call):
            return self._missing(call)
        calls = self._meeting(call).calls
        return {rank for rank, its in calls.items() if its not in self._stuck.get(rank, [its])}

    def _meeting(self, call: Event) -> Meeting:
        return self._met[key_of(call), call.number]

    def _missing(self, call: Event) -> set[int]:
        """Who has not come to a call; of whom that is forgotten, it is not said."""
        key = key_of(call)
        if is_message(call) and self._takers.intersection(key[1:3]):
            # Which message a receive from any rank takes is not known, but a rank that has
            # returned sends none.
            others = {one.rank for one in self.ranks.values() if one.rank != call.rank}
            over = all(self.ranks[rank].state == "returned" for rank in others)
            return others if call.peer is None and over else set()
        # Where a rank's first calls are forgotten, it may have come to any number of these.
        at_least = {rank: 0 if one.complete else inf for rank, one in self.ranks.items()}
        missing = self._met[key, call.number].missing
        return {r for r in missing if self._last.get((r, key), at_least[r]) < call.number}

    def difference(self) -> tuple[str, Meeting] | None:
        """What differs in the first such collective of the first group in which a rank waits."""
        # Complete as a call may seem, its rank waits there.
        calls = [call for call, _ in self.open]
        calls += [self.ranks[r].call for r in self.waits_for if self.ranks[r].call]
        for key in dict.fromkeys(key_of(call) for call in calls if not is_message(call)):
            agreed = False
            for meeting in (met for met in self._met.values() if met.key == key):
                if what := differs(list(meeting.calls.values())):
                    # Where nothing was the same before, an earlier difference may be forgotten.
                    if agreed or all(self.ranks[member].complete for member in meeting.members):
                        return what, meeting
                    break
                agreed = agreed or len(meeting.calls) > 1
        return None


def _is_over(one: Whereabouts) -> bool:
    """Whether a rank whose function has returned is seen to have no thread at work."""
    return not any(call.kind == "return" and call.flags & WAKES for call in one.calls[-1:])


def _differ(meeting: Meeting) -> str | None:
    return differs(list(meeting.calls.values()))


def differs(calls: list[Event]) -> str | None:
    """What calls that shall meet differ in, such as "order": they are of several kinds."""
    first = calls[0]
    if all(c.flags & FORWARD for c in calls) and len({c.flags & EVALUATES for c in calls}) > 1:
        return "evaluation"
    if len({call.kind for call in calls}) > 1:
        return "order"
    if first.kind == "new_group":
        return "new_group" if len({call.group for call in calls}) > 1 else None
    if len({call.root for call in calls}) > 1:
        return "root"
    equal = first.kind in KINDS and KINDS[first.kind].equal
    if not equal or len({(call.bytes, call.dtype) for call in calls}) == 1:
        return None
    # Made by several lines, they may be calls that were not meant to meet.
    return "lines" if len({call.line for call in calls}) > 1 else "shape"
