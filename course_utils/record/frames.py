"""What the hooks of a process group leave out, and the frames below them tell."""

import functools
import sys
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from course_utils.launcher.stacks import Frame
from course_utils.record.kinds import KINDS

C10D = c10d.__file__
DDP = sys.modules[DistributedDataParallel.__module__].__file__
BACKWARD = "_engine_run_backward"
_DDP = ("nn/parallel/distributed.py", "algorithms/join.py")  # whose notices nobody waits for


@functools.cache
def is_learners(file: str) -> bool:
    """Whether a file is the learner's own."""
    return Frame(file, 0, "").is_learners


def learners(frame: FrameType | None) -> FrameType | None:
    """The learner's innermost frame."""
    while frame and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_blocking(caller: FrameType | None) -> bool:
    """Whether whoever asked for an asynchronous operation waits for it at once."""
    if caller is None:
        return False
    if caller.f_code.co_filename != C10D:  # torch's own C++, which waits before it returns
        return caller.f_code.co_name != BACKWARD
    by = caller.f_back  # dist.send calls dist.isend, and waits
    by = (by.f_back if by.f_code.co_filename.endswith("c10d_logger.py") else by).f_code
    return by.co_filename.endswith(_DDP) or (
        by.co_filename == C10D and by.co_name in KINDS and KINDS[by.co_name].message
    )


def tag(caller: FrameType | None) -> int:
    """The tag of a send or recv: an argument of the caller."""
    found = caller.f_locals.get("tag") if caller else None
    return found if isinstance(found, int) else 0


def operator(frame: FrameType | None) -> Any:
    """The reduction operator: an argument of a caller in torch."""
    if frame and (frame.f_code.co_name == BACKWARD or frame.f_code.co_filename.endswith(_DDP)):
        return "sum"  # DDP's reducer divides by the world size, then sums
    while frame and not is_learners(file := frame.f_code.co_filename):
        found = frame.f_locals.get("op" if file == C10D else "reduceOp")  # functional
        if found:
            return found
        frame = frame.f_back
    return None


def parts(
    inputs: list[torch.Tensor], listed: bool, n: int, caller: FrameType | None
) -> tuple[int, ...]:
    """Bytes for each of a group's n ranks, where a rank hands in one part per rank."""
    sizes = tuple(tensor.nbytes for tensor in inputs)
    if not sizes or listed:
        return sizes
    splits = caller and caller.f_locals.get("input_split_sizes")
    if splits and sum(splits):
        return tuple(sum(sizes) // sum(splits) * split for split in splits)
    return (sum(sizes) // n,) * n
