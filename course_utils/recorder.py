"""Inside a rank: write down what every process group sends, receives and waits for.

torch 2.15 lets a `ProcessGroup` have hooks that run around each of its operations, whoever asks for
it: the learner, DDP's reducer in C++, FSDP2, a functional collective. Nothing stands between the
group and its backend, so a recorded run computes what any other run computes. Waits made from
Python go through `Work.wait`, those of DDP's reducer through the end of the backward pass.

All of this happens in a forked worker and ends with it; the kernel's torch stays as it is.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.tap import Tap, where
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
    events: list[Event]
    ended: tuple[float, float]  # seconds since the launch, CPU seconds since the last event


def collect(recorded: list[Recorded]) -> tuple[list[Any], Trace]:
    """In the kernel: what the ranks returned, and what they recorded."""
    events = tuple(event for one in recorded for event in one.events)
    trace = Trace(events, tuple(one.ended for one in recorded))
    return [one.value for one in recorded], trace


class Recorder:
    """The learner's function, recorded."""

    def __init__(self, fn: Callable, start: float) -> None:
        self.fn, self.start = fn, start
        self.rows: list[dict[str, Any]] = []
        self.unwaited: dict[int, tuple[Any, dict[str, Any]]] = {}  # by the id of the work object
        self.backward: dict[int, list[dict[str, Any]]] = {}  # what each backward pass has started
        self.waited_for: set[int] = set()  # the indices of operations
        self.cpu = 0.0

    def __call__(self, *args: Any) -> Recorded:
        """In the rank: run the function and return what it returned, with its events."""
        self._listen()
        self.cpu = time.thread_time()
        value = self.fn(*args)
        ended = self.now(), time.thread_time() - self.cpu
        rank = int(os.environ["RANK"])
        events = [Event(rank=rank, **{"end_s": row["start_s"], **row}) for row in self.rows]
        return Recorded(value, events, ended)

    def now(self) -> float:
        """Seconds since the launch."""
        return time.monotonic() - self.start

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
        wait = c10d.Work.wait

        @functools.wraps(wait)
        def wait_and_record(work: c10d.Work, *args: Any, **options: Any) -> bool:
            row = self.unwaited.pop(id(work), (None, None))[1]
            if row is None:
                return wait(work, *args, **options)
            start, cpu = (0.0, 0.0) if row["blocking"] else (self.now(), self.used_cpu())
            try:
                return wait(work, *args, **options)
            finally:
                self.waited(row, start, cpu, sys._getframe(1), work)

        c10d.Work.wait = wait_and_record

    def hold(self, work: Any, row: dict[str, Any]) -> None:
        """Know a work object again when somebody waits for it."""
        self.unwaited[id(work)] = work, row
        if len(self.unwaited) > _MANY:
            for key, held in list(self.unwaited.items()):
                if sys.getrefcount(held[0]) == 2:  # nobody else has it, so nobody can wait for it
                    del self.unwaited[key]

    def in_backward(self, row: dict[str, Any]) -> None:
        """DDP waits in C++ when a backward pass ends: what started in it is complete then."""
        task = torch._C._current_graph_task_id()
        engine = torch.autograd.Variable._execution_engine

        def ends() -> None:  # behind it in the queue is DDP's own end, and behind that `is_over`
            start, cpu = self.now(), self.used_cpu()
            engine.queue_callback(functools.partial(self._is_over, task, start, cpu))

        if task not in self.backward:
            self.backward[task] = []
            engine.queue_callback(ends)
        self.backward[task].append(row)

    def _is_over(self, task: int, start: float, cpu: float) -> None:
        for row in self.backward.pop(task):
            if row["index"] not in self.waited_for:
                self.waited(row, start, cpu, sys._getframe().f_back, None)
                start, cpu = self.now(), 0.0

    def used_cpu(self) -> float:
        """CPU seconds that this thread has computed since its last call."""
        return max(0.0, time.thread_time() - self.cpu)

    def add(self, **fields: Any) -> dict[str, Any]:
        """Append an event; the rest of its fields follow when they are known."""
        row = {"index": len(self.rows), **fields}
        self.rows.append(row)
        return row

    def waited(
        self, row: dict[str, Any], start: float, cpu: float, frame: FrameType | None, work: Any
    ) -> None:
        """Take note that a rank has waited for an operation."""
        end = self.now()
        self.finish(row, end)
        self.waited_for.add(row["index"])
        if row["kind"] == "recv" and row["peer"] is None:  # now it is known who sent
            row["peer"] = row["group"][work._source_rank()]
        if not row["blocking"]:
            place, code = where(frame)
            times = {"start_s": start, "end_s": end, "cpu_s": cpu}
            what = {name: row[name] for name in ("group", "group_name", "peer", "bytes")}
            self.add(kind="wait", of=row["index"], place=place, code=code, **times, **what)
        self.cpu = time.thread_time()

    def finish(self, row: dict[str, Any], end: float) -> None:
        """The operation is complete, as seen by this rank; what says so first counts."""
        row.setdefault("end_s", end)
