"""What an answer may call and spend, read off the recording of one run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from course_utils.checks.cases import Misuse
from course_utils.checks.compare import Tolerance
from course_utils.launcher.words import ranks
from course_utils.network.network import Network
from course_utils.network.schedule import ReplayError
from course_utils.network.trace import Trace
from course_utils.record.event import Event
from course_utils.record.kinds import COLLECTIVES, KINDS

Budget = Mapping[str, float]
_SPENT = {
    "sent_bytes": "sends {:g} bytes; {:g} are enough.",
    "sent_messages": "sends {:g} messages; {:g} are enough.",
    "finish_us": "is done after {:.6g} us on the modelled network; {:.6g} us are enough.",
}


@dataclass
class Rules:
    """What an answer has to keep to besides its specification; ValueError if it cannot be meant."""

    forbid: Collection[str]
    require: Collection[str]
    budget: Budget | Callable[[int, Any], Budget] | None
    network: Network | None
    tolerance: Tolerance

    def __post_init__(self) -> None:
        if isinstance(self.forbid, str) or isinstance(self.require, str):
            raise ValueError("forbid and require are tuples, such as ('all_reduce',)")
        self.forbid, self.require = set(self.forbid), set(self.require)
        if "collectives" in self.forbid:
            self.forbid = self.forbid - {"collectives"} | set(COLLECTIVES)
        if unknown := sorted((self.forbid | self.require) - set(KINDS)):
            raise ValueError(f"{unknown[0]!r} is never recorded; there are: {', '.join(KINDS)}")

    def limits(self, world_size: int, case: Any) -> Budget:
        """The budget of one case; raises Misuse if it cannot be meant."""
        found = self.budget(world_size, case) if callable(self.budget) else self.budget or {}
        if unknown := sorted(set(found) - set(_SPENT)):
            raise Misuse(f"{unknown[0]!r} is no budget; there are: {', '.join(_SPENT)}")
        if "finish_us" in found and self.network is None:
            raise Misuse("a budget of finish_us needs network=Network(...)")
        return found


def broken(trace: Trace, case: Any, rules: Rules) -> str | None:
    """Say which rule a run breaks whose results are right, or None."""
    if reason := _at_odds(trace):
        return reason
    try:
        trace.schedule("ring")
    except ReplayError as error:
        said = str(error)
        return f"{said[0].upper()}{said[1:]} Every message needs a sender and a receiver."
    for event in trace:
        if event.kind in rules.forbid:
            return f"{_of(event)}: this exercise is to be solved without {event.kind}."
    return _over_budget(trace, case, rules)


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
    algorithm = rules.network.algorithm if rules.network else "ring"
    for name, limit in rules.limits(trace.world_size, case).items():
        spent = trace.replay(rules.network) if name == "finish_us" else trace.traffic(algorithm)
        used = getattr(spent, name)
        most = max(used)
        if most > limit * (1 + 1e-9):
            rank = used.index(most)
            return f"Rank {rank} {_SPENT[name].format(most, limit)} {_calls(trace, rank)}"
    return None


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
