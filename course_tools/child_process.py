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


def in_child_process(fn: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Call a function in a forked process, whose output is dropped, and return what it returns.

    Raises:
        RuntimeError: It has failed, or was not done in time; its processes are gone.
    """
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        _tell(fn, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        try:
            parts, late = [], False
            while not (late := not _comes(pipe, timeout)) and (part := os.read(reading, 1 << 20)):
                parts.append(part)
        finally:
            os.kill(pid, signal.SIGKILL)  # and its ranks end with it
            os.waitpid(pid, 0)
    kind, content = (parts := b"".join(parts))[:1], parts[1:]
    if late or kind != b"+":
        raise RuntimeError(content.decode(errors="replace") or f"not done in {timeout:g} seconds")
    return transport.unpack(content)


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
            said = b"+" + transport.pack(fn())
        except BaseException as error:
            said = b"-" + f"{type(error).__name__}: {error}".encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(0)
