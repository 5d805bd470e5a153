"""Many wrong answers in one launch, each of them judged as if it were alone.

Most wrong answers return something wrong and harm nobody. Between any two of them runs a right
one, and a verdict counts as long as every right one before it is found right: nobody is wrong for
what another one left behind. Who crashes or hangs has to be tried alone.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import labs

from course_checks.attempt import Attempt, Run, attempt
from course_checks.cases import CASES
from course_checks.check import plan
from course_checks.outcome import Outcome
from course_checks.rules import Rules
from course_checks.verdict import judge
from course_checks.watch import Watch
from course_utils import check

# Of a launch, which on a busy machine takes a minute; of launches in which another answer fails.
PATIENCE_S, TRIES = 120.0, 3
DEFAULTS = {name: own.default for name, own in inspect.signature(check).parameters.items()}


def reject(
    subtests: Any, right: Callable, wrong: list[Callable], options: dict[str, Any],
    stops: Collection[str] = (),
) -> None:  # fmt: skip
    """Assert that a check rejects each of these answers; `stops` names those that crash or hang."""
    told = rejected(right, [fn for fn in wrong if fn.__name__ not in stops], options)
    for fn in wrong:
        with subtests.test(fn.__name__):
            if fn not in told:
                outcome = labs.judged_alone(fn, options)
                assert outcome.state == "wrong", f"{fn.__name__}: {outcome}"
                told[fn] = outcome.message
            assert told[fn]


def accept(right: list[Callable], options: dict[str, Any]) -> None:
    """Assert that a check, of one world size, accepts each of these answers."""
    left = right
    if options.get("backend", "") is not None or "processes" in options.get("allow", ()):
        whole = DEFAULTS | options
        ((_, runs),) = plan(whole["world_sizes"], whole["cases"], one_by_one=False)
        turns = [(fn, runs) for fn in right]
        done = _attempt(turns, whole)
        if not done.error:
            left = [fn for fn, said in zip(right, _said(turns, done, whole), strict=True) if said]
    for fn in left:
        assert check(fn, **options).require()


def rejected(
    right: Callable, wrong: Iterable[Callable], options: dict[str, Any]
) -> dict[Callable, str]:
    """What those wrong answers are told that are rejected together; others are to be tried alone.

    `right` is a right one, `options` are those of the check.
    """
    found: dict[Callable, str] = {}
    # Else an answer makes a group for each case; who starts processes makes it there.
    if options.get("backend", "") is not None or "processes" in options.get("allow", ()):
        left = list(wrong)
        for part, runs in _rounds(options):
            found |= _in_one_launch(right, left, DEFAULTS | part, runs)
            left = [fn for fn in left if fn not in found]
    return found


def _rounds(options: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[Run]]]:
    """What to try with each answer: the last case; all of each size; what a check has of each."""
    cases, sizes = list(options.get("cases", CASES)), labs.sizes(options)
    known = [Run(number, case) for number, case in enumerate(cases)]
    if len(cases) > 1:
        yield options | {"world_sizes": sizes[:1], "require": ()}, known[-1:]
    for size in sizes:
        yield options | {"world_sizes": [size]}, known
    for size in sizes:
        ((_, runs),) = plan([size], cases, one_by_one=False)
        yield options | {"world_sizes": [size]}, runs


def _in_one_launch(
    right: Callable, wrong: list[Callable], options: dict[str, Any], runs: list[Run]
) -> dict[Callable, str]:
    for _ in range(TRIES):
        if not wrong:
            break
        between = Run(0, next(iter(options["cases"])))
        turns = [(right, [between])]
        for fn in wrong:
            turns += [(fn, runs), (right, [between])]
        done = _attempt(turns, options)
        if not done.error:
            return _verdicts(turns, done, options)
        reached = [fn for fn, many in turns for _ in many][: done.reached + 1]
        failed = next((fn for fn in reversed(reached) if fn is not right), None)
        if failed is None:
            break
        wrong.remove(failed)  # for good: our caller's list
    return {}


def _attempt(turns: list[tuple[Callable, list[Run]]], options: dict[str, Any]) -> Attempt:
    flat = [(fn, run) for fn, many in turns for run in many]

    def answer(number: int, *arguments: Any) -> Any:
        return flat[number][0](*arguments)

    def inputs(rank: int, world_size: int, case: tuple[int, Any]) -> tuple:
        drawn = options["inputs"](rank, world_size, case[1])
        return case[0], *(drawn if isinstance(drawn, tuple) else (drawn,))

    answer.__wrapped__ = turns[1 % len(turns)][0]  # what wraps it may do what the answer may not
    watch = Watch(answer, options["spec"], False, _rules(options))
    (size,) = options["world_sizes"]
    how = {"backend": options["backend"], "timeout": PATIENCE_S}
    how["nodes"] = 1 if size % options["nodes"] else options["nodes"]
    asked = [run._replace(case=(n, run.case)) for n, (_, run) in enumerate(flat)]
    return attempt("together", watch, inputs, size, asked, **how)


def _rules(options: dict[str, Any]) -> Rules:
    names = "forbid", "require", "budget", "network"
    rest = (options["rtol"], options["atol"]), options["allow"], options["keep"], options["work"]
    rest += (options["hide"],)
    return Rules(*(options[name] for name in names), *rest)


@labs.one_thread()
def _said(
    turns: list[tuple[Callable, list[Run]]], done: Attempt, options: dict[str, Any]
) -> list[str | None]:
    """By turn, what is wrong with it, or None."""
    known, said, start = {}, [], 0
    for _, many in turns:
        outcomes = (_verdict(done, start + n, run, options, known) for n, run in enumerate(many))
        said.append(next((one.message for one in outcomes if one is not None), None))
        start += len(many)
    return said


def _verdicts(
    turns: list[tuple[Callable, list[Run]]], done: Attempt, options: dict[str, Any]
) -> dict[Callable, str]:
    said = _said(turns, done, options)
    found: dict[Callable, str] = {}
    for n in range(0, len(turns) - 1, 2):
        if said[n]:  # of a right one: what went before has done something to it
            break
        if said[n + 1]:
            found[turns[n + 1][0]] = said[n + 1]
    return found


def _verdict(
    done: Attempt, number: int, run: Run, options: dict[str, Any], known: dict[Any, Any]
) -> Outcome | None:
    """The judge's, of one run; what is `known` of one with the same numbers is not made anew."""
    rules, key = _rules(options), (run.number, run.order)

    def once(*of: Any, make: Callable, given: tuple) -> Any:
        if rules.work or (key, *of) not in known:  # what a specification computes may count
            known[(key, *of)] = make(*given)
        return known[(key, *of)]

    def inputs(rank: int, *rest: Any) -> Any:
        return once(rank, make=options["inputs"], given=(rank, *rest))

    def spec(*given: Any) -> Any:
        return once(make=options["spec"], given=given)

    reports, traces = done.reports[number : number + 1], done.traces[number : number + 1]
    one = Attempt("one", done.world_size, [run], reports, traces, done.secrets)
    return judge([one], inputs, spec, rules)
