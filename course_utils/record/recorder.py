"""Write down what every process group of a rank sends, receives and waits for.

torch 2.15 lets a `ProcessGroup` have hooks (`register_pre_hook`, `register_post_hook`) that run
around each of its operations, whoever asks for it: the learner, DDP's reducer in C++, FSDP2, a
functional collective. Nothing stands between the group and its backend, so a recorded run computes
what any other run computes. A Python subclass of `Backend` that forwards to gloo was tried first:
under it some works never complete, `monitored_barrier` fails, and DDP can crash.

Waits made from Python go through `Work.wait`, those of DDP's reducer through the end of the
backward pass. All of this happens in a forked worker; the kernel's torch stays as it is.
"""

import functools
import os
import sys
from time import monotonic, thread_time
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.launcher.stacks import Frame
from course_utils.record.ledger import Writer
from course_utils.record.tap import Call, Row, Tap, learners

_OF_A_WAIT = ("bytes", "peer", "group", "group_name")  # as what it waits for has them
_MANY = 64  # works that are held until somebody waits for them, before looking who still can


def refusal() -> str | None:
    """Say why this torch cannot record, or None when it can."""
    if hasattr(c10d.ProcessGroup, "register_pre_hook") and hasattr(c10d, "_register_pg_in_world"):
        return None
    return (
        f"trace=True needs torch 2.15 or newer, whose process groups have hooks; this is torch "
        f"{torch.__version__}. Install the pinned one, or launch without trace=True."
    )


class Recorder:
    """In a rank: what its taps have in common."""

    def __init__(self, ledger: Writer) -> None:
        self.ledger = ledger
        self.calls: dict[tuple, Call] = {}  # by all that an event's description is made of
        self.unwaited: dict[int, tuple[Any, Row]] = {}  # by the id of the work object
        self.backward: dict[int, list[Row]] = {}  # what each backward pass has started
        self.waited_for: set[int] = set()
        self.cpu = thread_time()  # the thread's CPU seconds when its last event was over

    def call(self, key: tuple, frame: FrameType | None, kept: Any = None, **fields: Any) -> Call:
        """Describe a call that was not made before, at the learner's frame."""
        if frame:
            code = frame.f_code
            line = frame.f_lineno or code.co_firstlineno
            fields["line"] = Frame(code.co_filename, line, code.co_name)
        number = self.ledger.describe(fields)
        self.calls[key] = Call(number, fields, (kept, frame and frame.f_code))
        return self.calls[key]

    def listen(self) -> None:
        """Have every group of this process recorded, those that are yet to be made as well."""
        register, rank = c10d._register_pg_in_world, os.getpid()

        @functools.wraps(register)
        def register_and_record(pg: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            if os.getpid() == rank:  # what a rank forks is no rank
                Tap(self, pg)
                if len(c10d._world.pg_map) == 1:  # to join is no work of the learner
                    self.cpu = thread_time()

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
            call, number = row
            if not call.blocking:
                cpu = thread_time() - self.cpu
                waiting = self.begin_wait(row, monotonic(), cpu, sys._getframe(1))
            try:
                done = wait(work, *args, **options)
                if call.from_any:
                    self.correct(row, work._source_rank())
                return done
            finally:
                now = monotonic()
                self.ledger.finish(number, now)
                if not call.blocking:
                    self.ledger.finish(waiting, now)
                self.cpu = thread_time()

        c10d.Work.wait = wait_and_record

    def begin_wait(self, row: Row, start_s: float, cpu_s: float, frame: FrameType | None) -> int:
        """Take note that a rank waits for an operation that it did not block on."""
        frame = learners(frame)
        call, number = row
        key = (call.number, id(frame.f_code), frame.f_lasti) if frame else (call.number,)
        waits = self.calls.get(key)
        if waits is None:
            fields = {name: call.fields.get(name) for name in _OF_A_WAIT}
            waits = self.call(key, frame, kind="wait", **fields)
        self.waited_for.add(number)
        return self.ledger.add(waits.number, number, cpu_s, start_s, 0.0)

    def correct(self, row: Row, place: int) -> None:
        """Now it is known who has sent to a rank that received from any: a place in its group."""
        call, number = row
        key = (call.number, place)
        known = self.calls.get(key)
        if known is None:
            fields = call.fields | {"peer": call.fields["group"][place]}
            known = self.call(key, None, **fields)
        self.ledger.correct(number, known.number)

    def hold(self, work: Any, row: Row) -> None:
        """Know a work object again when somebody waits for it."""
        self.unwaited[id(work)] = work, row
        if len(self.unwaited) > _MANY:
            for key, held in list(self.unwaited.items()):
                if sys.getrefcount(held[0]) == 2:  # nobody else has it, so nobody can wait for it
                    del self.unwaited[key]

    def _kept(self) -> set[int]:
        """The numbers of works that somebody else still has, and so may yet wait for."""
        return {row[1] for work, row in self.unwaited.values() if sys.getrefcount(work) > 3}

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
        kept = self._kept()
        for row in self.backward.pop(task):
            if row[1] not in self.waited_for and row[1] not in kept:
                waiting = self.begin_wait(row, start, cpu, sys._getframe().f_back)
                start, cpu = monotonic(), 0.0
                self.ledger.finish(row[1], start)
                self.ledger.finish(waiting, start)
        self.cpu = thread_time()
