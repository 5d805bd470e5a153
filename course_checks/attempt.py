"""An answer run in real workers, many cases in one launch.

Each rank draws its own inputs after the fork, and between two cases all ranks wait for each other
and mark the recording. Every case comes twice: with numbers that are the same in every run, so that
a failure can be shown, and with fresh ones that no other rank can know unless it is told. Their
seeds go to the kernel before the answer runs, through a pipe that no rank can read. With fresh
numbers ranks also come late, each in its turn, so that what depends on who is first shows.
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
from typing import Any, NamedTuple

import torch.distributed as dist

from course_checks.careful import plain
from course_checks.cases import Inputs, draw, public_seed, seed_cpu
from course_checks.outcome import WRONG, Outcome, Row, many
from course_checks.watch import Watch
from course_utils.devices.fork import ReadyToFork
from course_utils.hang.report import HangReport
from course_utils.hang.wait_graph import WaitGraph
from course_utils.launcher import transport
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import launch
from course_utils.launcher.stacks import Frame
from course_utils.network.trace import Event, Trace
from course_utils.record.record import Record

_SECRET = struct.Struct("<iQ")  # a rank, and what its fresh numbers are drawn from
_STILL_S = 1.0  # without a call, until it is looked whether an answer hangs for ever
_MOST = 6  # times its time, for an answer that still calls something when that is over
_RECENT_S = 20.0  # a machine is as slow as it was a moment ago
_GAP, _MARK = "bytes left out ...]", "\x1e"  # between two cases, in what a rank prints


class Run(NamedTuple):
    """One case for all ranks; `number` is its place among the cases."""

    number: int
    case: Any
    fresh: bool = False
    order: int | None = None  # with a number, ranks come late, in the order that has this number

    def lateness(self, rank: int, world_size: int) -> float | None:
        """From 0 for the first rank to come to 1 for the last; of three ranks all orders occur."""
        if self.order is None:
            return None
        turns, number = divmod(self.order, world_size)
        place = (rank - number - 1) % world_size
        return abs(place - (world_size - 1) * (turns % 2)) / max(1, world_size - 1)

    def seed(self, rank: int, world_size: int, secret: int) -> int:
        """What a rank's arguments are drawn from."""
        public = public_seed(rank, world_size, self.number)
        return public + secret + self.order if self.fresh else public

    def __str__(self) -> str:
        return f"{self.case}, fresh numbers" if self.fresh else str(self.case)


class Told(NamedTuple):
    """What became of a run in one rank."""

    packed: bytes  # what it returned
    begun: float  # on the system's monotonic clock
    seen: str  # what it did besides its calls, see `Watch`
    flops: int  # 0 where they are not counted


@dataclass
class Attempt:
    """What became of one launch of an answer; where it failed, `told` and `traces` are empty."""

    name: str
    world_size: int
    runs: list[Run]  # what the ranks were given, in order
    told: list[tuple[Told, ...]] = field(default_factory=list)  # by run and rank
    traces: list[Trace] = field(default_factory=list)  # by run
    secrets: dict[int, int] = field(default_factory=dict)  # by rank
    output: list[list[str]] = field(default_factory=list)  # by rank and run
    error: WorkerError | None = None
    reached: int = 0  # the run that it failed in

    def wrong(self, number: int, message: str, rows: Sequence[Row] = ()) -> Outcome:
        """The outcome of an answer whose first mistake is in this run."""
        printed = [runs[number] if number < len(runs) else "" for runs in self.output]
        where = f"{many([self.world_size])}, {self.runs[number]}"
        return Outcome(self.name, WRONG, where, message, rows, printed)


class _Hang(HangReport):
    """A rank that has a run behind it calls nothing until all have: as if it had returned.

    An answer that still calls something when its time is up gets as much again, up to `_MOST`
    times; and all of it is a multiple of what this machine needs at this moment.
    """

    def __init__(self, record: Record, progress: Sequence[int], timeout_s: float) -> None:
        super().__init__(record, _STILL_S)
        self._progress, self._timeout_s = progress, timeout_s

    def on_start(self, world_size: int) -> None:
        """Begin to watch."""
        super().on_start(world_size)
        self._slowness, self._rounds, self._moved_at = slowness(_RECENT_S), 1, monotonic()

    def on_progress(self) -> None:
        """Some rank has called something, or has ended."""
        self._moved_at = monotonic()

    def on_timeout(self) -> float:
        """Seconds from the start; see the class."""
        self._slowness = max(self._slowness, slowness())
        round_s = self._slowness * self._timeout_s
        if monotonic() - self._moved_at < round_s / 4:
            self._rounds = min(self._rounds + 1, _MOST)
        return self._rounds * round_s

    def wait_graph(self, ranks: Mapping[int, list[Frame] | None], now: float) -> WaitGraph:
        """Who waits for whom in this run."""
        here = min(self._progress)
        behind = {rank: None for rank, runs in enumerate(self._progress) if runs > here}
        return super().wait_graph({**ranks, **behind}, now)


