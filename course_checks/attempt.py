"""An answer is run in real workers, on many cases in one launch.

Each rank draws its own inputs after the fork, and between two cases all ranks wait for each other.
Every case comes twice. First with numbers that are the same each time, so that a failure can be
shown; then with fresh ones that no other rank can know unless they are sent to it. The seeds of
fresh numbers go to the kernel before the answer runs, through a pipe that no rank can read. With
fresh numbers ranks also come late, each in its turn, so that an answer that depends on who is first
is found out.
"""

import contextlib
import io
import mmap
import os
import struct
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from types import FunctionType
from typing import Any, NamedTuple

import torch.distributed as dist

from course_checks.careful import plain
from course_checks.cases import Inputs, draw, public_seed, seed_cpu
from course_checks.outcome import WRONG, Outcome, Row, many
from course_checks.watch import Watch
from course_utils.devices.prepare import DeviceSetup
from course_utils.hang.report import HangReport
from course_utils.hang.wait_graph import WaitGraph
from course_utils.launcher import transport
from course_utils.launcher.captured_output import is_cut
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.language import _
from course_utils.launcher.launch import launch
from course_utils.launcher.stacks import Frame
from course_utils.network.trace import Trace
from course_utils.record.record import Record

Pipe = tuple[int, int]  # its ends: to read from, to write to

_SECRET = struct.Struct("<iQ")  # a rank, and what its fresh numbers are drawn from
_QUIET_S = 1.0  # without a call; then we look whether the answer hangs for ever
_MOST = 6  # times the timeout, for an answer that still calls something when its time is up
_RECENT_S = 20.0  # how long a measurement of this machine's slowness is good for
_MARK = "\x1e"  # which a rank prints before each run


class Run(NamedTuple):
    """One case for all ranks."""

    number: int  # of the case, among all cases
    case: Any
    fresh: bool = False  # whether the numbers are drawn anew
    order: int | None = None  # if given, ranks come late, in the order that has this number

    def lateness(self, rank: int, world_size: int) -> float | None:
        """From 0 for the first rank to 1 for the last; None if ranks come as they like.

        Of three ranks, all six orders occur.
        """
        if self.order is None:
            return None
        last = world_size - 1
        turns, shift = divmod(self.order, world_size)
        place = (rank - shift - 1) % world_size
        is_backwards = turns % 2 == 1
        if is_backwards:
            place = last - place
        return place / max(1, last)

    def seed(self, rank: int, world_size: int, secret: int) -> int:
        """What a rank's arguments are drawn from."""
        public = public_seed(rank, world_size, self.number)
        if self.fresh:
            return public + secret + self.order
        return public

    def __str__(self) -> str:
        if self.fresh:
            return _("{case}, fresh numbers", case=self.case)
        return str(self.case)


class RunReport(NamedTuple):
    """What became of a run in one rank."""

    packed: bytes  # what it returned
    start_s: float  # on the system's monotonic clock
    seen: str  # what it did besides its calls; see `Watch`
    flops: int  # 0 where they are not counted


@dataclass
class Attempt:
    """What became of one launch of an answer. If it failed, there are no reports and traces."""

    name: str
    world_size: int
    runs: list[Run]  # what the ranks were given, in order
    reports: list[tuple[RunReport, ...]] = field(default_factory=list)  # by run and rank
    traces: list[Trace] = field(default_factory=list)  # by run
    secrets: dict[int, int] = field(default_factory=dict)  # by rank
    output: list[list[str]] = field(default_factory=list)  # by rank and run
    error: WorkerError | None = None
    reached: int = 0  # the run that it failed in
    parameters: Sequence[str] = ()  # what the answer calls its arguments, as far as it names them
    alone: bool = False  # whether it is tried on one rank only, so that nobody asks on how many

    def wrong(self, number: int, message: str, rows: Sequence[Row] = ()) -> Outcome:
        """The outcome of an answer whose first mistake is in run `number`."""
        printed = []
        for by_run in self.output:
            text = ""
            has_begun = number < len(by_run)
            if has_begun:
                text = by_run[number]
            printed.append(text)
        run = self.runs[number]
        where = str(run)
        if not self.alone:
            ranks = many([self.world_size])
            where = _("{ranks}, {case}", ranks=ranks, case=run)
        return Outcome(self.name, WRONG, where, message, rows, printed)


