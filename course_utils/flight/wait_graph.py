"""Who waits for whom, told from the dumps of all ranks, across all groups.

A rank waits for another one if it has a call pending to which the other has not come. This says
nothing about blame yet: a rank that waits in a pipeline's recv for a rank that waits in an
all_reduce is a victim of whoever does not come there. `guilt` decides that.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from course_utils.flight.dumps import Call, Dumps, Group

# No member can be through one of these before all have taken part.
_NEEDS_ALL = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
# Every member hands in as many numbers as the others do.
_EQUAL_SIZES = {"all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast"}
Meeting = tuple[Group, int]  # a collective: its group and its number there


@dataclass(frozen=True)
class Edge:
    """A rank waits in a call for another rank."""

    waiter: int
    waits_for: int
    call: Call


class WaitGraph:
    """Who waits for whom, told from dumps.

    Attributes:
        pending: By rank its calls that are not over, without those that the others have finished.
        stale: By rank its calls that only it holds to be pending.
        edges: By rank that waits, one edge for each rank that it waits for.
        pending_at: By collective the ranks whose calls of it are not over, or have failed.
        differing: The first collective of each group that is not the same on all ranks.
    """

    def __init__(self, dumps: Dumps) -> None:
        self.dumps = dumps
        self._by_rank = dumps.by_rank
        self._calls: dict[Meeting, dict[int, Call]] = defaultdict(dict)
        self._messages: dict[tuple[Group, int, int, str], list[Call]] = defaultdict(list)
        self.pending_at: dict[Meeting, set[int]] = defaultdict(set)
        self._first_pending: dict[tuple[int, Group], int] = {}  # its number
        self._somebody_is_through: dict[tuple[Group, int, str], bool] = {}
        self._collect()
        self.pending: dict[int, list[Call]] = {}
        self.stale: dict[int, list[Call]] = {}
        self.single_stale: dict[int, list[Call]] = {}
        self._sort_out()
        self.differing = self._differing()
        self._absentees: dict[Meeting, set[int]] = {}
        self.edges: dict[int, dict[int, Edge]] = {}
        self._connect()

    def _collect(self) -> None:
        for rank, dump in self._by_rank.items():
            for call in dump.calls:
                if not call.is_message:
                    self._calls[call.meeting][rank] = call
                elif not call.finished and len(call.ends) == 2:
                    key = (call.group, call.sender, call.receiver, call.kind)
                    self._messages[key].append(call)
        for meeting in self._calls:
            pending = self._pending_in(meeting)
            if not pending:
                continue
            self.pending_at[meeting] = pending
            group, number = meeting
            for rank in pending:
                first = self._first_pending.get((rank, group), number)
                self._first_pending[rank, group] = min(first, number)

    def _pending_in(self, meeting: Meeting) -> set[int]:
        """The ranks whose calls of this meeting are not over, or have failed.

        gloo notes that a call is over a moment later, and also if it has failed since a member did
        not come. So here it is over as soon as one member is through, and not if one is missing.
        """
        calls = self._calls[meeting]
        unfinished = {rank for rank, call in calls.items() if not call.finished}
        a_call = next(iter(calls.values()))
        if not a_call.by_gloo or a_call.kind not in _NEEDS_ALL:
            return unfinished
        ranks = a_call.group.ranks
        members = [rank for rank in ranks if rank in self._by_rank]
        if not all(self._has_come(member, meeting) for member in members):
            return set(calls)
        if len(members) < len(ranks):
            for rank, call in calls.items():
                if self._is_last_of_all(call, members):
                    unfinished.add(rank)
            return unfinished
        labels = set(map(label, calls.values()))
        somebody_is_through = len(unfinished) < len(calls)
        if somebody_is_through and len(labels) == 1:
            return set()
        return unfinished

    def _is_over(self, call: Call) -> bool:
        """Whether a call is over, and has not failed."""
        if call.is_message:
            return call.finished
        return call.rank not in self.pending_at.get(call.meeting, ())

    def _is_last_of_all(self, call: Call, members: list[int]) -> bool:
        """Whether its rank called nothing after it, and no member went on in this group."""
        dump = self._by_rank[call.rank]
        if call is not dump.calls[-1]:
            return False
        for member in members:
            numbers = self._by_rank[member].last_enqueued
            if numbers.get(call.group, 0) > call.number:
                return False
        return True

    def _sort_out(self) -> None:
        """Which pending calls are really pending.

        A rank with a single one that others have finished may just be about to finish it.
        """
        for rank, dump in self._by_rank.items():
            unfinished = []
            over = []
            for call in dump.calls:
                if not self._is_over(call):
                    unfinished.append(call)
                    if self._others_have_finished(call):
                        over.append(call)
            self.single_stale[rank] = over[:1]
            self.stale[rank] = []
            self.pending[rank] = unfinished
            if len(over) > 1:
                self.stale[rank] = over
                # A GPU works in order, so what a rank issued before these is over as well.
                last_over = over[-1].order
                self.pending[rank] = [call for call in unfinished if call.order > last_over]

    def _others_have_finished(self, call: Call) -> bool:
        """Whether another member is through with a call that needs all of them."""
        if call.kind not in _NEEDS_ALL:
            return False
        key = (call.group, call.number, call.kind)
        if key not in self._somebody_is_through:
            through = any(self._is_through(member, call) for member in call.group.ranks)
            self._somebody_is_through[key] = through
        return self._somebody_is_through[key]

    def _is_through(self, member: int, call: Call) -> bool:
        """Whether a member has finished a call, which its own dump may no longer have."""
        dump = self._by_rank.get(member)
        if dump is None:
            return False
        member_call = self._calls[call.meeting].get(member)
        if member_call is not None:
            return self._is_over(member_call) and member_call.kind == call.kind
        first_pending = self._first_pending.get((member, call.group), 0)
        if call.number < first_pending:
            return True  # it has come further, and this one is not among its pending calls
        last_completed = dump.last_completed.get(call.group, 0)
        return call.number <= last_completed

    def _differing(self) -> dict[Group, Meeting]:
        first: dict[Group, Meeting] = {}
        waited_in = {group for group, _number in self.pending_at}
        for meeting in sorted(self._calls, key=by_number):
            group, _number = meeting
            if group not in waited_in or group in first:
                continue
            calls = self._calls[meeting].values()
            labels = set(map(label, calls))
            if len(labels) > 1:
                first[group] = meeting
        return first

    def calls_of(self, meeting: Meeting) -> dict[int, Call]:
        """Who is known to have made this call."""
        return self._calls[meeting]

    def _connect(self) -> None:
        for rank, calls in self.pending.items():
            edges: dict[int, Edge] = {}
            for call in calls:
                for other in self.absent_from(call):
                    if other not in edges:
                        edges[other] = Edge(rank, other, call)
            if edges:
                self.edges[rank] = edges
        self._connect_the_held()

    def _connect_the_held(self) -> None:
        """A call to which all have come doesn't end if a member is held up before it."""
        held_before: dict[Meeting, list[int]] = {}
        for rank, calls in self.pending.items():
            if not calls or self.absent_from(calls[0]):
                continue
            call = calls[0]
            if call.is_message:
                held = self._held_before(call)
            else:
                meeting = call.meeting
                if meeting not in held_before:
                    held_before[meeting] = self._held_before(call)
                held = held_before[meeting]
            for other in held:
                if other != rank:
                    edges = self.edges.setdefault(rank, {})
                    edges[other] = Edge(rank, other, call)

    def _held_before(self, call: Call) -> list[int]:
        """Who of all that take part in a call is held up before it."""
        ranks = [call.rank, *others_in(call)]
        return [rank for rank in ranks if self._is_held_before(rank, call)]

    def _is_held_before(self, other: int, call: Call) -> bool:
        """Whether a rank that has come to a call has an earlier one pending."""
        if self.stale.get(other):
            return True
        pending = self.pending.get(other)
        if not pending:
            return False
        if call.is_message:
            others_call = self._other_end(call)
        else:
            others_call = self._calls[call.meeting].get(other)
        if others_call is None:
            return False
        first = pending[0]
        return first.order < others_call.order

    def _other_end(self, call: Call) -> Call | None:
        """Of a pending message, if both ends are known: the first pending ones of both meet."""
        sends = self._messages[call.group, call.sender, call.receiver, "send"]
        receives = self._messages[call.group, call.sender, call.receiver, "recv"]
        this_end, other_end = sends, receives
        if call.kind == "recv":
            this_end, other_end = receives, sends
        place = this_end.index(call)
        if place >= len(other_end):
            return None
        return other_end[place]

    def absent_from(self, call: Call) -> set[int]:
        """The ranks that a pending call needs, and that have not come to it or left no dump."""
        if call.is_message:
            return self._absent_end(call)
        if call.kind == "coalesced":
            return set()
        meeting = call.meeting
        if meeting not in self._absentees:
            absent = set()
            for member in call.group.ranks:
                if not self._has_come(member, meeting):
                    absent.add(member)
            self._absentees[meeting] = absent
        return self._absentees[meeting] - {call.rank}

    def _has_come(self, member: int, meeting: Meeting) -> bool:
        dump = self._by_rank.get(member)
        if dump is None:
            return False
        if member in self._calls[meeting]:
            return True
        group, number = meeting
        last_number = dump.last_enqueued.get(group, 0)
        return number <= last_number

    def _absent_end(self, call: Call) -> set[int]:
        """The other end of a message, if it is not there."""
        if call.sender is None or call.receiver is None:
            return set()
        other = call.sender
        if call.kind == "send":
            other = call.receiver
        if other == call.rank or self._other_end(call) is not None:
            return set()
        return {other}

    def first_absentees(self, rank: int) -> set[int]:
        """Whom a rank waits for in the first call that it has pending."""
        edges = self.edges.get(rank, {})
        first = self.pending[rank][0]
        return {other for other, edge in edges.items() if edge.call is first}

    def waiters_of(self, rank: int) -> list[Edge]:
        """Who waits for a rank directly."""
        edges = []
        for others in self.edges.values():
            if rank in others:
                edges.append(others[rank])
        return edges

    def explained_by(self, ranks: Iterable[int]) -> dict[int, Edge | None]:
        """All ranks that wait for these, directly or through others: each with its next step."""
        waiters: dict[int, list[Edge]] = defaultdict(list)
        for others in self.edges.values():
            for other, edge in others.items():
                waiters[other].append(edge)
        steps: dict[int, Edge | None] = dict.fromkeys(ranks)
        to_visit = deque(steps)
        while to_visit:
            rank = to_visit.popleft()
            for edge in waiters[rank]:
                if edge.waiter not in steps:
                    steps[edge.waiter] = edge
                    to_visit.append(edge.waiter)
        return steps


def by_number(meeting: Meeting) -> int:
    """What meetings are sorted by."""
    _group, number = meeting
    return number


def others_in(call: Call) -> list[int]:
    """Who else takes part in a call."""
    ranks = call.group.ranks
    if call.is_message:
        ranks = call.ends
    return [rank for rank in ranks if rank != call.rank]


def label(call: Call) -> tuple[object, ...]:
    """What has to be the same on all ranks."""
    if call.kind in _EQUAL_SIZES and call.sizes:
        return call.kind, call.numel, call.dtypes[:1]
    return (call.kind,)
