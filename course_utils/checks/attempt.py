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
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist

from course_utils.checks.cases import Inputs, draw, public_seed, seed_cpu
from course_utils.launcher import parcel
from course_utils.launcher.errors import WorkerError
from course_utils.network.trace import Event, Trace
from course_utils.notebook import launch

_SEED = struct.Struct("<iiQ")  # rank, number of the run, seed
_MARK = "\x1e"  # between two cases, in what a rank prints


@dataclass(frozen=True)
class Run:
    """One case for all ranks; `number` is its place among the cases."""

    number: int
    case: Any
    fresh: bool = False


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
        reached: The run that it ended in.
    """

    world_size: int
    runs: list[Run]
    got: list[list[bytes]] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    seeds: dict[tuple[int, int], int] = field(default_factory=dict)
    output: list[list[str]] = field(default_factory=list)
    error: WorkerError | None = None
    returned: tuple[int, ...] = ()  # ranks whose answer had returned when it ended
    reached: int = 0


def attempt(
    fn: Callable, inputs: Inputs, world_size: int, runs: list[Run], **options: Any
) -> Attempt:
    """Launch an answer once, on all these runs; `options` go to `launch`."""
    progress, said = Progress(world_size), io.StringIO()
    reading, writing = os.pipe()
    worker = _Worker(fn, inputs, runs, progress, (reading, writing), options["backend"])
    done = Attempt(world_size, runs)
    try:
        with contextlib.redirect_stdout(said):  # what the answer prints is shown when it is wrong
            results = launch(worker, world_size=world_size, device="cpu", trace=True, **options)
        done.got = [list(own) for own in zip(*(result[0] for result in results), strict=True)]
        done.traces = _split(results.trace, [result[1] for result in results], len(runs))
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
            time.sleep(0.0003)


@dataclass
class _Worker:
    """What each rank does instead of the answer alone."""

    fn: Callable
    inputs: Inputs
    runs: list[Run]
    progress: Progress
    pipe: tuple[int, int]
    backend: str | None

    def __call__(self) -> tuple[list[bytes], str]:
        rank = int(os.environ["RANK"])
        arguments = self._draw(rank)
        own = self.backend and dist.new_group([rank], use_local_synchronization=True)
        got = []
        for number, mine in enumerate(arguments):
            print(end=_MARK, flush=True)
            if own:
                dist.barrier(group=own)  # of this rank alone: only there to be recorded
            seed_cpu(public_seed(rank, len(arguments), number))  # the last one was secret
            got.append(self._answer(mine))
            self.progress.finish(rank, number + 1)
        return got, own.group_name if own else ""

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


def _split(trace: Trace, marks: list[str], runs: int) -> list[Trace]:
    """The recording of each run, its events counted from 0."""
    found: list[list[Event]] = [[] for _ in range(runs)]
    for rank, mark in enumerate(marks):
        run, base = (-1, 0) if mark else (0, 0)
        for event in trace.of_rank(rank):
            if mark and event.group_name == mark:
                run, base = run + 1, event.index + 1
            elif run >= 0:
                of = None if event.of is None else event.of - base
                found[run].append(replace(event, index=event.index - base, of=of))
    ended = ((0.0, 0.0),) * trace.world_size
    return [Trace(tuple(events), ended) for events in found]