Stacks = Mapping[int, list[Frame] | None]  # by rank; None for one that has returned


class _Hang(HangReport):
    """Reports a hang in the present run, and gives ranks more time as long as they call something.

    A rank that is done with the run waits for the others, so it counts as returned. An answer that
    still calls something when its time is up gets as much time again, up to `_MOST` times. All of
    this is multiplied by this machine's slowness at the moment.
    """

    def __init__(self, record: Record, progress: Sequence[int], timeout_s: float) -> None:
        super().__init__(record, _QUIET_S)
        self._progress = progress  # by rank, how many runs are done
        self._timeout_s = timeout_s

    def on_start(self, world_size: int) -> None:
        """Begin to watch."""
        super().on_start(world_size)
        self._slowness = slowness(_RECENT_S)
        self._rounds = 1
        self._moved_at = monotonic()

    def on_progress(self) -> None:
        """Note that some rank has called something, or has ended."""
        self._moved_at = monotonic()

    def on_timeout(self) -> float:
        """How many seconds from the start the ranks get; see the class."""
        self._slowness = max(self._slowness, slowness())
        round_s = self._slowness * self._timeout_s
        quiet_s = monotonic() - self._moved_at
        if quiet_s < round_s / 4:
            self._rounds = min(self._rounds + 1, _MOST)
        return self._rounds * round_s

    def wait_graph(self, ranks: Stacks, now: float) -> WaitGraph:
        """Who waits for whom in this run."""
        present_run = min(self._progress)
        stacks = dict(ranks)
        for rank, runs_done in enumerate(self._progress):
            if runs_done > present_run:
                stacks[rank] = None  # as if it had returned
        return super().wait_graph(stacks, now)


def attempt(
    name: str,
    watch: Watch,
    inputs: Inputs,
    world_size: int,
    runs: list[Run],
    alone: bool = False,
    **options: Any,
) -> Attempt:
    """Launch an answer once, on all these runs; `options` go to the launcher."""
    done = Attempt(name, world_size, runs, parameters=_parameters(watch.fn), alone=alone)
    record = Record(trace=True)
    progress = _shared_counters(world_size)  # by rank, how many runs are done
    pipe = os.pipe()
    arguments = watch, inputs, runs, progress, pipe, options["backend"]
    hang = _Hang(record, progress, options["timeout"])
    options["world_size"] = world_size
    options["listeners"] = (DeviceSetup(), record, hang)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it is shown when the answer is wrong
            results = launch(_work, *arguments, **options)
        output = results.output
        _take_in(done, record, results)
    except WorkerError as error:
        done.error = error
        output = error.output
        last_run = len(runs) - 1
        done.reached = min(*progress, last_run)
    finally:
        done.secrets = _read_secrets(pipe)
    for text in output:
        by_run = _by_run(text, len(runs))
        done.output.append(by_run)
    return done


def _parameters(fn: Callable) -> tuple[str, ...]:
    """The names of a function's positional parameters; none where it isn't a plain function."""
    if not isinstance(fn, FunctionType):
        return ()
    code = fn.__code__
    return code.co_varnames[: code.co_argcount]


def _shared_counters(count: int) -> memoryview:
    """Zeros in memory that this process shares with those that it forks."""
    size = 8 * count
    shared_memory = mmap.mmap(-1, size)
    shared_bytes = memoryview(shared_memory)
    return shared_bytes.cast("Q")


def _read_secrets(pipe: Pipe) -> dict[int, int]:
    """The secret of each rank, from the pipe, whose ends are closed."""
    reading, writing = pipe
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        written = stream.read()
    return dict(_SECRET.iter_unpack(written))


def _by_run(output: str, runs: int) -> list[str]:
    """What a rank has printed in each run that it has begun."""
    if is_cut(output):
        instead = _("(more than a check keeps: print less)")
        return [instead] * runs
    _before_the_first, *printed = output.split(_MARK)
    return printed


