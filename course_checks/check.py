"""Check an answer against the specification of its exercise, in real workers.

A collective is a function from all ranks' inputs to all ranks' outputs. So an exercise shows its
specification as a plain function of one process. An answer is right if the ranks return what that
function says, at every world size, and keep to the rules.
"""

import contextlib
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from course_checks.attempt import Attempt, Run, attempt
from course_checks.cases import CASES, Inputs
from course_checks.edited import overtaken
from course_checks.missing import not_there_yet
from course_checks.outcome import (
    NOT_ATTEMPTED,
    NOT_CHECKED,
    PASSED,
    WRONG,
    Outcome,
    Row,
    many,
    note,
)
from course_checks.rules import Budget, Rules
from course_checks.verdict import judge, rows_of_failed
from course_checks.watch import Watch
from course_utils.hang.rules import LONG_OR_ENDLESS, LONG_OR_MISMATCHED
from course_utils.launcher.errors import WorkerError, WorkerTimeout, not_done
from course_utils.launcher.language import N_, _, capitalized, ngettext
from course_utils.launcher.launch import launch
from course_utils.launcher.listener import ScaledTimeout
from course_utils.launcher.words import ranks_listed
from course_utils.network.network import Network

_JUDGE_S = 60.0  # for the judge, who reads results and runs the specification
# Advice of the launcher's, and what to say instead: the timeout is not the learner's to raise.
_ADVICE = {
    LONG_OR_ENDLESS: N_(
        "Look for an endless loop, or for work that is done far more often than it need be."
    ),
    LONG_OR_MISMATCHED: N_(
        "Look for different groups, and for a peer or a source that does not match."
    ),
}
_A_STUB = re.compile(r"about (\d+) lines?")  # what the stub of an exercise says; see `cells`
PlannedLaunch = tuple[int, list[Run]]  # on how many ranks, and what


def check(
    fn: Callable | None,
    *,
    spec: Callable,
    inputs: Inputs,
    world_sizes: Iterable[int] = (1, 2, 3),
    cases: Sequence[Any] = CASES,
    forbid: Collection[str] = (),
    require: Collection[str] = (),
    budget: Budget | Callable[[int, Any], Budget] | None = None,
    network: Network | None = None,
    work: float | Callable[[int, Any], float] | None = None,
    allow: Collection[str] = (),
    keep: Collection[str] = (),
    hide: Collection[Callable] = (),
    mistakes: Mapping[str, Callable] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    backend: str | None = "gloo",
    nodes: int = 1,
    timeout: float = 10.0,
) -> Outcome:
    """Run an answer in real workers and say whether it does what its specification says.

    Args:
        fn: The answer. Every rank calls `fn(*arguments)`; it may change its arguments.
        spec: What is wanted, as a function of one process. It has the parameters of `fn`, each as
            a list with one entry per rank, and returns a list with what each rank should return.
        inputs: `inputs(rank, world_size, case)` gives a rank's argument, or a tuple of them. It may
            draw from torch's random numbers, which are seeded before, and from nothing else.
        world_sizes: Numbers of ranks to try.
        cases: What to try with each; `str(case)` is what the learner reads. By default seven kinds
            of tensors: `case.tensor()` makes one, `case.number` counts them.
        forbid: What must not be called, such as "all_reduce"; "collectives" are all but send
            and recv. What counts is what the recording shows, whatever name it was called by.
        require: What has to be called in every case where there is more than one rank, and with
            data; a collective by every rank.
        budget: The most that one rank may spend: any of "collective_calls", "sent_bytes",
            "sent_messages" and "finish_us", judged in the dict's order; a dict,
            or a function of world size and case that gives one.
        network: What "finish_us" is measured on, and whose algorithm collectives are counted by.
        work: The most that one rank may compute, in equal shares of the floating-point operations
            of `spec`: with 1.2, 60 % of them on two ranks; or a function like that of a budget.
        allow: What is otherwise refused: the side channels "store", "backend", "files", "sockets",
            "processes" and "memory"; to look into "frames"; and to leave another "folder",
            "environment", "grad mode" or "dtype" behind.
        keep: What is to be left as it was as well: "random numbers".
        hide: Functions that an answer cannot call, as it cannot call `spec`, such as those that
            `spec` is made of.
        mistakes: Specifications of what likely mistakes lead to, by the sentences that name them.
            If results are wrong and are those of one of these, the outcome says its sentence.
            What such a specification draws from torch's random numbers is what rank 0 has drawn.
        rtol: Relative tolerance for floating-point numbers; by default that of their dtype.
        atol: Absolute tolerance, likewise.
        backend: As for `launch`. With None the answer makes the group, in a launch for each case.
        nodes: As for `launch`, at world sizes that it divides.
        timeout: Seconds for one launch, on a quiet machine; on a slower or busier one it gets as
            many times more as that is slower at this moment. All cases of a world size share one.
            Ranks that still call something when they are over get up to six times as many.

    Returns:
        The outcome, which a notebook shows as a table. A wrong answer, be it a hang or a crash,
        raises nothing; `check(...).require()` does. An answer that lacks a name of a cell further
        up, which has not run yet, is not checked.

    Raises:
        ValueError: The exercise itself cannot be right; the message is for whoever wrote it.
    """
    mistakes = mistakes or {}
    tolerance = rtol, atol
    rules = Rules(forbid, require, budget, network, tolerance, allow, keep, work, hide, mistakes)
    sizes = sorted(world_sizes)
    name = getattr(fn, "__name__", "answer")
    if not sizes or not cases:
        raise ValueError(_("check needs at least one world size and one case"))
    if fn is None:
        return note(Outcome(name, NOT_ATTEMPTED))
    if callable(fn):
        message = overtaken(fn)
    else:
        message = _("A function is wanted, and this is {value!r:.60}.", value=fn)
    if message:
        return note(Outcome(name, WRONG, message=message))
    makes_group = backend is None
    watch = Watch(fn, spec, makes_group, rules)
    options = {"backend": backend, "nodes": nodes, "timeout": timeout, "alone": sizes == [1]}
    attempting = partial(_attempts, name, watch, inputs, options)
    judging = partial(judge, inputs=inputs, spec=spec, rules=rules)
    launches = plan(sizes, cases, one_by_one=makes_group)
    outcome = _try_launches(launches, attempting, judging)
    return note(outcome)


