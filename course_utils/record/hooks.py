"""Inside a rank: see every call of every process group, and write it down before it is issued.

torch 2.15 lets a `ProcessGroup` have hooks (`register_pre_hook`, `register_post_hook`) that run
around each of its operations, whoever asks for it: the learner, DDP's reducer in C++, FSDP2, a
functional collective. Nothing stands between the group and its backend, so a recorded run computes
what any other run computes. A Python subclass of `Backend` that forwards to gloo was tried first:
under it some works never complete, `monitored_barrier` fails, and DDP can crash.

The hooks run a thousand times where a learner measures. So they look up what an operation is by a
key of what it was called with, and spell it out only at its first time. All of this happens in a
forked worker; the kernel's torch stays as it is.
"""

import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.record import frames
from course_utils.record.event import ASYNC, UNFINISHED
from course_utils.record.kinds import KINDS, Kind
from course_utils.record.memory import ISSUED, OF, ON_ITS_WAY, Writer, Written
from course_utils.record.waits import Waits

_HOOK = 0x7ACE  # the number under which our hooks are registered with a group
_PATCHED = ("_register_pg_in_world", "_process_group_name")  # of torch, in this rank alone
_NOTHING = SimpleNamespace(dtype=None, shape=(), nbytes=0)


def refusal() -> str | None:
    """Say why this torch cannot record, or None when it can."""
    if hasattr(c10d.ProcessGroup, "register_pre_hook") and all(hasattr(c10d, n) for n in _PATCHED):
        return None
    return (
        f"trace=True needs torch 2.15 or newer, whose process groups have hooks; this is torch "
        f"{torch.__version__}. Install the pinned one, or launch without trace=True."
    )


@functools.cache
def _called() -> dict[int, tuple[str, Kind, bool]]:
    """By torch's number of an operation: what it is called here; is it handed a tensor per rank."""
    names = torch._C._distributed_c10d.HookOpName
    return {
        getattr(names, name).value: (kind, row, listed)
        for kind, row in KINDS.items()
        for listed, all_ in ((False, row.hooks), (True, row.lists))
        for name in all_.split()
    }


class Recorder:
    """What the hooks of all groups of this rank have in common."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.models = writer, frames.Models(self.carefully)
        self.waits = Waits(writer) if writer.whole else None
        self.forked = False

    def carefully(self, do: Callable, *args: Any) -> None:
        """Whatever goes wrong here, a call that nobody asked to record goes on."""
        if self.forked:
            return
        try:
            do(*args)
        except Exception:
            self.writer.give_up()
            if self.writer.whole:
                raise

    def listen(self) -> None:
        """Have every group recorded that is yet to be made; none exists so far."""
        if refusal():
            self.writer.give_up()
            return
        register, name = (getattr(c10d, patched) for patched in _PATCHED)

        @functools.wraps(register)
        def register_and_record(pg: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            if isinstance(pg, c10d.ProcessGroup):
                self.carefully(_Tap, self, pg)

        @functools.wraps(name)
        def name_and_record(ranks: Any, *args: Any, **options: Any) -> str:
            if ranks:  # the group of all ranks has none given
                self.carefully(self._new_group, ranks, sys._getframe(1))
            return name(ranks, *args, **options)

        c10d._register_pg_in_world, c10d._process_group_name = register_and_record, name_and_record
        if self.waits:
            self.waits.listen()
        os.register_at_fork(after_in_child=self._fall_silent)

    def _fall_silent(self) -> None:  # what a rank forks, such as a DataLoader's worker, is no rank
        self.forked = True
        if self.waits:
            self.waits.unwaited.clear()

    def returned(self) -> None:
        """Write down that the learner's function has returned."""
        flags = UNFINISHED if self.models.are_unfinished() else 0
        self.writer.write(("return",), None, _unhooked, ("return",), flags)

    def _new_group(self, ranks: Any, caller: FrameType) -> None:
        frame, flags = self.models.seen(caller)
        self.writer.write(("new_group", *ranks), frame, _unhooked, ("new_group",), flags)


class _Tap:
    """The hooks of one process group."""

    def __init__(self, recorder: Recorder, group: c10d.ProcessGroup) -> None:
        self.recorder, self.group = recorder, weakref.ref(group)
        self.issuing: dict[int, Written] = {}
        group.register_pre_hook(_HOOK, functools.partial(recorder.carefully, self._before))
        if recorder.waits:
            group.register_post_hook(_HOOK, functools.partial(recorder.carefully, self._after))

    @functools.cached_property
    def _members(self) -> tuple[tuple[int, ...], str]:
        """Global ranks in the group's order, and its name; known only once the group is used.

        Groups that only their members make can have one name, so both together say which it is.
        """
        return tuple(c10d.get_process_group_ranks(self.group())), self.group().group_name

    def _before(self, call: Any) -> None:
        if call.name.value not in _called():
            return
        (name, kind, listed), caller = _called()[call.name.value], sys._getframe(1).f_back
        frame, flags = self.recorder.models.seen(caller)
        if call.async_op and not frames.is_blocking(caller):
            flags |= ASYNC
        inputs, place = call.input_tensors, call.root
        tensors = inputs or call.output_tensors
        first = tensors[0] if tensors else _NOTHING
        size = first.nbytes if len(tensors) < 2 else sum(tensor.nbytes for tensor in tensors)
        tag = frames.tag(caller) if kind.message else None
        op = frames.operator(caller) if kind.reduces else None
        n = len(self._members[0])
        split = frames.parts(inputs, listed, n, caller) if kind.parted else ()
        key = (name, self._members, first.dtype, first.shape, size, place, tag, split, op)
        counted = (self._members, name, place, tag) if kind.message else (self._members,)
        issued = self.recorder.writer.write(key, frame, _hooked, counted, flags, ON_ITS_WAY)
        if self.recorder.waits:
            self.issuing[call.op_id] = issued

    def _after(self, call: Any) -> None:
        if issued := self.issuing.pop(call.op_id, None):
            self.recorder.writer.put(issued.row, OF, ISSUED)
            if call.work is not None:
                self.recorder.waits.follow(call, issued, sys._getframe(1).f_back)


def _unhooked(kind: str, *group: int) -> dict[str, Any]:
    return {"kind": kind, "bytes": 0, "group": group}


def _hooked(
    name: str, members: tuple[tuple[int, ...], str], dtype: torch.dtype | None, shape: torch.Size,
    size: int, place: int, tag: int | None, split: tuple[int, ...], op: Any,
) -> dict[str, Any]:  # fmt: skip
    group, group_name = members
    return {
        "kind": name, "bytes": size, "shape": tuple(shape), "tag": tag, "parts": split,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "op": op and str(op).rpartition(".")[2].lower(), "group": group, "group_name": group_name,
        "peer" if KINDS[name].message else "root": group[place] if place >= 0 else None,
    }  # fmt: skip
