"""What went wrong in the workers, in words for a learner: the root cause, its rank, its line.

No word here depends on the clock, a process id or an address, so that a notebook that provokes
an error on purpose prints the same in every run. Which failure comes first does (`Failure.when`).
"""

import itertools
import re
import signal
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from course_utils.launcher import echoes, reasons, stacks
from course_utils.launcher.language import _, capitalized, in_two_languages, ngettext, sentences
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_listed, ranks_named, wrapped

# By global rank its stack, outermost frame first: [] if it gave none, None if its function has
# returned.
StacksByRank = dict[int, list[Frame] | None]

_LOST_IN_ONE_WORDING = "RuntimeError: Connection closed by peer"  # gloo and the store have many
# What differs from run to run in others' messages: addresses, ports, process ids, source paths,
# and how long gloo was still allowed to wait.
_UNSTABLE = re.compile(
    r" at 0x[0-9a-f]+| \[[\d.]+\]:\d+| \(pid(\(s\))? [\d, ]+\)|\[/\S+:\d+\] |(?<=pid )\d+|"
    r"(?<=enforce fail) at /[^\s\]]+|(?<=Timed out waiting) \d+ms(?= for)|"
    r"(?<=Pair is not connected) \([^)]*\)"
)
_CODE_LINE = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in (\S+))?')  # of a traceback
# Torch raises again what ends a process or thread of its own, and puts a traceback into the words.
_RAISED_AGAIN = re.compile(
    r"Caught \w+ (in [^\n]+)\.\nOriginal Traceback \(most recent call last\):\n(.+)", re.DOTALL
)
_NEXT_TRACEBACK = re.compile(
    r"\n(The above exception was|During handling) [^\n]+\n\nTraceback \(most recent call last\):\n"
)
# Torch says so with these details or without them, depending on who notices it first.
_LOADER_EXITED = re.compile(
    r"(?<=DataLoader worker exited unexpectedly) (with exit code \d+\..*)", re.DOTALL
)
UNKNOWN_STATUS = 256  # one more than any exit status: nobody here has heard how a process ended
_NUMBERS = re.compile(r"\d[\d.]*(?:[\s,]+\d[\d.]*)*")
_MAX_CHARACTERS = 4000  # of an exception's own words
_SHORT = 200  # characters of words with others after them
_MAX_EXCEPTIONS = 8  # of an ExceptionGroup's members, and of the exceptions that led to one
_MAX_FRAMES = 40  # the innermost


@dataclass
class Failure:
    """How one rank failed, and when (seconds on the system's monotonic clock).

    Attributes:
        headline: Its name and its words, such as `ValueError: boom`.
        in_english: The headline in English, by which its likely reason is looked up, where it is a
            message of the course; else empty.
        frames: The stack at which it was raised, outermost first.
        echo: What kind of complaint about other ranks it is, see `echoes`; empty for a cause.
        hides_a_cause: It was raised while an exception was handled that is no such complaint.
        details: What caused it, its notes, and the members of an ExceptionGroup, a line each.
        died: The process ended without a word, such as by a signal.
    """

    rank: int
    when: float
    headline: str
    frames: Sequence[Frame] = ()
    echo: str = ""
    hides_a_cause: bool = False
    details: Sequence[str] = ()
    died: bool = False
    in_english: str = ""

    @property
    def is_echo(self) -> bool:
        """Whether this rank only noticed that a peer was gone, or did not come."""
        return bool(self.echo)

    @property
    def alike_key(self) -> tuple[bool, bool, str]:
        """What ranks that fail alike have in common: the headline without its numbers."""
        return self.is_echo, self.hides_a_cause, _NUMBERS.sub("#", self.headline)

    def story(self) -> str:
        """The headline, what led to it, and the learner's lines, the last with its neighbours."""
        rows = [self.headline]
        for detail in self.details:
            indented = detail.replace("\n", "\n  ")
            rows.append(f"  {indented}")
        learners_frames = self._learners_frames()
        if learners_frames:
            *callers, last = learners_frames
            rows.append("")
            rows += _rows_of_callers(callers)
            last_lines = f"  {last.place}\n{last.excerpt()}"
            rows.append(last_lines.rstrip())
        return "\n".join(rows)

    def _learners_frames(self) -> list[Frame]:
        frames = [frame for frame in self.frames if frame.is_learners]
        frames_with_text = [frame for frame in frames if frame.code]
        return frames_with_text or frames  # a dataclass's methods have no text

    def likely(self, world_size: int, output: str = "") -> str:
        """The likely reason, if there is one to tell."""
        words = self.in_english or self.headline
        reason = reasons.of_failure(words, self.frames, output, self.died)
        if reason or self.hides_a_cause:
            return reason
        return reasons.of_echo(self.echo, world_size)

    def _order_of_blame(self) -> tuple[bool, bool, bool, bool, float]:
        """A key for sorting the failures of a launch: the smallest one is the root cause.

        1. A cause comes before an echo.
        2. Of echoes, one that hides a cause comes first.
        3. A death comes before exceptions, even before those that are heard a moment earlier: it
           cuts connections, and what its peers say of that may arrive first.
        4. Of echoes, a group's timer comes before lost connections and a group that was given up,
           which follow from it.
        5. Otherwise the earlier one comes first.
        """
        hides_none = not self.hides_a_cause
        follows = self.echo in (echoes.LOST, echoes.ABORTED)
        return self.is_echo, hides_none, not self.died, follows, self.when