def attempt(
    name: str, watch: Watch, inputs: Inputs, world_size: int, runs: list[Run], **options: Any
) -> Attempt:
    """Launch an answer once, on all these runs; `options` go to the launcher."""
    done, record, pipe = Attempt(name, world_size, runs), Record(trace=True), os.pipe()
    # How many runs each rank has behind it, in memory that all processes share.
    progress = memoryview(mmap.mmap(-1, 8 * world_size)).cast("Q")
    arguments = watch, inputs, runs, progress, pipe, options["backend"]
    listeners = ReadyToFork(), record, _Hang(record, progress, options["timeout"])
    options |= {"world_size": world_size, "listeners": listeners}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it is shown when the answer is wrong
            results = launch(_work, *arguments, **options)
        output, by_rank = results.output, [[Told(*own) for own in ranks] for ranks in results]
        done.traces = _split(record, [[one.begun for one in own] for own in by_rank])
        for rank, why in record.unread.items():  # else it would seem to have called nothing
            said = f"has spoilt the recording of what it calls: {why}"
            by_rank[rank][0] = by_rank[rank][0]._replace(seen=said)
        done.told = list(zip(*by_rank, strict=True))
    except WorkerError as error:
        done.error, output = error, error.output
        done.reached = min(*progress, len(runs) - 1)
    finally:
        os.close(pipe[1])
        with os.fdopen(pipe[0], "rb") as reading:
            done.secrets |= _SECRET.iter_unpack(reading.read())
    too_much = ["(more than a check keeps: print less)"] * len(runs)
    done.output = [too_much if _GAP in text else text.split(_MARK)[1:] for text in output]
    return done


def _work(
    watch: Watch, inputs: Inputs, runs: list[Run],
    progress: memoryview, pipe: tuple[int, int], backend: str | None,
) -> list[tuple]:  # fmt: skip
    """In each rank, instead of the answer alone: what `Told` has of each run."""
    rank, world_size, told = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), []
    arguments = _draw(inputs, runs, rank, pipe)
    watch.listen()
    for number, mine in enumerate(arguments):
        print(end=_MARK, flush=True)
        seed_cpu(public_seed(rank, len(arguments), number))  # the last one was secret
        begun = monotonic()
        with watch.run(runs[number].lateness(rank, world_size)):
            result = _returned(watch.fn, mine)
        told.append((_packed(result, backend), begun, watch.seen, watch.flops))
        progress[rank] = number + 1
        while min(progress) <= number:  # until all others have it behind them as well
            sleep(0.0003)
    return told


def _returned(fn: Callable, arguments: tuple) -> Any:
    """What an answer returns; to a launch, a script that ends by `sys.exit(0)` has ended well."""
    try:
        return fn(*arguments)
    except SystemExit as ended:
        code = "" if ended.code is None else repr(ended.code)
        raise RuntimeError(f"sys.exit({code}) was called: return the result instead") from ended


def _draw(inputs: Inputs, runs: list[Run], rank: int, pipe: tuple[int, int]) -> list[tuple]:
    """All arguments of this rank; its secret is on its way before the answer runs."""
    reading, writing = pipe
    os.close(reading)
    n, secret = int(os.environ["WORLD_SIZE"]), int.from_bytes(os.urandom(7), "little")
    os.write(writing, _SECRET.pack(rank, secret))
    os.close(writing)
    return [draw(inputs, rank, n, run.case, run.seed(rank, n, secret)) for run in runs]


def _packed(result: Any, backend: str | None) -> bytes:
    if backend and not dist.is_initialized():
        raise RuntimeError("the process group is gone: leave it to check, which has made it")
    try:
        return transport.pack(plain(result))
    except Exception as error:
        kind = type(result).__name__
        raise TypeError(f"what it returns, a {kind}, cannot be sent back: {error}") from None


def _split(record: Record, begun: list[list[float]]) -> list[Trace]:
    """The recording of each run, its events numbered as in the whole; `begun`: by rank, when."""
    begun = [[when - record.start_s for when in own] for own in begun]
    found: list[list[Event]] = [[] for _ in begun[0]]
    for event in record.events():
        if run := bisect(begun[event.rank], event.start_s):  # 0: before the first one
            found[run - 1].append(event)
    return [Trace(tuple(events), ((0.0,),) * len(begun)) for events in found]
