"""Inside a rank: see every call of every process group, and write it down before it is issued.

torch 2.15 lets a `ProcessGroup` have hooks (`register_pre_hook`, `register_post_hook`) that run
around each of its operations, whoever asks for it: the learner, DDP's reducer in C++, FSDP2, a
functional collective. Nothing stands between the group and its backend, so a recorded run computes
the same as any other run. (A Python subclass of `Backend` would not do: under it some works never
complete, and DDP can crash.) All of this happens in a forked worker; the kernel's torch stays as it
is.
"""

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d
import torch.utils.data
from torch.distributed import constants
from torch.nn.parallel import DistributedDataParallel

from course_utils.launcher import torch_private
from course_utils.launcher.language import _
from course_utils.launcher.stack_writer import frames_of_threads
from course_utils.launcher.stacks import Frame
from course_utils.launcher.torch_private import C10D
from course_utils.record import cuda_times, frames, layouts
from course_utils.record.event import (
    ASYNC,
    KINDS,
    MAY_TIME_OUT,
    QUEUED,
    SHARED,
    THREADS_LEFT,
    Kind,
)
from course_utils.record.memory import Part, Row
from course_utils.record.models import Models
from course_utils.record.unwaited import Unwaited
from course_utils.record.waits import Entry, Waits

_NEEDED = (
    "torch._C._distributed_c10d:HookOpName",
    f"{C10D}:_register_pg_in_world",
    f"{C10D}:ProcessGroup.register_pre_hook",
    f"{C10D}:ProcessGroup.register_post_hook",
)
_HOOK = 0x7ACE  # the number under which our hooks are registered with a group
_NO_TENSOR = SimpleNamespace(dtype=None, shape=(), nbytes=0, device=torch.device("cpu"))
_TORCHS_TIMEOUTS = {constants.default_pg_timeout, constants.default_pg_nccl_timeout}
_BLOCKING_BACKENDS = ("gloo", "mpi", "ucc", "fake")  # they wait until the work is done


class _Operation(NamedTuple):
    name: str  # as in `KINDS`
    kind: Kind
    listed: bool  # whether it is handed a list with one tensor for each rank


@functools.cache
def _operations() -> dict[int, _Operation]:
    """The operations that are recorded, by torch's number."""
    numbers = torch_private.find("torch._C._distributed_c10d:HookOpName")
    operations = {}
    for name, kind in KINDS.items():
        for torchs_name in kind.hooks.split():
            operations[getattr(numbers, torchs_name).value] = _Operation(name, kind, False)
        for torchs_name in kind.lists.split():
            operations[getattr(numbers, torchs_name).value] = _Operation(name, kind, True)
    return operations


