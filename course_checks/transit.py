"""Messages on their way, in a rank that runs an answer.

A tensor belongs to torch from `isend` or `irecv` until `wait()` returns. Real gloo often forgives
an answer that breaks this rule: a tensor that is filled after its `isend`, or read before its
`wait()`, can have the right content by chance, while the virtual clock believes that it left when
it was handed over. So here, what is received arrives in `wait()` and never before. What was sent
must be unchanged by then, and nothing may be received into it.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from course_utils.launcher import torch_private
from course_utils.launcher.language import N_, _
from course_utils.launcher.stacks import Frame
from course_utils.launcher.torch_private import C10D
from course_utils.launcher.transport import bytes_of
from course_utils.record import frames

_CHANGED = N_(
    "the tensor that you sent at {line} has changed before this wait() for it. Leave it as it is "
    "until then: torch may still be reading it"
)
_BUSY = N_(
    "this tensor is still on its way since {line}. Nothing may be received into it before the "
    "wait() for that: torch reads and writes it at any time until then"
)
_RECEIVES = ("recv", "recv_anysource")


class Message(NamedTuple):
    """A message that nobody has waited for yet."""

    work: Any  # is kept, since gloo hangs if a receive loses its work before it is complete
    tensor: Tensor  # the answer's
    copy: Tensor  # ours, which is sent or received in its place
    receives: bool
    line: str  # of the call

    def overlaps(self, tensor: Tensor) -> bool:
        """Whether its tensor and this one have a byte in common."""
        start = self.tensor.data_ptr()
        end = start + self.tensor.nbytes
        other_start = tensor.data_ptr()
        other_end = other_start + tensor.nbytes
        return start < other_end and other_start < end


class Transit:
    """The messages of this process, each from its call to its `wait()`."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}  # by the id of the work

    def listen(self) -> None:
        """Replace the tensors of all messages of this process by copies of ours."""
        if torch_private.find(f"{C10D}:Work.wait") is None:
            return  # nobody would deliver what is received
        for name in ("send", *_RECEIVES):
            with_copy = functools.partial(self._with_copy, name in _RECEIVES)
            torch_private.wrap(f"{C10D}:ProcessGroup.{name}", with_copy)
        torch_private.wrap(f"{C10D}:Work.wait", self._delivering)

    def _delivering(self, wait: Callable) -> Callable:
        """The method that waits for a work: what is received arrives with its end."""

        def wait_and_deliver(work: c10d.Work, *args: Any, **options: Any) -> bool:
            done = wait(work, *args, **options)
            message = self.messages.pop(id(work), None)
            if message is None:
                return done
            if message.receives:
                message.tensor.copy_(message.copy)
            elif not _same(message.tensor, message.copy):
                complaint = _(_CHANGED, line=message.line)
                raise RuntimeError(complaint)
            return done

        return wait_and_deliver

    def _with_copy(self, receives: bool, call: Callable) -> Callable:
        """A method of a process group, which is given a copy instead of the answer's tensor."""

        def with_copy(group: c10d.ProcessGroup, tensors: list, *args: Any, **options: Any) -> Any:
            tensor = tensors[0].detach()
            if not tensor.is_contiguous():
                return call(group, tensors, *args, **options)  # which refuses it
            message = self._in_conflict(tensor, receives)
            if message is not None:
                complaint = _(_BUSY, line=message.line)
                raise RuntimeError(complaint)
            if receives:
                copy = torch.empty_like(tensor)
            else:
                copy = tensor.clone()
            work = call(group, [copy], *args, **options)
            _inner, learner_frame = frames.split(sys._getframe(1))
            line = _line(learner_frame)
            message = Message(work, tensor, copy, receives, line)
            self.messages[id(work)] = message
            return work

        frames.UNSEEN.add(with_copy.__code__)  # the recorder asks the function below it
        return with_copy

    def _in_conflict(self, tensor: Tensor, receives: bool) -> Message | None:
        """The message on its way that forbids to send or receive a tensor, or None.

        The same bytes may be sent twice.
        """
        for message in list(self.messages.values()):  # threads may send as well
            writes = receives or message.receives
            if writes and message.overlaps(tensor):
                return message
        return None


def _line(learner_frame: FrameType | None) -> str:
    if learner_frame is None:
        return _("its call")
    code = learner_frame.f_code
    frame = Frame(code.co_filename, learner_frame.f_lineno, code.co_name)
    return frame.place_and_code


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that nan equals nan."""
    if not tensor.numel():  # an empty one from NumPy has a stride that view() refuses
        return True
    tensor_bytes = bytes_of(tensor)
    other_bytes = bytes_of(other)
    return torch.equal(tensor_bytes, other_bytes)
