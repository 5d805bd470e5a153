"""Inside a rank: one process group, and what its hooks tell about each of its operations.

The hooks run a thousand times where a learner measures. So they look up what an operation is by a
key of what it was called with, and spell it out only at its first time.
"""

import functools
import sys
import weakref
from dataclasses import dataclass
from time import monotonic, thread_time
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.launcher.stacks import Frame

if TYPE_CHECKING:
    from course_utils.record.recorder import Recorder

_HOOK = 0x7ACE  # the number under which our hooks are registered with a group
_C10D = c10d.__file__
_BACKWARD = "_engine_run_backward"
_DDP = ("nn/parallel/distributed.py", "algorithms/join.py")  # whose notices nobody waits for
_KINDS = {
    "send": "SEND",
    "recv": "RECV",
    "broadcast": "BROADCAST",
    "all_reduce": "ALLREDUCE ALLREDUCE_COALESCED",
    "reduce": "REDUCE",
    "all_gather": "ALLGATHER ALLGATHER_BASE ALLGATHER_COALESCED ALLGATHER_INTO_TENSOR_COALESCED",
    "reduce_scatter": "REDUCE_SCATTER REDUCE_SCATTER_BASE REDUCE_SCATTER_TENSOR_COALESCED",
    "all_to_all": "ALLTOALL ALLTOALL_BASE",
    "barrier": "BARRIER",
    "scatter": "SCATTER",
    "gather": "GATHER",
}
_LISTS = ("SCATTER", "REDUCE_SCATTER", "ALLTOALL")  # these hand in a list with a tensor per rank
_REDUCES = {"all_reduce", "reduce", "reduce_scatter"}
_PARTED = {"scatter", "reduce_scatter", "all_to_all"}
_MESSAGES = {"send", "recv"}
_NOTHING = SimpleNamespace(dtype=None, shape=(), nbytes=0)


@functools.cache
def kinds() -> dict[int, str]:
    """What torch calls an operation, and what it is called here."""
    names = torch._C._distributed_c10d.HookOpName
    return {
        getattr(names, name).value: kind for kind, all_ in _KINDS.items() for name in all_.split()
    }


@dataclass(slots=True)
class Call:
    """What all calls have in common that come from one line, with the same arguments."""

    number: int  # of its description in the ledger
    fields: dict[str, Any]
    kept: tuple  # objects whose ids stand in the key of this call
    blocking: bool = False
    from_any: bool = False  # a receive that does not know its sender yet

    def __post_init__(self) -> None:
        self.blocking = self.fields.get("blocking", False)
        self.from_any = self.fields["kind"] == "recv" and self.fields["peer"] is None


Row = tuple[Call, int]  # an event in the ledger: its call and its number


