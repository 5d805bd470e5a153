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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import monotonic, sleep
from typing import Any, NamedTuple

import torch.distributed as dist

from course_utils.checks.cases import Inputs, draw, public_seed, seed_cpu
from course_utils.checks.outcome import WRONG, Outcome, Row, many
from course_utils.hang.report import HangReport
from course_utils.launcher import parcel
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import launch
from course_utils.network.trace import Event, Trace
from course_utils.record.record import Record

_SEED = struct.Struct("<iiQ")  # rank, number of the run, seed
_MARK = "\x1e"  # between two cases, in what a rank prints


class Run(NamedTuple):
    """One case for all ranks; `number` is its place among the cases."""

    number: int
    case: Any
    fresh: bool = False

    def __str__(self) -> str:
        return f"{self.case}, fresh numbers" if self.fresh else str(self.case)


@dataclass
class Attempt:
    """What became of one launch of an answer; where it failed, `got` and `traces` are empty."""

    name: str
    world_size: int
    runs: list[Run]  # what the ranks were given, in order
    got: list[list[bytes]] = field(default_factory=list)  # what they returned, by run and rank
    traces: list[Trace] = field(default_factory=list)  # by run
    seeds: dict[tuple[int, int], int] = field(default_factory=dict)  # by rank and number of the run
    output: list[list[str]] = field(default_factory=list)  # by rank and run
    error: WorkerError | None = None
    returned: tuple[int, ...] = ()  # ranks whose answer had returned when it failed
    reached: int = 0  # the run that it failed in

    def wrong(self, number: int, message: str, rows: Sequence[Row] = ()) -> Outcome:
        """The outcome of an answer whose first mistake is in this run."""
        printed = [runs[number] if number < len(runs) else "" for runs in self.output]
        where = f"{many([self.world_size])}, {self.runs[number]}"
        return Outcome(self.name, WRONG, where, message, rows, printed)


def attempt(
    name: str, fn: Callable, inputs: Inputs, world_size: int, runs: list[Run], **options: Any
) -> Attempt:
    """Launch an answer once, on all these runs; `options` go to the launcher."""
    done, record, pipe = Attempt(name, world_size, runs), Record(trace=True), os.pipe()
    # How many runs each rank has behind it, in memory that all processes share.
    progress = memoryview(mmap.mmap(-1, 8 * world_size)).cast("Q")
    arguments = fn, inputs, runs, progress, pipe, options["backend"]
    options |= {"world_size": world_size, "listeners": (record, HangReport(record))}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it is shown when the answer is wrong
            results = launch(_work, *arguments, device="cpu", **options)
        for rank, why in record.unread.items():  # else it would seem to have called nothing
            raise ValueError(f"what rank {rank} has called cannot be read: {why}")
        done.got = [list(own) for own in zip(*(got for got, _ in results), strict=True)]
        done.traces = _split(record, [begun for _, begun in results])
        output = results.output
    except WorkerError as error:
        done.error, output = error, error.output
        done.reached = min(*progress, len(runs) - 1)
        done.returned = tuple(r for r in range(world_size) if progress[r] > done.reached)
    finally:
        os.close(pipe[1])
        with os.fdopen(pipe[0], "rb") as reading:
            for rank, number, seed in _SEED.iter_unpack(reading.read()):
                done.seeds.setdefault((rank, number), seed)
    done.output = [text.split(_MARK)[1:] for text in output]
    return done


def _work(
    fn: Callable, inputs: Inputs, runs: list[Run],
    progress: memoryview, pipe: tuple[int, int], backend: str | None,
) -> tuple[list[bytes], list[float]]:  # fmt: skip
    """In each rank, instead of the answer alone: what it returned in each run, and each's start."""
    rank = int(os.environ["RANK"])
    arguments = _draw(inputs, runs, rank, pipe)
    got, begun = [], []
    for number, mine in enumerate(arguments):
        print(end=_MARK, flush=True)
        seed_cpu(public_seed(rank, len(arguments), number))  # the last one was secret
        begun.append(monotonic())
        got.append(_packed(fn(*mine), backend))
        progress[rank] = number + 1
        while min(progress) <= number:  # until all others have it behind them as well
            sleep(0.0003)
    return got, begun


def _draw(inputs: Inputs, runs: list[Run], rank: int, pipe: tuple[int, int]) -> list[tuple]:
    """All arguments of this rank, and the fresh seeds on their way, before the answer runs."""
    reading, writing = pipe
    os.close(reading)
    drawn, world_size = [], int(os.environ["WORLD_SIZE"])
    for number, run in enumerate(runs):
        seed = public_seed(rank, world_size, run.number)
        if run.fresh:
            seed = int.from_bytes(os.urandom(7), "little")
            os.write(writing, _SEED.pack(rank, number, seed))
        drawn.append(draw(inputs, rank, world_size, run.case, seed))
    os.close(writing)
    return drawn


def _packed(result: Any, backend: str | None) -> bytes:
    if backend and not dist.is_initialized():
        raise RuntimeError("the process group is gone: leave it to check, which has made it")
    try:
        return parcel.pack(result)
    except Exception as error:
        kind = type(result).__name__
        raise TypeError(f"what it returns, a {kind}, cannot be sent back: {error}") from None


def _split(record: Record, begun: list[list[float]]) -> list[Trace]:
    """The recording of each run, its events counted from 0; `begun`: by rank, when each began."""
    begun = [[when - record.start_s for when in own] for own in begun]
    found: list[list[Event]] = [[] for _ in begun[0]]
    parts = groupby(record.events(), lambda e: (e.rank, bisect(begun[e.rank], e.start_s)))
    for (_, run), (first, *more) in parts:
        for event in (first, *more) if run else ():  # 0: before the first one
            of = None if event.of is None else event.of - first.index
            found[run - 1].append(replace(event, index=event.index - first.index, of=of))
    return [Trace(tuple(events), ((0.0,),) * len(begun)) for events in found]
