"""What the hooks of a process group leave out, and the frames below a call tell."""

import functools
import os
import threading
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import c10d_logger
from torch.distributed.algorithms import join
from torch.nn.parallel import distributed as ddp

from course_utils.launcher.stacks import Frame
from course_utils.record.event import ASIDE, BACKWARD, EVALUATES, FORWARD, JOINS, KINDS, WRAPS

C10D, _LOGGER = c10d.__file__, c10d_logger.__file__
_DDP = (ddp.__file__, join.__file__)  # whose notices nobody waits for
_NOT_THEIRS = (type(threading.main_thread()), threading._DummyThread)  # autograd's are dummies
_RUNS_BACKWARD = "_engine_run_backward"
UNSEEN: set[CodeType] = set()  # what stands between torch's functions and hands on what it is given
# Likewise, where a mode such as a counter of operations sees each call.
_MODES = ("_ops.py", "utils/flop_counter.py", "_dynamo/eval_frame.py", "_compile.py")
_BETWEEN = {os.path.join(os.path.dirname(torch.__file__), *mode.split("/")) for mode in _MODES}


@functools.cache
def is_learners(file: str) -> bool:
    """Whether a file is the learner's own."""
    return Frame(file, 0, "").is_learners


def split(frame: FrameType | None) -> tuple[list[FrameType], FrameType | None]:
    """The frames of libraries from a call outwards, and the learner's, which is below them."""
    inner, frame = [], caller(frame)
    while frame and not is_learners(frame.f_code.co_filename):
        inner.append(frame)
        frame = caller(frame.f_back)
    return inner, frame


def caller(frame: FrameType | None) -> FrameType | None:
    """The first frame from here outwards that is no mere go-between."""
    while frame and (frame.f_code in UNSEEN or frame.f_code.co_filename in _BETWEEN):
        frame = frame.f_back
    return frame


def flags(inner: list[FrameType]) -> int:
    """What DDP or its join has to do with a call, and whether a learner's thread makes it."""
    found = BACKWARD if inner and inner[0].f_code.co_name == _RUNS_BACKWARD else 0
    if not isinstance(threading.current_thread(), _NOT_THEIRS):
        found |= ASIDE
    for frame in inner:
        if frame.f_code.co_filename == join.__file__ and frame.f_code.co_name == "__exit__":
            found |= JOINS
        elif frame.f_code.co_filename == ddp.__file__ and frame.f_code.co_name == "__init__":
            found |= WRAPS
        elif frame.f_code.co_filename == ddp.__file__ and frame.f_code.co_name == "forward":
            found |= FORWARD if frame.f_locals["self"].training else FORWARD | EVALUATES
    return found


def is_blocking(inner: list[FrameType], own: FrameType | None) -> bool:
    """Whether whoever asked for an asynchronous operation waits for it at once."""
    if not inner:
        return own is not None  # torch's threads have no frames
    caller, *outer = (frame.f_code for frame in inner)
    if caller.co_filename != C10D:  # torch's own C++, which waits before it returns
        return caller.co_name != _RUNS_BACKWARD
    by = next((code for code in outer if code.co_filename != _LOGGER), caller)
    if by.co_filename == C10D and by is not caller:  # dist.send calls dist.isend, and waits
        return by.co_name in KINDS and KINDS[by.co_name].message
    return by.co_filename in _DDP


def is_direct(inner: list[FrameType], own: FrameType | None) -> bool:
    """Whether the learner's own line has called torch.distributed, and nothing in between."""
    files = {frame.f_code.co_filename for frame in inner}
    return own is not None and bool(files) and files <= {C10D, _LOGGER}


def operator(inner: list[FrameType]) -> Any:
    """The reduction operator: an argument of a caller in torch."""
    code = inner[0].f_code if inner else None
    if code and (code.co_name == _RUNS_BACKWARD or code.co_filename in _DDP):
        return "sum"  # DDP's reducer divides by the world size, then sums
    for frame in inner:
        found = frame.f_locals.get("op" if frame.f_code.co_filename == C10D else "reduceOp")
        if found:  # "reduceOp": functional
            return found
    return None