def _try_launches(
    launches: list[PlannedLaunch], attempting: Callable, judging: Callable
) -> Outcome:
    """What becomes of an answer in these launches, of which the first that fails is the last.

    Args:
        launches: As `plan` gives them.
        attempting: Launches the answer on so many ranks, on these runs; see `_attempts`.
        judging: As for `_outcome`.
    """
    fewest = _fewest_with_others(launches)
    attempts: list[Attempt] = []
    is_judged = False
    for size, runs in launches:
        if size > fewest and not is_judged:
            # What is wrong on two ranks may hang on four: it is said before it is tried there.
            early = _outcome(attempts, judging)
            if not early:
                return early
            is_judged = True
        attempts += attempting(size, runs)
        if attempts[-1].error:
            break
    return _outcome(attempts, judging)


def _fewest_with_others(launches: list[PlannedLaunch]) -> int:
    """The smallest world size of at least two, or else the largest."""
    for size, _runs in launches:
        if size > 1:
            return size
    return size


def _attempts(
    name: str, watch: Watch, inputs: Inputs, options: dict[str, Any], size: int, runs: list[Run]
) -> list[Attempt]:
    """The answer's launch on these runs; before it, if it failed, one on those that succeeded."""
    if size % options["nodes"]:
        options = options | {"nodes": 1}
    last = attempt(name, watch, inputs, size, runs, **options)
    if not last.error or not last.reached:
        return [last]
    if _is_stub(last.error):
        return [last]
    succeeded = runs[: last.reached]  # which are to be judged as well
    before = attempt(name, watch, inputs, size, succeeded, **options)
    return [before, last]


def plan(sizes: list[int], cases: Sequence[Any], one_by_one: bool) -> list[PlannedLaunch]:
    """What to launch: small before large, and what can be shown before what cannot."""
    shown = []
    for number, case in enumerate(cases):
        run = Run(number, case)
        shown.append(run)
    if one_by_one:
        return _one_by_one(sizes, shown)
    launches = []
    for size in sizes:
        # If there are fewer cases than ranks, they are repeated, so that each of three comes late.
        late_ranks = min(size, 3)
        times = math.ceil(late_ranks / len(shown))
        fresh = _fresh(times * shown, size)
        runs = shown + fresh
        launches.append((size, runs))
    return launches


def _one_by_one(sizes: list[int], shown: list[Run]) -> list[PlannedLaunch]:
    """A launch for each run; with fresh numbers on the most ranks only."""
    launches = []
    for size in sizes:
        for run in shown:
            launches.append((size, [run]))
    largest = sizes[-1]
    for run in _fresh(shown, largest):
        launches.append((largest, [run]))
    return launches


def _fresh(runs: list[Run], size: int) -> list[Run]:
    """These runs with fresh numbers; in each, the ranks come in a different order."""
    fresh_runs = []
    for number, run in enumerate(runs):
        order = 0
        if size > 1:
            order = number
        fresh_run = run._replace(fresh=True, order=order)
        fresh_runs.append(fresh_run)
    return fresh_runs


