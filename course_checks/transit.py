"""Messages on their way, in a rank that runs an answer.

A tensor belongs to torch from `isend` or `irecv` until `wait()` returns. Real gloo often forgives
who breaks that: a tensor that is filled after its `isend`, or read before its `wait()`, can have
the right content by chance, while the virtual clock believes that it left when it was handed over.
So here what arrives is there after `wait()` and never before, what was sent must still be the same
by then, and nothing is received into it.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d

from course_utils.launcher.stacks import Frame
from course_utils.launcher.transport import bytes_of
from course_utils.record import frames

_CHANGED = (
    "the tensor that you sent at {} has changed before this wait() for it. "
    "Leave it as it is until then: torch may still be reading it"
)
_BUSY = (
    "this tensor is still on its way since {}. Nothing may be received into it before the wait() "
    "for that: torch reads and writes it at any time until then"
)
_RECEIVES = ("recv", "recv_anysource")


class Message(NamedTuple):
    """A message that nobody has waited for yet."""

    work: Any  # to be kept: gloo hangs where a receive that is not complete loses it
    theirs: torch.Tensor  # the answer's
    ours: torch.Tensor  # which is sent, or received, in its place
    receives: bool
    line: str

    def meets(self, tensor: torch.Tensor) -> bool:
        """Whether both have a byte in common."""
        here, there = self.theirs.data_ptr(), tensor.data_ptr()
        return here < there + tensor.nbytes and there < here + self.theirs.nbytes


class Transit:
    """The messages of this process, each from its call to its `wait()`."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}  # by the id of the work

    def listen(self) -> None:
        """Have every message of this process go through our hands."""
        for name in ("send", *_RECEIVES):
            setattr(c10d.ProcessGroup, name, self._handed(name))
        wait = c10d.Work.wait

        @functools.wraps(wait)
        def wait_and_deliver(work: c10d.Work, *args: Any, **options: Any) -> bool:
            done = wait(work, *args, **options)
            if message := self.messages.pop(id(work), None):
                if message.receives:
                    message.theirs.copy_(message.ours)
                elif not _same(message.theirs, message.ours):
                    raise RuntimeError(_CHANGED.format(message.line))
            return done

        c10d.Work.wait = wait_and_deliver

    def _handed(self, name: str) -> Callable:
        call, receives = getattr(c10d.ProcessGroup, name), name in _RECEIVES

        def handed(group: c10d.ProcessGroup, tensors: list, *where: Any, **options: Any) -> Any:
            theirs = tensors[0].detach()
            if not theirs.is_contiguous():
                return call(group, tensors, *where, **options)  # which refuses it
            for other in [*self.messages.values()]:  # threads may send as well
                if (receives or other.receives) and other.meets(theirs):
                    raise RuntimeError(_BUSY.format(other.line))
            ours = torch.empty_like(theirs) if receives else theirs.clone()
            work = call(group, [ours], *where, **options)
            line = _line(frames.split(sys._getframe(1))[1])
            self.messages[id(work)] = Message(work, theirs, ours, receives, line)
            return work

        frames.UNSEEN.add(handed.__code__)  # the recorder asks the function below it
        return handed


def _line(own: FrameType | None) -> str:
    frame = own and Frame(own.f_code.co_filename, own.f_lineno, own.f_code.co_name)
    return f"{frame.place}: {frame.code}" if frame else "its call"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, so that nan is like nan."""
    if not one.numel():  # an empty one from NumPy has a stride that view() refuses
        return True
    return torch.equal(bytes_of(one), bytes_of(other))
