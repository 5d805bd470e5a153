"""Inside a rank: see every call of every process group, and write it down before it is issued.

torch 2.15 lets a `ProcessGroup` have hooks (`register_pre_hook`, `register_post_hook`) that run
around each of its operations, whoever asks for it: the learner, DDP's reducer in C++, FSDP2, a
functional collective. Nothing stands between the group and its backend, so a recorded run computes
what any other run computes; under a Python subclass of `Backend` some works never complete, and DDP
can crash. All of this happens in a forked worker; the kernel's torch stays as it is.
"""

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
import torch.utils.data
from torch.nn.parallel import DistributedDataParallel

from course_utils.launcher.stacks import Frame
from course_utils.record import cuda_times, frames, layouts
from course_utils.record.event import ASYNC, KINDS, QUEUED, SHARED, WAKES, Kind
from course_utils.record.memory import ISSUED, ON_ITS_WAY, Part, Row
from course_utils.record.models import Models
from course_utils.record.unwaited import Unwaited
from course_utils.record.waits import Waits

_HOOK = 0x7ACE  # the number under which our hooks are registered with a group
_NOTHING = SimpleNamespace(dtype=None, shape=(), nbytes=0, device=torch.device("cpu"))
_BLOCK = ("gloo", "mpi", "ucc", "fake")  # backends that wait until the work is done


@functools.cache
def _called() -> dict[int, tuple[str, Kind, bool]]:
    """By torch's number of an operation: what it is called here; is it handed a tensor per rank."""
    names = torch._C._distributed_c10d.HookOpName
    return {
        getattr(names, name).value: (kind, how, listed)
        for kind, how in KINDS.items()
        for listed, all_ in ((False, how.hooks), (True, how.lists))
        for name in all_.split()
    }


