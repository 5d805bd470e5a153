"""Inside a rank, with trace=True: when each operation is complete, and who waits for it.

Waits that are made in Python go through `Work.wait` or a future. DDP's reducer waits in C++, at the
end of the backward pass.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple

import torch

from course_utils.launcher import torch_private
from course_utils.launcher.torch_private import C10D
from course_utils.record import frames
from course_utils.record.event import ASYNC, KINDS, QUEUED, USER_THREAD
from course_utils.record.memory import Part, Row

_COPIED = ("bytes", "peer", "group", "group_name")  # fields copied from the awaited call
_MANY = 64  # works that are held until somebody waits for them, before we look who still can
_SEEN_BY = (
    f"{C10D}:Work.wait",
    f"{C10D}:Work.get_future",
    "torch._C:Future.wait",
    "torch._C:Future.then",
    "torch._C:_current_graph_task_id",
    "torch.autograd:Variable._execution_engine",
)


def are_seen() -> bool:
    """Whether this torch lets every wait be seen, so that a call without one has none."""
    return None not in map(torch_private.find, _SEEN_BY)


class Entry(NamedTuple):
    """What is followed of a call.

    All tables share one entry for each work, since `somebody_has` counts who holds the work.
    """

    work: Any  # or a future of it
    row: Row | None  # of the call; None only for `_ALONE`


def _references(entry: Entry) -> int:
    return sys.getrefcount(entry.work)


# How many references are counted if an entry alone holds a work: 2 up to Python 3.13, and from 3.14
# on it may be fewer.
_ALONE = _references(Entry(object(), None))


def somebody_has(entry: Entry) -> bool:
    """Whether an entry's work is also held elsewhere, so that somebody may wait for it."""
    return _references(entry) > _ALONE


