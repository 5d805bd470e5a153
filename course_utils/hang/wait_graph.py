"""Who waits for whom: where all ranks are, and their calls, matched as torch matches them."""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from course_utils.hang import gpu_queues
from course_utils.hang.whereabouts import STORE_CALLS, Whereabouts, is_message
from course_utils.record.event import (
    ASYNC,
    EVALUATES,
    FORWARD,
    JOINS,
    KINDS,
    MAY_TIME_OUT,
    THREADS_LEFT,
    Event,
    Key,
    Meeting,
    MessageKey,
    key_of,
    meetings,
)


class UnmetCall(NamedTuple):
    """A call in which a rank waits, and the ranks that have not come to it."""

    call: Event
    missing: set[int]


class WaitGraph:
    """All ranks at one moment, and which of them wait for which.

    The `Whereabouts` that it's given are completed. Where a rank waits for works or in a backward
    pass, of the calls that may hold it only those stay to which somebody has not come. A rank whose
    queue on a GPU is stuck is noted as one that waits.

    Attributes:
        ranks: Where each rank is, by rank.
        now: The moment, in seconds on the clock of the ranks' calls.
        world: All ranks, in order.
        known: Whether the calls of every rank are known; otherwise they cannot be matched.
        unmet: Calls in which ranks wait and to which somebody has not come.
        waits_for: By rank that waits, the ranks that it waits for.
        absent: Ranks that others wait for, directly or not, and that wait for none themselves.
    """

    def __init__(self, all_whereabouts: Iterable[Whereabouts], now: float) -> None:
        self.ranks = {whereabouts.rank: whereabouts for whereabouts in all_whereabouts}
        self.now = now
        self.world = tuple(sorted(self.ranks))
        self.known = all(whereabouts.known for whereabouts in self.ranks.values())
        calls = [call for whereabouts in self.ranks.values() for call in whereabouts.calls]
        # Each step needs what the ones before it have found. Those marked * change `Whereabouts`.
        # 1. Which calls meet, which says who is missing.
        self._match(calls)
        # 2. Whose queues on GPUs are stuck. * Such a rank waits.
        self._stuck = gpu_queues.stuck(calls, self._meeting, self._missing, _difference)
        for rank, stuck_calls in self._stuck.items():
            if self._needs_its_queue(self.ranks[rank]):
                self.ranks[rank].mark_waiting_for(stuck_calls[0])
        # 3. Which calls hold the ranks that wait. * The others leave a rank's `open_calls`.
        self.unmet = self._find_unmet_calls()
        for whereabouts in self.ranks.values():
            self._narrow(whereabouts)
        # 4. Who waits for whom, and for whom all wait in the end.
        self.waits_for = self._edges()
        self.absent = self._absent()

    def _match(self, calls: list[Event]) -> None:
        """Let all calls meet, and note how far each rank has come."""
        self._meetings: dict[tuple[Key, int], Meeting] = {}
        self._last_number: dict[tuple[int, Key], int] = {}
        for meeting in meetings(calls, len(self.world)):
            self._meetings[meeting.key, meeting.number] = meeting
            for rank in meeting.calls:
                self._last_number[rank, meeting.key] = meeting.number
        self._take_from_any: set[int] = set()  # ranks that receive from any rank
        for call in calls:
            if call.kind == "recv" and call.peer is None:
                self._take_from_any.add(call.rank)

    def _edges(self) -> dict[int, set[int]]:
        """By rank that waits, the ranks that it waits for."""
        edges = {}
        for rank, whereabouts in self.ranks.items():
            if whereabouts.state == "waiting":
                edges[rank] = self._waited_for_by(whereabouts)
        if self.known:
            return edges
        # Without all calls nobody knows who has missed one: stacks tell no more than who waits.
        not_waiting = set(self.world) - set(edges)
        return {rank: set(not_waiting) for rank in edges}

    def _absent(self) -> list[int]:
        reached: set[int] = set()
        for rank in self.waits_for:
            reached |= self.reachable(rank)
        return sorted(rank for rank in reached if not self.waits_for.get(rank))

    def _needs_its_queue(self, whereabouts: Whereabouts) -> bool:
        """Whether a rank waits until all that it has queued on a GPU has ended.

        It may do so anywhere where its stack shows no other wait; and in a barrier, which waits for
        its own calls even when all ranks have come.
        """
        call = whereabouts.call
        if call is not None and call.kind == "barrier":
            return not self._missing(call)
        return whereabouts.state == "running"

    def _find_unmet_calls(self) -> list[UnmetCall]:
        """Of the calls that may hold a rank, those to which somebody has not come."""
        unmet = []
        for whereabouts in self.ranks.values():
            if whereabouts.state != "waiting":
                continue
            for call in whereabouts.open_calls:
                missing = self._missing_or_stuck(call)
                if missing:
                    unmet.append(UnmetCall(call, missing))
        return unmet

    def _narrow(self, whereabouts: Whereabouts) -> None:
        """Keep the unmet ones of the calls that may hold a rank in a wait or a backward pass."""
        waits_for_some = whereabouts.blocker in ("wait", "backward") and not whereabouts.queued
        if whereabouts.state != "waiting" or not waits_for_some:
            return
        calls = [unmet.call for unmet in self.unmet if unmet.call.rank == whereabouts.rank]
        if whereabouts.blocker == "backward":
            calls = calls[:1]  # DDP waits for its buckets in order
        whereabouts.open_calls = tuple(calls)

    def _waited_for_by(self, whereabouts: Whereabouts) -> set[int]:
        """Whom a rank waits for."""
        if whereabouts.blocker in STORE_CALLS:
            # Nothing is noted there: who isn't in the same call of the store has not come to it.
            others = self.ranks.values()
            return {other.rank for other in others if other.blocker != whereabouts.blocker}
        waited_for: set[int] = set()
        for unmet in self.unmet:
            if unmet.call.rank == whereabouts.rank:
                waited_for |= unmet.missing
        return waited_for

    def _missing_or_stuck(self, call: Event) -> set[int]:
        """Who has not come to a call, or has queued it behind one that cannot end."""
        missing = self._missing(call)
        if missing or not call.queued:
            return missing
        behind = set()
        for rank, peer_call in self._meeting(call).calls.items():
            if rank in self._stuck and peer_call not in self._stuck[rank]:
                behind.add(rank)
        return behind

    def _meeting(self, call: Event) -> Meeting:
        return self._meetings[key_of(call), call.number]

    def _missing(self, call: Event) -> set[int]:
        """Who is known not to have come to a call."""
        key = key_of(call)
        if isinstance(key, MessageKey):
            if key.sender is None:
                return self._missing_senders(key.receiver)
            if key.receiver is None:  # a recording need not say it
                return set()
            if key.sender in self._take_from_any or key.receiver in self._take_from_any:
                # Nobody knows which messages such a rank has taken, so nobody is missing for sure.
                return set()
        missing = set()
        for member in self._meetings[key, call.number].missing:
            if self._has_not_come(member, key, call.number):
                missing.add(member)
        return missing

    def _has_not_come(self, rank: int, key: Key, number: int) -> bool:
        """Whether a rank has made fewer calls with this key, as far as its record says."""
        last_number = self._last_number.get((rank, key))
        if last_number is None:
            # Where a rank's first calls are forgotten, it may have made any number of these.
            return self.ranks[rank].complete
        return last_number < number

    def _missing_senders(self, receiver: int) -> set[int]:
        """Who is missing where a rank receives from any: all others, if all of them have returned.

        Otherwise one of them may still send, so nobody is missing for sure.
        """
        others = set(self.ranks) - {receiver}
        for rank in others:
            if self.ranks[rank].state != "returned":
                return set()
        return others

    def reachable(self, rank: int) -> set[int]:
        """Whom a rank waits for, directly or through others."""
        reached: set[int] = set()
        to_visit = [rank]
        while to_visit:
            visited = to_visit.pop()
            for other in self.waits_for.get(visited, ()):
                if other not in reached:
                    reached.add(other)
                    to_visit.append(other)
        return reached

    @property
    def hangs_for_ever(self) -> bool:
        """Whether it is certain that no rank will get any further.

        All ranks that have not returned wait in calls, and nobody is on the way to these. No other
        thread may make the missing call, no timer of a learner's group may end the wait, and it
        must be one known call that holds a rank: if it may be one of several, the data of a
        different one may still be on its way. What a rank that has returned left for its end,
        threads or exit functions, may still make calls.

        A rank must be seen to wait: in DDP's forward or all_gather_object it may be computing, or
        pickling. A backward pass shows no difference in a stack. It needs all calls that it has
        begun, so it never ends once a rank has returned without one of them.
        """
        some_left = False
        for whereabouts in self.ranks.values():
            if whereabouts.state == "returned":
                if _may_still_call(whereabouts):
                    return False
            elif self._waits_for_ever(whereabouts):
                some_left = True
            else:
                return False
        return some_left

    def _waits_for_ever(self, whereabouts: Whereabouts) -> bool:
        if whereabouts.state != "waiting" or not whereabouts.complete or whereabouts.has_threads:
            return False
        call = whereabouts.call
        if call is None or call.flags & MAY_TIME_OUT:
            return False
        if whereabouts.blocker == "backward":
            return self._never_ends_backward(whereabouts, call)
        if call.flags & ASYNC or not whereabouts.only_calls:
            return False
        # Every rank calls new_group, but a member waits for members alone.
        waited_for = self.waits_for[whereabouts.rank] & set(call.group)
        is_alone = len(self.world) == 1
        return is_alone or bool(waited_for)

    def _never_ends_backward(self, whereabouts: Whereabouts, call: Event) -> bool:
        """Whether a backward pass needs a call to which a rank that has returned never came.

        A pass that has left a parameter out ends without its calls. So the call must come from the
        line in which the rank stands. On a GPU, calls that are queued hold no backward pass.
        """
        if call.queued or call.line is None or call.frame != whereabouts.line:
            return False
        waited_for = self.waits_for[whereabouts.rank]
        return any(self.ranks[rank].state == "returned" for rank in waited_for)

    def matching_send(self, received: Event) -> Event | None:
        """The send that a receive from one given rank takes, if it has been called."""
        if received.peer is None:
            return None
        return self._meeting(received).calls.get(received.peer)

    def count_in_line(self, rank: int, call: Event) -> int:
        """How often a rank is known to have made such a call in its line and group.

        Of a message, both ends count: a send of one rank and a receive of the other one.
        """
        count = 0
        key = key_of(call)
        for other in self.ranks[rank].calls:
            if other.line != call.line:
                continue
            is_alike = other.kind == call.kind or is_message(call)
            if is_alike and key_of(other) == key:
                count += 1
        return count

    def first_crossing(self, call: Event, other: int) -> Meeting | None:
        """The first collective that a call's rank and a different one called from different lines.

        Example: rank 0 called it from line 4, rank 1 from line 5, and both ranks run both lines. If
        rank 0 never calls from line 5, the two lines are branches of an `if`, whose calls are meant
        to be one collective: that is no crossing.

        There is only one if the other rank has called as often in the line of `call`: then what
        one of the two lacks is an earlier call.
        """
        if is_message(call) or not self.ranks[call.rank].complete:
            return None
        if self.count_in_line(other, call) < self.count_in_line(call.rank, call):
            return None
        key = key_of(call)
        both = {call.rank, other}
        for meeting in self._meetings.values():
            if meeting.key != key or not both <= set(meeting.calls):
                continue
            call_of_rank = meeting.calls[call.rank]
            call_of_other = meeting.calls[other]
            from_different_lines = call_of_rank.line != call_of_other.line
            if from_different_lines and self.count_in_line(call.rank, call_of_other):
                return meeting
        return None

    def last_in_other_group(self, rank: int, call: Event) -> Event | None:
        """The last such call of a rank in the same line, but in a group of other ranks."""
        for other in reversed(self.ranks[rank].calls):
            is_alike = other.line == call.line and other.kind == call.kind
            if is_alike and other.group != call.group:
                return other
        return None

    def met_by_join(self, until: Meeting) -> tuple[Event, int] | None:
        """A learner's call that was matched with a stand-in call of DDP's `join`.

        Returns:
            The first such call in the group of a meeting, up to that meeting, and the rank
            whose `join` made the stand-in call.
        """
        for meeting in self._meetings.values():
            if meeting.key != until.key or meeting.number > until.number:
                continue
            joiners = []
            by_learner = []
            for call in meeting.calls.values():
                if call.flags & JOINS:
                    joiners.append(call.rank)
                elif call.kind in call.code:  # not by a library
                    by_learner.append(call)
            if joiners and by_learner:
                return by_learner[0], joiners[0]
        return None

    def difference(self) -> tuple[str, Meeting] | None:
        """The first collective that differs, in the first group in which a rank waits; and how."""
        calls = [unmet.call for unmet in self.unmet]
        # A rank may wait in a call to which all others seem to have come.
        for rank in self.waits_for:
            if self.ranks[rank].call:
                calls.append(self.ranks[rank].call)
        keys = [key_of(call) for call in calls if not is_message(call)]
        for key in dict.fromkeys(keys):  # each once
            meeting = self._first_that_differs(key)
            if meeting:
                return _difference(meeting), meeting
        return None

    def _first_that_differs(self, key: Key) -> Meeting | None:
        """The first collective that differs among those of a group, if that is certain.

        Where none before it was seen to be the same, an earlier difference may be forgotten.
        """
        some_agreed = False
        for meeting in self._meetings.values():
            if meeting.key != key:
                continue
            if _difference(meeting):
                all_known = all(self.ranks[member].complete for member in meeting.members)
                if some_agreed or all_known:
                    return meeting
                return None
            if len(meeting.calls) > 1:
                some_agreed = True
        return None


