"""Who waits for whom: the calls of all ranks, matched as torch matches them."""

from collections.abc import Iterable
from typing import NamedTuple

from course_utils.hang.whereabouts import STORE_CALLS, Whereabouts
from course_utils.record.notes import EVALUATES, FORWARD, Call

# Collectives to which every rank must hand in equally much.
_EQUAL = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"}


class Difference(NamedTuple):
    """The first collective of a group that its members call differently."""

    number: int
    what: str  # "order", "evaluation", "root", "shape", or "new_group"
    calls: dict[int, Call]  # by rank


class Deadlock:
    """All ranks at the moment when time was up.

    Attributes:
        ranks: Where each one is.
        waits_for: For each rank that waits for others, those which have not come to its call.
        absent: Ranks that others wait for, and that wait for none themselves.
        now: When that was, on the system's monotonic clock.
        open: For each waiting rank, its calls that somebody has not come to.
    """

    def __init__(self, all_: Iterable[Whereabouts], now: float) -> None:
        self.ranks, self.now = {one.rank: one for one in all_}, now
        self._counts = {rank: _counts(one) for rank, one in self.ranks.items()}
        self.open: dict[int, list[tuple[Call, set[int]]]] = {}
        self.waits_for: dict[int, set[int]] = {}
        for rank, one in self.ranks.items():
            if one.state == "waiting":
                pairs = [(call, self._missing(rank, call)) for call in one.open]
                self.open[rank] = [pair for pair in pairs if pair[1]]
                self.ranks[rank] = one.narrowed([call for call, _ in self.open[rank]])
                self.waits_for[rank] = set().union(*(who for _, who in self.open[rank]))
                if one.what in STORE_CALLS:
                    others = self.ranks.values()
                    self.waits_for[rank] = {o.rank for o in others if o.what != one.what}
        if not self.known:
            idle = {one.rank for one in self.ranks.values() if one.state != "waiting"}
            self.waits_for = dict.fromkeys(self.waits_for, idle)
        reached = set().union(*map(self.reachable, self.waits_for))
        self.absent = sorted(rank for rank in reached if not self.waits_for.get(rank))

    @property
    def known(self) -> bool:
        """Whether the calls of all ranks are known, so that they can be matched."""
        return all(one.known for one in self.ranks.values())

    @property
    def world(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(sorted(self.ranks))

    def reachable(self, rank: int) -> set[int]:
        """Whom a rank waits for, directly or through others."""
        found, new = set(), {rank}
        while new:
            new = set().union(*(self.waits_for.get(one, ()) for one in new)) - found
            found |= new
        return found

    def made(self, rank: int, call: Call) -> int:
        """How many such calls a rank is known to have made in the same line."""
        here = call.line, call.kind
        return sum((other.line, other.kind) == here for other in self.ranks[rank].calls)

    def _count(self, rank: int, key: tuple) -> int | None:
        """How many such calls a rank has made; None where that is forgotten."""
        one = self.ranks[rank]
        return self._counts[rank].get(key, 0 if one.complete else None)

    def _missing(self, rank: int, call: Call) -> set[int]:
        """Who has not come to a call."""
        if not call.is_message:
            members = self.ranks if call.kind == "new_group" else call.group
            counts = {m: self._count(m, _key(m, call)) for m in members if m != rank}
            return {m for m, count in counts.items() if count is not None and count < call.number}
        if call.peer is None or self._takes_any(rank) or self._takes_any(call.peer):
            return set()  # which message a receive from any rank takes is not known
        kind = "recv" if call.kind == "send" else "send"
        count = self._count(call.peer, (kind, rank, call.tag, call.group_name))
        return {call.peer} if count is not None and count < call.number else set()

    def _takes_any(self, rank: int) -> bool:
        return any(c.kind == "recv" and c.peer is None for c in self.ranks[rank].calls)

    def differences(self) -> list[Difference]:
        """For every group in which a rank waits: the first collective that differs."""
        found = {}
        for calls in self.open.values():
            for call, _ in calls:
                found.setdefault(_key(0, call), None if call.is_message else call)
        for rank, one in self.ranks.items():  # complete as it seems, yet it waits there
            if rank in self.open and one.call and not one.call.is_message:
                found.setdefault(_key(0, one.call), one.call)
        differences = (self._difference(call) for call in found.values() if call)
        return [difference for difference in differences if difference]

    def _difference(self, waiting: Call) -> Difference | None:
        members = self.ranks if waiting.kind == "new_group" else waiting.group
        key = _key(0, waiting)
        own = {m: [c for c in self.ranks[m].calls if _key(0, c) == key] for m in members}
        numbered = {m: {call.number: call for call in calls} for m, calls in own.items()}
        whole, agreed = all(self.ranks[m].complete for m in members), False
        for number in sorted(set().union(*numbered.values())):
            calls = {m: mine[number] for m, mine in numbered.items() if number in mine}
            what = differs(list(calls.values()))
            if what and (whole or agreed):  # else an earlier difference may be forgotten
                return Difference(number, what, calls)
            if what:
                return None
            agreed = agreed or len(calls) > 1
        return None


def _counts(one: Whereabouts) -> dict[tuple, int]:
    return {_key(one.rank, call): call.number for call in one.calls}


def _key(rank: int, call: Call) -> tuple:
    """What a call is counted by."""
    if call.is_message:
        return call.kind, call.peer, call.tag, call.group_name
    return (call.kind,) if call.kind in ("new_group", "return") else ("", call.group_name)


def differs(calls: list[Call]) -> str | None:
    """What some calls, which shall meet, differ in."""
    first = calls[0]
    forward = all(call.flags & FORWARD for call in calls)
    if forward and len({call.flags & EVALUATES for call in calls}) > 1:
        return "evaluation"
    if len({call.kind for call in calls}) > 1:
        return "order"
    if first.kind == "new_group":
        return "new_group" if len({call.group for call in calls}) > 1 else None
    if len({call.root for call in calls}) > 1:
        return "root"
    if first.kind in _EQUAL and len({(call.bytes, call.dtype) for call in calls}) > 1:
        return "shape"
    return None
