"""What went wrong in the workers, told to a learner: the root cause, its rank, its line, a way on.

Nothing here depends on the clock, a process id or an address, so that a notebook that provokes
an error on purpose prints the same words in every run.
"""

import re
import signal
import traceback
from dataclasses import dataclass, field

from course_utils import stacks
from course_utils.stacks import Frame

# How gloo, NCCL and the store complain about a peer that is gone: an echo, never the cause.
_LOST = re.compile(
    r"(RuntimeError|Dist\w*Error|Connection\w*Error): .*("
    r"Connection (was likely )?(closed|reset|refused)|Read error|Write error|Broken pipe|"
    r"by peer|Connect timeout|Socket closed|remote process exited)",
    re.DOTALL,
)
_LOST_IN_ONE_WORDING = "RuntimeError: Connection closed by peer"  # they have many
_WAITED = re.compile(r"\w+Error: .*Timed out waiting", re.DOTALL)
# What differs from run to run in others' messages: addresses, ports, process ids, source paths.
_UNSTABLE = re.compile(r" at 0x[0-9a-f]+| \[[\d.]+\]:\d+| \(pid(\(s\))? [\d, ]+\)|\[/\S+:\d+\] ")
_LIMIT = 4000  # characters of an exception's own words that are kept

_LEFT = (
    "another rank left the group, such as by destroy_process_group(), before this one was done "
    "with it, or a timeout of the group itself ran out"
)
_LIKELY = {
    "SIGKILL": "something outside killed it, most often the system because memory ran out: "
    "use a smaller batch or model, or fewer ranks",
    "SIGSEGV": "compiled code touched memory that is not its own, called from the line shown above",
    "SIGABRT": "compiled code gave up; in gloo this most often means that the ranks called "
    "one collective with different shapes or dtypes (its own words stand in the rank's output)",
    "SIGBUS": "shared memory is full or a mapped file shrank: look at the size of /dev/shm",
    "SIGFPE": "an integer was divided by zero in compiled code",
    "SIGTERM": "something asked this one process to end",
}


@dataclass
class Failure:
    """How one rank failed, and when (seconds on the system's monotonic clock)."""

    rank: int
    when: float
    headline: str
    frames: list[Frame] = field(default_factory=list)
    advice: str = ""
    traceback: str = ""

    @property
    def is_echo(self) -> bool:
        """Whether this rank only noticed that a peer was gone."""
        return bool(_LOST.match(self.headline) or _WAITED.match(self.headline))

    def story(self) -> str:
        """The learner's lines that led to the failure, the innermost with its neighbours."""
        own = [frame for frame in self.frames if frame.is_learners]
        rows = [f"  {frame.place}: {frame.code}" for frame in own[:-1]]
        rows += [f"  {frame.place}\n{frame.excerpt()}" for frame in own[-1:]]
        return "\n".join(rows).rstrip()


class WorkerError(RuntimeError):
    """At least one rank failed; the others were stopped.

    Attributes:
        rank: the rank that is the root cause.
        failures: every failure that was seen, the root cause first.
        output: what each rank printed, by rank.
        trace: with `launch(trace=True)`, what was recorded until then; else None.
    """

    trace = None

    def __init__(self, message: str, failures: list[Failure], output: list[str]) -> None:
        super().__init__(message)
        self.failures, self.output = failures, output
        self.rank = failures[0].rank if failures else None

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message, without the launcher's own frames above it."""
        return [f"\x1b[0;31m{type(self).__name__}\x1b[0m: {self}"]


class WorkerTimeout(WorkerError):
    """The ranks were not done in time; the message says where each of them was."""


def from_exception(rank: int, when: float, error: BaseException, note: str = "") -> Failure:
    """In the worker: what an exception says, in words that survive the trip to the kernel."""
    frames = stacks.from_traceback(error.__traceback__)
    try:
        words = str(error)
    except Exception:
        words = "(its message cannot be printed)"
    headline = note or f"{type(error).__name__}: {words}".removesuffix(": ")
    if isinstance(error, SystemExit):
        headline = f"sys.exit({'' if error.code is None else repr(error.code)}) was called"
    headline = _UNSTABLE.sub("", headline)[:_LIMIT]
    if _LOST.match(headline):
        headline = _LOST_IN_ONE_WORDING
    full = "".join(traceback.format_exception(error))[-4 * _LIMIT :]
    return Failure(rank, when, headline, frames[-40:], traceback=full)