def _rows_of_callers(frames: list[Frame]) -> list[str]:
    rows = []
    for frame in frames:
        row = f"  {frame.place_and_code}"
        if row not in rows:
            rows.append(row)
    if len(rows) < len(frames):  # a function calls itself
        rows.append("  ...")
    return rows


class WorkerError(RuntimeError):
    """At least one rank failed; the others were stopped.

    Attributes:
        parts: The paragraphs of the message: what failed, the likely reason, who was stopped.
        rank: The rank that is the root cause.
        failures: Every failure that was seen, the root cause first.
        output: What each rank printed, by rank.
        trace: With `launch(trace=True)`, what was recorded until then; else None.
    """

    trace: Any = None

    def __init__(
        self, parts: Sequence[str], output: Sequence[str] = (), failures: Sequence[Failure] = ()
    ) -> None:
        self.parts = list(parts)
        self.output = list(output)
        self.failures = list(failures)
        super().__init__(self.parts)
        self.rank: int | None = None
        if failures:
            self.rank = failures[0].rank

    def __str__(self) -> str:
        return "\n\n".join(part for part in self.parts if part)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message, without the launcher's own frames above it."""
        name = type(self).__name__
        text = wrapped(f"{name}: {self}")
        name_in_red = f"\x1b[0;31m{name}\x1b[0m"
        coloured = text.replace(name, name_in_red, 1)
        notes = getattr(self, "__notes__", [])
        wrapped_notes = map(wrapped, notes)
        return [coloured, *wrapped_notes]


class WorkerTimeout(WorkerError):
    """The ranks were not done in time; the message says where each of them was.

    Its parts are who was not done, a row for every rank, and why.

    Attributes:
        when: Time was up, in seconds on the system's monotonic clock.
        seconds: How long the ranks had; infinite if it is proven that they will never be done. A
            listener fills in the rest.
        waiting: By rank, where it was, also of ranks that didn't wait: a `Whereabouts` of the room
            `hang`, with its state, its line, its calls, and what it waited in.
        absent: The ranks that others waited for, and that waited for none.
        pattern: The name of the diagnosis, such as "order" or "uneven"; None where there is none.
    """

    def __init__(
        self,
        parts: Sequence[str],
        output: Sequence[str] = (),
        when: float = 0,
        seconds: float = inf,
    ) -> None:
        super().__init__(parts, output)
        self.when = when
        self.seconds = seconds
        self.waiting: dict[int, Any] = {}
        self.absent: list[int] = []
        self.pattern: str | None = None


def from_exception(
    rank: int, error: BaseException, note: str = "", in_english: str = ""
) -> Failure:
    """In the worker: what an exception says, in words that survive the trip to the kernel.

    Args:
        rank: Where it was raised.
        error: The exception.
        note: What is said instead of its own words.
        in_english: The note in English, by which the likely reason is looked up.
    """
    if _is_of_checkpoint(error):
        return _from_checkpoint(rank, error, error.failures)
    headline, details = _headline_and_details(error, note)
    echo_by_link = []
    for link in echoes.chain(error):
        echo_of_link = echoes.kind_of(link, _words(link))
        echo_by_link.append(echo_of_link)
    # To which address a connection failed stays, since `reasons` looks for it.
    is_lost_connection = echo_by_link[0] == echoes.LOST and "connect to" not in headline
    if is_lost_connection and not note:
        headline = _LOST_IN_ONE_WORDING
    echo = next(filter(None, echo_by_link), "")
    hides_a_cause = bool(echo) and not echo_by_link[-1]  # the last link was raised first
    frames = _frames(error)
    when = time.monotonic()
    headline = headline[:_MAX_CHARACTERS]
    return Failure(
        rank, when, headline, frames, echo, hides_a_cause, details, in_english=in_english
    )


