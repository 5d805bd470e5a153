"""What went wrong in the workers, told to a learner: the root cause, its rank, its line, a way on.

Nothing here depends on the clock, a process id or an address, so that a notebook that provokes
an error on purpose prints the same words in every run.
"""

import itertools
import re
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from course_utils.launcher import echoes, reasons, stacks
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named as ranks
from course_utils.launcher.words import were, wrapped

_LOST_IN_ONE_WORDING = "RuntimeError: Connection closed by peer"  # gloo and the store have many
# What differs from run to run in others' messages: addresses, ports, process ids, source paths.
_UNSTABLE = re.compile(
    r" at 0x[0-9a-f]+| \[[\d.]+\]:\d+| \(pid(\(s\))? [\d, ]+\)|\[/\S+:\d+\] |(?<=pid )\d+|"
    r"(?<=enforce fail) at /[^\s\]]+"
)
_CODE_LINE = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in (\S+))?')  # of a traceback
# Torch raises again what ends a process or thread of its own, and puts a traceback into the words.
_RAISED_AGAIN = re.compile(
    r"Caught \w+ (in [^\n]+)\.\nOriginal Traceback \(most recent call last\):\n(.+)", re.DOTALL
)
_NEXT_TRACEBACK = re.compile(
    r"\n(The above exception was|During handling) [^\n]+\n\nTraceback \(most recent call last\):\n"
)
_NUMBERS = re.compile(r"\d[\d.]*(?:[\s,]+\d[\d.]*)*")
_LIMIT = 4000  # characters of an exception's own words that are kept
_SHORT = 200  # of a failure that is told beside the root cause
_MEMBERS = 8  # of an ExceptionGroup, and of the exceptions that led to one, that are told


@dataclass
class Failure:
    """How one rank failed, and when (seconds on the system's monotonic clock).

    Attributes:
        echo: What kind of complaint about other ranks it is, see `echoes`; empty for a cause.
        began_otherwise: Such a complaint came while an exception of the rank's own was handled.
        details: What caused it, its notes, and the members of an ExceptionGroup, a line each.
        died: The process ended without a word, such as by a signal.
    """

    rank: int
    when: float
    headline: str
    frames: Sequence[Frame] = ()
    echo: str = ""
    began_otherwise: bool = False
    details: Sequence[str] = ()
    died: bool = False

    @property
    def is_echo(self) -> bool:
        """Whether this rank only noticed that a peer was gone, or did not come."""
        return bool(self.echo)

    @property
    def kind(self) -> tuple[bool, bool, str]:
        """What ranks that fail alike have in common: the headline without its numbers."""
        return self.is_echo, self.began_otherwise, _NUMBERS.sub("#", self.headline)

    def story(self) -> str:
        """The headline, what led to it, and the learner's lines, the last with its neighbours."""
        own = [frame for frame in self.frames if frame.is_learners]
        own = [frame for frame in own if frame.code] or own  # a dataclass's methods have no text
        rows = dict.fromkeys(f"  {frame.place}: {frame.code}" for frame in own[:-1])
        again = ["  ..."] * (len(rows) < len(own) - 1)  # where a function calls itself
        last = [f"  {frame.place}\n{frame.excerpt()}".rstrip() for frame in own[-1:]]
        details = ["  " + detail.replace("\n", "\n  ") for detail in self.details]
        head = "\n".join([self.headline, *details])
        return "\n".join([head + "\n" * bool(own), *rows, *again, *last])

    def likely(self, world_size: int, output: str = "") -> str:
        """The likely reason, where there is one to tell."""
        reason = reasons.of_failure(self.headline, self.frames, output)
        if reason or self.began_otherwise:
            return reason
        return reasons.of_echo(self.echo, world_size)

    def _blame(self) -> tuple[int, bool, bool, float]:
        """The least is the root cause; a timer of the group ends before the peers' connections.

        That a process has died is heard after what its peers say of it, in words of their own.
        """
        rank_of_echo = 2 if self.echo and not self.began_otherwise else int(self.is_echo)
        return rank_of_echo, not self.died, self.echo == echoes.LOST, self.when


class WorkerError(RuntimeError):
    """At least one rank failed; the others were stopped.

    Attributes:
        parts: the paragraphs of the message: what failed, the likely reason, who was stopped.
        rank: the rank that is the root cause.
        failures: every failure that was seen, the root cause first.
        output: what each rank printed, by rank.
        trace: with `launch(trace=True)`, what was recorded until then; else None.
    """

    trace: Any = None

    def __init__(
        self, parts: Sequence[str], output: Sequence[str] = (), failures: Sequence[Failure] = ()
    ) -> None:
        self.parts, self.output, self.failures = list(parts), list(output), list(failures)
        super().__init__(self.parts)
        self.rank = failures[0].rank if failures else None

    def __str__(self) -> str:
        return "\n\n".join(filter(None, self.parts))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message, without the launcher's own frames above it."""
        notes = getattr(self, "__notes__", [])
        told = wrapped(f"{type(self).__name__}: {self}")
        coloured = told.replace(type(self).__name__, f"\x1b[0;31m{type(self).__name__}\x1b[0m", 1)
        return [coloured, *map(wrapped, notes)]


