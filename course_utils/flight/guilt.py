"""Who is guilty of a hang, judged by the graph of who waits for whom.

What is evidence, strongest first:

- `DIFFERENT`: a rank calls something else than the other members of the group do.
- `FAILED`: a rank still shows calls as pending that the others have finished. No member can finish
  an all_reduce that another one has not taken part in, so its own GPU no longer reports.
- `ABSENT`: others wait for it, and it waits for nobody: a sink of the graph.
- `EXTRA`: a rank alone makes one call more, while all others have ended at the same place.
- `BEHIND`: it waits, but the same waiting has not kept its peers from calling what it never called.
- `ORDER`: ranks wait for each other in circles, and all circles lead through it. Ranks that make
  their calls in one order wait in no circle, whoever stops, if only the first call that each has
  pending is looked at.
- `NO_DUMP`: it left none, and what is waited for cannot be explained by any rank that did.
- `CIRCLE`, `STUCK`: nothing sets one rank apart: they wait for each other, or all of them have come
  to a call that does not end.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from course_utils.flight.circles import circles_in, in_circles, round_trip
from course_utils.flight.dumps import Call, Dumps, Group
from course_utils.flight.wait_graph import Edge, WaitGraph, label, others_in

DIFFERENT, FAILED, ABSENT, EXTRA = "different", "failed", "absent", "extra"
BEHIND, NO_DUMP, ORDER, CIRCLE, STUCK = "behind", "no dump", "order", "circle", "stuck"
PROVEN, LIKELY, GUESS = "proven", "likely", "guess"
FOUND, NOTHING, UNKNOWN = "found", "nothing", "unknown"
_ENOUGH_PAUSES, _LAST_PAUSES = 4, 16
_CERTAINTY = {
    DIFFERENT: PROVEN,
    FAILED: PROVEN,
    ABSENT: PROVEN,
    EXTRA: LIKELY,
    BEHIND: LIKELY,
    NO_DUMP: LIKELY,
    ORDER: LIKELY,
    CIRCLE: GUESS,
    STUCK: GUESS,
}


@dataclass(frozen=True)
class Evidence:
    """Why a rank is held to be guilty."""

    rank: int
    why: str  # one of the constants above, such as `ABSENT`
    certainty: str
    call: Call | None = None  # the call that it has not come to, or that differs
    waiting: tuple[int, ...] = ()  # who waits for it there, directly
    others: Call | None = None  # what most others call instead
    count: int = 0  # of `FAILED`: how many calls the others have finished


@dataclass
class Verdict:
    """The decision, and what it was made of."""

    outcome: str  # `FOUND`, `NOTHING` or `UNKNOWN`
    evidence: list[Evidence] = field(default_factory=list)
    victims: list[int] = field(default_factory=list)
    chains: list[list[Edge]] = field(default_factory=list)  # one for each guilty rank at most
    slow: list[int] = field(default_factory=list)  # who is late, but no later than before
    unknown: list[int] = field(default_factory=list)  # waited for, and left no dump
    pending: dict[int, list[Call]] = field(default_factory=dict)  # what ranks really wait in
    gloo_sinks: list[int] = field(default_factory=list)  # they may wait in a message of gloo's

    @property
    def guilty(self) -> list[int]:
        """Global ranks, in order."""
        return sorted({evidence.rank for evidence in self.evidence})

    @property
    def certainty(self) -> str:
        """That of the weakest evidence; no more than likely, if there may be more guilty ranks."""
        certainties = {evidence.certainty for evidence in self.evidence}
        if self.unknown:
            certainties.add(LIKELY)
        for certainty in (GUESS, LIKELY):
            if certainty in certainties:
                return certainty
        return PROVEN


class Judge:
    """Collects evidence, the strongest first, until every waiting rank is explained."""

    def __init__(self, graph: WaitGraph) -> None:
        self.graph = graph
        self.dumps = graph.dumps
        self.evidence: dict[int, Evidence] = {}
        self._in_differing: set[int] = set()

    def decide(self) -> Verdict:
        """The verdict on these dumps."""
        pending = {rank: calls for rank, calls in self.graph.pending.items() if calls}
        if not pending and not any(self.graph.stale.values()):
            return self._nothing_pending()
        self._different()
        self._failed(self.graph.stale)
        if not self._in_differing:
            self._absent()
        self._behind()
        self._circles()
        self._no_dump()
        if not self.evidence:
            self._failed(self.graph.single_stale)
        self._stuck()
        verdict = Verdict(FOUND, pending=pending)
        verdict.slow = self._slow()
        if verdict.slow:
            verdict.outcome = NOTHING
            return verdict
        verdict.evidence = [self.evidence[rank] for rank in sorted(self.evidence)]
        if not verdict.evidence or verdict.certainty == GUESS:
            verdict.outcome = UNKNOWN
        for evidence in verdict.evidence:
            if self.dumps.has_unseen_messages and evidence.why == ABSENT:
                verdict.gloo_sinks.append(evidence.rank)
        self._tell_victims(verdict)
        return verdict

    def _nothing_pending(self) -> Verdict:
        """Nobody waits; but were there any dumps at all?"""
        if not self.dumps.by_rank or self.dumps.missing:
            return Verdict(UNKNOWN)
        return Verdict(NOTHING)

    def _add(self, rank: int, why: str, call: Call | None = None, **more: object) -> None:
        if rank in self.evidence:
            return
        more.setdefault("certainty", _CERTAINTY[why])
        waiting = sorted({edge.waiter for edge in self.graph.waiters_of(rank)})
        self.evidence[rank] = Evidence(rank, why, call=call, waiting=tuple(waiting), **more)

    def _different(self) -> None:
        """A rank calls something else than most of the group do."""
        for meeting in self.graph.differing.values():
            calls = self.graph.calls_of(meeting)
            counts = Counter(map(label, calls.values())).most_common()
            commonest, often = counts[0]
            has_majority = 2 * often > len(calls)
            usual = next(call for call in calls.values() if label(call) == commonest)
            for rank, call in sorted(calls.items()):
                if not has_majority:
                    self._add(rank, DIFFERENT, call, others=usual, certainty=GUESS)
                elif label(call) != commonest:
                    self._add(rank, DIFFERENT, call, others=usual)
            self._in_differing.update(calls)

    def _failed(self, stale: dict[int, list[Call]]) -> None:
        """A rank still waits in calls that the others have finished."""
        for rank, calls in stale.items():
            if calls:
                certainty = PROVEN if len(calls) > 1 else LIKELY
                self._add(rank, FAILED, calls[0], count=len(calls), certainty=certainty)

    def _absent(self) -> None:
        """Others wait for a rank, and it waits for nobody."""
        waited_for: dict[int, Edge] = {}
        for others in self.graph.edges.values():
            for other, edge in others.items():
                if other not in waited_for or waited_for[other].call.is_message:
                    waited_for[other] = edge  # a collective says more than a message
        sinks = []
        for rank in sorted(waited_for):
            is_there = rank in self.dumps.by_rank
            if is_there and rank not in self.graph.edges and not self.graph.pending[rank]:
                sinks.append(rank)
        extra = self._extra(sinks)
        for edge in extra:
            self._add(edge.waiter, EXTRA, edge.call)
        explained = {edge.waits_for for edge in extra}
        for rank in sinks:
            if rank not in explained:
                call = waited_for[rank].call
                # It may have come since, if its dump is older than the call.
                is_older = 0 < self.dumps.by_rank[rank].now_ns < call.created_ns
                certainty = LIKELY if is_older or self.dumps.has_unseen_messages else PROVEN
                self._add(rank, ABSENT, call, certainty=certainty)
        held_sinks = []
        for rank in sorted(waited_for):
            if rank in self.dumps.by_rank and rank not in self.graph.edges and rank not in sinks:
                held_sinks.append(rank)
        self._of_the_held(held_sinks, waited_for)

    def _extra(self, sinks: list[int]) -> list[Edge]:
        """A rank alone waits for all the others of a group, which stand at the same place."""
        edges = []
        for waiter, others in self.graph.edges.items():
            call = next(iter(others.values())).call
            group = call.group
            is_alone = set(group.ranks) - {waiter} <= set(sinks) and len(others) >= 2
            if call.is_message or not is_alone or len(self.graph.edges) > 1:
                continue
            places = {self.dumps.by_rank[rank].last_enqueued.get(group, 0) for rank in others}
            if places == {call.number - 1}:
                for other in others:
                    edges.append(Edge(waiter, other, call))
        return edges

    def _of_the_held(self, ranks: list[int], waited_for: dict[int, Edge]) -> None:
        """Ranks that others wait for, and whose own calls have been joined by all members.

        Nothing is missing there, and yet they don't end: the GPU of one of them stands still. It is
        the one that has called less than the others, since its program has met the error.
        """
        left = set(ranks)
        while left:
            rank = min(left)
            together = {rank}
            for call in self.graph.pending[rank]:
                together |= set(others_in(call)) & left
            first = self.graph.pending[rank][0]
            for other in others_in(first):
                if self.graph.pending.get(other) and other not in self.graph.edges:
                    together.add(other)
            left -= together
            if together & set(self.evidence):
                continue
            behind = self._furthest_behind(together)
            if len(behind) < len(together) and not first.is_message:
                for member in sorted(behind):
                    call = waited_for[member].call if member in waited_for else first
                    self._add(member, ABSENT, call, certainty=LIKELY)
                continue
            ends = sorted(together) if first.is_message else self._with_most_pending(together)
            for member in ends:
                self._add(member, STUCK, self.graph.pending[member][0])

    def _with_most_pending(self, ranks: set[int]) -> list[int]:
        """Of ranks that have called as much as each other: those that have finished least."""
        most = max(len(self.graph.pending[rank]) for rank in ranks)
        return [rank for rank in sorted(ranks) if len(self.graph.pending[rank]) == most]

    def _furthest_behind(self, ranks: set[int]) -> set[int]:
        """Those that have called least, in groups of kinds that all of them are in."""
        by_rank = {rank: Counter[str]() for rank in ranks}
        for rank, counts in by_rank.items():
            for group, last in self.dumps.by_rank[rank].last_enqueued.items():
                counts[group.desc] += last
        shared = set.intersection(*(set(counts) for counts in by_rank.values()))
        totals = {}
        for rank, counts in by_rank.items():
            totals[rank] = sum(counts[desc] for desc in shared)
        least = min(totals.values())
        return {rank for rank in ranks if totals[rank] == least}

    def _behind(self) -> None:
        """A rank that has not come, although what it waits in has kept no peer from coming."""
        for (group, number), waiting in sorted(
            self.graph.pending_at.items(), key=lambda item: item[0][1]
        ):
            waiting = waiting & set(self.graph.edges)
            if not waiting or group in self.graph.differing:
                continue
            call = self.graph.calls_of((group, number))[min(waiting)]
            absent = self.graph.absent_from(call)
            for rank in sorted(absent & set(self.graph.edges)):
                if 2 * len(waiting) > len(group.ranks) and self._has_no_excuse(rank, call, waiting):
                    self._add(rank, BEHIND, call)

    def _has_no_excuse(self, rank: int, call: Call, waiting: set[int]) -> bool:
        """Whether every peer had the same calls pending and came all the same."""
        calls = self.graph.pending[rank]
        if not calls:
            return False
        for peer in waiting:
            peer_call = self.graph.calls_of((call.group, call.number))[peer]
            issued_before = set()
            for pending in self.graph.pending[peer]:
                if pending.order < peer_call.order:
                    issued_before.add(_role(pending))
            if not all(_role(pending) in issued_before for pending in calls):
                return False
        return True

    def _unexplained(self) -> list[int]:
        """Ranks that wait, and neither directly nor through others for a guilty one."""
        explained = self._perhaps_explained()
        return [rank for rank in self.graph.edges if rank not in explained]

    def _perhaps_explained(self) -> set[int]:
        """The guilty, and who has a call pending with one of them, or with one such rank.

        A rank without a dump is perhaps a victim of all with whom it shares a small group.
        """
        explained = set(self.evidence)
        beside = self._beside_the_missing()
        met: dict[Group, set[int]] = defaultdict(set)  # who has a collective pending in a group
        for rank, calls in self.graph.pending.items():
            for call in calls:
                if not call.is_message:
                    met[call.group].add(rank)
                    continue
                for other in others_in(call):
                    beside[rank].add(other)
                    beside[other].add(rank)
        groups_left = set(met)
        to_visit = list(explained)
        while to_visit:
            rank = to_visit.pop()
            reached = set(beside[rank])
            for group in [group for group in groups_left if rank in group.members]:
                groups_left.discard(group)
                reached |= met[group].union(group.members - self.dumps.by_rank.keys())
            for other in reached - explained:
                if self.graph.pending.get(other) or other not in self.dumps.by_rank:
                    explained.add(other)
                    to_visit.append(other)
        return explained

    def _beside_the_missing(self) -> dict[int, set[int]]:
        """For all ranks, with which ones without a dump they share a group, and the reverse."""
        beside: dict[int, set[int]] = defaultdict(set)
        missing = set(self.dumps.missing)
        groups: set[Group] = set()
        for dump in self.dumps.by_rank.values() if missing else ():
            groups.update(dump.last_enqueued)
            groups.update(call.group for call in self.graph.pending[dump.rank])
        for group in groups:
            for rank in missing.intersection(group.ranks):
                if not group.is_default:
                    beside[rank].update(group.ranks)
        for rank, others in list(beside.items()):
            for other in others:
                beside[other].add(rank)
        return beside

    def _no_dump(self) -> None:
        """What no rank with a dump explains is the doing of one without."""
        explained = self._perhaps_explained()
        for rank in self._unexplained():
            call = self.graph.pending[rank][0]
            for other in self.graph.absent_from(call):
                if other not in self.dumps.by_rank and other not in explained:
                    self._add(other, NO_DUMP, call)

    def _circles(self) -> None:
        """Ranks that wait for each other: all circles lead through the one that is out of order."""
        unexplained = set(self._unexplained())
        waits_for: dict[int, set[int]] = {}
        for rank in unexplained:
            waits_for[rank] = self.graph.first_absentees(rank) & unexplained
        for circle in circles_in(waits_for):
            inside = {rank: waits_for[rank].intersection(circle) for rank in circle}
            breakers = []
            for rank in round_trip(inside):
                if not in_circles({**inside, rank: set()}):
                    breakers.append(rank)
            firsts = [self.graph.pending[rank][0] for rank in circle]
            if len(breakers) > 1 and not any(call.is_message for call in firsts):
                breakers = self._often_missed(breakers) or breakers
            if len(breakers) == 1:
                self._add_in_circle(breakers[0], ORDER, waits_for)
                continue
            for rank in breakers or circle:
                self._add_in_circle(rank, CIRCLE, waits_for)

    def _add_in_circle(self, rank: int, why: str, waits_for: dict[int, set[int]]) -> None:
        """With the call in which others wait for it, or in which it waits itself."""
        call = self.graph.pending[rank][0]
        for waiter in sorted(waits_for):
            if why == ORDER and rank in waits_for[waiter]:
                call = self.graph.pending[waiter][0]
                break
        self._add(rank, why, call)

    def _often_missed(self, ranks: list[int]) -> list[int]:
        """Those that haven't come to a call where most members of its group are."""
        missed = set()
        for calls in self.graph.pending.values():
            for call in calls[:1]:
                absent = self.graph.absent_from(call)
                came = len(call.group.ranks) - len(absent)
                if not call.is_message and came > len(absent):
                    missed.update(absent)
        return [rank for rank in ranks if rank in missed]

    def _stuck(self) -> None:
        """Nobody is missing anywhere, and yet calls don't end."""
        if self.evidence:
            return
        waiting = []
        for rank, calls in self.graph.pending.items():
            if calls:
                waiting.append(rank)
        if not waiting:
            return
        together = self._first_to_wait(waiting)
        behind = self._furthest_behind(together)
        if len(behind) == len(together):
            behind = set(self._with_most_pending(together))
        suspects = behind if 2 * len(behind) < len(waiting) else set()
        for rank in sorted(suspects):
            self._add(rank, STUCK, self.graph.pending[rank][0])

    def _first_to_wait(self, ranks: list[int]) -> set[int]:
        """The rank that waits in the oldest call, and all of these who are in that call too."""
        oldest = min(ranks, key=lambda rank: self.graph.pending[rank][0].created_ns)
        call = self.graph.pending[oldest][0]
        return {oldest, *others_in(call)}.intersection(ranks)

    def _slow(self) -> list[int]:
        """The guilty, if all are only as late as they have been before: then nothing hangs."""
        late = []
        for evidence in self.evidence.values():
            if evidence.why not in (ABSENT, EXTRA) or not self._is_usual_pause(evidence.rank):
                return []
            late.append(evidence.rank)
        return sorted(late)

    def _is_usual_pause(self, rank: int) -> bool:
        """Whether a rank has been as long between two calls before.

        What counts is the time until the last dump was written: the rank's own may be an early one.
        """
        dump = self.dumps.by_rank[rank]
        now_ns = max(other.now_ns for other in self.dumps.by_rank.values())
        starts_ns = [call.created_ns for call in dump.calls]
        if dump.now_ns == 0 or len(starts_ns) <= _ENOUGH_PAUSES:
            return False
        pauses_ns = [later - earlier for earlier, later in pairwise(starts_ns)]
        return now_ns - starts_ns[-1] <= max(pauses_ns[-_LAST_PAUSES:])

    def _tell_victims(self, verdict: Verdict) -> None:
        guilty = set(self.evidence)
        verdict.victims = sorted(set(verdict.pending) - guilty)
        waited_for = set()
        for others in self.graph.edges.values():
            waited_for.update(others)
        verdict.unknown = sorted(set(self.dumps.missing) & waited_for - guilty)
        for rank in sorted(guilty):
            chain = self._longest_chain(rank, guilty)
            if chain:
                verdict.chains.append(chain)

    def _longest_chain(self, rank: int, guilty: set[int]) -> list[Edge]:
        """From the victim that is furthest away to a guilty rank, step by step."""
        steps = self.graph.explained_by([rank])
        longest: list[Edge] = []
        lengths: dict[int, int] = {rank: 0}
        for waiter, edge in steps.items():  # in order of their distance
            if edge is None or waiter in guilty:
                lengths[waiter] = 0
                continue
            lengths[waiter] = lengths[edge.waits_for] + 1
        furthest = max(lengths, key=lambda waiter: lengths[waiter])
        while furthest != rank and furthest not in guilty:
            edge = steps[furthest]
            longest.append(edge)
            furthest = edge.waits_for
        return longest


def _role(call: Call) -> tuple[object, ...]:
    """What a call is, but for the ranks: equal for peers that do the same in other groups."""
    group = call.group
    ends = ()
    if call.is_message:
        ends = tuple(group.ranks.index(end) for end in _ends(call) if end in group.ranks)
    return group.desc, len(group.ranks), call.kind, call.number, ends


def _ends(call: Call) -> list[int]:
    return [end for end in (call.sender, call.receiver) if end is not None]


def judge(dumps: Dumps) -> Verdict:
    """Who is guilty, by what evidence, and who waits for them."""
    return Judge(WaitGraph(dumps)).decide()