def _is_of_checkpoint(error: BaseException) -> bool:
    """Whether it has the failures of several ranks; the learner may have such a class as well."""
    kind = type(error)
    if kind.__name__ != "CheckpointException" or not kind.__module__.startswith("torch."):
        return False
    failures = getattr(error, "failures", None)
    return isinstance(failures, dict)


def _headline_and_details(error: BaseException, note: str) -> tuple[str, list[str]]:
    headline = _kind_and_words(error)
    if note:
        headline = stable(note)
    details = _details(error)
    words = _words(error)
    raised_again = _RAISED_AGAIN.match(words)
    if raised_again:
        where, tracebacks = raised_again.groups()
        headline, *led_to_it = _raised_first(where, tracebacks)
        details = [*led_to_it, *details]
    if isinstance(error, SystemExit) and not note:
        headline = _("sys.exit() was called")
        if error.code is not None:
            headline = _("sys.exit({code}) was called", code=repr(error.code))
    exited = _LOADER_EXITED.search(headline)
    if exited:
        end = exited.start()
        headline = headline[:end]
        details = [exited[1], *details]
    return headline, details


def _from_checkpoint(rank: int, error: BaseException, failures: dict[int, Any]) -> Failure:
    """If `dcp.save` failed on some ranks, all ranks raise what all of these have raised.

    Args:
        rank: The rank that raised `error`.
        error: The CheckpointException.
        failures: By rank that failed, its exception and that exception's stack.
    """
    frames = _frames(error)
    when = time.monotonic()
    if rank in failures:
        cause, _stack = failures[rank]
        headline = _kind_and_words(cause)
        details = _details(cause)
        return Failure(rank, when, headline, frames, details=details)
    failed_ranks = ranks_named(failures)
    headline = _("CheckpointException: {ranks} failed", ranks=failed_ranks)
    causes = []
    for other, (cause, _stack) in failures.items():
        words = _kind_and_words(cause)
        line = _("rank {rank}: {words}", rank=other, words=words)
        causes.append(line)
    details = causes[:_MAX_EXCEPTIONS]
    return Failure(rank, when, headline, frames, echoes.FROM_PEER, details=details)


def stable(text: str) -> str:
    """A text of others without what differs from run to run, and files without their folders."""
    text = _UNSTABLE.sub("", text)
    text = _CODE_LINE.sub(_place_of, text)
    return text[:_MAX_CHARACTERS]


def _place_of(line: re.Match[str]) -> str:
    file, number, name = line[1], line[2], line[3]
    frame = Frame(file, int(number), name or "<module>")
    return frame.place


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return _("(its message cannot be printed)")


def first_line(error: BaseException) -> str:
    """The beginning of what an exception says, where something else is to be read after it."""
    words = _words(error).strip()
    line, _newline, _others = words.partition("\n")
    if len(line) <= _SHORT:
        return line
    beginning = line[:_SHORT]
    return f"{beginning} ..."


def _kind_and_words(error: BaseException) -> str:
    kind = type(error).__name__
    words = _words(error)
    name = f"{kind}: {words}".removesuffix(": ")  # an exception without words
    return stable(name)


def _raised_first(where: str, tracebacks: str) -> list[str]:
    """What was raised in a process of torch's, where, and what led to it, a line each."""
    parts = _NEXT_TRACEBACK.split(tracebacks)  # traceback, how it led on, traceback, ...
    headline, place = _words_and_place(parts.pop())
    lines = [headline, f"{where}{place}"]
    while parts:
        led_on = parts.pop()
        trace = parts.pop()
        is_cause = led_on.startswith("The")
        words, place = _words_and_place(trace)
        line = _led_by(f"{words}{place}", is_cause)
        lines.append(line)
    return lines


def _led_by(name: str, is_cause: bool) -> str:
    """A line about an exception that led to a different one."""
    if is_cause:
        return _("caused by {exception}", exception=name)
    return _("while handling {exception}", exception=name)


def _words_and_place(trace: str) -> tuple[str, str]:
    """Of a traceback without its first line: what the exception says; `, cell [5], line 7`."""
    lines = trace.rstrip().split("\n")
    frames = []
    while lines and lines[0].startswith("  "):
        row = lines.pop(0)
        for file, number, name in _CODE_LINE.findall(row):
            frames.append(Frame(file, int(number), name))
    rest = "\n".join(lines)
    words = stable(rest)
    frame = stacks.learners_frame(frames)
    if frame is None:
        return words, ""
    return words, f", {frame.place_and_code}"


