"""An answer run in real workers, many cases in one launch.

Each rank draws its own inputs after the fork, and between two cases all ranks wait for each other
and mark the recording. Every case comes twice: with numbers that are the same in every run, so that
a failure can be shown, and with fresh ones that no other rank can know unless it is told. Their
seeds go to the kernel before the answer runs, through a pipe that no rank can read.
"""

import contextlib
import io
import mmap
import os
import struct
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from course_utils.checks.cases import Inputs, draw, public_seed, seed_cpu
from course_utils.hang.report import HangReport
from course_utils.launcher import parcel
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import launch
from course_utils.network.trace import Event, Trace
from course_utils.record.record import Record

_SEED = struct.Struct("<iiQ")  # rank, number of the run, seed
_MARK = "\x1e"  # between two cases, in what a rank prints


@dataclass(frozen=True)
class Run:
    """One case for all ranks; `number` is its place among the cases."""

    number: int
    case: Any
    fresh: bool = False

    def __str__(self) -> str:
        return f"{self.case}, fresh numbers" if self.fresh else str(self.case)


@dataclass
class Attempt:
    """What became of one launch of an answer.

    Attributes:
        world_size: How many ranks there were.
        runs: What they were given, in order.
        got: For each run and rank what the answer returned, packed.
        traces: For each run what was recorded.
        seeds: By rank and number of the run.
        output: For each rank what it printed, run by run.
        error: Why it ended early; `got` and `traces` are empty then.
        returned: Ranks whose answer had returned when it ended.
        reached: The run that it ended in.
    """

    world_size: int
    runs: list[Run]
    got: list[list[bytes]] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    seeds: dict[tuple[int, int], int] = field(default_factory=dict)
    output: list[list[str]] = field(default_factory=list)
    error: WorkerError | None = None
    returned: tuple[int, ...] = ()
    reached: int = 0


def attempt(
    fn: Callable, inputs: Inputs, world_size: int, runs: list[Run], **options: Any
) -> Attempt:
    """Launch an answer once, on all these runs; `options` go to the launcher."""
    done, progress, record = Attempt(world_size, runs), Progress(world_size), Record(trace=True)
    reading, writing = os.pipe()
    worker = _Worker(fn, inputs, runs, progress, (reading, writing), options["backend"])
    options |= {"world_size": world_size, "listeners": (record, HangReport(record))}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it is shown when the answer is wrong
            results = launch(worker, device="cpu", **options)
        for rank, why in record.unread.items():  # else it would seem to have called nothing
            raise ValueError(f"what rank {rank} has called cannot be read: {why}")
        done.got = [list(own) for own in zip(*(got for got, _ in results), strict=True)]
        done.traces = _split(record, [begun for _, begun in results])
        output = results.output
    except WorkerError as error:
        done.error, output = error, error.output
        done.reached = min(min(progress), len(runs) - 1)
        done.returned = tuple(r for r in range(world_size) if progress[r] > done.reached)
    finally:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            for rank, number, seed in _SEED.iter_unpack(pipe.read()):
                done.seeds.setdefault((rank, number), seed)
    done.output = [text.split(_MARK)[1:] for text in output]
    return done


class Progress:
    """How many runs each rank has behind it, in memory that all processes share."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.memory = world_size, mmap.mmap(-1, 8 * world_size)

    def __getitem__(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise IndexError(rank)
        return int.from_bytes(self.memory[8 * rank : 8 * rank + 8], "little")

    def finish(self, rank: int, runs: int) -> None:
        """Say that a rank has so many runs behind it, and wait until all others have as well."""
        self.memory[8 * rank : 8 * rank + 8] = runs.to_bytes(8, "little")
        while min(self) < runs:
            sleep(0.0003)


@dataclass
class _Worker:
    """What each rank does instead of the answer alone."""

    fn: Callable
    inputs: Inputs
    runs: list[Run]
    progress: Progress
    pipe: tuple[int, int]
    backend: str | None

    def __call__(self) -> tuple[list[bytes], list[float]]:
        """What the answer returned for each run, and when each of them began."""
        rank = int(os.environ["RANK"])
        arguments = self._draw(rank)
        got, begun = [], []
        for number, mine in enumerate(arguments):
            print(end=_MARK, flush=True)
            seed_cpu(public_seed(rank, len(arguments), number))  # the last one was secret
            begun.append(monotonic())
            got.append(self._answer(mine))
            self.progress.finish(rank, number + 1)
        return got, begun

    def _draw(self, rank: int) -> list[tuple]:
        """All arguments of this rank, and the fresh seeds on their way, before the answer runs."""
        reading, writing = self.pipe
        os.close(reading)
        drawn, world_size = [], int(os.environ["WORLD_SIZE"])
        for number, run in enumerate(self.runs):
            seed = public_seed(rank, world_size, run.number)
            if run.fresh:
                seed = int.from_bytes(os.urandom(7), "little")
                os.write(writing, _SEED.pack(rank, number, seed))
            drawn.append(draw(self.inputs, rank, world_size, run.case, seed))
        os.close(writing)
        return drawn

    def _answer(self, arguments: tuple) -> bytes:
        result = self.fn(*arguments)
        if self.backend and not dist.is_initialized():
            raise RuntimeError("the process group is gone: leave it to check, which has made it")
        try:
            return parcel.pack(result)
        except Exception as error:
            kind = type(result).__name__
            raise TypeError(f"what it returns, a {kind}, cannot be sent back: {error}") from None


def _split(record: Record, begun: list[list[float]]) -> list[Trace]:
    """The recording of each run, its events counted from 0; `begun`: by rank, when each began."""
    found: list[list[Event]] = [[] for _ in begun[0]]
    first: dict[tuple[int, int], int] = {}
    begun = [[when - record.start_s for when in own] for own in begun]
    for event in record.events():
        if run := bisect(begun[event.rank], event.start_s):  # 0: before the first one
            base = first.setdefault((event.rank, run), event.index)
            of = None if event.of is None else event.of - base
            found[run - 1].append(replace(event, index=event.index - base, of=of))
    return [Trace(tuple(events), ((0.0, 0.0),) * len(begun)) for events in found]
