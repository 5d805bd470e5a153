"""Inside a rank, with trace=True: when each operation is complete, and who waits for it.

Waits made from Python go through `Work.wait`, those of DDP's reducer through the end of the
backward pass.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.record import frames
from course_utils.record.event import ASIDE, ASYNC, KINDS, QUEUED
from course_utils.record.memory import Part, Row

_OF_A_WAIT = ("bytes", "peer", "group", "group_name")  # as what it waits for has them
_MANY = 64  # works that are held until somebody waits for them, before looking who still can


def _references(entry: tuple[Any, object]) -> int:
    return sys.getrefcount(entry[0])


# Python counts what stands in an entry alone in one way up to 3.13, and may in another from then.
_ALONE = _references((object(), None))


def somebody_has(entry: tuple[Any, object]) -> bool:
    """Whether what stands in an entry is held elsewhere too, so that somebody may wait for it."""
    return _references(entry) > _ALONE


class Waits:
    """What was issued and is not known to be complete."""

    def __init__(self, writer: Part) -> None:
        self.writer = writer
        # What a rank can still wait for, a work or a future of one, by its id.
        self.unwaited: dict[int, tuple[Any, Row]] = {}
        self.backward: dict[int, list[Row]] = {}  # what each backward pass has started
        self.waited_for: set[int] = set()  # rows
        self.future_of = c10d.Work.get_future

    def listen(self) -> None:
        """Take note of every wait that is made from Python."""
        works, futures, start = c10d.Work, torch._C.Future, threading.Thread.start
        works.wait, futures.wait = self._waiting(works.wait), self._waiting(futures.wait)
        works.get_future = self._handing_on(works.get_future)
        futures.then = self._handing_on(futures.then)

        def start_and_note(thread: threading.Thread) -> None:
            thread.started_s = monotonic()  # when its first call was asked for, whenever it runs
            start(thread)

        threading.Thread.start = start_and_note

    def _waiting(self, wait: Callable) -> Callable:
        @functools.wraps(wait)
        def wait_and_record(awaited: Any, *args: Any, **options: Any) -> Any:
            _, issued = self.unwaited.pop(id(awaited), (None, None))
            if issued is None:
                return wait(awaited, *args, **options)
            with contextlib.ExitStack() as over:
                if issued.flags & ASYNC:
                    over.callback(self._begin(issued, sys._getframe(1)).finish)
                over.callback(issued.finish)
                done, fields = wait(awaited, *args, **options), issued.fields
                if fields["kind"] == "recv" and fields["peer"] is None:  # now it is known who sent
                    issued.peer = fields["group"][awaited._source_rank()]
                return done

        return wait_and_record

    def _handing_on(self, make: Callable) -> Callable:
        @functools.wraps(make)
        def make_and_follow(known: Any, *args: Any) -> torch.futures.Future:
            future = make(known, *args)
            if id(known) in self.unwaited:
                self.unwaited[id(future)] = future, self.unwaited[id(known)][1]
            return future

        return make_and_follow

    def follow(self, call: Any, issued: Row, caller: FrameType | None) -> None:
        """See to it that the end of an operation is noticed."""
        work, waits_later = call.work, issued.flags & ASYNC
        if caller is not None and caller.f_code.co_filename == frames.C10D:  # waits in Python
            self._hold(work, issued)
            if not waits_later:
                return  # its wait follows at once
        if call.async_op and not KINDS[issued.fields["kind"]].message:
            with contextlib.suppress(RuntimeError):  # gloo's reduce_scatter has none: wait() tells
                self.future_of(work).add_done_callback(lambda _: issued.finish())
            if waits_later and torch._C._current_graph_task_id() != -1:
                self._in_backward(issued)

    def _begin(self, issued: Row, frame: FrameType | None, start_s: float = 0) -> Row:
        """Take note that a rank waits for an operation that it did not block on."""
        fields = {"kind": "wait"} | {name: issued.fields.get(name) for name in _OF_A_WAIT}
        self.waited_for.add(issued.index)
        inner, own = frames.split(frame)
        flags = frames.flags(inner) & ASIDE | issued.flags & QUEUED
        return self.writer.write(fields, own, flags=flags, of=issued.index, start_s=start_s)

    def _hold(self, work: Any, issued: Row) -> None:
        # gloo hangs where a receive that is not complete loses its work, so that is kept for long.
        self.unwaited[id(work)] = work, issued
        if len(self.unwaited) > _MANY:
            for key, entry in list(self.unwaited.items()):
                if not somebody_has(entry):
                    del self.unwaited[key]

    def _in_backward(self, issued: Row) -> None:
        """DDP waits in C++ when a backward pass ends: what started in it is complete then."""
        task = torch._C._current_graph_task_id()
        engine = torch.autograd.Variable._execution_engine

        def ends() -> None:  # behind it in the queue is DDP's own end, and behind that `_is_over`
            engine.queue_callback(functools.partial(self._is_over, task, monotonic()))

        if task not in self.backward:
            engine.queue_callback(ends)
        self.backward.setdefault(task, []).append(issued)

    def _is_over(self, task: int, start_s: float) -> None:
        # Whoever still has a work may yet wait for it.
        kept = {entry[1].index for entry in self.unwaited.values() if somebody_has(entry)}
        for issued in self.backward.pop(task):
            if issued.index not in self.waited_for | kept:
                waiting = self._begin(issued, sys._getframe().f_back, start_s)
                issued.finish()
                waiting.finish()
                start_s = monotonic()