def _frames(error: BaseException) -> list[Frame]:
    frames = []
    for row in traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES):
        frame = Frame(row.filename, row.lineno or 0, row.name)
        frames.append(frame)
    return frames


def _details(error: BaseException) -> list[str]:
    """A line for each note, each member of a group, and each exception that led to this one."""
    # A group may contain the same group many times, so no more lines are made than are shown.
    return list(itertools.islice(_all_details(error), 4 * _MAX_EXCEPTIONS))


def _all_details(error: BaseException) -> Iterator[str]:
    for note in _notes(error):
        yield stable(note)
    if isinstance(error, BaseExceptionGroup):
        members = error.exceptions[:_MAX_EXCEPTIONS]
        for member in members:
            name = _kind_words_and_place(member)
            yield _("one of them: {exception}", exception=name)
        for member in members:
            for line in _all_details(member):
                yield f"  {line}"
    yield from _what_led_to(error)


def _notes(error: BaseException) -> list[str]:
    """The exception's notes; if `__notes__` isn't a list, its repr, as Python shows it."""
    notes = getattr(error, "__notes__", [])
    if isinstance(notes, list | tuple):
        return [str(note) for note in notes]
    return [repr(notes)]


def _what_led_to(error: BaseException) -> list[str]:
    """A line for each exception that led to this one, the last first; in a circle each once."""
    lines: list[str] = []
    link = error
    seen = {id(error)}
    while len(lines) < _MAX_EXCEPTIONS:
        is_cause = link.__cause__ is not None
        if is_cause:
            link = link.__cause__
        elif link.__context__ is not None and not link.__suppress_context__:
            link = link.__context__
        else:
            break
        if id(link) in seen:
            break
        seen.add(id(link))
        name = _kind_words_and_place(link)
        lines.append(_led_by(name, is_cause))
    return lines


def _kind_words_and_place(error: BaseException) -> str:
    """Such as `KeyError: 'label', cell [5], line 7, in train`."""
    name = _kind_and_words(error)
    frame = stacks.learners_frame(_frames(error))
    if frame is None:
        return name
    return f"{name}, {frame.place}"


def from_exit(rank: int, status: int, dump: str) -> Failure:
    """In the kernel: the failure of a rank that ended without a word.

    Args:
        rank: Which rank.
        status: Its exit status, or minus the signal's number, or `UNKNOWN_STATUS`.
        dump: What faulthandler has written about it, if it crashed.
    """
    headline, in_english = in_two_languages(_how_it_died_early, status)
    crash = dump.partition("Fatal Python error")[2]  # before it: stacks that were asked for
    frames = stacks.from_dump(crash)
    when = time.monotonic()
    return Failure(rank, when, headline, frames, died=True, in_english=in_english)


def _how_it_died_early(status: int) -> str:
    if status < 0 or status == UNKNOWN_STATUS:
        return how_it_died(status)
    return _(
        "the process left with exit status {status} before its function returned", status=status
    )


def how_it_died(status: int) -> str:
    """Such as `the process died of SIGKILL`, of an exit status or minus a signal's number."""
    if status == UNKNOWN_STATUS:
        return _(
            "the process is gone, and how it ended is not known: the notebook ignores SIGCHLD, or "
            "a thread of it waits for every process"
        )
    if status >= 0:
        return _("the process left with exit status {status}", status=status)
    number = -status
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        name = _("signal {number}", number=number)
    return _("the process died of {signal}", signal=name)


def worker_error(
    failures: list[Failure],
    world_size: int,
    output: list[str],
    stacks_of_others: Mapping[int, list[Frame] | None] | None = None,
) -> WorkerError:
    """The error that names the root cause among the failures seen.

    Args:
        failures: All that were heard, at least one.
        world_size: Number of ranks.
        output: By rank, what it printed.
        stacks_of_others: Where ranks without a failure are, if that is worth telling.
    """
    alike, others = _root_cause_and_others(failures)
    root = alike[0]
    failed = [failure.rank for failure in alike]
    failed_so = ngettext(
        "rank {ranks} failed: {story}",
        "ranks {ranks} failed: {story}",
        len(failed),
        ranks=ranks_listed(failed),
        story=root.story(),
    )
    output_of_root = output[root.rank]
    reason = root.likely(world_size, output_of_root)
    rows = _differing_words(alike)
    rows += _about_the_others(failed, others, world_size, stacks_of_others or {})
    parts = [failed_so, likely_reason(reason), "\n".join(rows)]
    return WorkerError(parts, output, [*alike, *others])