def _may_still_call(whereabouts: Whereabouts) -> bool:
    """Whether a rank whose function has returned may have a thread or an exit function at work."""
    if whereabouts.is_ending:
        return True
    if not whereabouts.calls:
        return False
    last = whereabouts.calls[-1]
    return last.kind == "return" and bool(last.flags & THREADS_LEFT)


def _difference(meeting: Meeting) -> str | None:
    return differs(list(meeting.calls.values()))


def differs(calls: list[Event]) -> str | None:
    """What calls that meet differ in, such as "order" if they are of several kinds; else None."""
    kind = calls[0].kind
    if _differ_in_mode(calls):
        return "evaluation"
    if differ_in(calls, "kind"):
        return "order"
    if kind == "new_group":
        if differ_in(calls, "group"):
            return "new_group"
        return None
    if differ_in(calls, "root"):
        return "root"
    may_differ = kind not in KINDS or not KINDS[kind].equal
    if may_differ or not differ_in(calls, "bytes", "dtype"):
        return None
    if differ_in(calls, "line"):  # so they may not have been meant to meet
        return "lines"
    return "shape"


def differ_in(calls: Iterable[Event], *attributes: str) -> bool:
    """Whether these attributes are not the same in all calls."""
    value_of = attrgetter(*attributes)
    values = {value_of(call) for call in calls}
    return len(values) > 1


def _differ_in_mode(calls: list[Event]) -> bool:
    """Whether DDP's forward made all of these calls, on some ranks only in evaluation mode."""
    modes = set()
    for call in calls:
        if not call.flags & FORWARD:
            return False
        modes.add(call.flags & EVALUATES)
    return len(modes) > 1
