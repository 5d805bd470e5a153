"""What an answer may call and spend, checked on the recording of one run."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from course_checks.cases import Misuse
from course_checks.compare import Tolerance
from course_checks.watch import WORDS
from course_utils.hang.facts import in_short as ranks
from course_utils.launcher.language import N_, _, capitalized, sentences
from course_utils.network.network import Network
from course_utils.network.schedule import ReplayError
from course_utils.network.trace import Trace
from course_utils.record import waits
from course_utils.record.event import COLLECTIVES, KINDS, Event

Budget = Mapping[str, float]
BudgetOf = Callable[[int, Any], Budget]  # of a world size and a case, as the next one
WorkOf = Callable[[int, Any], float]
_SPENT = {
    "collective_calls": N_("Rank {rank} makes {spent:g} collective calls; {enough:g} would do."),
    "sent_bytes": N_("Rank {rank} sends {spent:g} bytes; {enough:g} are enough."),
    "sent_messages": N_("Rank {rank} sends {spent:g} messages; {enough:g} are enough."),
    "finish_us": N_(
        "Rank {rank} is done after {spent:.6g} µs on the modelled network; {enough:.6g} µs are "
        "enough."
    ),
}


@dataclass
class Rules:
    """What an answer has to keep to besides its specification.

    Raises:
        ValueError: The exercise asks for what cannot be meant.
    """

    forbid: Collection[str]
    require: Collection[str]
    budget: Budget | BudgetOf | None
    network: Network | None
    tolerance: Tolerance
    allow: Collection[str] = ()
    keep: Collection[str] = ()
    work: float | WorkOf | None = None
    hide: Collection[Callable] = ()
    mistakes: Mapping[str, Callable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, known in WORDS.items():
            given = getattr(self, option)
            unknown = _first_unknown(given, known)
            if unknown is not None:
                words = ", ".join(sorted(known))
                raise ValueError(
                    _(
                        "{unknown!r} is nothing to {option}; there are: {words}",
                        unknown=unknown,
                        option=option,
                        words=words,
                    )
                )
        self.forbid = set(self.forbid)
        self.require = set(self.require)
        if "collectives" in self.forbid:
            self.forbid.remove("collectives")
            self.forbid.update(COLLECTIVES)
        unknown = _first_unknown(self.forbid | self.require, KINDS)
        if unknown is not None:
            words = ", ".join(KINDS)
            raise ValueError(
                _("{unknown!r} is never recorded; there are: {words}", unknown=unknown, words=words)
            )


def _first_unknown(given: Collection[str], known: Collection[str]) -> str | None:
    """The first word that is not known, in the order of letters, or None."""
    for word in sorted(given):
        if word not in known:
            return word
    return None


def broken(
    rules: Rules, trace: Trace, case: Any, flops: list[int], total: int, is_empty: bool
) -> str | None:
    """Say which rule a run breaks whose results are right, or None.

    Args:
        rules: The rules.
        trace: The recording of the run.
        case: What it ran on.
        flops: How many floating-point operations each rank has computed.
        total: How many the specification has computed.
        is_empty: Whether there is no number in what is wanted.
    """
    reason = _at_odds(trace)
    if reason:
        return reason
    for event in trace:
        if event.kind in rules.forbid:
            return _(
                "{call}: this exercise is to be solved without {kind}.",
                call=_call(event),
                kind=event.kind,
            )
    try:
        trace.schedule("ring")
        reason = _over_budget(trace, case, rules)
    except ReplayError as error:
        why = _("Every message needs a sender and a receiver.")
        return sentences(capitalized(str(error)), why)
    if reason or trace.world_size == 1:
        return reason
    if rules.work:
        factor = _for(rules.work, trace, case)
        reason = _overworked(flops, total, factor)
        if reason:
            return reason
    return _missing(trace, rules.require, is_empty)


def _for(limit: Any, trace: Trace, case: Any) -> Any:
    """A limit, which may be a function of world size and case."""
    if callable(limit):
        return limit(trace.world_size, case)
    return limit


def _missing(trace: Trace, required: Collection[str], is_empty: bool) -> str | None:
    """Say which required kind of call is missing, or None.

    What carries no data does not count, unless there is none to carry.
    """
    ranks_by_kind = {kind: set() for kind in required}
    called = set()
    for event in trace:
        called.add(event.kind)
        counts = event.bytes or is_empty or event.kind == "barrier"
        has_others = len(event.group) > 1
        if counts and has_others and event.kind in ranks_by_kind:
            ranks_by_kind[event.kind].add(event.rank)
    for kind in sorted(required):
        who = _who_lacks(kind, ranks_by_kind[kind], trace.world_size)
        if not who:
            continue
        if kind in called:
            return _(
                "{who} never calls {kind} with any data in it: this exercise is to be solved with "
                "it.",
                who=who,
                kind=kind,
            )
        return _(
            "{who} never calls {kind}: this exercise is to be solved with it.",
            who=who,
            kind=kind,
        )
    return None


def _who_lacks(kind: str, callers: set[int], world_size: int) -> str:
    """Such as `Rank 1`, or `It` where nobody makes a call; empty where enough ranks do."""
    if not callers:
        return _("It")
    if kind not in COLLECTIVES:
        return ""
    for rank in range(world_size):
        if rank not in callers:
            return _("Rank {rank}", rank=rank)
    return ""


def _overworked(flops: list[int], total: int, factor: float) -> str | None:
    """Say which rank computes too much, or None; `factor` of an equal share is enough."""
    most = max(flops)
    enough = factor * total / len(flops)
    if most <= enough:
        return None
    rank = flops.index(most)
    share = most / total
    enough_share = enough / total
    return _(
        "Rank {rank} computes {share:.0%} of what one process computes that does all the work (in "
        "floating-point operations, forward and backward); {enough:.0%} are enough: the work is to "
        "be divided among the ranks.",
        rank=rank,
        share=share,
        enough=enough_share,
    )


def unwaited(trace: Trace) -> str | None:
    """Say which operation nobody has waited for, or None; also if torch shows not every wait."""
    if not waits.are_seen():
        return None
    waited_for = set()
    for event in trace:
        if event.kind == "wait":
            operation = (event.rank, event.of)
            waited_for.add(operation)
    for event in trace:
        if event.blocking or event.kind == "wait":
            continue
        operation = (event.rank, event.index)
        if operation not in waited_for:
            return _(
                "{call} was never waited for: until you call wait() on what it returned, its "
                "tensor may be neither filled nor sent.",
                call=_call(event),
            )
    return None


def _at_odds(trace: Trace) -> str | None:
    """Say which groups meet that were not meant to: they are numbered in the order of calls."""
    first_of_group: dict[str, Event] = {}
    for event in trace:
        first = first_of_group.setdefault(event.group_name, event)
        if first.group != event.group:
            return _(
                "Rank {first} uses a group of {ranks} where rank {other} uses one of "
                "{other_ranks}: every rank has to call new_group for every group, member or not, "
                "in the same order.",
                first=first.rank,
                ranks=ranks(first.group),
                other=event.rank,
                other_ranks=ranks(event.group),
            )
    return None


def _over_budget(trace: Trace, case: Any, rules: Rules) -> str | None:
    """Say which rank spends more than it may, or None."""
    limits = _for(rules.budget or {}, trace, case)
    unknown = _first_unknown(limits, _SPENT)
    if unknown is not None:
        words = ", ".join(_SPENT)
        raise Misuse(
            _("{unknown!r} is no budget; there are: {words}", unknown=unknown, words=words)
        )
    if "finish_us" in limits and rules.network is None:
        raise Misuse(_("a budget of finish_us needs network=Network(...)"))
    algorithm = "ring"
    if rules.network:
        algorithm = rules.network.algorithm
    without_barriers = _without_barriers(trace)
    for name, limit in limits.items():
        if name == "finish_us":
            replay = trace.replay(rules.network)
            spent = replay.finish_us
        elif name == "collective_calls":
            spent = _collective_calls(without_barriers)
        else:
            traffic = without_barriers.traffic(algorithm)
            spent = getattr(traffic, name)
        most = max(spent)
        if most > limit * (1 + 1e-9):
            rank = spent.index(most)
            spends = _(_SPENT[name], rank=rank, spent=most, enough=limit)
            return sentences(spends, _calls(trace, rank))
    return None


def _collective_calls(trace: Trace) -> list[int]:
    """How many collectives each rank calls."""
    counts = [0] * trace.world_size
    for event in trace:
        if event.kind in COLLECTIVES:
            counts[event.rank] += 1
    return counts


def _without_barriers(trace: Trace) -> Trace:
    """What carries data: one barrier more than it takes is no message too many."""
    barriers = set()
    for event in trace:
        if event.kind == "barrier":
            barrier = (event.rank, event.index)
            barriers.add(barrier)
    if not barriers:
        return trace
    kept = []
    for event in trace:
        waits_for_barrier = (event.rank, event.of) in barriers
        if event.kind != "barrier" and not waits_for_barrier:
            kept.append(event)
    events = tuple(kept)
    return Trace(events, trace.ended_s)


def _calls(trace: Trace, rank: int) -> str:
    """What a rank has called, most costly lines first."""
    counts = Counter()  # by line
    sizes = Counter()  # likewise, in bytes
    for event in trace.of_rank(rank):
        if event.kind not in ("wait", "recv"):
            counts[event.where] += 1
            sizes[event.where] += event.bytes
    if not counts:
        return ""
    # By size; lines of the same size by how often they call.
    lines = sorted(counts, key=counts.get, reverse=True)
    lines.sort(key=sizes.get, reverse=True)
    calls = []
    for line in lines[:3]:
        count = counts[line]
        size = sizes[line]
        call = _("{count} x at {line} ({size} bytes)", count=count, line=line, size=size)
        calls.append(call)
    listed = _("; ").join(calls)
    return _("Its calls: {calls}.", calls=listed)


def _call(event: Event) -> str:
    return _("Rank {rank}'s {call} at {line}", rank=event.rank, call=event.what, line=event.where)
