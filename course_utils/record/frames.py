"""What a call's frames tell, since the hooks of a process group leave it out."""

import functools
import os
import threading
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import distributed as ddp

from course_utils.launcher import torch_private
from course_utils.launcher.stacks import Frame
from course_utils.record.event import (
    BACKWARD,
    DDP_INIT,
    EVALUATES,
    FORWARD,
    JOINS,
    KINDS,
    USER_THREAD,
)

C10D_FILE = c10d.__file__
_LOGGER = torch_private.find("torch.distributed.c10d_logger:__file__")
_DDP = ddp.__file__
_JOIN = torch_private.find("torch.distributed.algorithms.join:__file__")
# Files whose asynchronous calls only notify other ranks, so that nobody ever waits for them.
_NOTIFIERS = (_DDP, _JOIN)
# Python sees autograd's threads as dummies.
_NO_USER_THREADS = (type(threading.main_thread()), threading._DummyThread)
_RUNS_BACKWARD = torch_private.name_in_stacks("torch.autograd.graph:_engine_run_backward")
# Code of the course's that stands between torch's functions and only passes on their arguments.
UNSEEN: set[CodeType] = set()
# Files of torch whose code does likewise, where a mode, such as a counter, sees every operation.
_TORCH = os.path.dirname(torch.__file__)
_MODES = ("_ops.py", "utils/flop_counter.py", "_dynamo/eval_frame.py", "_compile.py")
_MODE_FILES = {os.path.join(_TORCH, *path.split("/")) for path in _MODES}


@functools.cache
def is_learners(file: str) -> bool:
    """Whether a file is the learner's."""
    return Frame(file, 0, "").is_learners


def split(frame: FrameType | None) -> tuple[list[FrameType], FrameType | None]:
    """Split the frames of a call: those of libraries, innermost first, and the learner's frame.

    The learner's frame is the first one outside of libraries; None where there is none.
    """
    library_frames = []
    frame = caller(frame)
    while frame and not is_learners(frame.f_code.co_filename):
        library_frames.append(frame)
        frame = caller(frame.f_back)
    return library_frames, frame


def caller(frame: FrameType | None) -> FrameType | None:
    """The first frame from here outwards that does more than pass on its arguments."""
    while frame and (frame.f_code in UNSEEN or frame.f_code.co_filename in _MODE_FILES):
        frame = frame.f_back
    return frame


def flags_of(library_frames: list[FrameType]) -> int:
    """The flags of an event that its frames tell: DDP's part in it, and a learner's thread."""
    flags = 0
    if library_frames and library_frames[0].f_code.co_name == _RUNS_BACKWARD:
        flags |= BACKWARD
    if not isinstance(threading.current_thread(), _NO_USER_THREADS):
        flags |= USER_THREAD
    for frame in library_frames:
        code = frame.f_code
        if code.co_filename == _JOIN and code.co_name == "__exit__":
            flags |= JOINS
        elif code.co_filename == _DDP and code.co_name == "__init__":
            flags |= DDP_INIT
        elif code.co_filename == _DDP and code.co_name == "forward":
            flags |= FORWARD
            model = torch_private.local(frame, "self")
            if model is not None and not model.training:
                flags |= EVALUATES
    return flags


def no_wait_follows(library_frames: list[FrameType], learner_frame: FrameType | None) -> bool:
    """Whether nobody waits later for an operation that torch calls asynchronous.

    Who has asked for it tells:

        | who has asked                        | does no wait follow?                        |
        | ------------------------------------ | ------------------------------------------- |
        | the learner, of C++                  | True: C++ waits before it returns           |
        | a library, of C++                    | True: likewise; but False in a backward     |
        |                                      | pass, since DDP waits at its end            |
        | nobody: a thread of torch's          | False: likewise                             |
        | dist.send or dist.recv               | True: they ask isend or irecv, and wait     |
        | other functions of torch.distributed | False                                       |
        | DDP or Join, of torch.distributed    | True: they notify, and nobody ever waits,   |
        |                                      | so it must not be told as a forgotten wait  |
        | all others                           | False                                       |

    Args:
        library_frames: As `split` returns them.
        learner_frame: Likewise.
    """
    if not library_frames:
        return learner_frame is not None
    innermost = library_frames[0].f_code
    if innermost.co_filename != C10D_FILE:
        return innermost.co_name != _RUNS_BACKWARD
    asking = _asking(library_frames)
    if asking.co_filename in _NOTIFIERS:
        return True
    is_within_torch = asking.co_filename == C10D_FILE and asking is not innermost
    return is_within_torch and asking.co_name in KINDS and KINDS[asking.co_name].message


def _asking(library_frames: list[FrameType]) -> CodeType:
    """Who asks a function of torch.distributed, whose decorators are passed over.

    The function itself, if the learner asks.
    """
    for frame in library_frames[1:]:
        if frame.f_code.co_filename != _LOGGER:
            return frame.f_code
    return library_frames[0].f_code


def is_direct(library_frames: list[FrameType], learner_frame: FrameType | None) -> bool:
    """Whether the learner's own line called torch.distributed, with nothing in between."""
    files = {frame.f_code.co_filename for frame in library_frames}
    return learner_frame is not None and bool(files) and files <= {C10D_FILE, _LOGGER}


def operator(library_frames: list[FrameType]) -> Any:
    """The reduction operator, which is an argument of a function of torch; None if unknown."""
    if library_frames:
        innermost = library_frames[0].f_code
        if innermost.co_name == _RUNS_BACKWARD or innermost.co_filename in _NOTIFIERS:
            return "sum"  # DDP's reducer divides by the world size, then sums
    for frame in library_frames:
        # Functional collectives have it in "reduceOp".
        argument = "op" if frame.f_code.co_filename == C10D_FILE else "reduceOp"
        op = torch_private.local(frame, argument)
        if op:
            return op
    return None
