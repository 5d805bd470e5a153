"""The judge: what ranks returned beside what was wanted, what they called beside what they may.

It runs in a process of its own, when the workers that ran the answer are gone: no process that runs
an answer ever holds what is wanted. It also spares the kernel a specification that calls
backward(), after which a kernel on a machine with a GPU could not fork any more.
"""

from collections.abc import Callable, Collection
from typing import Any

from course_utils.checks.attempt import Attempt
from course_utils.checks.cases import Inputs, Misuse, draw, public_seed
from course_utils.checks.compare import brief, difference
from course_utils.checks.outcome import WRONG, Outcome, Row, many
from course_utils.checks.rules import Rules, broken, unwaited
from course_utils.launcher import parcel
from course_utils.launcher.words import ranks
from course_utils.network.trace import Trace

_CALLS = 5  # that are named one by one
_ON_FRESH = (
    "Right on numbers that are the same in every run, wrong on {} with numbers drawn a moment ago. "
    "What a rank returns must come from what it is given and from what other ranks send it."
)


def judge(attempts: list[Attempt], inputs: Inputs, spec: Callable, rules: Rules) -> Outcome | None:
    """Find the first run that is wrong; raises Misuse if `inputs` or `spec` are."""
    for attempt in attempts:
        for number in range(len(attempt.got)):
            arguments = _draw_again(attempt, number, inputs)
            given = [", ".join(map(brief, own)) for own in arguments]  # spec may change them
            wanted = _wanted(spec, arguments, attempt.runs[number].case)
            if (found := _judge_run(attempt, number, given, wanted, rules)) is not None:
                return found
    return _missing(attempts, rules.require)


def _draw_again(attempt: Attempt, number: int, inputs: Inputs) -> list[tuple]:
    """Each rank's arguments."""
    n, run, arguments = attempt.world_size, attempt.runs[number], []
    for rank in range(n):
        seed = public_seed(rank, n, run.number)
        seed = attempt.seeds.get((rank, number), seed) if run.fresh else seed
        own, again = (draw(inputs, rank, n, run.case, seed) for _ in range(2))
        if brief(own) != brief(again):
            raise Misuse("inputs may depend on its arguments and on torch's random numbers only")
        arguments.append(own)
    if len({len(own) for own in arguments}) != 1:
        counts = ", ".join(str(len(own)) for own in arguments)
        raise Misuse(f"inputs must give every rank as many arguments; it gave {counts}")
    return arguments


def _wanted(spec: Callable, arguments: list[tuple], case: Any) -> list[Any]:
    """What each rank should have returned."""
    n = len(arguments)
    try:
        wanted = spec(*(list(column) for column in zip(*arguments, strict=True)))
    except Exception as error:
        where = f"on {n} ranks, {case}"
        raise Misuse(f"spec failed {where}: {type(error).__name__}: {error}") from error
    if not isinstance(wanted, list | tuple) or len(wanted) != n:
        what = f"{len(wanted)} outputs" if isinstance(wanted, list | tuple) else brief(wanted)
        raise Misuse(f"spec must return a list with one output for each of {n} ranks, got {what}")
    return list(wanted)


def _judge_run(
    attempt: Attempt, number: int, given: list[str], wanted: list[Any], rules: Rules
) -> Outcome | None:
    run, trace = attempt.runs[number], attempt.traces[number]
    if reason := unwaited(trace):
        return attempt.wrong(number, reason)
    got = [parcel.unpack(packed) for packed in attempt.got[number]]
    told = [difference(*pair, rules.tolerance) for pair in zip(wanted, got, strict=True)]
    wrong = [rank for rank, one in enumerate(told) if one]
    if not wrong:
        reason = broken(trace, run.case, rules)
        return attempt.wrong(number, reason) if reason else None
    if run.fresh:
        return attempt.wrong(number, _ON_FRESH.format(ranks(wrong)))
    columns = (given, map(brief, wanted), map(brief, got), map(bool, told))
    who = f"{ranks(wrong).capitalize()} are wrong. " if len(wrong) > 1 else ""
    reason = f"{who}Rank {wrong[0]}: {told[wrong[0]]}. {_calls(trace, wrong[0])}"
    return attempt.wrong(number, reason.rstrip(), [Row(*row) for row in zip(*columns, strict=True)])


def _calls(trace: Trace, rank: int) -> str:
    """What a rank has called, for a learner to compare with what it should have."""
    if trace.world_size == 1:
        return ""
    calls = [event.what for event in trace.of_rank(rank) if event.kind != "wait"]
    more = f", and {len(calls) - _CALLS} more" if len(calls) > _CALLS else ""
    return f"It called {', '.join(calls[:_CALLS]) or 'nothing'}{more}."


def _missing(attempts: list[Attempt], require: Collection[str]) -> Outcome | None:
    for size in sorted({attempt.world_size for attempt in attempts} - {1}):
        traces = [trace for own in attempts if own.world_size == size for trace in own.traces]
        called = {event.kind for trace in traces for event in trace}
        if missing := sorted(set(require) - called):
            reason = f"It never calls {missing[0]}: this exercise is to be solved with it."
            return Outcome(attempts[0].name, WRONG, many([size]), reason)
    return None