def race_error(
    failures: list[Failure], winner: int, world_size: int, output: list[str]
) -> WorkerError:
    """The error of ranks that all wanted to listen on one port, which `winner` has got.

    Who is first there varies from run to run, and the words do not.
    """
    alike, others = _root_cause_and_others(failures)
    failed = [failure.rank for failure in alike]
    racing = [*failed, winner]
    failed_so = _(
        "of ranks {ranks}, all but one failed: {story}",
        ranks=ranks_listed(racing),
        story=alike[0].story(),
    )
    rows = _about_the_others(racing, others, world_size, {})
    parts = [failed_so, likely_reason(_(reasons.RACE)), "\n".join(rows)]
    return WorkerError(parts, output, [*alike, *others])


def _root_cause_and_others(failures: list[Failure]) -> tuple[list[Failure], list[Failure]]:
    """The failures that are the root cause, in rank order, and the others.

    Which one is the root cause, `Failure._order_of_blame` says. Ranks that failed with the same
    words, but for numbers, are the root cause together.
    """
    first = min(failures, key=Failure._order_of_blame)
    alike = []
    others = []
    for failure in sorted(failures, key=lambda failure: failure.rank):
        if failure.alike_key == first.alike_key:
            alike.append(failure)
        else:
            others.append(failure)
    return alike, others


def likely_reason(reason: str) -> str:
    """A sentence that gives a reason; empty if there is none."""
    if not reason:
        return ""
    return _("Likely reason: {reason}.", reason=reason)


def _differing_words(alike: list[Failure]) -> list[str]:
    """A row, if ranks that failed alike didn't say exactly the same; else none."""
    root = alike[0]
    different = [failure.rank for failure in alike if failure.headline != root.headline]
    if not different:
        return []
    roots_words = _("These are the words of rank {rank}.", rank=root.rank)
    others = ranks_named(different)
    others_words = _("Those of {ranks} differ in numbers only.", ranks=others)
    row = sentences(roots_words, others_words)
    return [row]


def _about_the_others(
    failed: Collection[int],
    others: list[Failure],
    world_size: int,
    stacks_of_others: Mapping[int, list[Frame] | None],
) -> list[str]:
    """A row for each rank besides those that `failed`, if there is something to say about it."""
    rows = []
    stopped = set(range(world_size)) - set(failed)
    for failure in others:
        if failure.is_echo:  # not worth telling: its rank was stopped, too
            continue
        stopped.remove(failure.rank)
        headline, _newline, _rest = failure.headline.partition("\n")
        words = headline[:_SHORT]
        row = _("Rank {rank} failed as well: {words}", rank=failure.rank, words=words)
        rows.append(row)
    for rank in sorted(stacks_of_others):
        position = _position(stacks_of_others[rank])
        row = _("Rank {rank} was meanwhile {position}", rank=rank, position=position)
        rows.append(row)
    if stopped:
        were_stopped = ngettext(
            "rank {ranks} was stopped.",
            "ranks {ranks} were stopped.",
            len(stopped),
            ranks=ranks_listed(stopped),
        )
        rows.append(capitalized(were_stopped))
    return rows


def worker_timeout(
    stacks_by_rank: Mapping[int, list[Frame] | None],
    output: list[str],
    seconds: float,
    when: float,
) -> WorkerTimeout:
    """The error for ranks that are not done in time.

    Args:
        stacks_by_rank: Where each rank is.
        output: By rank, what it printed.
        seconds: How long they had; infinite if it is proven that they will never be done.
        when: Time was up, in seconds on the system's monotonic clock.
    """
    running = [rank for rank, frames in stacks_by_rank.items() if frames is not None]
    rows = []
    for rank in sorted(stacks_by_rank):
        position = _position(stacks_by_rank[rank])
        row = _("rank {rank}: {position}", rank=rank, position=position)
        rows.append(f"  {row}")
    parts = [not_done(running, seconds), "\n".join(rows)]
    return WorkerTimeout(parts, output, when, seconds)


def not_done(running: Collection[int], seconds: float) -> str:
    """A sentence about ranks that were not done after so many seconds; infinite: never will be."""
    if seconds == inf:
        return _("{ranks} would never be done.", ranks=ranks_named(running))
    return ngettext(
        "rank {ranks} was not done after {seconds:g} s.",
        "ranks {ranks} were not done after {seconds:g} s.",
        len(running),
        ranks=ranks_listed(running),
        seconds=seconds,
    )


def _position(frames: list[Frame] | None) -> str:
    """Where a rank is, in one line."""
    if frames is None:
        return _("its function has returned")
    if not frames:
        return _("gives no answer")
    frame = stacks.learners_frame(frames)
    if frame is None:
        return _("outside of your code")
    return _("at {line}", line=frame.place_and_code)
