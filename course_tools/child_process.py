"""A function's result from a process of its own, which is no rank and may launch ranks itself."""

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import IO, Any

import torch

from course_utils.launcher import transport
from course_utils.launcher.deadlines import Deadline

# The first byte of what a child writes.
_RETURNED, _RAISED = b"+", b"-"
_PART_BYTES = 1 << 20  # read at once


def in_child_process(fn: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Call a function in a forked process, whose output is dropped, and return what it returns.

    Raises:
        RuntimeError: It has failed, or was not done in time; its processes are gone.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(fn, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        try:
            answer, is_late = _read(pipe, timeout)
        finally:
            os.kill(child, signal.SIGKILL)  # and its ranks end with it
            os.waitpid(child, 0)
    sign, content = answer[:1], answer[1:]
    if is_late or sign != _RETURNED:
        reason = content.decode(errors="replace")
        raise RuntimeError(reason or f"not done in {timeout:g} seconds")
    return transport.unpack(content)


def _read(pipe: IO[bytes], timeout: float) -> tuple[bytes, bool]:
    """All that the child writes, and whether it was too late with some of it."""
    answer = bytearray()
    while _comes(pipe, timeout):
        part = os.read(pipe.fileno(), _PART_BYTES)
        if not part:
            return bytes(answer), False
        answer += part
    return bytes(answer), True


def _comes(pipe: IO[bytes], timeout: float) -> bool:
    """Whether something can be read before it is too late."""
    deadline = Deadline(timeout)
    while not wait([pipe], 0.1):
        if deadline.is_over():
            return False
    return True


def _tell(fn: Callable[[], Any], writing: int) -> None:
    """Call it, write what became of it, and end this process."""
    try:
        torch.set_num_threads(1)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        try:
            answer = _RETURNED + transport.pack(fn())
        except BaseException as error:
            answer = _RAISED + f"{type(error).__name__}: {error}".encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)