class Waits:
    """What was issued and is not known to be complete."""

    def __init__(self, writer: Part) -> None:
        self.pending: dict[int, Entry] = {}  # by id of the work or future
        self._writer = writer
        self._check_at_count = (
            _MANY  # with more than so many works, look which ones somebody still has
        )
        self._in_backward: dict[int, list[Row]] = {}  # what each backward pass has started
        self._waited_for = set()  # numbers of rows
        self._future_of: Callable | None = None
        self._graph_task: Callable | None = None
        self._engine: Any = None

    def listen(self) -> None:
        """Note every wait that is made in Python."""
        # Looked up here and not when a recorder is built, which every launch does.
        self._future_of = torch_private.find(f"{C10D}:Work.get_future")  # before it is wrapped
        self._graph_task = torch_private.find("torch._C:_current_graph_task_id")
        self._engine = torch_private.find("torch.autograd:Variable._execution_engine")
        torch_private.wrap(f"{C10D}:Work.wait", self._wrap_wait)
        torch_private.wrap("torch._C:Future.wait", self._wrap_wait)
        torch_private.wrap(f"{C10D}:Work.get_future", self._wrap_future_maker)
        torch_private.wrap("torch._C:Future.then", self._wrap_future_maker)
        start = threading.Thread.start

        def start_and_note(thread: threading.Thread) -> None:
            # The thread's first call was asked for now, whenever the system lets it run.
            thread.started_s = monotonic()
            start(thread)

        threading.Thread.start = start_and_note

    def _wrap_wait(self, wait: Callable) -> Callable:
        """Extend a method that waits: it writes down when the wait began and ended."""

        def wait_and_record(awaited: Any, *args: Any, **options: Any) -> Any:
            entry = self.pending.pop(id(awaited), None)
            if entry is None:
                return wait(awaited, *args, **options)
            issued = entry.row
            waiting = None
            if issued.flags & ASYNC:
                waiting = self._begin(issued, sys._getframe(1))
            try:
                done = wait(awaited, *args, **options)
                _note_sender(issued, awaited)
                return done
            finally:
                issued.finish()
                if waiting is not None:
                    waiting.finish()

        return wait_and_record

    def _wrap_future_maker(self, make: Callable) -> Callable:
        """Extend a method that makes a future of a work or of a future.

        A wait for the new one counts as a wait for the work.
        """

        def make_and_follow(source: Any, *args: Any) -> torch.futures.Future:
            future = make(source, *args)
            entry = self.pending.get(id(source))
            if entry is not None:
                self.pending[id(future)] = Entry(future, entry.row)
            return future

        return make_and_follow

    def follow(self, call: Any, entry: Entry, caller: FrameType | None) -> None:
        """Arrange for the end of an operation to be noted.

        Args:
            call: What torch tells its hook.
            entry: Its work, and the row of the call.
            caller: The frame that issued it; None for a thread of torch's.
        """
        issued = entry.row
        waits_later = issued.flags & ASYNC
        waits_in_python = caller is not None and caller.f_code.co_filename == frames.C10D_FILE
        if waits_in_python:
            self._hold(entry)
            if not waits_later:
                return  # its wait follows at once
        if not call.async_op or KINDS[issued.fields["kind"]].message:
            return
        # gloo's reduce_scatter has no future: its wait() says when it is complete.
        if self._future_of is not None:
            with contextlib.suppress(RuntimeError):
                self._future_of(call.work).add_done_callback(lambda _: issued.finish())
        if waits_later:
            self._note_wait_at_end_of_backward(issued)

    def _begin(self, issued: Row, frame: FrameType | None, start_s: float = 0) -> Row:
        """Record a wait for an asynchronous call."""
        self._waited_for.add(issued.index)
        fields = {"kind": "wait"}
        for name in _COPIED:
            fields[name] = issued.fields.get(name)
        library_frames, learner_frame = frames.split(frame)
        flags = frames.flags_of(library_frames) & USER_THREAD | issued.flags & QUEUED
        waits_for = issued.index
        return self._writer.write(
            fields, learner_frame, flags=flags, waits_for=waits_for, start_s=start_s
        )

    def _hold(self, entry: Entry) -> None:
        """Keep a work for long: gloo hangs if a receive loses its work before it is complete."""
        self.pending[id(entry.work)] = entry
        if len(self.pending) <= self._check_at_count:
            return
        for key, held in list(self.pending.items()):
            if not somebody_has(held):
                del self.pending[key]
        self._check_at_count = max(_MANY, 2 * len(self.pending))

    def _note_wait_at_end_of_backward(self, issued: Row) -> None:
        """DDP waits in C++ when a backward pass ends: what it has started is complete then.

        The engine runs callbacks at that end, in the order in which they were queued:

            first call of the pass    we queue `begin_end`
            last bucket is ready      DDP queues its wait
            the pass ends             `begin_end` queues `_backward_is_over`, behind DDP's wait;
                                      then DDP waits, then `_backward_is_over` notes it
        """
        if self._graph_task is None or self._engine is None:
            return
        task = self._graph_task()
        if task == -1:  # no backward pass
            return

        def begin_end() -> None:
            # DDP's own wait is queued already, so `_backward_is_over` runs after it.
            end = functools.partial(self._backward_is_over, task, monotonic())
            self._engine.queue_callback(end)

        if task not in self._in_backward:
            self._in_backward[task] = []
            self._engine.queue_callback(begin_end)
        self._in_backward[task].append(issued)

    def _backward_is_over(self, task: int, start_s: float) -> None:
        """Write down DDP's waits, one after the other, from `start_s` on."""
        held_elsewhere = set()  # whoever has such a work may yet wait for it
        for entry in self.pending.values():
            if somebody_has(entry):
                held_elsewhere.add(entry.row.index)
        for issued in self._in_backward.pop(task):
            if issued.index in self._waited_for or issued.index in held_elsewhere:
                continue
            waiting = self._begin(issued, sys._getframe().f_back, start_s)
            issued.finish()
            waiting.finish()
            start_s = monotonic()


def _note_sender(issued: Row, awaited: Any) -> None:
    """Of a receive from any rank, which is over: who has sent."""
    fields = issued.fields
    if fields["kind"] == "recv" and fields["peer"] is None:
        source_rank = torch_private.find_in(awaited, f"{C10D}:Work._source_rank")
        if source_rank is not None:
            issued.peer = fields["group"][source_rank()]
