"""What the hooks of a process group leave out, and the frames below them tell."""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from course_utils.launcher.stacks import Frame
from course_utils.record.event import BACKWARD, EVALUATES, FORWARD, WRAPS
from course_utils.record.kinds import KINDS

C10D = c10d.__file__
_DDPS = sys.modules[DistributedDataParallel.__module__].__file__
_RUNS_BACKWARD = "_engine_run_backward"
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
        return caller.f_code.co_name != _RUNS_BACKWARD
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
    code = frame and frame.f_code
    if code and (code.co_name == _RUNS_BACKWARD or code.co_filename.endswith(_DDP)):
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
    splits = (caller and caller.f_locals.get("input_split_sizes")) or (1,) * n
    return tuple(sum(sizes) // (sum(splits) or 1) * split for split in splits)


class Models:
    """The models that a rank has wrapped in DDP."""

    def __init__(self, carefully: Callable[..., Any]) -> None:
        self._carefully = carefully
        self._new: weakref.ref | None = None  # the one that was being wrapped at the last call
        self._ends: list[weakref.finalize] = []
        self._unfinished = False

    def seen(self, caller: FrameType | None) -> tuple[FrameType | None, int]:
        """The learner's frame below a call, and what DDP has to do with the call."""
        if self._new:
            self._follow(self._new())
        frame = caller
        flags = BACKWARD if caller and caller.f_code.co_name == _RUNS_BACKWARD else 0
        while frame and not is_learners(file := frame.f_code.co_filename):
            if file == _DDPS and frame.f_code.co_name == "forward":
                training = frame.f_locals["self"].training
                flags |= FORWARD if training else FORWARD | EVALUATES
            elif file == _DDPS and frame.f_code.co_name == "__init__":
                self._new, flags = weakref.ref(frame.f_locals["self"]), flags | WRAPS
            frame = frame.f_back
        return frame, flags

    def _follow(self, model: DistributedDataParallel | None) -> None:
        """See to it that a model's reducer, there once it is wrapped, is asked at its end."""
        if reducer := getattr(model, "reducer", None):
            self._new = None
            self._ends.append(weakref.finalize(model, self._carefully, self._ask, reducer))

    def are_unfinished(self) -> bool:
        """Whether some model's backward pass has left gradients that nobody averaged."""
        if self._new:
            self._follow(self._new())
        for end in self._ends:
            end()
        return self._unfinished

    def _ask(self, reducer: Any) -> None:
        if threading.active_count() == 1:  # else another one's backward may hold what we ask for
            try:
                reducer._check_reducer_finalized()
            except RuntimeError:
                self._unfinished = True
