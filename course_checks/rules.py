"""What an answer may call and spend, read off the recording of one run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from course_checks.cases import Misuse
from course_checks.compare import Tolerance
from course_checks.watch import WORDS
from course_utils.hang.facts import in_short as ranks
from course_utils.network.network import Network
from course_utils.network.schedule import ReplayError
from course_utils.network.trace import Trace
from course_utils.record.event import COLLECTIVES, KINDS, Event

Budget = Mapping[str, float]
_SPENT = {
    "sent_bytes": "sends {:g} bytes; {:g} are enough",
    "sent_messages": "sends {:g} messages; {:g} are enough",
    "finish_us": "is done after {:.6g} µs on the modelled network; {:.6g} µs are enough",
}


@dataclass
class Rules:
    """What an answer has to keep to besides its specification; ValueError if it cannot be meant."""

    forbid: Collection[str]
    require: Collection[str]
    budget: Budget | Callable[[int, Any], Budget] | None
    network: Network | None
    tolerance: Tolerance
    allow: Collection[str] = ()
    keep: Collection[str] = ()
    work: float | Callable[[int, Any], float] | None = None
    hide: Collection[Callable] = ()

    def __post_init__(self) -> None:
        for option, known in WORDS.items():
            if unknown := sorted(set(getattr(self, option)) - known):
                words = ", ".join(sorted(known))
                raise ValueError(f"{unknown[0]!r} is nothing to {option}; there are: {words}")
        self.forbid, self.require = set(self.forbid), set(self.require)
        if "collectives" in self.forbid:
            self.forbid = self.forbid - {"collectives"} | set(COLLECTIVES)
        if unknown := sorted((self.forbid | self.require) - set(KINDS)):
            raise ValueError(f"{unknown[0]!r} is never recorded; there are: {', '.join(KINDS)}")


def broken(
    rules: Rules, trace: Trace, case: Any, flops: Collection[int], whole: int, empty: bool
) -> str | None:
    """Say which rule a run breaks whose results are right, or None.

    Its ranks have computed `flops` of the `whole`; there is no number in what is wanted if `empty`.
    """
    if reason := _at_odds(trace):
        return reason
    for event in trace:
        if event.kind in rules.forbid:
            return f"{_of(event)}: this exercise is to be solved without {event.kind}."
    try:
        trace.schedule("ring")
        spent = _over_budget(trace, case, rules)
    except ReplayError as error:
        said = str(error)
        why = "Every message needs a sender and a receiver."
        return " ".join([said[0].upper() + said[1:], why])
    if spent or trace.world_size == 1:
        return spent
    work = rules.work and _overworked(flops, whole, _for(rules.work, trace, case))
    return work or _missing(trace, rules.require, empty)


def _for(limit: Any, trace: Trace, case: Any) -> Any:
    """What may be a function of world size and case."""
    return limit(trace.world_size, case) if callable(limit) else limit


def _missing(trace: Trace, require: Collection[str], empty: bool) -> str | None:
    real = {
        (event.rank, event.kind)
        for event in trace
        if (event.bytes or empty or event.kind == "barrier") and len(event.group) > 1
    }
    for kind in sorted(require):
        ranks_ = range(trace.world_size) if kind in COLLECTIVES else ()
        lacking = [rank for rank in ranks_ if (rank, kind) not in real]
        if lacking or all(own != kind for _, own in real):
            said = " with any data in it" * any(event.kind == kind for event in trace)
            who = f"Rank {lacking[0]}" if 0 < len(lacking) < trace.world_size else "It"
            return f"{who} never calls {kind}{said}: this exercise is to be solved with it."
    return None


def _overworked(flops: Collection[int], whole: int, factor: float) -> str | None:
    most, enough = max(flops), factor * whole / len(flops)
    if most <= enough:
        return None
    return (
        f"Rank {flops.index(most)} computes {most / whole:.0%} of what one process computes that "
        f"does all the work (in floating-point operations, forward and backward); "
        f"{enough / whole:.0%} are enough: the work is to be divided among the ranks."
    )


def unwaited(trace: Trace) -> str | None:
    """Say which operation nobody has waited for, or None."""
    waited = {(e.rank, e.of) for e in trace if e.kind == "wait"}
    for event in trace:
        if not (event.blocking or event.kind == "wait" or (event.rank, event.index) in waited):
            until = "until you call wait() on what it returned, its tensor may be neither"
            return f"{_of(event)} was never waited for: {until} filled nor sent."
    return None


def _at_odds(trace: Trace) -> str | None:
    """Groups are numbered in the order of calls, so two may meet that were meant to be others."""
    meant: dict[str, Event] = {}
    for event in trace:
        first = meant.setdefault(event.group_name, event)
        if first.group != event.group:
            return (
                f"Rank {first.rank} uses a group of {ranks(first.group)} where rank {event.rank} "
                f"uses one of {ranks(event.group)}: every rank has to call new_group for every "
                "group, member or not, in the same order."
            )
    return None


def _over_budget(trace: Trace, case: Any, rules: Rules) -> str | None:
    limits = _for(rules.budget or {}, trace, case)
    if unknown := sorted(set(limits) - set(_SPENT)):
        raise Misuse(f"{unknown[0]!r} is no budget; there are: {', '.join(_SPENT)}")
    if "finish_us" in limits and rules.network is None:
        raise Misuse("a budget of finish_us needs network=Network(...)")
    algorithm = rules.network.algorithm if rules.network else "ring"
    sent = _without_barriers(trace)
    for name, limit in limits.items():
        spent = trace.replay(rules.network) if name == "finish_us" else sent.traffic(algorithm)
        used = getattr(spent, name)
        most, rank = max(used), used.index(max(used))
        if most > limit * (1 + 1e-9):
            said = _SPENT[name].format(most, limit)
            return " ".join([f"Rank {rank} {said}.", _calls(trace, rank)]).rstrip()
    return None


def _without_barriers(trace: Trace) -> Trace:
    """What carries data: one barrier more than it takes is no message too many."""
    barriers = {(event.rank, event.index) for event in trace if event.kind == "barrier"}
    kept = (e for e in trace if not {(e.rank, e.index), (e.rank, e.of)} & barriers)
    return Trace(tuple(kept), trace.ended) if barriers else trace


def _calls(trace: Trace, rank: int) -> str:
    """What a rank has called, most costly lines first."""
    spent: dict[str, tuple[int, int]] = {}
    for event in trace.of_rank(rank):
        if event.kind not in ("wait", "recv"):
            count, size = spent.get(event.where, (0, 0))
            spent[event.where] = count + 1, size + event.bytes
    lines = sorted(spent.items(), key=lambda item: (-item[1][1], -item[1][0]))[:3]
    said = [f"{count} x at {where} ({size} bytes)" for where, (count, size) in lines]
    return f"It calls {'; '.join(said)}." if said else ""


def _of(event: Event) -> str:
    return f"Rank {event.rank}'s {event.what} at {event.where}"
