"""What an answer may call and spend, read off the recording of one run."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from course_utils.checks.cases import Misuse
from course_utils.checks.compare import Tolerance
from course_utils.launcher.words import ranks
from course_utils.network.network import Network
from course_utils.network.schedule import ReplayError
from course_utils.network.trace import Trace
from course_utils.record.event import Event
from course_utils.record.kinds import COLLECTIVES, KINDS

BUDGETS = ("sent_bytes", "sent_messages", "finish_us")
Budget = Mapping[str, float]


class Rules(NamedTuple):
    """What an answer has to keep to besides its specification; tolerance: relative, absolute."""

    forbid: frozenset[str]
    require: frozenset[str]
    budget: Callable[[int, Any], Budget]
    network: Network | None
    tolerance: Tolerance


def make_rules(
    forbid: Collection[str],
    require: Collection[str],
    budget: Budget | Callable[[int, Any], Budget] | None,
    network: Network | None,
    tolerance: Tolerance,
) -> Rules:
    """The rules of a check.

    Raises:
        ValueError: They cannot be meant.
    """
    if isinstance(forbid, str) or isinstance(require, str):
        raise ValueError("forbid and require are tuples, such as ('all_reduce',)")
    forbidden = {kind for kind in forbid if kind != "collectives"}
    forbidden |= set(COLLECTIVES if "collectives" in forbid else ())
    if unknown := sorted((forbidden | set(require)) - set(KINDS)):
        raise ValueError(f"{unknown[0]!r} is never recorded; there are: {', '.join(KINDS)}")

    def limits(world_size: int, case: Any) -> Budget:
        found = budget(world_size, case) if callable(budget) else budget or {}
        if unknown := sorted(set(found) - set(BUDGETS)):
            raise Misuse(f"{unknown[0]!r} is no budget; there are: {', '.join(BUDGETS)}")
        if "finish_us" in found and network is None:
            raise Misuse("a budget of finish_us needs network=Network(...)")
        return found

    return Rules(frozenset(forbidden), frozenset(require), limits, network, tolerance)


def broken(trace: Trace, case: Any, rules: Rules) -> str | None:
    """Say which rule a run breaks whose results are right, or None."""
    return (
        _at_odds(trace)
        or _unmatched(trace)
        or _forbidden(trace, rules.forbid)
        or _over_budget(trace, case, rules)
    )


def unwaited(trace: Trace) -> str | None:
    """Say which operation nobody has waited for, or None."""
    waited = {(e.rank, e.of) for e in trace if e.kind == "wait"}
    for event in trace:
        pending = not event.blocking and event.kind != "wait"
        if pending and (event.rank, event.index) not in waited:
            return (
                f"{_of(event)} was never waited for: until you call wait() on what it returned, "
                "its tensor may be neither filled nor sent."
            )
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


def _unmatched(trace: Trace) -> str | None:
    try:
        trace.schedule("ring")
    except ReplayError as error:
        said = str(error)
        return f"{said[0].upper()}{said[1:]} Every message needs a sender and a receiver."
    return None


def _forbidden(trace: Trace, forbid: frozenset[str]) -> str | None:
    for event in trace:
        if event.kind in forbid:
            return f"{_of(event)}: this exercise is to be solved without {event.kind}."
    return None


def _over_budget(trace: Trace, case: Any, rules: Rules) -> str | None:
    limits = rules.budget(trace.world_size, case)
    if not limits:
        return None
    algorithm = rules.network.algorithm if rules.network else "ring"
    traffic = trace.traffic(algorithm)
    used = {"sent_bytes": traffic.sent_bytes, "sent_messages": traffic.sent_messages}
    if "finish_us" in limits:
        used["finish_us"] = trace.replay(rules.network).finish_us
    for name, limit in limits.items():
        most = max(used[name])
        if most > limit * (1 + 1e-9):
            rank = used[name].index(most)
            return f"Rank {rank} {_SPENT[name].format(most, limit)} {_calls(trace, rank)}"
    return None


_SPENT = {
    "sent_bytes": "sends {:g} bytes; {:g} are enough.",
    "sent_messages": "sends {:g} messages; {:g} are enough.",
    "finish_us": "is done after {:.6g} us on the modelled network; {:.6g} us are enough.",
}


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
