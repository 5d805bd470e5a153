"""What a kernel is like before it forks: no CUDA, all imports done, its memory in large pages.

Who started CUDA is noted while it happens, since afterwards nothing tells.
"""

import contextlib
import ctypes
import functools
import importlib
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from IPython import get_ipython

from course_utils.devices import nccl
from course_utils.devices.placement import CPU, Placement, gpu_count
from course_utils.launcher.descendants import LIBC
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame, learners_line

_WORTH_IT = 64  # ranks; a kernel with so many starts as many again
_AT_MOST, _MADV_COLLAPSE = 1 << 30, 25  # bytes: not a learner's data of many gigabytes
_MAPS = Path("/proc/self/maps")
_STARTERS = "keras", "tensorflow", "jax", "cupy", "torchao", "bitsandbytes", "accelerate"
_starts: list[str] = []  # of CUDA in this kernel; the first is the one that counts
_torch_started_it = False  # torch then remembers the GPUs, and so would each fork
_started = 0
_said: set[str] = set()
_IMPORTING = threading.Lock()


class ReadyToFork(Listener):
    """Refuses what no rank would survive, makes forks cheap, and gives each rank its device."""

    def __init__(self, placement: Placement = CPU, probes: bool = True) -> None:
        self._placement, self._probes = placement, probes

    def on_start(self, world_size: int) -> None:
        """Raise RuntimeError for a kernel that uses CUDA; say the notice once in a kernel."""
        placement = self._placement
        refusal = cuda_in_use(placement.needs_cuda)
        if refusal:
            raise RuntimeError(refusal)
        on_nccl = "nccl" in (placement.backend or "") and world_size > 1
        _say_once(placement.notice)
        if on_nccl:
            _say_once(nccl.small_shm())
        import_what_ranks_need()
        enlarge(world_size)
        if on_nccl and self._probes:
            listeners = [ReadyToFork(placement, probes=False)]
            nccl.probe(world_size, placement.backend, listeners, placement.shares_by_nccl)

    def in_worker(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """In a rank: its GPU and those of its node, or none."""
        devices, visible = self._placement.devices, self._placement.visible
        device = devices[rank] if devices else "cpu"
        if visible or device == "cpu":  # where torch.cuda.is_available() is to say no
            os.environ["CUDA_VISIBLE_DEVICES"] = visible[rank] if visible else ""
        if self._placement.shares_by_nccl:
            nccl.share_one_gpu()
        if device != "cpu":
            torch.cuda.set_device(device)
        return contextlib.nullcontext()

    def on_error(self, ranks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """Put NCCL's and CUDA's words plainly."""
        nccl.explain(error)


def _say_once(notice: str) -> None:
    """Print a line that is not empty, once in a kernel."""
    if notice and notice not in _said:
        _said.add(notice)
        print(notice, flush=True)


def import_what_ranks_need() -> None:
    """Import here, once, what each rank would: for DDP alone that takes a second.

    Under a lock: a rank forked while another thread is importing would wait for that thread.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"  # else it makes a folder, and writes into the environment
    with _IMPORTING, contextlib.ExitStack() as afterwards:
        # torch 2.15 looks for a backend among all installed packages, which takes 6 ms. Not "nccl":
        # it would keep what TORCH_DIST_USE_NCCL2 says now, and a later cell could not change it.
        register = getattr(dist.Backend, "_ensure_backend_registered", None)
        if register is not None:
            register("gloo")
        if "torch._dynamo" not in sys.modules and name not in os.environ:
            os.environ[name] = tempfile.gettempdir()
            afterwards.callback(os.environ.pop, name)
        # Else each rank clears them when it joins, and copies a sixth of all pages that it copies.
        # Private: without it, joining only takes longer.
        with contextlib.suppress(ImportError):
            rules = importlib.import_module("torch._dynamo.trace_rules")
            getattr(rules, "clear_lru_cache", int)()


def cuda_in_use(needs_cuda: bool = True) -> str | None:
    """Say why a fork of this process could not do its work, or None when it can.

    Args:
        needs_cuda: whether a rank will use a GPU. A rank on the CPU is not harmed by a driver that
            something other than torch has started.
    """
    if torch.version.cuda is None:
        return None
    restart = "Restart the kernel and keep CUDA inside the function that launch runs."
    if torch.cuda.is_initialized():
        return f"this kernel already uses CUDA: {_who()} started it. {restart}"
    if gpu_count() and _autograd_threads():
        return """this kernel already ran backward() on a machine with a GPU, which started \
threads that a worker's backward() cannot inherit. Restart the kernel and call backward() only \
inside the function that launch runs."""
    if driver_started() and (needs_cuda or _torch_started_it):
        return f"this kernel already uses CUDA: {_who()} started it. {restart}"
    return None


def driver_started() -> bool:
    """Whether anything has initialised libcuda, which is asked only if something has loaded it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0  # 3 = not initialised
    except (OSError, AttributeError):  # not loaded; or a system without RTLD_NOLOAD
        return False


def _autograd_threads() -> bool:
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            if name.read_text().startswith("pt_autograd_"):
                return True
    return False


def enlarge(ranks: int) -> None:
    """Enlarge pages before each launch that makes it worth while: what has come since is small.

    A fork copies an entry for each page of the kernel, some 95,000 of 4 KiB after `import torch`.
    Linux can put 512 neighbours into one. That takes 0.6 to 1.0 s of CPU time, 4 ms where nothing
    has come, and saves 10 of the 27 ms that each rank costs from then on (measured on two cores).
    Source: Linux man-pages, madvise(2), MADV_COLLAPSE (since Linux 6.1; an older one declines).
    """
    global _started
    _started, before = _started + ranks, _started
    due = _started // _WORTH_IT > before // _WORTH_IT
    left = _AT_MOST if due and _MAPS.exists() else 0
    for line in _MAPS.read_text().splitlines() if left else ():
        addresses, access, _, _, inode, *name = line.split()
        begin, end = (int(number, 16) for number in addresses.split("-"))
        private = access == "rw-p" and inode == "0" and name in ([], ["[heap]"])
        if private and end - begin <= left:
            left -= end - begin
            LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)


def watch() -> None:
    """Note the learner's line that reaches the driver through torch.

    It may be reached in another way: then note the cell after which it has started.
    """
    for name in ("_cuda_getDeviceCount", "_cuda_init"):
        if call := getattr(torch._C, name, None):  # a CPU wheel has none
            setattr(torch._C, name, _noting(call))
    if shell := get_ipython():
        shell.events.register("post_run_cell", _look)


def _noting(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def noted(*args: Any) -> Any:
        global _torch_started_it
        _torch_started_it = True
        rows = [] if _starts else traceback.walk_stack(sys._getframe(1))
        frames = [Frame(frame.f_code.co_filename, line, "<module>") for frame, line in rows]
        if line := learners_line(frames[::-1]):
            _starts.append(f"`{line.code}` ({line.place})")
        return call(*args)

    return noted


def _look(result: Any) -> None:
    """After a cell: did the driver start in it, unseen by `_noting`?"""
    if _starts or not driver_started():
        return
    cell = f"cell [{result.execution_count}]"
    for number, line in enumerate(result.info.raw_cell.splitlines(), start=1):
        if "backward(" in line:  # autograd's engine counts the GPUs, in C++
            _starts.append(f"`{line.strip()}` ({cell}, line {number})")
            return
    _starts.append(f"something in {cell}")


def _who() -> str:
    """The line or the cell; else the imports that are known to do it and were made."""
    made = [name for name in _STARTERS if name in sys.modules]
    unseen = f"perhaps the import of {' or '.join(made)}" if made else "a call or an import"
    return _starts[0] if _starts else unseen