class WorkerTimeout(WorkerError):
    """The ranks were not done in time; the message says where each of them was.

    Its parts are who was not done, a row for every rank, and why. A listener fills the rest in:

    Attributes:
        when: time was up, in seconds on the system's monotonic clock.
        waiting: by rank, where it was: its state, its line, its calls, and that which it waited in.
        absent: the ranks that others waited for, and that waited for none.
        pattern: the name of the diagnosis, such as "order" or "uneven"; None where there is none.
    """

    def __init__(self, parts: Sequence[str], output: Sequence[str] = (), when: float = 0) -> None:
        super().__init__(parts, output)
        self.when = when
        self.waiting: dict[int, Any] = {}
        self.absent: list[int] = []
        self.pattern: str | None = None


def from_exception(rank: int, error: BaseException, note: str = "") -> Failure:
    """In the worker: what an exception says, in words that survive the trip to the kernel."""
    failures = getattr(error, "failures", None)
    if type(error).__name__ == "CheckpointException" and isinstance(failures, dict):
        return _from_checkpoint(rank, error, failures)
    headline = stable(note) if note else _named(error)
    details = _details(error)
    raised_again = _RAISED_AGAIN.match(_words(error))
    if raised_again:
        headline, *more = _raised_first(*raised_again.groups())
        details = [*more, *details]
    if isinstance(error, SystemExit):
        headline = f"sys.exit({'' if error.code is None else repr(error.code)}) was called"
    kinds = [echoes.kind_of(link, _words(link)) for link in echoes.chain(error)]
    echo = next(filter(None, kinds), "")
    if kinds[0] == echoes.LOST and not note and "connect to" not in headline:
        headline = _LOST_IN_ONE_WORDING
    frames = _frames(error)
    began_otherwise = bool(echo) and not kinds[-1]
    return Failure(
        rank, time.monotonic(), headline[:_LIMIT], frames, echo, began_otherwise, details
    )


def _from_checkpoint(rank: int, error: BaseException, failures: dict[int, Any]) -> Failure:
    """Where `dcp.save` failed on some ranks, all raise what all of these have raised."""
    frames, when = _frames(error), time.monotonic()
    if rank in failures:
        cause, _ = failures[rank]
        return Failure(rank, when, _named(cause), frames, details=_details(cause))
    headline = f"CheckpointException: {ranks(failures)} failed"
    causes = [f"rank {other}: {_named(cause)}" for other, (cause, _) in failures.items()]
    return Failure(rank, when, headline, frames, echoes.TOLD, details=causes[:_MEMBERS])


def stable(text: str) -> str:
    """A text of others without what differs from run to run, and files without their folders."""
    text = _CODE_LINE.sub(_place_of, _UNSTABLE.sub("", text))
    return text[:_LIMIT]


def _place_of(line: re.Match[str]) -> str:
    return Frame(line[1], int(line[2]), line[3] or "<module>").place


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(its message cannot be printed)"


def _named(error: BaseException) -> str:
    return stable(f"{type(error).__name__}: {_words(error)}".removesuffix(": "))


def _raised_first(where: str, tracebacks: str) -> list[str]:
    """What was raised in a process of torch's, where, and what led to it, a line each."""
    *earlier, last = _NEXT_TRACEBACK.split(tracebacks)
    headline, place = _words_and_place(last)
    lines = [headline, f"{where}{place}"]
    for trace, link in zip(earlier[-2::-2], earlier[::-2], strict=True):
        words, place = _words_and_place(trace)
        how = "caused by" if link.startswith("The") else "while handling"
        lines.append(f"{how} {words}{place}")
    return lines


def _words_and_place(trace: str) -> tuple[str, str]:
    """Of a traceback without its first line: what the exception says; `, cell [5], line 7`."""
    lines = trace.rstrip().split("\n")
    rows = list(itertools.takewhile(lambda line: line.startswith("  "), lines))
    words = "\n".join(lines[len(rows) :])
    calls = _CODE_LINE.findall("\n".join(rows))
    line = stacks.learners_line([Frame(file, int(number), name) for file, number, name in calls])
    return stable(words), f", {line.place}: {line.code}" if line else ""


def _frames(error: BaseException) -> list[Frame]:
    rows = traceback.extract_tb(error.__traceback__, limit=-40)  # the innermost
    return [Frame(row.filename, row.lineno or 0, row.name) for row in rows]


