"""What went wrong in the workers, told to a learner: the root cause, its rank, its line, a way on.

Nothing here depends on the clock, a process id or an address, so that a notebook that provokes
an error on purpose prints the same words in every run.
"""

import re
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from course_utils.launcher import stacks
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named as ranks
from course_utils.launcher.words import were, wrapped

# How gloo, NCCL and the store complain about a peer that is gone: an echo, never the cause.
_LOST = re.compile(
    r"(RuntimeError|Dist\w*Error|ConnectionResetError): .*("
    r"Connection (was likely )?(closed|reset|refused)|Read error|Write error|Broken pipe|"
    r"by peer|Connect timeout|Socket closed|remote process exited)",
    re.DOTALL,
)
_LOST_IN_ONE_WORDING = "RuntimeError: Connection closed by peer"  # they have many
_WAITED = re.compile(r"\w+Error: .*Timed out waiting", re.DOTALL)
# What differs from run to run in others' messages: addresses, ports, process ids, source paths.
_UNSTABLE = re.compile(r" at 0x[0-9a-f]+| \[[\d.]+\]:\d+| \(pid(\(s\))? [\d, ]+\)|\[/\S+:\d+\] ")
_LIMIT = 4000  # characters of an exception's own words that are kept

_LIKELY = {  # by words of the headline
    "died of SIGKILL": "something outside killed it, most often the system because memory ran out: "
    "use a smaller batch or model, or fewer ranks",
    "died of SIGSEGV": "compiled code touched memory that is not its own, "
    "called from the line shown above",
    "died of SIGABRT": "compiled code gave up (its own words, if any, stand in the rank's output)",
    "died of SIGBUS": "shared memory is full or a mapped file shrank: look at the size of /dev/shm",
    "died of SIGFPE": "an integer was divided by zero in compiled code",
    "died of SIGTERM": "something asked this one process to end",
    "left with exit status": "os._exit ends a process at once; let the function return instead",
    "BdbQuit": "a rank has no keyboard, so a debugger ends at once; print instead",
    "RecursionError": "a function calls itself, and nothing ends that",
    "initialize the default process group twice": "launch makes the group before your function "
    "runs: leave init_process_group() out, or make the group yourself, once, under "
    "launch(..., backend=None)",
}
_LIKELY_OF_AN_ECHO = """another rank left the group, such as by destroy_process_group(), before \
this one was done with it, or a timeout of the group itself ran out"""


@dataclass
class Failure:
    """How one rank failed, and when (seconds on the system's monotonic clock)."""

    rank: int
    when: float
    headline: str
    frames: Sequence[Frame] = ()

    @property
    def is_echo(self) -> bool:
        """Whether this rank only noticed that a peer was gone."""
        return bool(_LOST.match(self.headline) or _WAITED.match(self.headline))

    def story(self) -> str:
        """The headline, and the learner's lines that led there, the last with its neighbours."""
        own = [frame for frame in self.frames if frame.is_learners]
        own = [frame for frame in own if frame.code] or own  # a dataclass's methods have no text
        rows = dict.fromkeys(f"  {frame.place}: {frame.code}" for frame in own[:-1])
        again = ["  ..."] * (len(rows) < len(own) - 1)  # where a function calls itself
        last = [f"  {frame.place}\n{frame.excerpt()}".rstrip() for frame in own[-1:]]
        return "\n".join([self.headline + "\n" * bool(own), *rows, *again, *last])

    def likely(self) -> str:
        """The likely reason, where there is one to tell."""
        found = (why for words, why in _LIKELY.items() if words in self.headline)
        return next(found, _LIKELY_OF_AN_ECHO if self.is_echo else "")


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
    try:
        words = str(error)
    except Exception:
        words = "(its message cannot be printed)"
    headline = note or f"{type(error).__name__}: {words}".removesuffix(": ")
    if isinstance(error, SystemExit):
        headline = f"sys.exit({'' if error.code is None else repr(error.code)}) was called"
    headline = _UNSTABLE.sub("", headline)[:_LIMIT]
    if _LOST.match(headline) and not isinstance(error, OSError):
        headline = _LOST_IN_ONE_WORDING
    rows = traceback.extract_tb(error.__traceback__, limit=-40)  # the innermost
    frames = [Frame(row.filename, row.lineno or 0, row.name) for row in rows]
    return Failure(rank, time.monotonic(), headline, frames)


def from_exit(rank: int, status: int, dump: str) -> Failure:
    """In the kernel: what a wait status says about a rank that ended without a word."""
    headline = f"the process left with exit status {status} before its function returned"
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        headline = f"the process died of {names.get(-status, f'signal {-status}')}"
    crash = dump.partition("Fatal Python error")[2]  # before it: stacks that were asked for
    return Failure(rank, time.monotonic(), headline, stacks.from_dump(crash))


def worker_error(failures: list[Failure], world_size: int, output: list[str]) -> WorkerError:
    """The error that names the root cause among the failures seen.

    Signals, exits and ordinary exceptions count in order of time; complaints about a lost peer
    come last. Ranks that failed with the same words are named together, in rank order.
    """
    first = min(failures, key=lambda failure: (failure.is_echo, failure.when))
    ordered = sorted(failures, key=lambda f: (f.headline != first.headline, f.rank))
    root = ordered[0]
    same = [failure.rank for failure in ordered if failure.headline == root.headline]
    rest = set(range(world_size)) - set(same)
    why = f"Likely reason: {root.likely()}." if root.likely() else ""
    stopped = f"{were(rest).capitalize()} stopped." if rest else ""
    return WorkerError([f"{ranks(same)} failed: {root.story()}", why, stopped], output, ordered)


def worker_timeout(
    stands: Mapping[int, list[Frame] | None], output: list[str], seconds: float, when: float
) -> WorkerTimeout:
    """The error for ranks that are not done in time, or never will be (`seconds` is infinite).

    `stands` is the `ranks` of `Listener.explain`.
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
