"""The judge: what ranks returned beside what was wanted, what they called beside what they may.

It runs in a process of its own, when the workers that ran the answer are gone: no process that runs
an answer ever holds what is wanted. It also spares the kernel a specification that calls
backward(), after which a kernel on a machine with a GPU could not fork any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_utils.checks.attempt import Attempt
from course_utils.checks.cases import Inputs, Misuse, columns, draw, public_seed
from course_utils.checks.compare import brief, difference
from course_utils.checks.rules import Rules, broken, unwaited
from course_utils.launcher import parcel
from course_utils.launcher.words import ranks
from course_utils.network.trace import Trace

_CALLS = 5  # that are named one by one


class Row(NamedTuple):
    """One rank of a failing case."""

    given: str
    wanted: str
    got: str
    wrong: bool


@dataclass
class Finding:
    """The first thing that is wrong.

    Attributes:
        at: The launch and the run in it, by their numbers; None where it is about all runs.
        world_size: How many ranks there were.
        case: Its name; empty where it is about all cases.
        reason: What is wrong, and where to look.
        rows: What each rank was given, should have returned, and did; or nothing.
    """

    at: tuple[int, int] | None
    world_size: int
    case: str
    reason: str
    rows: Sequence[Row] = ()


def judge(attempts: list[Attempt], inputs: Inputs, spec: Callable, rules: Rules) -> Finding | None:
    """Find the first run that is wrong.

    Raises:
        Misuse: `inputs` or `spec` do not do what they should.
    """
    for launched, attempt in enumerate(attempts):
        for number, run in enumerate(attempt.runs[: len(attempt.got)]):
            given, wanted = _specified(attempt, number, inputs, spec)
            found = _judge_run(attempt, number, given, wanted, rules)
            if found:
                return Finding((launched, number), attempt.world_size, str(run), *found)
    return _missing(attempts, rules.require)


def _specified(
    attempt: Attempt, number: int, inputs: Inputs, spec: Callable
) -> tuple[list[str], list[Any]]:
    """What the ranks were given, in words, and what each should have returned."""
    n, run = attempt.world_size, attempt.runs[number]
    arguments = []
    for rank in range(n):
        seed = public_seed(rank, n, run.number)
        seed = attempt.seeds.get((rank, number), seed) if run.fresh else seed
        twice = [draw(inputs, rank, n, run.case, seed) for _ in range(2)]
        if brief(twice[0]) != brief(twice[1]):
            raise Misuse("inputs may depend on its arguments and on torch's random numbers only")
        arguments.append(twice[0])
    given = [", ".join(map(brief, own)) for own in arguments]
    try:
        wanted = spec(*columns(arguments))
    except Misuse:
        raise
    except Exception as error:
        where = f"on {n} ranks, {run.case}"
        raise Misuse(f"spec failed {where}: {type(error).__name__}: {error}") from error
    if not isinstance(wanted, list | tuple) or len(wanted) != n:
        what = f"{len(wanted)} outputs" if isinstance(wanted, list | tuple) else brief(wanted)
        raise Misuse(f"spec must return a list with one output for each of {n} ranks, got {what}")
    return given, list(wanted)


def _judge_run(
    attempt: Attempt, number: int, given: list[str], wanted: list[Any], rules: Rules
) -> tuple[str, list[Row]] | None:
    run, trace = attempt.runs[number], attempt.traces[number]
    if reason := unwaited(trace):
        return reason, []
    got = [parcel.unpack(packed) for packed in attempt.got[number]]
    pairs = zip(wanted, got, strict=True)
    wrong = {r: found for r, (a, b) in enumerate(pairs)
             if (found := difference(a, b, rules.tolerance))}  # fmt: skip
    if wrong and run.fresh:
        return _ON_FRESH.format(ranks(wrong)), []
    if wrong:
        rows = zip(given, map(brief, wanted), map(brief, got), strict=True)
        marked = [Row(*row, rank in wrong) for rank, row in enumerate(rows)]
        return f"{_told(wrong)} {_calls(trace, min(wrong))}".rstrip(), marked
    reason = broken(trace, run.case, rules)
    return (reason, []) if reason else None


_ON_FRESH = (
    "Right on numbers that are the same in every run, wrong on {} with numbers drawn a moment ago. "
    "What a rank returns must come from what it is given and from what other ranks send it."
)


def _told(wrong: dict[int, str]) -> str:
    first = min(wrong)
    who = f"{ranks(wrong).capitalize()} are wrong. " if len(wrong) > 1 else ""
    return f"{who}Rank {first}: {wrong[first]}."


def _calls(trace: Trace, rank: int) -> str:
    """What a rank has called, for a learner to compare with what it should have."""
    if trace.world_size == 1:
        return ""
    calls = [event.what for event in trace.of_rank(rank) if event.kind != "wait"]
    more = f", and {len(calls) - _CALLS} more" if len(calls) > _CALLS else ""
    said = ", ".join(calls[:_CALLS]) or "nothing"
    return f"It called {said}{more}."


def _missing(attempts: list[Attempt], require: frozenset[str]) -> Finding | None:
    called: dict[int, set[str]] = {}
    for attempt in attempts:
        for trace in attempt.traces:
            called.setdefault(attempt.world_size, set()).update(event.kind for event in trace)
    for world_size, kinds in called.items():
        if world_size > 1 and (missing := sorted(require - kinds)):
            reason = f"It never calls {missing[0]}: this exercise is to be solved with it."
            return Finding(None, world_size, "", reason)
    return None
