"""Inside a rank: one process group, and what its hooks tell about each of its operations.

The hooks run a thousand times where a learner measures, so they only copy what will be gone later;
`Recorder` makes events of it when the learner's function has returned.
"""

import functools
import sys
import weakref
from dataclasses import fields
from time import monotonic, thread_time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.stacks import Frame
from course_utils.trace import Event

if TYPE_CHECKING:
    from course_utils.recorder import Recorder

_HOOK = 0x7ACE  # the number under which our hooks are registered with a group
_C10D = c10d.__file__
_BACKWARD = "_engine_run_backward"
_SHADOW = "_match_all_reduce_for_bwd_pass"  # of a rank that has joined: its peers' backward
_NOTICES = ("nn/parallel/distributed.py", "algorithms/join.py")  # DDP and Join say: I go on
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


@functools.cache
def kinds() -> dict[Any, str]:
    """What torch calls an operation, and what it is called here."""
    names = torch._C._distributed_c10d.HookOpName
    return {getattr(names, name): kind for kind, all_ in _KINDS.items() for name in all_.split()}


class Row:
    """An event in the making: its fields as torch has them, set one by one as they are known."""

    __slots__ = tuple(field.name for field in fields(Event))


class Tap:
    """The hooks of one process group."""

    def __init__(self, recorder: "Recorder", group: c10d.ProcessGroup) -> None:
        self.recorder, self.group, self.kinds = recorder, weakref.ref(group), kinds()
        self.open: dict[int, Row] = {}  # operations that are being issued
        group.register_pre_hook(_HOOK, self.before)
        group.register_post_hook(_HOOK, self.after)

    @functools.cached_property
    def members(self) -> tuple[tuple[int, ...], str]:
        """Global ranks in the group's order, and its name; known only once the group is used."""
        return tuple(c10d.get_process_group_ranks(self.group())), self.group().group_name

    def before(self, call: Any) -> None:
        """An operation is about to be issued."""
        kind = self.kinds.get(call.name)
        if kind is None:
            return
        row = Row()
        row.cpu_s = thread_time() - self.recorder.cpu
        row.kind, caller = kind, sys._getframe().f_back
        row.place, row.code = where(caller)
        row.group, row.group_name = self.members
        tensors = call.input_tensors or call.output_tensors
        row.dtype, row.shape = (tensors[0].dtype, tensors[0].shape) if tensors else (None, ())
        row.bytes = tensors[0].nbytes if len(tensors) == 1 else sum(t.nbytes for t in tensors)
        row.blocking = not call.async_op or is_blocking(caller)
        row.op = operator(caller) if kind in _REDUCES else None
        row.parts = parts(call, len(row.group), caller) if kind in _PARTED else ()
        row.peer = row.tag = row.root = row.of = row.end_s = None
        if kind == "send" or kind == "recv":
            row.peer = row.group[call.root] if call.root >= 0 else None
            row.tag = tag(caller)
        elif call.root >= 0:
            row.root = row.group[call.root]
        self.recorder.rows.append(row)
        self.open[call.op_id] = row
        row.start_s = monotonic()

    def after(self, call: Any) -> None:
        """An operation was issued; its work object tells when it is complete."""
        recorder, row, work = self.recorder, self.open.pop(call.op_id, None), call.work
        if row is None or work is None:
            return
        caller = sys._getframe().f_back
        if caller is not None and caller.f_code.co_filename == _C10D:  # which waits in Python
            recorder.hold(work, row)
            if row.blocking:
                return  # its wait follows at once
        recorder.cpu = thread_time()
        if call.async_op and row.kind not in ("send", "recv"):
            work.get_future().add_done_callback(lambda _: recorder.finish(row))
            if not row.blocking and torch._C._current_graph_task_id() != -1:
                recorder.in_backward(row)


def parts(call: Any, n: int, caller: FrameType | None) -> tuple[int, ...]:
    """Bytes for each of a group's n ranks, where a rank hands in one part per rank."""
    sizes = tuple(tensor.nbytes for tensor in call.input_tensors)
    if not sizes or call.name.name in _LISTS:
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
    above = caller.f_back  # dist.send calls dist.isend, and waits
    while above and above.f_code.co_filename.endswith("c10d_logger.py"):
        above = above.f_back
    if above is None or above.f_code.co_filename.endswith(_NOTICES):
        return True  # nobody will ever wait
    return above.f_code.co_filename == _C10D and above.f_code.co_name in ("send", "recv")


def tag(caller: FrameType | None) -> int:
    """The tag of a send or recv, which the hooks leave out: an argument of the caller."""
    found = caller.f_locals.get("tag") if caller else None
    return found if isinstance(found, int) else 0


def operator(frame: FrameType | None) -> Any:
    """The reduction operator, which the hooks leave out: an argument of a caller in torch."""
    if frame and frame.f_code.co_name in (_BACKWARD, _SHADOW):
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


def where(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """The learner's innermost function and how far it is, which is cheaper to ask than its line."""
    while frame and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code, frame.f_lasti) if frame else (None, 0)


@functools.cache
def describe(code: CodeType | None, at: int) -> tuple[str, str]:
    """Place and text of that line, empty when there is none."""
    if code is None:
        return "", ""
    line = next(line for start, end, line in code.co_lines() if start <= at < end)
    frame = Frame(code.co_filename, line or code.co_firstlineno, code.co_name)
    return frame.place, frame.code
