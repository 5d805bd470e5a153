"""The judge compares what ranks returned with what is wanted, and what they called with the rules.

It runs in a process of its own, when the workers that ran the answer are gone: no process that runs
an answer ever holds what is wanted. It also keeps the specification out of the kernel. If that
called backward() there, a kernel on a machine with a GPU could not fork any more.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from course_checks import careful
from course_checks.attempt import Attempt, Run, RunReport, seed_for_answer
from course_checks.cases import Inputs, Misuse, draw
from course_checks.compare import brief, difference, dtypes_of, leaves
from course_checks.flops import flops
from course_checks.multiples import factor_in_words
from course_checks.outcome import Outcome, Row
from course_checks.rules import Rules, broken, unwaited
from course_utils.hang.facts import in_short as ranks
from course_utils.launcher.language import N_, _, capitalized, sentences, separated
from course_utils.network.trace import Trace
from course_utils.record.event import Event

_CALLS = 5  # if there are more calls, they are only counted
_ON_FRESH = N_(
    "Right with numbers that are the same in every run, wrong with numbers drawn a moment ago. "
    "Perhaps these are a case that the others are not. If not, what a rank returns does not come "
    "from what it is given and what others send, or it is luck who comes first: a race, such as a "
    "tensor that is used before wait()."
)


def judge(attempts: list[Attempt], inputs: Inputs, spec: Callable, rules: Rules) -> Outcome | None:
    """Return the outcome of the first run that is wrong, or None.

    Raises:
        Misuse: `inputs` or `spec` is wrong.
    """
    for attempt in attempts:
        for number in range(len(attempt.reports)):
            outcome = _judge_run(attempt, number, inputs, spec, rules)
            if outcome is not None:
                return outcome
    return None


def rows_of_failed(failed: Attempt, inputs: Inputs, spec: Callable) -> list[Row]:
    """What ranks were given in the run that raised or hung, and what was wanted of them.

    Empty if a rank has ended before it said what its numbers were drawn from.
    """
    if len(failed.secrets) < failed.world_size:
        return []
    run = failed.runs[failed.reached]
    by_rank = _draw_again(failed, run, inputs)
    rows = []
    for given in _given(by_rank, failed.parameters):
        row = Row(given, wanted="", got="", wrong=False)
        rows.append(row)
    wanted = _wanted(spec, by_rank, run.case)  # this may change what was given
    for rank, output in enumerate(wanted):
        text = brief(output)
        rows[rank] = rows[rank]._replace(wanted=text)
    for failure in failed.error.failures:
        if not failure.echo:  # it complains of no other rank
            rank = failure.rank
            rows[rank] = rows[rank]._replace(wrong=True)
    return rows


def _draw_again(attempt: Attempt, run: Run, inputs: Inputs) -> list[tuple]:
    """The arguments that the ranks had in a run."""
    world_size = attempt.world_size
    by_rank = []
    for rank in range(world_size):
        seed = run.seed(rank, world_size, attempt.secrets[rank])
        arguments = draw(inputs, rank, world_size, run.case, seed)
        again = draw(inputs, rank, world_size, run.case, seed)
        if brief(arguments) != brief(again):
            raise Misuse(_("inputs may depend on its arguments and on torch's random numbers only"))
        by_rank.append(arguments)
    counts = [len(arguments) for arguments in by_rank]
    if len(set(counts)) != 1:
        texts = list(map(str, counts))
        raise Misuse(
            _(
                "inputs must give every rank as many arguments; it gave {counts}",
                counts=separated(texts),
            )
        )
    return by_rank


def _wanted(spec: Callable, by_rank: list[tuple], case: Any) -> list[Any]:
    """What each rank is to return, given the arguments of all ranks."""
    n = len(by_rank)
    try:
        parameters = zip(*by_rank, strict=True)
        lists = map(list, parameters)
        wanted = spec(*lists)
    except Exception as error:
        message = _(
            "spec failed on {n} ranks, {case}: {kind}: {error}",
            n=n,
            case=case,
            kind=type(error).__name__,
            error=error,
        )
        raise Misuse(message) from error
    is_list = isinstance(wanted, list | tuple)
    if is_list and len(wanted) == n:
        return list(wanted)
    if is_list:
        outputs = _("{count} outputs", count=len(wanted))
    else:
        outputs = brief(wanted)
    raise Misuse(
        _(
            "spec must return a list with one output for each of {n} ranks, got {outputs}",
            n=n,
            outputs=outputs,
        )
    )


def _judge_run(
    attempt: Attempt, number: int, inputs: Inputs, spec: Callable, rules: Rules
) -> Outcome | None:
    """The outcome of a run if it is wrong, or None."""
    run = attempt.runs[number]
    trace = attempt.traces[number]
    reports = attempt.reports[number]
    arguments = _draw_again(attempt, run, inputs)
    given = _given(arguments, attempt.parameters)  # now, since spec may change them
    dtypes = dtypes_of(arguments)
    counts = rules.work and not run.fresh
    with flops(counts) as count_flops:
        wanted = _wanted(spec, arguments, run.case)
    reason = unwaited(trace)
    if reason:
        return attempt.wrong(number, reason)
    try:
        got, differences = _compared(reports, wanted, rules, dtypes)
    except Exception as error:  # whatever an answer returns, it is the answer that is wrong
        exception = type(error).__name__
        message = _(
            "What it returns cannot be compared with what is wanted: {exception}: {error}",
            exception=exception,
            error=error,
        )
        return attempt.wrong(number, message)
    if any(differences):
        mistake = _mistake(attempt, number, inputs, rules, got)
        if not mistake:
            mistake = factor_in_words(wanted, got)
        wrong = _wrong_ranks(differences)
        hint = _hint(wanted, got, wrong)
        outcome = _wrong_results(attempt, number, given, wanted, got, differences, mistake, hint)
        first = wrong[0]
        needs_others = partial(_needs_others, attempt, run, inputs, spec, first, wanted[first])
        is_explained = bool(mistake or hint)
        calls = _calls(trace, first, needs_others, is_explained)
        message = sentences(outcome.message, calls)
        return replace(outcome, message=message)
    for report in reports:
        if report.seen:
            return attempt.wrong(number, report.seen)
    spent = [report.flops for report in reports]
    total = count_flops()
    is_empty = _is_empty(wanted)
    reason = broken(rules, trace, run.case, spent, total, is_empty)
    if reason:
        return attempt.wrong(number, reason)
    return None


def _compared(
    reports: Sequence[RunReport], wanted: list[Any], rules: Rules, dtypes: set[torch.dtype]
) -> tuple[list[Any], list[str | None]]:
    """What each rank has returned, and how that differs from what is wanted (None if it doesn't).

    Raises:
        Exception: Of any kind, since a rank may return anything.
    """
    got = []
    differences = []
    for report, wanted_of_rank in zip(reports, wanted, strict=True):
        result = careful.unpack(report.packed)
        got.append(result)
        differs = difference(wanted_of_rank, result, rules.tolerance, dtypes)
        differences.append(differs)
    return got, differences


def _wrong_ranks(differences: list[str | None]) -> list[int]:
    """The ranks that have not returned what is wanted."""
    wrong = []
    for rank, differs in enumerate(differences):
        if differs:
            wrong.append(rank)
    return wrong


def _given(by_rank: list[tuple], parameters: Sequence[str]) -> list[str]:
    """By rank, its arguments in short."""
    return [_in_short(arguments, parameters) for arguments in by_rank]


def _in_short(arguments: tuple, parameters: Sequence[str]) -> str:
    """One rank's arguments, as the table of a failing case shows them: several with their names."""
    texts = []
    for argument in arguments:
        texts.append(brief(argument))
    if 1 < len(texts) <= len(parameters):
        named_texts = zip(parameters, texts, strict=False)  # there may be further parameters
        texts = [f"{name}={text}" for name, text in named_texts]
    return ", ".join(texts)


def _wrong_results(
    attempt: Attempt,
    number: int,
    given: list[str],
    wanted: list[Any],
    got: list[Any],
    differences: list[str | None],
    mistake: str,
    hint: str,
) -> Outcome:
    """The outcome of a run in which some rank has not returned what is wanted."""
    wrong = _wrong_ranks(differences)
    first = wrong[0]
    first_difference = differences[first]
    rows = []
    for rank, arguments in enumerate(given):
        wanted_text = brief(wanted[rank], first_difference)
        got_text = brief(got[rank], first_difference)
        row = Row(arguments, wanted_text, got_text, rank in wrong)
        rows.append(row)
    parts = []
    if len(wrong) > 1:
        all_wrong = _("{ranks} are wrong.", ranks=ranks(wrong))
        parts.append(capitalized(all_wrong))
    parts.append(mistake)
    about_first = _("Rank {rank}: {difference}.", rank=first, difference=first_difference)
    parts.append(about_first)
    parts.append(hint)
    if attempt.runs[number].fresh:
        parts.append(_(_ON_FRESH))
    return attempt.wrong(number, sentences(*parts), rows)


def _mistake(attempt: Attempt, number: int, inputs: Inputs, rules: Rules, got: list[Any]) -> str:
    """The sentence on a likely mistake that leads to just these results; empty if none does."""
    run = attempt.runs[number]
    for sentence, mistaken_spec in rules.mistakes.items():
        arguments = _draw_again(attempt, run, inputs)  # the specification may have changed them
        dtypes = dtypes_of(arguments)
        seed_for_answer(0, len(attempt.runs), number)  # what rank 0 has drawn is drawn again
        mistaken = _wanted(mistaken_spec, arguments, run.case)
        differences = []
        for mistaken_of_rank, result in zip(mistaken, got, strict=True):
            differs = difference(mistaken_of_rank, result, rules.tolerance, dtypes)
            differences.append(differs)
        if not any(differences):
            return _(sentence)
    return ""


def _hint(wanted: list[Any], got: list[Any], wrong: list[int]) -> str:
    """What is often the reason if these ranks are wrong."""
    first = wrong[0]
    if all(got[rank] is None for rank in wrong):
        return _("Does every way through your function come to a `return`?")
    if wanted[first] is None:
        return _("Where None is wanted, nothing is to be returned.")
    result = got[first]
    if not isinstance(result, list | tuple):
        return ""
    for n, item in enumerate(result):
        if difference(wanted[first], item) is None:
            return _("It returns too much: item {n} alone is what is wanted.", n=n)
    return ""


def _counted(events: list[Event]) -> list[str]:
    """Such as `all_reduce once`, for each kind of call."""
    calls = []
    counts = Counter(event.kind for event in events)
    for kind, n in counts.items():
        if n == 1:
            calls.append(_("{kind} once", kind=kind))
        else:
            calls.append(_("{kind} {n} times", kind=kind, n=n))
    return calls


def _needs_others(
    attempt: Attempt, run: Run, inputs: Inputs, spec: Callable, rank: int, wanted: Any
) -> bool:
    """Whether what is wanted of a rank changes if all ranks are given what this one is."""
    alike = []
    for _rank in range(attempt.world_size):
        by_rank = _draw_again(attempt, run, inputs)  # each time: the specification may change it
        alike.append(by_rank[rank])
    try:
        wanted_if_alike = _wanted(spec, alike, run.case)
    except Misuse:  # these are no inputs that it was made for
        return True
    return difference(wanted, wanted_if_alike[rank]) is not None


def _calls(trace: Trace, rank: int, needs_others: Callable[[], bool], is_explained: bool) -> str:
    """What a rank has called, for a learner to compare with what it should have called.

    Of one that has called nothing it's only said where it needs something of the others; of one
    whose results are explained already nothing is asked, since that would lead away from it.
    """
    if trace.world_size == 1:
        return ""
    events = []
    for event in trace.of_rank(rank):
        if event.kind != "wait":
            events.append(event)
    if not events:
        if not needs_others():
            return ""
        return _("It called nothing.")
    if is_explained:
        return ""
    if len(events) > _CALLS:
        calls = _counted(events)
    else:
        calls = [event.what for event in events]
    return _("For you to compare: it called {calls}.", calls=separated(calls))


def _is_empty(wanted: list[Any]) -> bool:
    """Whether there is no number in what is wanted, so that no call needs to carry one."""
    for leaf in leaves(wanted):
        if not isinstance(leaf, torch.Tensor):
            return False
        if leaf.numel():
            return False
    return True
