"""Inside a rank: write down what every process group sends, receives and waits for.

torch 2.15 lets a `ProcessGroup` have hooks that run around each of its operations, whoever asks for
it: the learner, DDP's reducer in C++, FSDP2, a functional collective. Nothing stands between the
group and its backend, so a recorded run computes what any other run computes. Waits made from
Python go through `Work.wait`, those of DDP's reducer through the end of the backward pass.

All of this happens in a forked worker and ends with it; the kernel's torch stays as it is.
"""

import functools
import operator
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, thread_time
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.tap import Row, Tap, describe, where
from course_utils.trace import Event, Trace

_MANY = 64  # works that are held until somebody waits for them, before looking who still can


def refusal() -> str | None:
    """Say why this torch cannot record, or None when it can."""
    if hasattr(c10d.ProcessGroup, "register_pre_hook") and hasattr(c10d, "_register_pg_in_world"):
        return None
    return (
        f"trace=True needs torch 2.15 or newer, whose process groups have hooks; this is torch "
        f"{torch.__version__}. Install the pinned one, or launch without trace=True."
    )


@dataclass
class Recorded:
    """What a recorded rank hands over: its function's result, its events, and its end."""

    value: Any
    rows: list[tuple]  # the events' fields, in order
    ended: tuple[float, float]  # seconds since the launch, CPU seconds since the last event


def collect(recorded: list[Recorded]) -> tuple[list[Any], Trace]:
    """In the kernel: what the ranks returned, and what they recorded."""
    events = []
    for values in (row for one in recorded for row in one.rows):
        events.append(object.__new__(Event))  # Event(**fields) takes four times as long
        events[-1].__dict__.update(zip(Row.__slots__, values, strict=True))
    trace = Trace(tuple(events), tuple(one.ended for one in recorded))
    return [one.value for one in recorded], trace


class Recorder:
    """The learner's function, recorded."""

    def __init__(self, fn: Callable, start: float) -> None:
        self.fn, self.start = fn, start
        self.rows: list[Row] = []
        self.unwaited: dict[int, tuple[Any, Row]] = {}  # by the id of the work object
        self.backward: dict[int, list[Row]] = {}  # what each backward pass has started
        self.waited_for: set[Row] = set()
        self.cpu = 0.0  # the thread's CPU seconds when its last event was over

    def __call__(self, *args: Any) -> Recorded:
        """In the rank: run the function and return what it returned, with its events."""
        self._listen()
        self.cpu = thread_time()
        value = self.fn(*args)
        ended = monotonic() - self.start, thread_time() - self.cpu
        return Recorded(value, self._finished(), ended)

    def _finished(self) -> list[tuple]:
        """All rows as plain values that travel."""
        rank, values = int(os.environ["RANK"]), operator.attrgetter(*Row.__slots__)
        numbers = {row: index for index, row in enumerate(self.rows)}
        for row, index in numbers.items():
            row.rank, row.index, row.of = rank, index, numbers.get(row.of)
            row.end_s = (row.end_s or row.start_s) - self.start
            row.start_s -= self.start
            row.cpu_s = max(0.0, row.cpu_s)  # another thread has another clock
            row.shape = tuple(row.shape)
            row.place, row.code = describe(row.place, row.code)
            row.dtype = name(row.dtype)
            row.op = row.op and str(row.op).rpartition(".")[2].lower()
        return list(map(values, self.rows))

    def _listen(self) -> None:
        """Have every group of this process recorded, those that are yet to be made as well."""
        register = c10d._register_pg_in_world

        @functools.wraps(register)
        def register_and_record(pg: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            Tap(self, pg)

        c10d._register_pg_in_world = register_and_record
        for group in list(c10d._world.pg_map):
            Tap(self, group)
        self._listen_to_waits()

    def _listen_to_waits(self) -> None:
        wait, unwaited = c10d.Work.wait, self.unwaited

        @functools.wraps(wait)
        def wait_and_record(work: c10d.Work, *args: Any, **options: Any) -> bool:
            _, row = unwaited.pop(id(work), (None, None))
            if row is None:
                return wait(work, *args, **options)
            start, cpu = (0.0, 0.0) if row.blocking else (monotonic(), thread_time() - self.cpu)
            try:
                return wait(work, *args, **options) if args or options else wait(work)
            finally:
                if row.kind == "recv" and row.peer is None:  # now it is known who sent
                    row.peer = row.group[work._source_rank()]
                if row.blocking:
                    self.finish(row)
                else:
                    self.waited(row, start, cpu, sys._getframe(1))
                self.cpu = thread_time()

        c10d.Work.wait = wait_and_record

    def hold(self, work: Any, row: Row) -> None:
        """Know a work object again when somebody waits for it."""
        self.unwaited[id(work)] = work, row
        if len(self.unwaited) > _MANY:
            for key, held in list(self.unwaited.items()):
                if sys.getrefcount(held[0]) == 2:  # nobody else has it, so nobody can wait for it
                    del self.unwaited[key]

    def in_backward(self, row: Row) -> None:
        """DDP waits in C++ when a backward pass ends: what started in it is complete then."""
        task = torch._C._current_graph_task_id()
        engine = torch.autograd.Variable._execution_engine

        def ends() -> None:  # behind it in the queue is DDP's own end, and behind that `_is_over`
            start, cpu = monotonic(), thread_time() - self.cpu
            engine.queue_callback(functools.partial(self._is_over, task, start, cpu))

        if task not in self.backward:
            self.backward[task] = []
            engine.queue_callback(ends)
        self.backward[task].append(row)

    def _is_over(self, task: int, start: float, cpu: float) -> None:
        for row in self.backward.pop(task):
            if row not in self.waited_for:
                self.waited(row, start, cpu, sys._getframe().f_back)
                start, cpu = monotonic(), 0.0
        self.cpu = thread_time()

    def waited(self, row: Row, start: float, cpu: float, frame: FrameType | None) -> None:
        """Take note that a rank has waited for an operation that it did not block on."""
        self.finish(row)
        self.waited_for.add(row)
        wait = Row()
        wait.kind, wait.of, wait.blocking = "wait", row, False
        wait.start_s, wait.end_s, wait.cpu_s = start, monotonic(), cpu
        wait.group, wait.group_name = row.group, row.group_name
        wait.peer, wait.bytes, wait.shape, wait.parts = row.peer, row.bytes, (), ()
        wait.tag = wait.dtype = wait.op = wait.root = None
        wait.place, wait.code = where(frame)
        self.rows.append(wait)

    def finish(self, row: Row) -> None:
        """The operation is complete, as seen by this rank; what says so first counts."""
        if row.end_s is None:
            row.end_s = monotonic()


@functools.cache
def name(dtype: torch.dtype | None) -> str | None:
    """Such as "float32"."""
    return None if dtype is None else str(dtype).removeprefix("torch.")
