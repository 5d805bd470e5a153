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

from course_utils.flight.circles import Graph, circles_in, in_circles, round_trip
from course_utils.flight.dumps import Call, Dumps, Group
from course_utils.flight.wait_graph import Edge, WaitGraph, by_number, label, others_in

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
        self._by_rank = graph.dumps.by_rank
        self._pending = graph.pending
        self._edges = graph.edges
        self._in_differing: set[int] = set()

    def decide(self) -> Verdict:
        """The verdict on these dumps."""
        pending = {rank: calls for rank, calls in self._pending.items() if calls}
        if not pending and not any(self.graph.stale.values()):
            return self._nothing_pending()
        self._collect_evidence()
        verdict = Verdict(FOUND, pending=pending)
        verdict.slow = self._slow()
        if verdict.slow:
            verdict.outcome = NOTHING
            return verdict
        for rank in sorted(self.evidence):
            verdict.evidence.append(self.evidence[rank])
        if not verdict.evidence or verdict.certainty == GUESS:
            verdict.outcome = UNKNOWN
        if self.dumps.has_unseen_messages:
            for evidence in verdict.evidence:
                if evidence.why == ABSENT:
                    verdict.gloo_sinks.append(evidence.rank)
        self._tell_victims(verdict)
        return verdict

    def _collect_evidence(self) -> None:
        """The strongest first: what has been explained once needs no weaker reason."""
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

    def _nothing_pending(self) -> Verdict:
        """Nobody waits; but were there any dumps at all?"""
        if not self._by_rank or self.dumps.missing:
            return Verdict(UNKNOWN)
        return Verdict(NOTHING)

    def _add(
        self,
        rank: int,
        why: str,
        call: Call | None = None,
        certainty: str = "",
        others: Call | None = None,
        count: int = 0,
    ) -> None:
        """Add evidence if there's none for this rank yet; its usual certainty, if none is given."""
        if rank in self.evidence:
            return
        waiters = {edge.waiter for edge in self.graph.waiters_of(rank)}
        self.evidence[rank] = Evidence(
            rank=rank,
            why=why,
            certainty=certainty or _CERTAINTY[why],
            call=call,
            waiting=tuple(sorted(waiters)),
            others=others,
            count=count,
        )

    def _first_call(self, rank: int) -> Call:
        """The first call that a rank has pending."""
        return self._pending[rank][0]

    def _different(self) -> None:
        """A rank calls something else than most of the group do."""
        for meeting in self.graph.differing.values():
            calls = self.graph.calls_of(meeting)
            self._add_different(calls)
            self._in_differing.update(calls)

    def _add_different(self, calls: dict[int, Call]) -> None:
        """The minority among these calls by rank, or all ranks where there is no majority."""
        labels = {}
        call_of_label = {}
        for rank, call in calls.items():
            labels[rank] = label(call)
            call_of_label.setdefault(labels[rank], call)
        counts = Counter(labels.values())
        ((commonest, count),) = counts.most_common(1)
        usual_call = call_of_label[commonest]
        has_majority = 2 * count > len(calls)
        for rank in sorted(calls):
            call = calls[rank]
            if not has_majority:
                self._add(rank, DIFFERENT, call, others=usual_call, certainty=GUESS)
            elif labels[rank] != commonest:
                self._add(rank, DIFFERENT, call, others=usual_call)

    def _failed(self, stale: dict[int, list[Call]]) -> None:
        """A rank still waits in calls that the others have finished."""
        for rank, calls in stale.items():
            if not calls:
                continue
            count = len(calls)
            certainty = LIKELY
            if count > 1:
                certainty = PROVEN
            self._add(rank, FAILED, calls[0], count=count, certainty=certainty)

    def _absent(self) -> None:
        """Others wait for a rank, and it waits for nobody."""
        waited_for = self._edges_to_those_waited_for()
        sinks = []
        held_sinks = []  # whose own calls have been joined by all members
        for rank in sorted(waited_for):
            if rank not in self._by_rank or rank in self._edges:
                continue
            if self._pending[rank]:
                held_sinks.append(rank)
            else:
                sinks.append(rank)
        extra_call = self._extra_call(sinks)
        if extra_call is None:
            self._add_sinks(sinks, waited_for)
        else:
            self._add(extra_call.rank, EXTRA, extra_call)
        self._of_the_held(held_sinks, waited_for)

    def _add_sinks(self, ranks: list[int], waited_for: dict[int, Edge]) -> None:
        for rank in ranks:
            edge = waited_for[rank]
            call = edge.call
            dump = self._by_rank[rank]
            certainty = PROVEN
            # It may have come since, if its dump is older than the call.
            is_older = 0 < dump.now_ns < call.created_ns
            if is_older or self.dumps.has_unseen_messages:
                certainty = LIKELY
            self._add(rank, ABSENT, call, certainty=certainty)

    def _edges_to_those_waited_for(self) -> dict[int, Edge]:
        """By rank that others wait for, one edge to it: a collective says more than a message."""
        edges: dict[int, Edge] = {}
        for others in self._edges.values():
            for other, edge in others.items():
                if other not in edges or edges[other].call.is_message:
                    edges[other] = edge
        return edges

    def _extra_call(self, sinks: list[int]) -> Call | None:
        """A rank alone waits for all the others of a group, which stand at the same place."""
        if len(self._edges) != 1:
            return None
        ((waiter, others),) = self._edges.items()
        first_edge = next(iter(others.values()))
        call = first_edge.call
        if call.is_message or len(others) < 2:
            return None
        peers = set(call.group.ranks)
        peers.discard(waiter)
        if not peers <= set(sinks):
            return None
        for rank in others:
            dump = self._by_rank.get(rank)
            if dump is None:
                return None
            last_number = dump.last_enqueued.get(call.group, 0)
            if last_number != call.number - 1:
                return None
        return call

    def _of_the_held(self, ranks: list[int], waited_for: dict[int, Edge]) -> None:
        """Ranks that others wait for, and whose own calls have been joined by all members.

        Nothing is missing there, and yet they don't end: the GPU of one of them stands still. It is
        the one that has called less than the others, since its program has met the error.
        """
        left = set(ranks)
        while left:
            rank = min(left)
            first = self._first_call(rank)
            together = self._held_with(rank, left)
            left -= together
            if not together.isdisjoint(self.evidence):
                continue
            if first.is_message:
                self._add_stuck(sorted(together))
                continue
            behind = self._furthest_behind(together)
            if behind == together:
                suspects = self._with_most_pending(together)
                self._add_stuck(suspects)
                continue
            for member in sorted(behind):
                call = first
                if member in waited_for:
                    call = waited_for[member].call
                self._add(member, ABSENT, call, certainty=LIKELY)

    def _held_with(self, rank: int, candidates: set[int]) -> set[int]:
        """A held rank, and those who take part in its calls and are held as well."""
        together = {rank}
        calls = self._pending[rank]
        for call in calls:
            others = others_in(call)
            together |= candidates.intersection(others)
        for other in others_in(calls[0]):
            if self._pending.get(other) and other not in self._edges:
                together.add(other)
        return together

    def _add_stuck(self, ranks: list[int]) -> None:
        for rank in ranks:
            self._add(rank, STUCK, self._first_call(rank))

    def _with_most_pending(self, ranks: set[int]) -> list[int]:
        """Of ranks that have called as much as each other: those that have finished least."""
        most = max(len(self._pending[rank]) for rank in ranks)
        return [rank for rank in sorted(ranks) if len(self._pending[rank]) == most]

    def _furthest_behind(self, ranks: set[int]) -> set[int]:
        """Those that have called least, in groups of kinds that all of them are in."""
        counts_by_rank = {}
        for rank in ranks:
            dump = self._by_rank[rank]
            counts = Counter[str]()
            for group, last in dump.last_enqueued.items():
                counts[group.desc] += last
            counts_by_rank[rank] = counts
        kinds_of_groups = map(set, counts_by_rank.values())
        shared = set.intersection(*kinds_of_groups)
        totals = {}
        for rank, counts in counts_by_rank.items():
            totals[rank] = sum(counts[desc] for desc in shared)
        least = min(totals.values())
        return {rank for rank, total in totals.items() if total == least}

    def _behind(self) -> None:
        """A rank that has not come, although what it waits in has kept no peer from coming."""
        who_waits = set(self._edges)
        for meeting in sorted(self.graph.pending_at, key=by_number):
            group, _number = meeting
            if group in self.graph.differing:
                continue
            waiting = self.graph.pending_at[meeting] & who_waits
            are_most = 2 * len(waiting) > len(group.ranks)
            if not are_most:
                continue
            calls = self.graph.calls_of(meeting)
            call = calls[min(waiting)]
            absent = self.graph.absent_from(call)
            for rank in sorted(absent & who_waits):
                if self._has_no_excuse(rank, call, waiting):
                    self._add(rank, BEHIND, call)

    def _has_no_excuse(self, rank: int, call: Call, waiting: set[int]) -> bool:
        """Whether the calls that a rank has pending don't explain why it has not come.

        They don't if each peer had the same calls pending when it came.
        """
        roles = set(map(_role, self._pending[rank]))
        if not roles:
            return False
        calls = self.graph.calls_of(call.meeting)
        for peer in waiting:
            peer_call = calls[peer]
            issued_before = set()
            for pending in self._pending[peer]:
                if pending.order < peer_call.order:
                    issued_before.add(_role(pending))
            if not roles <= issued_before:
                return False
        return True

    def _unexplained(self) -> list[int]:
        """Ranks that wait, and neither directly nor through others for a guilty one."""
        explained = self._perhaps_explained()
        return [rank for rank in self._edges if rank not in explained]

    def _perhaps_explained(self) -> set[int]:
        """The guilty, and who has a call pending with one of them, or with one such rank.

        A rank without a dump is perhaps a victim of all with whom it shares a small group.
        """
        explained = set(self.evidence)
        beside = self._beside_the_missing()
        met: dict[Group, set[int]] = defaultdict(set)  # who has a collective pending in a group
        for rank, calls in self._pending.items():
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
            its_groups = {group for group in groups_left if rank in group.members}
            groups_left -= its_groups
            for group in its_groups:
                reached |= met[group]
                reached |= group.members - self._by_rank.keys()
            for other in reached - explained:
                if self._pending.get(other) or other not in self._by_rank:
                    explained.add(other)
                    to_visit.append(other)
        return explained

    def _beside_the_missing(self) -> Graph:
        """Pairs of ranks that share a group and of which at least one has no dump.

        By either rank of a pair. The default group, which all share, doesn't count.
        """
        beside: Graph = defaultdict(set)
        missing = set(self.dumps.missing)
        if not missing:
            return beside
        groups: set[Group] = set()
        for rank, dump in self._by_rank.items():
            groups.update(dump.last_enqueued)
            for call in self._pending[rank]:
                groups.add(call.group)
        for group in groups:
            if group.is_default:
                continue
            for rank in missing & group.members:
                beside[rank].update(group.ranks)
        for rank, others in list(beside.items()):
            for other in others:
                beside[other].add(rank)
        return beside

    def _no_dump(self) -> None:
        """What the existing dumps don't explain is blamed on ranks without a dump."""
        explained = self._perhaps_explained()
        for rank in self._unexplained():
            call = self._first_call(rank)
            for other in self.graph.absent_from(call):
                if other not in self._by_rank and other not in explained:
                    self._add(other, NO_DUMP, call)

    def _circles(self) -> None:
        """Ranks that wait for each other: all circles lead through the one that is out of order."""
        unexplained = set(self._unexplained())
        waits_for: Graph = {}
        for rank in unexplained:
            absentees = self.graph.first_absentees(rank)
            waits_for[rank] = absentees & unexplained
        for circle in circles_in(waits_for):
            breakers = self._breakers(circle, waits_for)
            if len(breakers) == 1:
                self._add_out_of_order(breakers[0], waits_for)
                continue
            for rank in breakers or circle:
                call = self._first_call(rank)
                self._add(rank, CIRCLE, call)

    def _breakers(self, circle: list[int], waits_for: Graph) -> list[int]:
        """Ranks whose removal leaves no circle."""
        inside = {}
        for rank in circle:
            inside[rank] = waits_for[rank].intersection(circle)
        breakers = []
        for rank in round_trip(inside):
            without_it = {**inside, rank: set()}
            if not in_circles(without_it):
                breakers.append(rank)
        has_messages = any(self._first_call(rank).is_message for rank in circle)
        if len(breakers) > 1 and not has_messages:
            return self._often_missed(breakers) or breakers
        return breakers

    def _add_out_of_order(self, rank: int, waits_for: Graph) -> None:
        """With the call in which the first of the others waits for it."""
        waiters = [waiter for waiter, others in waits_for.items() if rank in others]
        first_waiter = min(waiters)
        self._add(rank, ORDER, self._first_call(first_waiter))

    def _often_missed(self, ranks: list[int]) -> list[int]:
        """Those that haven't come to a call where most members of its group are."""
        missed = set()
        for calls in self._pending.values():
            if not calls or calls[0].is_message:
                continue
            call = calls[0]
            absent = self.graph.absent_from(call)
            came = len(call.group.ranks) - len(absent)
            if came > len(absent):
                missed.update(absent)
        return [rank for rank in ranks if rank in missed]

    def _stuck(self) -> None:
        """Nobody is missing anywhere, and yet calls don't end."""
        if self.evidence:
            return
        firsts = [calls[0] for calls in self._pending.values() if calls]
        if not firsts:
            return
        waiting = {call.rank for call in firsts}
        oldest = min(firsts, key=lambda call: call.created_ns)
        together = {oldest.rank, *others_in(oldest)} & waiting
        suspects = sorted(self._furthest_behind(together))
        if len(suspects) == len(together):
            suspects = self._with_most_pending(together)
        if 2 * len(suspects) < len(waiting):
            self._add_stuck(suspects)

    def _slow(self) -> list[int]:
        """The guilty, if all are only as late as they have been before: then nothing hangs."""
        late = []
        for evidence in self.evidence.values():
            if evidence.why not in (ABSENT, EXTRA):
                return []
            if not self._is_usual_pause(evidence.rank):
                return []
            late.append(evidence.rank)
        return sorted(late)

    def _is_usual_pause(self, rank: int) -> bool:
        """Whether a rank has been as long between two calls before.

        What counts is the time until the last dump was written: the rank's own may be an early one.
        """
        dump = self._by_rank[rank]
        if dump.now_ns == 0 or len(dump.calls) <= _ENOUGH_PAUSES:
            return False
        pauses_ns = []
        for earlier, later in pairwise(dump.calls):
            pauses_ns.append(later.created_ns - earlier.created_ns)
        longest_ns = max(pauses_ns[-_LAST_PAUSES:])
        last_call = dump.calls[-1]
        now_ns = max(other.now_ns for other in self._by_rank.values())
        return now_ns - last_call.created_ns <= longest_ns

    def _tell_victims(self, verdict: Verdict) -> None:
        guilty = set(self.evidence)
        verdict.victims = sorted(set(verdict.pending) - guilty)
        waited_for = set()
        for others in self._edges.values():
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
    places = []
    for end in call.ends:
        if end in group.members:
            places.append(group.ranks.index(end))
    return group.desc, len(group.ranks), call.kind, call.number, tuple(places)


def judge(dumps: Dumps) -> Verdict:
    """Who is guilty, by what evidence, and who waits for them."""
    return Judge(WaitGraph(dumps)).decide()
