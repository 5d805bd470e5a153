"""The `dist` of an entry to the challenge: messages whose time the virtual clock can tell.

What is sent is what stood in the tensor when it was handed over, and what arrives is in the
receiver's tensor once it has waited, not before. Without that an entry could hand a tensor over
before it knows what to write into it, or read one before it waits: on real processes both can
work, and the clock would believe that the message had travelled meanwhile.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class P2POp(NamedTuple):
    """As torch's, for `batch_isend_irecv`."""

    op: Callable
    tensor: Tensor
    peer: int


class Waiting:
    """What `isend` and `irecv` return."""

    def __init__(self, work: Any, arrives: Sequence[Tensor] = ()) -> None:
        self._work = work
        self._arrives = arrives  # the receiver's tensor, and the one that the message goes into

    def wait(self) -> None:
        """Wait, and put what has arrived where it is wanted."""
        self._work.wait()
        if self._arrives:
            wanted_in, arrived = self._arrives
            wanted_in.copy_(arrived)
            self._arrives = ()


def _handed_over(tensor: Tensor) -> Tensor:
    """What stands in a tensor now, in the order of its numbers."""
    detached = tensor.detach()
    return detached.clone(memory_format=torch.contiguous_format)


def _room_for(tensor: Tensor) -> Tensor:
    """Where a message arrives that goes into a tensor later."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def isend(tensor: Tensor, dst: int, tag: int = 0) -> Waiting:
    """Send, without waiting."""
    copy = _handed_over(tensor)
    rank = int(dst)
    work = dist.isend(copy, rank, tag=tag)
    return Waiting(work)


def irecv(tensor: Tensor, src: int, tag: int = 0) -> Waiting:
    """Receive, without waiting."""
    arrived = _room_for(tensor)
    rank = int(src)
    work = dist.irecv(arrived, rank, tag=tag)
    return Waiting(work, (tensor, arrived))


def send(tensor: Tensor, dst: int, tag: int = 0) -> None:
    """Send, and wait until it has left."""
    copy = _handed_over(tensor)
    rank = int(dst)
    dist.send(copy, rank, tag=tag)


def recv(tensor: Tensor, src: int, tag: int = 0) -> None:
    """Receive."""
    arrived = _room_for(tensor)
    rank = int(src)
    dist.recv(arrived, rank, tag=tag)
    tensor.copy_(arrived)


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Waiting]:
    """Hand several over at once."""
    waiting = []
    for op, tensor, peer in p2p_op_list:
        message = op(tensor, peer)
        waiting.append(message)
    return waiting


def get_rank() -> int:
    """This rank."""
    return dist.get_rank()


def get_world_size() -> int:
    """How many ranks there are."""
    return dist.get_world_size()


_FUNCTIONS = (isend, irecv, send, recv, batch_isend_irecv, get_rank, get_world_size)
WORDS = {function.__name__: function for function in _FUNCTIONS}
for _function in (*_FUNCTIONS, Waiting.wait):  # so that a recording names the entry's line
    _code = _function.__code__
    _function.__code__ = _code.replace(co_filename="<frozen messages>")
MESSAGES = SimpleNamespace(**WORDS, P2POp=P2POp)