class Recorder:
    """The hooks of all groups of this rank."""

    def __init__(self, writer: Part) -> None:
        self.writer, self.waits = writer, Waits(writer) if writer.whole else None
        self.models, self.unwaited = Models(), Unwaited(writer)
        self.times = cuda_times.CudaTimes()
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
        register, name = c10d._register_pg_in_world, c10d._process_group_name
        wrap = DistributedDataParallel.__init__

        @functools.wraps(register)
        def register_and_record(pg: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            if isinstance(pg, c10d.ProcessGroup):
                self.carefully(self._hook, pg)

        @functools.wraps(name)
        def name_and_record(ranks: Any, *args: Any, **options: Any) -> str:
            if ranks:  # the group of all ranks has none given
                self.carefully(self._note, "new_group", sys._getframe(1), tuple(ranks))
            return name(ranks, *args, **options)

        @functools.wraps(wrap)
        def wrap_and_follow(model: DistributedDataParallel, *args: Any, **options: Any) -> None:
            wrap(model, *args, **options)
            self.carefully(self.models.follow, model)

        c10d._register_pg_in_world, c10d._process_group_name = register_and_record, name_and_record
        DistributedDataParallel.__init__ = wrap_and_follow
        c10d.Store.get = _seen_in_stacks(c10d.Store.get)
        c10d.Store.wait = _seen_in_stacks(c10d.Store.wait)
        self.unwaited.listen()
        if self.waits:
            self.waits.listen()
        os.register_at_fork(after_in_child=self._fall_silent)

    def _fall_silent(self) -> None:  # what a rank forks, such as a DataLoader's worker, is no rank
        self.forked = True
        self.unwaited.forget()
        if self.waits:
            self.waits.unwaited.clear()

    def returned(self) -> None:
        """Write down that the learner's function has returned."""
        flags = self.models.flags()
        if threading.active_count() > 1:
            flags |= WAKES
        else:
            self.unwaited.note_all()
        self._note("return", None, (), flags)
        self.times.read()

    def _note(self, kind: str, caller: FrameType | None, group: tuple, flags: int = 0) -> None:
        inner, own = frames.split(caller)
        fields = {"kind": kind, "bytes": 0, "group": group}
        self.writer.write(fields, own, (kind,), flags | frames.flags(inner))

    def _hook(self, group: c10d.ProcessGroup) -> None:
        known, impatient = weakref.ref(group), _is_impatient(group)  # its hooks must not keep it
        issuing: dict[int, Row] = {}
        queues = functools.cache(functools.partial(_queues, known))  # by a kind of device

        def before(call: Any) -> None:
            if self.forked:
                _refuse(call)
            self.carefully(self._before, known, issuing, impatient, queues, call)

        def after(call: Any) -> None:
            self.carefully(self._after, issuing, call)

        frames.UNSEEN.update((before.__code__, after.__code__))
        # Else torch.compile, amid whose code they are called, would compile them and warn of it.
        group.register_pre_hook(_HOOK, torch.compiler.disable(before))
        group.register_post_hook(_HOOK, torch.compiler.disable(after))

    def _before(
        self, known: weakref.ref, issuing: dict, impatient: bool, queues: Callable, call: Any
    ) -> None:
        if call.name.value not in _called():
            return
        kind, how, listed = _called()[call.name.value]
        inner, own = frames.split(sys._getframe(1).f_back)
        group, name = tuple(c10d.get_process_group_ranks(known())), known().group_name
        inputs, outputs, place = call.input_tensors, call.output_tensors, call.root
        tensors = inputs or outputs
        first, size = tensors[0] if tensors else _NOTHING, sum(tensor.nbytes for tensor in tensors)
        peer = group[place] if place >= 0 else None
        fields = {
            "kind": kind, "bytes": size, "shape": tuple(first.shape), "dtype": _name(first.dtype),
            "layout": layouts.of(kind, listed, inputs, outputs), "group": group,
            "group_name": name, "peer" if how.message else "root": peer,
        }  # fmt: skip
        counted = group, name  # groups that only their members make can have one name
        asked = inner[0].f_locals if inner and (how.message or how.parted) else {}
        if how.message:
            fields["tag"] = asked.get("tag") or 0
            counted = group, name, kind, peer, fields["tag"]
        if how.reduces:
            fields["op"] = _name(frames.operator(inner))
        if how.parted:
            splits = asked.get("input_split_sizes") or (1,) * len(group)
            even = (size // (sum(splits) or 1) * split for split in splits if inputs)
            fields["parts"] = tuple(tensor.nbytes for tensor in inputs) if listed else tuple(even)
        later = call.async_op and not frames.is_blocking(inner, own)
        flags = frames.flags(inner) | (ASYNC if later else 0)
        flags |= QUEUED if queues(first.device.type) else 0
        flags |= WAKES if impatient or threading.active_count() > 1 else 0
        is_direct = frames.is_direct(inner, own)
        flags |= SHARED if is_direct and layouts.share_memory(outputs) else 0
        self.models.note(size, flags)
        if kind == "barrier" and not later:
            self.unwaited.meet(name)
        since_s = vars(threading.current_thread()).pop("started_s", 0)  # it asks for that only
        issued = self.writer.write(fields, own, counted, flags, ON_ITS_WAY, since_s)
        issued.is_theirs = is_direct and later and kind != "send"
        if self.waits or issued.is_theirs:
            issuing[call.op_id] = issued
        if self.waits and flags & QUEUED and cuda_times.usable(first.device.type):
            self.times.begin(issued)

    def _after(self, issuing: dict[int, Row], call: Any) -> None:
        issued = issuing.pop(call.op_id, None)
        if issued is None:
            return
        work = call.work
        if work is not None and issued.is_theirs:
            self.unwaited.follow(work, issued)
        if self.waits:
            issued.of = ISSUED
            self.times.follow(issued, call)
            if work is not None:
                self.waits.follow(call, issued, frames.caller(sys._getframe(1).f_back))


def _refuse(call: Any) -> None:
    """In a process that a rank has forked: no thread of its group is there, so no call would end.

    Raises:
        RuntimeError: Always, unless the operation is unknown here.
    """
    if call.name.value not in _called():
        return
    kind = _called()[call.name.value][0]
    line = frames.split(sys._getframe(2))[1]
    there = ""
    if line:
        place = Frame(line.f_code.co_filename, line.f_lineno, line.f_code.co_name).place
        there = f" ({place})"
    rank = os.environ.get("RANK", "?")
    who = f"a process that rank {rank} started"
    if torch.utils.data.get_worker_info() is not None:
        who = f"a DataLoader worker of rank {rank}"
    raise RuntimeError(
        f"{who} called {kind}{there}: only the rank itself can. Call it there, and hand over what "
        "comes of it."
    )


def _seen_in_stacks(ask: Callable) -> Callable:
    """A call of the store, which waits in C++ until its key is there, with a frame in Python."""

    @functools.wraps(ask)
    def wait_in_the_store(*args: Any, **options: Any) -> Any:  # the report of a hang knows its name
        return ask(*args, **options)

    return wait_in_the_store


@functools.cache
def _name(what: Any) -> str | None:
    """Such as `float32` or `sum`."""
    return None if what is None else str(what).rpartition(".")[2].lower()


def _queues(known: weakref.ref, device: str) -> bool:
    """Whether a group's calls for such a device return as soon as they are queued, as NCCL's."""
    try:
        return known()._get_backend(torch.device(device)).name() not in _BLOCK
    except (AttributeError, RuntimeError):  # nobody knows
        return False


def _is_impatient(group: c10d.ProcessGroup) -> bool:
    """Whether its own timer may end a wait within a launch, whose groups have a minute more."""
    try:
        return group._get_backend(torch.device("cpu")).options._timeout < timedelta(minutes=1)
    except (AttributeError, RuntimeError):  # no gloo: nobody knows
        return True