def _details(error: BaseException) -> list[str]:
    """A line for each note, each member of a group, and each exception that led to this one."""
    notes = getattr(error, "__notes__", ())
    lines = [stable(str(note)) for note in notes]
    if isinstance(error, BaseExceptionGroup):
        members = error.exceptions
        lines += [f"one of them: {_told_with_place(member)}" for member in members[:_MEMBERS]]
        for member in members[:_MEMBERS]:
            lines += [f"  {line}" for line in _details(member)]
    link = error
    for _ in range(_MEMBERS):
        if link.__cause__ is not None:
            link = link.__cause__
            lines.append(f"caused by {_told_with_place(link)}")
        elif link.__context__ is not None and not link.__suppress_context__:
            link = link.__context__
            lines.append(f"while handling {_told_with_place(link)}")
        else:
            break
    return lines[: 4 * _MEMBERS]


def _told_with_place(error: BaseException) -> str:
    """Such as `KeyError: 'label', cell [5], line 7, in train`."""
    line = stacks.learners_line(_frames(error))
    return f"{_named(error)}, {line.place}" if line else _named(error)


def from_exit(rank: int, status: int, dump: str) -> Failure:
    """In the kernel: what a wait status says about a rank that ended without a word."""
    headline = how_it_died(status)
    if status >= 0:
        headline += " before its function returned"
    crash = dump.partition("Fatal Python error")[2]  # before it: stacks that were asked for
    return Failure(rank, time.monotonic(), headline, stacks.from_dump(crash), died=True)


def how_it_died(status: int) -> str:
    """Such as `the process died of SIGKILL`, of an exit status or minus a signal's number."""
    if status >= 0:
        return f"the process left with exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"the process died of {names.get(-status, f'signal {-status}')}"


def worker_error(
    failures: list[Failure],
    world_size: int,
    output: list[str],
    stands: Mapping[int, list[Frame] | None] | None = None,
) -> WorkerError:
    """The error that names the root cause among the failures seen.

    Of those that are heard within a moment, signals and exits count before exceptions, and these
    in order of time; complaints about a lost peer come last. Ranks that failed with the same words,
    but for numbers, are named together, in rank order. `stands` says where the others were, if that
    is worth telling.
    """
    first = min(failures, key=Failure._blame)
    alike = [failure for failure in failures if failure.kind == first.kind]
    alike.sort(key=lambda failure: failure.rank)
    others = [failure for failure in failures if failure not in alike]
    others.sort(key=lambda failure: failure.rank)
    root = alike[0]
    named = [failure.rank for failure in alike]
    reason = root.likely(world_size, output[root.rank])
    why = f"Likely reason: {reason}." if reason else ""
    rows = _about_the_others(alike, others, world_size, stands or {})
    parts = [f"{ranks(named)} failed: {root.story()}", why, "\n".join(rows)]
    return WorkerError(parts, output, [*alike, *others])


def _about_the_others(
    alike: list[Failure],
    others: list[Failure],
    world_size: int,
    stands: Mapping[int, list[Frame] | None],
) -> list[str]:
    """A row for each thing that is to be said beside the root cause."""
    rows = []
    root = alike[0]
    different = [failure.rank for failure in alike if failure.headline != root.headline]
    if different:
        first_words = f"These are the words of rank {root.rank}."
        difference = f"Those of {ranks(different)} differ in numbers only."
        rows.append(f"{first_words} {difference}")
    rest = set(range(world_size)) - {failure.rank for failure in alike}
    for failure in others:
        if not failure.is_echo:  # of an echo it is not worth telling: its rank was stopped, too
            rest.remove(failure.rank)
            words = failure.headline.partition("\n")[0][:_SHORT]
            rows.append(f"Rank {failure.rank} failed as well: {words}")
    for rank in sorted(stands):
        rows.append(f"Rank {rank} was meanwhile {_stand(stands[rank])}")
    if rest:
        rows.append(f"{were(rest).capitalize()} stopped.")
    return rows


def worker_timeout(
    stands: Mapping[int, list[Frame] | None], output: list[str], seconds: float, when: float
) -> WorkerTimeout:
    """The error for ranks that are not done in time, or never will be (`seconds` is infinite).

    `stands` is the `ranks` of `Listener.on_error`.
    """
    running = [rank for rank, frames in stands.items() if frames is not None]
    head = f"{were(running)} not done after {seconds:g} s."
    if seconds == inf:
        head = f"{ranks(running)} would never be done."
    rows = "\n".join(f"  rank {rank}: {_stand(stands[rank])}" for rank in sorted(stands))
    return WorkerTimeout([head, rows], output, when)


def _stand(frames: list[Frame] | None) -> str:
    """Where a rank is, in one line."""
    if not frames:
        return "its function has returned" if frames is None else "gives no answer"
    line = stacks.learners_line(frames)
    return f"at {line.place}: {line.code}" if line else "outside of your code"