class Tap:
    """The hooks of one process group."""

    def __init__(self, recorder: "Recorder", group: c10d.ProcessGroup) -> None:
        self.recorder, self.group, self.kinds = recorder, weakref.ref(group), kinds()
        self.open: dict[int, tuple] = {}  # what is being issued
        group.register_pre_hook(_HOOK, self.before)
        group.register_post_hook(_HOOK, self.after)

    @functools.cached_property
    def members(self) -> tuple[tuple[int, ...], str]:
        """Global ranks in the group's order, and its name; known only once the group is used."""
        return tuple(c10d.get_process_group_ranks(self.group())), self.group().group_name

    def before(self, call: Any) -> None:
        """An operation is about to be issued: keep what will be gone.

        All else is left to `after`: while the operation is on its way, it costs a rank less.
        """
        inputs = call.input_tensors
        tensors = inputs or call.output_tensors
        cpu_s = thread_time() - self.recorder.cpu
        self.open[call.op_id] = inputs, tensors, call.root, cpu_s, monotonic()

    def after(self, call: Any) -> None:
        """An operation was issued; its work object tells when it is complete."""
        kept, kind = self.open.pop(call.op_id, None), self.kinds.get(call.name.value)
        if kept is None or kind is None:
            return
        inputs, tensors, root, cpu_s, start_s = kept
        caller, members = sys._getframe().f_back, self.members[0]
        frame = learners(caller)
        code, at = (frame.f_code, frame.f_lasti) if frame else (None, 0)
        first = tensors[0] if tensors else _NOTHING
        size = first.nbytes if len(tensors) < 2 else sum(tensor.nbytes for tensor in tensors)
        blocking = not call.async_op or is_blocking(caller)
        op = operator(caller) if kind in _REDUCES else None
        label = tag(caller) if kind in _MESSAGES else None
        split = parts(call.name.name, inputs, len(members), caller) if kind in _PARTED else ()
        key = (kind, self.members[1], first.dtype, first.shape, size, blocking, root, label, split,
               id(op), id(code), at)  # fmt: skip
        known = self.recorder.calls.get(key) or self._describe(key, frame, op)
        number = self.recorder.ledger.add(known.number, -1, cpu_s, start_s, 0.0)
        if call.work is not None:
            self._follow(call, known, number, caller)

    def _describe(self, key: tuple, frame: FrameType | None, op: Any) -> Call:
        """Say what is called by a key that was not seen before."""
        kind, name, dtype, shape, size, blocking, place, label, split, *_ = key
        group = self.members[0]
        other = group[place] if place >= 0 else None
        return self.recorder.call(
            key, frame, op, kind=kind, bytes=size, blocking=blocking, tag=label, parts=split,
            group=group, group_name=name, shape=tuple(shape),
            dtype=None if dtype is None else str(dtype).removeprefix("torch."),
            op=op and str(op).rpartition(".")[2].lower(),
            **({"peer": other} if kind in _MESSAGES else {"root": other}),
        )  # fmt: skip

    def _follow(self, call: Any, known: Call, number: int, caller: FrameType | None) -> None:
        """See to it that the end of an operation is noticed."""
        recorder, work = self.recorder, call.work
        if caller is not None and caller.f_code.co_filename == _C10D:  # which waits in Python
            recorder.hold(work, (known, number))
            if known.blocking:
                return  # its wait follows at once
        recorder.cpu = thread_time()
        if call.async_op and known.fields["kind"] not in _MESSAGES:
            finish = recorder.ledger.finish
            work.get_future().add_done_callback(lambda _: finish(number, monotonic()))
            if not known.blocking and torch._C._current_graph_task_id() != -1:
                recorder.in_backward((known, number))


def parts(
    name: str, inputs: list[torch.Tensor], n: int, caller: FrameType | None
) -> tuple[int, ...]:
    """Bytes for each of a group's n ranks, where a rank hands in one part per rank."""
    sizes = tuple(tensor.nbytes for tensor in inputs)
    if not sizes or name in _LISTS:
        return sizes
    splits = caller and caller.f_locals.get("input_split_sizes")
    if splits and sum(splits):
        return tuple(sum(sizes) // sum(splits) * split for split in splits)
    return (sum(sizes) // n,) * n


def is_blocking(caller: FrameType | None) -> bool:
    """Whether whoever asked for an asynchronous operation waits for it at once."""
    if caller is None:
        return False
    if caller.f_code.co_filename != _C10D:  # torch's own C++, which waits before it returns
        return caller.f_code.co_name != _BACKWARD
    by = caller.f_back  # dist.send calls dist.isend, and waits
    by = (by.f_back if by.f_code.co_filename.endswith("c10d_logger.py") else by).f_code
    return by.co_filename.endswith(_DDP) or (by.co_name in _MESSAGES and by.co_filename == _C10D)


def tag(caller: FrameType | None) -> int:
    """The tag of a send or recv, which the hooks leave out: an argument of the caller."""
    found = caller.f_locals.get("tag") if caller else None
    return found if isinstance(found, int) else 0


def operator(frame: FrameType | None) -> Any:
    """The reduction operator, which the hooks leave out: an argument of a caller in torch."""
    if frame and (frame.f_code.co_name == _BACKWARD or frame.f_code.co_filename.endswith(_DDP)):
        return "sum"  # DDP's reducer divides by the world size, then sums
    while frame and not is_learners(file := frame.f_code.co_filename):
        found = frame.f_locals.get("op" if file == _C10D else "reduceOp")  # functional
        if found:
            return found
        frame = frame.f_back
    return None


@functools.cache
def is_learners(file: str) -> bool:
    """Whether a file is the learner's own."""
    return Frame(file, 0, "").is_learners


def learners(frame: FrameType | None) -> FrameType | None:
    """The learner's innermost frame."""
    while frame and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
