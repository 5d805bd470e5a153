"""Inside a rank: see every call of every process group, and note it.

torch 2.15 lets a `ProcessGroup` have hooks that run before each of its operations, whoever asks for
it: the learner, DDP's reducer in C++, a functional collective. An older torch has no notes.
"""

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from course_utils.record import notes, tap
from course_utils.record.notes import Notes
from course_utils.record.recorder import refusal

_HOOK = 0x5EE  # the number under which our hooks are registered with a group
_DDP = sys.modules[DistributedDataParallel.__module__].__file__
_BACKWARD = "_engine_run_backward"


class Observer:
    """Notes what this rank calls."""

    def __init__(self, into: Notes) -> None:
        self.notes, self.messages, self.made = into, Counter(), 0
        self.wrapping, self.models = weakref.WeakSet(), weakref.WeakSet()  # those of DDP
        self.unfinished = False
        self.lines: dict[tuple[CodeType, int], int] = {}  # ids of the learner's lines
        self._carefully(self._start)

    def returned(self) -> None:
        """Note that the learner's function has returned."""
        self._carefully(self._returned)

    def _start(self) -> None:
        """See the groups that are yet to be made; none exists so far."""
        if refusal() or not hasattr(c10d, "_process_group_name"):
            self.notes.give_up()
            return
        register, name = c10d._register_pg_in_world, c10d._process_group_name

        @functools.wraps(register)
        def register_and_see(pg: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            self._carefully(self._see, pg)

        @functools.wraps(name)
        def name_and_note(ranks: Any, *args: Any, **options: Any) -> str:
            if ranks:  # the group of all ranks has none given
                self._carefully(self._new_group, ranks, sys._getframe(1))
            return name(ranks, *args, **options)

        c10d._register_pg_in_world, c10d._process_group_name = register_and_see, name_and_note

    def _carefully(self, do: Callable, *args: Any) -> None:
        """Whatever goes wrong here, the learner's call goes on."""
        try:
            do(*args)
        except Exception:
            self.notes.give_up()

    def _see(self, pg: c10d.ProcessGroup) -> None:
        if isinstance(pg, c10d.ProcessGroup):
            before = _Group(self, pg).before
            pg.register_pre_hook(_HOOK, functools.partial(self._carefully, before))

    def _new_group(self, ranks: Any, caller: FrameType) -> None:
        self.made += 1
        group = self.notes.id("", *ranks)
        line, _ = self.seen_from(caller)
        self.notes.add("new_group", self.made, line, group=group)

    def _returned(self) -> None:
        for model in [*self.wrapping, *self.models]:
            self._ask(model.reducer)
        flags = notes.UNFINISHED if self.unfinished else 0
        self.notes.add("return", 1, notes.NONE, flags)

    def _ask(self, reducer: Any) -> None:
        """Take note if a backward pass ended before DDP had averaged every gradient."""
        if threading.active_count() == 1:  # else another one's backward may hold what we ask for
            try:
                reducer._check_reducer_finalized()
            except RuntimeError:
                self.unfinished = True

    def _follow_models(self) -> None:
        """See to it that a model's reducer is asked when the model ends."""
        for model in [model for model in self.wrapping if hasattr(model, "reducer")]:
            weakref.finalize(model, self._carefully, self._ask, model.reducer)
            self.models.add(model)
            self.wrapping.discard(model)

    def seen_from(self, caller: FrameType | None) -> tuple[int, int]:
        """The learner's line, as an id, and what DDP has to do with a call."""
        flags, frame = 0, caller
        if self.wrapping:
            self._follow_models()
        if caller and caller.f_code.co_name == _BACKWARD:
            flags = notes.BACKWARD
        while frame and not tap.is_learners(frame.f_code.co_filename):
            if frame.f_code.co_filename == _DDP and frame.f_code.co_name in ("forward", "__init__"):
                flags |= self._ddp(frame)
            frame = frame.f_back
        if frame is None:
            return notes.NONE, flags
        place = frame.f_code, frame.f_lasti
        if place not in self.lines:
            self.lines[place] = self.notes.id(*_line(*place))
        return self.lines[place], flags

    def _ddp(self, frame: FrameType) -> int:
        model = frame.f_locals["self"]
        if frame.f_code.co_name == "__init__":
            self.wrapping.add(model)
            return notes.WRAPS
        return notes.FORWARD | (0 if model.training else notes.EVALUATES)


class _Group:
    """The hook of one process group."""

    def __init__(self, observer: Observer, group: c10d.ProcessGroup) -> None:
        self.observer, self.group, self.kinds = observer, weakref.ref(group), tap.kinds()
        self.calls = 0

    @functools.cached_property
    def members(self) -> tuple[list[int], int]:
        """Global ranks in the group's order, and its id; known only once the group is used."""
        ranks = c10d.get_process_group_ranks(self.group())
        return ranks, self.observer.notes.id(self.group().group_name, *ranks)

    def before(self, call: Any) -> None:
        """An operation is about to be issued."""
        kind = self.kinds.get(call.name.value)
        if kind is None:
            return
        caller, observer = sys._getframe(1).f_back, self.observer
        ranks, group = self.members
        line, flags = observer.seen_from(caller)
        if call.async_op and not tap.is_blocking(caller):
            flags |= notes.ASYNC
        root, tag = call.root, 0
        if kind == "send" or kind == "recv":
            tag = tap.tag(caller)
            observer.messages[kind, root, tag, group] += 1
            number = observer.messages[kind, root, tag, group]
        else:
            self.calls += 1
            number = self.calls
        other = ranks[root] if root >= 0 else -1
        tensors = call.input_tensors or call.output_tensors
        observer.notes.add(kind, number, line, flags, group, other, tag, tensors)


def _line(code: CodeType, at: int) -> tuple[str, int, str]:
    """File, line and function of a place in a learner's code."""
    line = next(line for start, end, line in code.co_lines() if start <= at < end)
    return code.co_filename, line or code.co_firstlineno, code.co_name