def _take_in(done: Attempt, record: Record, results: Sequence[list[tuple]]) -> None:
    """Put what the ranks have returned and called into an attempt."""
    by_rank = []
    for rank, rows in enumerate(results):
        reports = [RunReport(*row) for row in rows]
        why = record.unread.get(rank)
        if why is not None:  # without this, it would seem to have called nothing
            spoilt = _(
                "Rank {rank} has spoilt the recording of what it calls: {why}", rank=rank, why=why
            )
            first = reports[0]
            reports[0] = first._replace(seen=spoilt)
        by_rank.append(reports)
    done.traces = _split(record, by_rank)
    done.reports = list(zip(*by_rank, strict=True))


def _work(
    watch: Watch,
    inputs: Inputs,
    runs: list[Run],
    progress: memoryview,
    pipe: Pipe,
    backend: str | None,
) -> list[tuple]:
    """In each rank, instead of the answer alone: the fields of a `RunReport` for each run."""
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    arguments = _draw(inputs, runs, rank, pipe)
    watch.listen()
    reports = []
    for number, run in enumerate(runs):
        print(end=_MARK, flush=True)
        seed_for_answer(rank, len(runs), number)  # the last seed was secret
        late = run.lateness(rank, world_size)
        start_s = monotonic()
        with watch.run(late):
            result = _returned(watch.fn, arguments[number])
        packed = _packed(result, backend)
        reports.append((packed, start_s, watch.seen, watch.flops))
        progress[rank] = number + 1
        while min(progress) <= number:  # until all others are done with it
            sleep(0.0003)
    return reports


def seed_for_answer(rank: int, run_count: int, number: int) -> None:
    """Seed what an answer draws itself in run `number`: the same in every launch of these runs."""
    seed_cpu(public_seed(rank, run_count, number))


def _returned(fn: Callable, arguments: tuple) -> Any:
    """What an answer returns; a `sys.exit(0)` is refused, which a launch would take for success."""
    try:
        return fn(*arguments)
    except SystemExit as ended:
        code = ""
        if ended.code is not None:
            code = repr(ended.code)
        message = _("sys.exit({code}) was called: return the result instead", code=code)
        raise RuntimeError(message) from ended


def _draw(inputs: Inputs, runs: list[Run], rank: int, pipe: Pipe) -> list[tuple]:
    """All arguments of this rank; its secret is on its way before the answer runs."""
    noise = os.urandom(7)
    secret = int.from_bytes(noise, "little")
    reading, writing = pipe
    os.close(reading)
    note = _SECRET.pack(rank, secret)
    os.write(writing, note)
    os.close(writing)
    world_size = int(os.environ["WORLD_SIZE"])
    all_arguments = []
    for run in runs:
        seed = run.seed(rank, world_size, secret)
        arguments = draw(inputs, rank, world_size, run.case, seed)
        all_arguments.append(arguments)
    return all_arguments


def _packed(result: Any, backend: str | None) -> bytes:
    if backend and not dist.is_initialized():
        raise RuntimeError(_("the process group is gone: leave it to check, which has made it"))
    try:
        data = plain(result)
        return transport.pack(data)
    except Exception as error:
        message = _(
            "what it returns, a {kind}, cannot be sent back: {error}",
            kind=type(result).__name__,
            error=error,
        )
        raise TypeError(message) from None


def _split(record: Record, by_rank: list[list[RunReport]]) -> list[Trace]:
    """The recording of each run; its events keep the numbers that they have in the whole one."""
    starts_by_rank = []
    for reports in by_rank:
        starts = [report.start_s - record.start_s for report in reports]
        starts_by_rank.append(starts)
    events_by_run = [[] for _run in by_rank[0]]
    for event in record.events():
        starts = starts_by_rank[event.rank]
        runs_begun = bisect(starts, event.start_s)
        if runs_begun > 0:
            present_run = runs_begun - 1
            events_by_run[present_run].append(event)
    world_size = len(by_rank)
    ended_s = (0.0,) * world_size
    traces = []
    for events in events_by_run:
        trace = Trace(tuple(events), ended_s)
        traces.append(trace)
    return traces