class Recorder:
    """The hooks of all groups of this rank."""

    def __init__(self, writer: Part, launch_timeout_s: float) -> None:
        self.writer = writer
        self.launch_timeout_s = launch_timeout_s
        self.traces = writer.keeps_all  # whether ends and waits are recorded as well
        self.waits = Waits(writer)
        self.models = Models()
        self.unwaited = Unwaited(writer)
        self.times = cuda_times.CudaTimes()
        self.forked = False

    def carefully(self, do: Callable, *args: Any) -> None:
        """Call `do`; if it fails, give the record up, but let the recorded call go on.

        With trace=True somebody has asked for the record, so there the exception is raised.
        """
        if self.forked:
            return
        try:
            do(*args)
        except Exception:
            self.writer.give_up()
            if self.traces:
                raise

    def listen(self) -> None:
        """Have every group recorded that is made from now on; none exists so far.

        Raises:
            RuntimeError: This torch cannot be recorded.
        """
        for name in _NEEDED:
            if torch_private.find(name) is None:
                raise RuntimeError(
                    _("calls cannot be recorded: this torch has no {name}", name=name)
                )
        ddp_constructor = "torch.nn.parallel:DistributedDataParallel.__init__"
        torch_private.wrap(f"{C10D}:_register_pg_in_world", self._wrap_register)
        torch_private.wrap(f"{C10D}:_process_group_name", self._wrap_make_name)
        torch_private.wrap(ddp_constructor, self._wrap_ddp_constructor)
        torch_private.wrap(f"{C10D}:Store.get", _wrap_wait_in_store)
        torch_private.wrap(f"{C10D}:Store.wait", _wrap_wait_in_store)
        self.unwaited.listen()
        if self.traces:
            self.waits.listen()
        os.register_at_fork(after_in_child=self._stop_recording)

    def _wrap_register(self, register: Callable) -> Callable:
        """Extend the function that torch gives every new group to: the group gets our hooks."""

        def register_and_hook(pg: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            if isinstance(pg, c10d.ProcessGroup):
                self.carefully(self._hook, pg)

        return register_and_hook

    def _wrap_make_name(self, make_name: Callable) -> Callable:
        """Extend the function that names a new group: the rank's call of `new_group` is noted.

        Every rank calls it, also one that will be no member.
        """

        def note_and_make_name(ranks: Any, *args: Any, **options: Any) -> str:
            if ranks:  # the group of all ranks is made without any
                self.carefully(self._note_new_group, sys._getframe(1), tuple(ranks))
            return make_name(ranks, *args, **options)

        return note_and_make_name

    def _wrap_ddp_constructor(self, construct: Callable) -> Callable:
        """Extend the constructor of DDP: the model is followed."""

        def make_and_follow(model: DistributedDataParallel, *args: Any, **options: Any) -> None:
            construct(model, *args, **options)
            self.carefully(self.models.follow, model)

        return make_and_follow

    def _stop_recording(self) -> None:
        """In a process that a rank has forked, such as a DataLoader's worker: it is no rank."""
        self.forked = True
        self.unwaited.forget()
        self.waits.pending.clear()

    def note_return(self) -> None:
        """Write down that the learner's function has returned."""
        flags = self.models.flags()
        if frames_of_threads():
            flags |= THREADS_LEFT
        else:
            self.unwaited.note_all()
        fields = {"kind": "return", "bytes": 0, "group": (), "weights": self.models.checksums()}
        self.writer.write(fields, None, ("return",), flags)
        self.times.read()

    def _note_new_group(self, caller: FrameType, group: tuple[int, ...]) -> None:
        """Write down a call of `new_group`.

        Args:
            caller: The frame of torch that names the group.
            group: Its ranks.
        """
        library_frames, learner_frame = frames.split(caller)
        flags = frames.flags_of(library_frames)
        timeout = torch_private.local(caller, "timeout")
        if not isinstance(timeout, timedelta) or _is_short({timeout}, self.launch_timeout_s):
            flags |= MAY_TIME_OUT
        fields = {"kind": "new_group", "bytes": 0, "group": group}
        self.writer.write(fields, learner_frame, ("new_group",), flags)

    def _hook(self, process_group: c10d.ProcessGroup) -> None:
        """Register our hooks with a group."""
        group = _Group(process_group, self.launch_timeout_s)

        def before(call: Any) -> None:
            caller = sys._getframe(1)
            if self.forked:
                _refuse(call, caller)
            self.carefully(self._before, group, call, caller)

        def after(call: Any) -> None:
            self.carefully(self._after, group, call, sys._getframe(1))

        torch_private.hook(process_group, _HOOK, before, after)

    def _before(self, group: "_Group", call: Any, caller: FrameType) -> None:
        """Write a call down before it is issued.

        Args:
            group: The group that is called.
            call: What torch tells its hook.
            caller: The frame out of which the group is called.
        """
        operation = _operations().get(call.name.value)
        if operation is None:
            return
        library_frames, learner_frame = frames.split(caller)
        inputs, outputs = call.input_tensors, call.output_tensors
        tensors = inputs or outputs or [_NO_TENSOR]
        device = tensors[0].device.type
        waits_later = call.async_op and not frames.no_wait_follows(library_frames, learner_frame)
        is_direct = frames.is_direct(library_frames, learner_frame)

        fields = _fields(group, operation, call, tensors, library_frames)
        fields["layout"] = layouts.describe(operation.name, operation.listed, inputs, outputs)
        flags = frames.flags_of(library_frames) | group.flags_for(device)
        if operation.name == "barrier" and not call.async_op:
            flags &= ~QUEUED  # NCCL's too waits on the host until all ranks have come
        if waits_later:
            flags |= ASYNC
        if is_direct and layouts.share_memory(outputs):
            flags |= SHARED
        self.models.note(sum(tensor.numel() for tensor in inputs), flags)
        if operation.name == "barrier" and not waits_later:
            self.unwaited.end_by_barrier(fields["group_name"])

        counted = _counted_by(fields, operation)
        start_s = _pop_thread_start_s(learner_frame)
        row = self.writer.write(fields, learner_frame, counted, flags, start_s=start_s)
        # A send may go unwaited: a small one ends by itself, and `hang.facts.LostMessage` tells of
        # those that are lost.
        row.learner_has_work = is_direct and waits_later and operation.name != "send"
        if self.traces or row.learner_has_work:
            group.row_of[call.op_id] = row
        if self.traces and flags & QUEUED and cuda_times.usable(device):
            self.times.begin(row)

    def _after(self, group: "_Group", call: Any, caller: FrameType) -> None:
        """A call was issued: follow its work. The arguments are those of `_before`."""
        row = group.row_of.pop(call.op_id, None)
        if row is None:
            return
        work = call.work
        # Both tables get the same entry: `somebody_has` counts who holds the work, and a second
        # entry would count as somebody.
        entry = Entry(work, row)
        if work is not None and row.learner_has_work:
            self.unwaited.follow(entry)
        if not self.traces:
            return
        row.was_issued = 1
        self.times.follow(row, call)
        if work is not None:
            self.waits.follow(call, entry, frames.caller(caller))


class _Group:
    """What the hooks of a process group know of it; they must not keep it alive."""

    def __init__(self, process_group: c10d.ProcessGroup, launch_timeout_s: float) -> None:
        self.row_of: dict[int, Row] = {}  # of each call that is being issued, by torch's number
        self._may_time_out = _has_short_timeout(process_group, launch_timeout_s)
        self._group = weakref.ref(process_group)
        self._flags: dict[str, int] = {}  # by kind of device

    def ranks_and_name(self) -> tuple[tuple[int, ...], str]:
        """Its global ranks in its order, and its name."""
        group = self._group()
        return tuple(c10d.get_process_group_ranks(group)), group.group_name

    def flags_for(self, device: str) -> int:
        """The flags that all calls have whose tensors are on such a device.

        QUEUED: calls return as soon as they are queued, as NCCL's do.
        """
        if device not in self._flags:
            flags = 0
            if self._may_time_out:
                flags |= MAY_TIME_OUT
            backend = _backend(self._group(), device)
            if backend is not None and backend.name() not in _BLOCKING_BACKENDS:
                flags |= QUEUED
            self._flags[device] = flags
        return self._flags[device]


def _pop_thread_start_s(learner_frame: FrameType | None) -> float:
    """When this thread was started, if this is its first call; else 0.

    It is 0, too, if a line of the learner's has made the call. A thread without such a line was
    started for its first call, so that call begins with the thread. With trace=True, `Waits` notes
    the time on the thread, by the system's monotonic clock; it is removed here, so that later calls
    begin when they are made.
    """
    thread_start_s = vars(threading.current_thread()).pop("started_s", 0.0)
    if learner_frame is not None:
        return 0.0
    return thread_start_s


def _fields(
    group: _Group,
    operation: _Operation,
    call: Any,
    tensors: Sequence[torch.Tensor],
    library_frames: list[FrameType],
) -> dict[str, Any]:
    """What an `Event` says of a call; `tensors` are those that are handed in, or else filled."""
    ranks, group_name = group.ranks_and_name()
    kind = operation.kind
    fields = {
        "kind": operation.name,
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "shape": tuple(tensors[0].shape),
        "dtype": _short_name(tensors[0].dtype),
        "group": ranks,
        "group_name": group_name,
    }
    other_rank = ranks[call.root] if call.root >= 0 else None
    if kind.message:
        fields["peer"] = other_rank
        fields["tag"] = _argument(library_frames, "tag") or 0
    else:
        fields["root"] = other_rank
    if kind.reduces:
        fields["op"] = _short_name(frames.operator(library_frames))
    if kind.parted:
        splits = _argument(library_frames, "input_split_sizes") or (1,) * len(ranks)
        fields["parts"] = _parts(operation, call.input_tensors, splits)
    return fields


def _argument(library_frames: list[FrameType], name: str) -> Any:
    """An argument of the function of torch that has called the group; None if it has none."""
    if not library_frames:
        return None
    return torch_private.local(library_frames[0], name)


def _parts(
    operation: _Operation, inputs: list[torch.Tensor], splits: Sequence[int]
) -> tuple[int, ...]:
    """How many bytes a call hands in for each rank, which share the tensor by `splits`."""
    if operation.listed or not inputs:
        return tuple(tensor.nbytes for tensor in inputs)
    size = sum(tensor.nbytes for tensor in inputs)
    unit = size // (sum(splits) or 1)
    return tuple(unit * split for split in splits)


def _counted_by(fields: dict[str, Any], operation: _Operation) -> tuple:
    """What the calls that are counted together have in common."""
    # The ranks too, since groups that only their members make can have the same name.
    collective = fields["group"], fields["group_name"]
    if not operation.kind.message:
        return collective
    return (*collective, operation.name, fields["peer"], fields["tag"])


def _refuse(call: Any, caller: FrameType) -> None:
    """Refuse a call in a process that a rank has forked.

    No thread of the rank's group is there, so the call would never end.

    Args:
        call: What torch tells its hook.
        caller: The frame out of which the group is called.

    Raises:
        RuntimeError: Always, unless the operation is unknown here.
    """
    operation = _operations().get(call.name.value)
    if operation is None:
        return
    kind = operation.name
    _library_frames, learner_frame = frames.split(caller)
    where = ""
    if learner_frame:
        code = learner_frame.f_code
        place = Frame(code.co_filename, learner_frame.f_lineno, code.co_name).place
        where = _(" ({place})", place=place)
    rank = os.environ.get("RANK", "?")
    who = _("a process that rank {rank} started", rank=rank)
    if torch.utils.data.get_worker_info() is not None:
        who = _("a DataLoader worker of rank {rank}", rank=rank)
    raise RuntimeError(
        _(
            "{who} called {kind}{where}: only the rank itself can. Call it there, and hand over "
            "what comes of it.",
            who=who,
            kind=kind,
            where=where,
        )
    )


def _wrap_wait_in_store(ask: Callable) -> Callable:
    """Give a call of the store, which waits in C++ until its key is there, a frame in Python.

    So it is seen in stacks: the report of a hang knows the name of the function within.
    """

    def wait_in_the_store(*args: Any, **options: Any) -> Any:
        return ask(*args, **options)

    return wait_in_the_store


@functools.cache
def _short_name(constant: Any) -> str | None:
    """The name of a constant of torch, such as `float32` or `sum`."""
    if constant is None:
        return None
    return str(constant).rpartition(".")[2].lower()


def _has_short_timeout(group: c10d.ProcessGroup, launch_timeout_s: float) -> bool:
    """Whether the group's own timer may end a wait before the launch does.

    True if the group's timeout is unknown.

    The group that `launch` makes has a day more than the launch. Torch gives a group ten minutes or
    thirty for which nobody has asked: no program waits for these on purpose.
    """
    timeouts = _timeouts(group)
    return not timeouts or _is_short(timeouts, launch_timeout_s)


def _is_short(timeouts: set[timedelta], launch_timeout_s: float) -> bool:
    """Whether one of these timeouts was chosen by somebody, and ends before the launch does."""
    chosen = timeouts - _TORCHS_TIMEOUTS
    return any(timeout.total_seconds() < launch_timeout_s for timeout in chosen)


def _timeouts(group: c10d.ProcessGroup) -> set[timedelta]:
    """How long the group's backends wait, as far as that is known."""
    name = "torch._C._distributed_c10d:Backend.Options._timeout"
    timeouts = set()
    for device in ("cpu", "cuda"):
        with contextlib.suppress(AttributeError, RuntimeError):  # no backend, or without options
            timeout = torch_private.find_in(_backend(group, device).options, name)
            if timeout is not None:
                timeouts.add(timeout)
    return timeouts


def _backend(group: c10d.ProcessGroup, device: str) -> Any:
    """The group's backend for a kind of device; None if it has none, or nobody knows."""
    get_backend = torch_private.find_in(group, f"{C10D}:ProcessGroup._get_backend")
    if get_backend is None:
        return None
    with contextlib.suppress(AttributeError, RuntimeError):
        return get_backend(torch.device(device))
    return None
