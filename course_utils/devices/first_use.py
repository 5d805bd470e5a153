"""Who started CUDA in the kernel: noted while it happens, since afterwards nothing tells."""

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from IPython import get_ipython

from course_utils.launcher.stacks import Frame, learners_line

_STARTERS = "keras", "tensorflow", "jax", "cupy", "torchao", "bitsandbytes", "accelerate"
_seen: list[str] = []  # the first is the one that counts


def watch(started: Callable[[], bool]) -> None:
    """Note the learner's line that reaches the driver through torch.

    It may be reached in another way: then note the cell after which it has `started`.
    """

    def look(result: Any) -> None:
        if not _seen and started():
            _seen.append(f"something in cell [{result.execution_count}]")

    for name in ("_cuda_getDeviceCount", "_cuda_init"):
        if call := getattr(torch._C, name, None):  # a CPU wheel has none
            setattr(torch._C, name, _noting(call))
    if shell := get_ipython():
        shell.events.register("post_run_cell", look)


def _noting(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def noted(*args: Any) -> Any:
        rows = [] if _seen else traceback.walk_stack(sys._getframe(1))
        frames = [Frame(frame.f_code.co_filename, line, "<module>") for frame, line in rows]
        if line := learners_line(frames[::-1]):
            _seen.append(f"`{line.code}` ({line.place})")
        return call(*args)

    return noted


def who() -> str:
    """The line or the cell; else the imports that are known to do it and were made."""
    made = [name for name in _STARTERS if name in sys.modules]
    unseen = f"perhaps the import of {' or '.join(made)}" if made else "a call or an import"
    return _seen[0] if _seen else unseen