def _outcome(attempts: list[Attempt], judging: Callable) -> Outcome:
    """What became of an answer.

    Args:
        attempts: All launches of it, in order. If one failed, it is the last one.
        judging: Finds the first wrong run of the others. It works in a process of its own.
    """
    last = attempts[-1]
    if last.error:
        _refuse_misuse(last.error)
        if _is_stub(last.error):
            headline = _headline(last.error)
            _kind, _colon, words = headline.partition(": ")
            length = _length_of_stub(words)
            return Outcome(last.name, NOT_ATTEMPTED, length)
        message = not_there_yet(last.name, last.error)
        if message:
            return Outcome(last.name, NOT_CHECKED, message=message)
    succeeded = [done for done in attempts if not done.error]
    if succeeded:
        try:
            outcome = _in_a_process(judging, succeeded)
        except WorkerError as error:
            _refuse_misuse(error)
            message = _("Its results and calls cannot be judged: {error}", error=error)
            return succeeded[-1].wrong(0, message)
        if outcome is not None:
            return outcome
    if last.error:
        rows = _rows_of_failed(last, judging)
        return last.wrong(last.reached, _message(last), rows)
    return _passed(attempts)


def _passed(attempts: list[Attempt]) -> Outcome:
    """The outcome of an answer that is right in all runs."""
    last = attempts[-1]
    sizes = set()
    traces = []
    for done in attempts:
        size = done.world_size
        sizes.add(size)
        for run, trace in zip(done.runs, done.traces, strict=True):
            traces.append((size, run.case, trace))
    where = ""
    if not last.alone:
        where = many(sizes)
    return Outcome(last.name, PASSED, where, traces=traces)


def _in_a_process(judging: Callable, judged: Any) -> Any:
    """What the judge says of attempts, in a process of its own."""
    scaled = ScaledTimeout(_JUDGE_S)
    with contextlib.redirect_stdout(io.StringIO()):
        results = launch(judging, judged, world_size=1, timeout=_JUDGE_S, listeners=[scaled])
    return results[0]


def _rows_of_failed(failed: Attempt, judging: Callable) -> list[Row]:
    """What ranks were given when one of them failed, read in a process of its own."""
    inputs = judging.keywords["inputs"]
    spec = judging.keywords["spec"]
    reading = partial(rows_of_failed, inputs=inputs, spec=spec)
    try:
        return _in_a_process(reading, failed)
    except WorkerError as error:
        _refuse_misuse(error)
        return []


def _headline(error: WorkerError) -> str:
    """Such as `ValueError: no`; empty where nothing was raised."""
    if not error.failures:
        return ""
    return error.failures[0].headline


def _refuse_misuse(error: WorkerError) -> None:
    """Raise ValueError if it is the exercise that is wrong."""
    headline = _headline(error)
    if headline.startswith("Misuse: "):
        complaint = headline.removeprefix("Misuse: ")
        raise ValueError(complaint) from None


def _is_stub(error: WorkerError) -> bool:
    """Whether the answer itself says that it is not written yet, not some operation of torch."""
    name = "NotImplementedError"
    if not _headline(error).startswith(name):
        return False
    frames = error.failures[0].frames
    if not frames:
        return False
    raised_at = frames[-1]
    if not raised_at.is_learners:
        return False
    line = raised_at.code or name
    return name in line


def _length_of_stub(words: str) -> str:
    """What a stub says: the length of an answer in the learner's language, or words of its own."""
    length = _A_STUB.fullmatch(words)
    if length is None:
        return words
    count = int(length[1])
    return ngettext("about {count} line", "about {count} lines", count, count=count)


def _message(failed: Attempt) -> str:
    """The launcher's message, in which ranks that wait for the next case count as returned."""
    error = failed.error
    message = str(error)
    if isinstance(error, WorkerTimeout):
        busy = _busy_ranks(error)
        if not busy:
            busy = list(range(failed.world_size))
        beginning = _not_done(failed, busy, error.seconds)
        others = filter(None, error.parts[1:])
        message = "\n\n".join([beginning, *others])
    for advice, instead in _ADVICE.items():
        message = message.replace(_(advice), _(instead))
    return capitalized(message)


def _busy_ranks(error: WorkerTimeout) -> list[int]:
    """The ranks that have not returned."""
    busy = []
    for rank, whereabouts in error.waiting.items():
        if whereabouts.state != "returned":
            busy.append(rank)
    return busy


def _not_done(failed: Attempt, busy: list[int], seconds: float) -> str:
    """Who was not done, and what had to be done in that time."""
    if seconds == math.inf:
        return not_done(busy, seconds)
    work = _("one case is")
    count = len(failed.runs)
    if count > 1:
        on_ranks = many([failed.world_size])
        work = _("all {count} runs on {ranks} are", count=count, ranks=on_ranks)
    ranks = ranks_listed(busy)
    return ngettext(
        "rank {ranks} was not done after {seconds:g} s, in which {work} to be done.",
        "ranks {ranks} were not done after {seconds:g} s, in which {work} to be done.",
        len(busy),
        ranks=ranks,
        seconds=seconds,
        work=work,
    )
