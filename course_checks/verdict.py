"""The judge: what ranks returned beside what was wanted, what they called beside what they may.

It runs in a process of its own, when the workers that ran the answer are gone: no process that runs
an answer ever holds what is wanted. It also spares the kernel a specification that calls
backward(), after which a kernel on a machine with a GPU could not fork any more.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from course_checks import careful
from course_checks.attempt import Attempt, Run
from course_checks.cases import Inputs, Misuse, draw
from course_checks.compare import brief, difference, dtypes_of
from course_checks.outcome import Outcome, Row
from course_checks.rules import Rules, broken, unwaited
from course_checks.watch import flops
from course_utils.hang.facts import in_short as ranks
from course_utils.network.trace import Trace

_CALLS = 5  # that are named one by one
_ON_FRESH = (
    "Right with numbers that are the same in every run, wrong with numbers drawn a moment ago. "
    "Perhaps these are a case that the others are not. If not, what a rank returns does not come "
    "from what it is given and what others send, or it is luck who comes first: a race, such as a "
    "tensor that is used before wait(). "
)


def judge(attempts: list[Attempt], inputs: Inputs, spec: Callable, rules: Rules) -> Outcome | None:
    """Find the first run that is wrong; raises Misuse if `inputs` or `spec` are."""
    found = (_judge_run(a, n, inputs, spec, rules) for a in attempts for n in range(len(a.told)))
    return next((outcome for outcome in found if outcome is not None), None)


def _draw_again(attempt: Attempt, run: Run, inputs: Inputs) -> list[tuple]:
    n, arguments = attempt.world_size, []
    for rank in range(n):
        seed = run.seed(rank, n, attempt.secrets[rank])
        own, again = (draw(inputs, rank, n, run.case, seed) for _ in range(2))
        if brief(own) != brief(again):
            raise Misuse("inputs may depend on its arguments and on torch's random numbers only")
        arguments.append(own)
    if len({len(own) for own in arguments}) != 1:
        counts = ", ".join(str(len(own)) for own in arguments)
        raise Misuse(f"inputs must give every rank as many arguments; it gave {counts}")
    return arguments


def _wanted(spec: Callable, arguments: list[tuple], case: Any) -> list[Any]:
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
    attempt: Attempt, number: int, inputs: Inputs, spec: Callable, rules: Rules
) -> Outcome | None:
    run, trace, told = attempt.runs[number], attempt.traces[number], attempt.told[number]
    arguments = _draw_again(attempt, run, inputs)
    given = [", ".join(map(brief, own)) for own in arguments]  # spec may change them
    dtypes = dtypes_of(arguments)
    with flops(rules.work and not run.fresh) as whole:
        wanted = _wanted(spec, arguments, run.case)
    if reason := unwaited(trace):
        return attempt.wrong(number, reason)
    try:
        got = [careful.unpack(own.packed) for own in told]
        pairs = zip(wanted, got, strict=True)
        found = [difference(*pair, rules.tolerance, dtypes) for pair in pairs]
    except Exception as error:  # whatever an answer returns, it is the answer that is wrong
        said = f"cannot be compared with what is wanted: {type(error).__name__}: {error}"
        return attempt.wrong(number, f"What it returns {said}")
    wrong = [rank for rank, one in enumerate(found) if one]
    if not wrong:
        seen = (f"Rank {rank} {own.seen}" for rank, own in enumerate(told) if own.seen)
        done = [own.flops for own in told]
        reason = next(seen, None) or broken(rules, trace, run.case, done, whole(), _empty(wanted))
        return attempt.wrong(number, reason) if reason else None
    first, said = wrong[0], found[wrong[0]]
    columns = (given, *([brief(x, said) for x in own] for own in (wanted, got)), map(bool, found))
    who = f"{ranks(wrong).capitalize()} are wrong. " if len(wrong) > 1 else ""
    hint, calls = _hint(wanted, got, wrong), _calls(trace, first)
    reason = "".join([who, f"Rank {first}: {said}. ", hint, _ON_FRESH * run.fresh, calls])
    return attempt.wrong(number, reason.rstrip(), [Row(*row) for row in zip(*columns, strict=True)])


def _hint(wanted: list[Any], got: list[Any], wrong: list[int]) -> str:
    """What is often the reason for what these ranks return."""
    first, one = wrong[0], got[wrong[0]]
    if all(got[rank] is None for rank in wrong):
        return "Does every way through your function come to a `return`? "
    if wanted[first] is None:
        return "Where None is wanted, nothing is to be returned. "
    items = one if isinstance(one, list | tuple) else ()
    right = [n for n, item in enumerate(items) if difference(wanted[first], item) is None]
    return f"It returns too much: item {right[0]} alone is what is wanted. " if right else ""


def _calls(trace: Trace, rank: int) -> str:
    """What a rank has called, for a learner to compare with what it should have."""
    called = [event for event in trace.of_rank(rank) if event.kind != "wait"]
    calls = [event.what for event in called]
    if len(calls) > _CALLS:
        counts = Counter(event.kind for event in called)
        calls = [f"{kind} {f'{n} times' if n > 1 else 'once'}" for kind, n in counts.items()]
    said = f"It called {', '.join(calls)}." if calls else "It called nothing."
    return said if trace.world_size > 1 else ""


def _empty(wanted: Any) -> bool:
    """Whether there is no number in what is wanted, so that no call has one."""
    return all(isinstance(own, torch.Tensor) and not own.numel() for own in tree_leaves(wanted))