def from_exit(rank: int, when: float, status: int, dump: str) -> Failure:
    """In the kernel: what a wait status says about a rank that ended without a word."""
    code = -status if status < 0 else status
    if status >= 0:
        headline = f"the process left with exit status {code} before its function returned"
        advice = "os._exit ends a process at once; let the function return instead"
        return Failure(rank, when, headline, advice=advice)
    name = signal.Signals(code).name if code in set(signal.Signals) else f"signal {code}"
    advice = _LIKELY.get(name, "")
    return Failure(rank, when, f"the process died of {name}", stacks.from_dump(dump), advice)


def worker_error(failures: list[Failure], world_size: int, output: list[str]) -> WorkerError:
    """The error that names the root cause among the failures seen.

    Signals, exits and ordinary exceptions count in order of time; complaints about a lost peer
    come last. Ranks that failed with the same words are named together, in rank order.
    """
    root = min(failures, key=lambda failure: (failure.is_echo, failure.when))
    same = sorted(f.rank for f in failures if f.headline == root.headline)
    root = next(f for f in failures if f.rank == same[0])
    rest = [rank for rank in range(world_size) if rank not in same]
    parts = [f"{ranks(same)} failed: {root.headline}", root.story()]
    if advice := root.advice or (_LEFT if root.is_echo else ""):
        parts.append(f"Likely reason: {advice}.")
    if rest:
        parts.append(f"{ranks(rest).capitalize()} {'was' if len(rest) == 1 else 'were'} stopped.")
    ordered = [root, *(failure for failure in failures if failure is not root)]
    return WorkerError("\n\n".join(filter(None, parts)), ordered, output)


def worker_timeout(
    seconds: float, running: dict[int, list[Frame]], done: set[int], output: list[str]
) -> WorkerTimeout:
    """The error for ranks that are not done: `running` maps each to its frames, outermost first."""
    were = "was" if len(running) == 1 else "were"
    rows = [f"{ranks(running)} {were} not done after {seconds:g} s.\n"]
    for rank in sorted({*running, *done}):
        where = "its function has returned" if rank in done else _where(running[rank])
        rows.append(f"  rank {rank}: {where}")
    message = "\n".join(rows) + f"\n\n{_diagnosis(running, done)}"
    return WorkerTimeout(message, [], output)


def _where(frames: list[Frame]) -> str:
    """One line: what a rank does, and at which line of the learner."""
    if not frames:
        return "gives no answer: it is stopped by a signal, or held up inside the system"
    own, waits = stacks.learners_line(frames), stacks.waits_in(frames)
    doing = f"waiting in {waits}" if waits else "running"
    return f"{doing} at {own.place}: {own.code}" if own else f"{doing}, outside of your code"


def _diagnosis(running: dict[int, list[Frame]], done: set[int]) -> str:
    """What to look at: who never arrived, or what the ranks disagree about."""
    waits = {rank: stacks.waits_in(frames) for rank, frames in running.items()}
    waiting = [rank for rank in running if waits[rank]]
    kinds = {waits[rank] for rank in waiting}
    if not waiting:
        return (
            f"No rank waits for another: {ranks(running)} only needed longer. Raise timeout= if "
            "the work is long; look for an endless loop if it is not."
        )
    if absent := {*running, *done} - {*waiting}:
        return (
            f"{ranks(waiting).capitalize()} waited for {ranks(absent)}, which never arrived: every "
            "rank of a group must make the same calls in the same order, as often as the others."
        )
    if kinds <= stacks.POINT_TO_POINT:
        return (
            "Every rank waits in a point-to-point call: a blocking send ends only when its peer "
            "receives. Let one side receive first, or use isend and irecv."
        )
    if len(kinds) > 1:
        return (
            f"The ranks wait in different calls ({', '.join(sorted(map(str, kinds)))}): every "
            "rank of a group must make the same calls in the same order."
        )
    return (
        "Every rank waits in the same call: look for a call that one rank made more often than "
        "another, for different groups, and for a peer or a source that does not match."
    )


def ranks(numbers: object) -> str:
    """Such as `rank 3`, or `ranks 0, 1 and 3`."""
    names = [str(number) for number in sorted(numbers)]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
