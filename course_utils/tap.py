"""Inside a rank: one process group, and what its hooks tell about each of its operations."""

import functools
import sys
import time
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.stacks import Frame

if TYPE_CHECKING:
    from course_utils.recorder import Recorder

_HOOK = 0x7ACE  # the number under which our hooks are registered with a group
_BACKWARD = "_engine_run_backward"
_KINDS = {
    "SEND": "send",
    "RECV": "recv",
    "BROADCAST": "broadcast",
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "REDUCE": "reduce",
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather",
    "ALLGATHER_COALESCED": "all_gather",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "BARRIER": "barrier",
    "SCATTER": "scatter",
    "GATHER": "gather",
}


class Tap:
    """The hooks of one process group."""

    def __init__(self, recorder: "Recorder", group: c10d.ProcessGroup) -> None:
        self.recorder, self.group = recorder, weakref.ref(group)
        self.open: dict[int, dict[str, Any]] = {}  # operations that are being issued
        group.register_pre_hook(_HOOK, self.before)
        group.register_post_hook(_HOOK, self.after)

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks, in the group's order; the group knows them only once it is used."""
        return tuple(c10d.get_process_group_ranks(self.group()))

    @functools.cached_property
    def name(self) -> str:
        """What all members call the group."""
        return self.group().group_name

    def before(self, call: Any) -> None:
        """An operation is about to be issued."""
        kind = _KINDS.get(call.name.name)
        if kind is None:
            return
        recorder, caller = self.recorder, sys._getframe().f_back
        cpu, tensors, root = recorder.used_cpu(), call.input_tensors, call.root
        tensors = tensors or call.output_tensors
        other = self.ranks[root] if root >= 0 else None
        place, code = where(caller)
        self.open[call.op_id] = recorder.add(
            kind=kind,
            start_s=recorder.now(),
            bytes=sum(map(size, tensors)),
            peer=other if kind in ("send", "recv") else None,
            root=None if kind in ("send", "recv") else other,
            dtype=_name(tensors[0].dtype) if tensors else None,
            shape=tuple(tensors[0].shape) if tensors else (),
            blocking=is_blocking(call, kind, caller),
            parts=self.parts(kind, call, caller),
            group=self.ranks,
            group_name=self.name,
            place=place,
            code=code,
            cpu_s=cpu,
            **asked(kind, caller),
        )

    def after(self, call: Any) -> None:
        """An operation was issued; its work object tells when it is complete."""
        recorder, row, work = self.recorder, self.open.pop(call.op_id, None), call.work
        if row is None or work is None:
            return
        caller = sys._getframe().f_back
        python = caller is not None and caller.f_code.co_filename == c10d.__file__
        if python:
            recorder.hold(work, row)
        if not (python and row["blocking"]):  # else the clock of the CPU is read after the wait
            recorder.cpu = time.thread_time()
        if call.async_op and row["kind"] not in ("send", "recv"):
            future = work.get_future()
            future.add_done_callback(lambda _: recorder.finish(row, recorder.now()))
            if not row["blocking"] and torch._C._current_graph_task_id() != -1:
                recorder.in_backward(row)

    def parts(self, kind: str, call: Any, caller: FrameType | None) -> tuple[int, ...]:
        """Bytes for each rank of the group, where a rank hands in one part per rank."""
        tensors, n = call.input_tensors, len(self.ranks)
        if kind not in ("scatter", "reduce_scatter", "all_to_all") or not tensors:
            return ()
        if call.name.name in ("SCATTER", "REDUCE_SCATTER", "ALLTOALL"):  # a list, one per rank
            return tuple(map(size, tensors))
        total = sum(map(size, tensors))
        splits = caller and caller.f_locals.get("input_split_sizes")
        if splits and sum(splits):
            return tuple(total // sum(splits) * split for split in splits)
        return (total // n,) * n


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def is_blocking(call: Any, kind: str, caller: FrameType | None) -> bool:
    """Whether whoever asked for the operation waits for it at once."""
    if not call.async_op or caller is None:
        return not call.async_op
    if caller.f_code.co_filename != c10d.__file__:  # torch's own C++, which waits before it returns
        return caller.f_code.co_name != _BACKWARD
    above = caller.f_back  # dist.send calls dist.isend, and waits
    return above.f_code.co_filename == c10d.__file__ and above.f_code.co_name in ("send", "recv")


def asked(kind: str, caller: FrameType | None) -> dict[str, Any]:
    """The reduction operator and the tag, which the hooks leave out: arguments of the caller."""
    frame = caller
    if kind in ("send", "recv"):
        tag = frame.f_locals.get("tag") if frame else None
        return {"tag": tag if isinstance(tag, int) else 0, "op": None}
    if kind not in ("all_reduce", "reduce", "reduce_scatter"):
        return {"tag": None, "op": None}
    if frame and frame.f_code.co_name == _BACKWARD:
        return {"tag": None, "op": "sum"}  # DDP's reducer divides by the world size, then sums
    for _ in range(8):
        if frame is None or is_learners(frame.f_code.co_filename):
            break
        of_torch = "op" if frame.f_code.co_filename == c10d.__file__ else "reduceOp"  # functional
        if op := frame.f_locals.get(of_torch):
            return {"tag": None, "op": str(op).rpartition(".")[2].lower()}
        frame = frame.f_back
    return {"tag": None, "op": None}


@functools.cache
def is_learners(file: str) -> bool:
    """Whether a file is the learner's own."""
    return Frame(file, 0, "").is_learners


@functools.cache
def _describe(file: str, line: int, name: str) -> tuple[str, str]:
    frame = Frame(file, line, name)
    return frame.place, frame.code


def where(frame: FrameType | None) -> tuple[str, str]:
    """Place and text of the innermost line of the learner, empty when there is none."""
    while frame and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "", ""
    return _describe(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
