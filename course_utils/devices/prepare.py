"""Prepare a kernel for the fork: CUDA is not in use, imports are done, memory is in large pages.

Which line started CUDA is noted while it happens, since afterwards nothing tells.
"""

import contextlib
import ctypes
import importlib
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from IPython import get_ipython

from course_utils.devices import nccl
from course_utils.devices.placement import CPU, Placement, gpu_count
from course_utils.launcher import torch_private
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.language import _
from course_utils.launcher.libc import LIBC
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame, learners_frame

_WORTH_IT = 64  # ranks: a kernel that has started so many will start as many again
_AT_MOST = 1 << 30  # bytes whose pages are collapsed, so that a learner's gigabytes are left alone
_MADV_COLLAPSE = 25
_MAPS = Path("/proc/self/maps")
# Packages whose import is known to initialise CUDA.
_CUDA_PACKAGES = "keras", "tensorflow", "jax", "cupy", "torchao", "bitsandbytes", "accelerate"
_starts: list[str] = []  # lines and cells of this kernel that started CUDA; the first one counts
_torch_started_it = False  # if so, torch remembers the GPUs, and so would each fork
_ranks_started = 0
_notices_given: set[str] = set()
_IMPORTING = threading.Lock()


class DeviceSetup(Listener):
    """Refuses what no rank would survive, makes forks cheap, and gives each rank its device."""

    def __init__(self, placement: Placement = CPU, probes: bool = True) -> None:
        self._placement, self._probes = placement, probes

    def on_start(self, world_size: int) -> None:
        """Raise RuntimeError for a kernel that uses CUDA; give the notice once in a kernel."""
        placement = self._placement
        refusal = cuda_in_use(placement.needs_cuda)
        if refusal:
            raise RuntimeError(refusal)
        on_nccl = "nccl" in (placement.backend or "") and world_size > 1
        _say_once(placement.notice)
        _say_once(_debug_level())
        if on_nccl:
            _say_once(nccl.small_shm())
        import_what_ranks_need()
        collapse_pages(world_size)
        if on_nccl and self._probes:
            listeners = [DeviceSetup(placement, probes=False)]
            nccl.probe(world_size, placement.backend, listeners, placement.shares_by_nccl)

    def in_worker(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """In a rank: its GPU and those of its node, or none."""
        placement = self._placement
        device = placement.devices[rank] if placement.devices else "cpu"
        if placement.visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = placement.visible[rank]
        elif device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # so that torch.cuda.is_available() says no
        if placement.shares_by_nccl:
            nccl.share_one_gpu()
        if device != "cpu":
            torch.cuda.set_device(device)
        return contextlib.nullcontext()

    def on_error(self, ranks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """Put NCCL's and CUDA's words plainly."""
        nccl.explain(error)


def _debug_level() -> str:
    """A line, if the notebook asks torch for what no rank can have; see `worker`."""
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") != "DETAIL":
        return ""
    return _(
        "launch: TORCH_DISTRIBUTED_DEBUG=DETAIL counts as INFO here: under DETAIL, DDP models "
        "crash on gloo in torch 2.15. A hang's report has what DETAIL would compare."
    )


def _say_once(notice: str) -> None:
    """Print a line once in a kernel, unless it is empty."""
    if notice and notice not in _notices_given:
        _notices_given.add(notice)
        print(notice, flush=True)


def import_what_ranks_need() -> None:
    """Import here, once, what each rank would import: for DDP alone that takes a second.

    Under a lock: a rank that is forked while a different thread is importing would wait for it.
    """
    with _IMPORTING:
        # torch 2.15 looks for a backend among all installed packages, which takes 6 ms. Not "nccl":
        # it would keep what TORCH_DIST_USE_NCCL2 says now, and a later cell could not change it.
        register = torch_private.find("torch.distributed:Backend._ensure_backend_registered")
        if register is not None:
            register("gloo")
        # Without this name, the import makes a folder and writes the name into the environment.
        name = "TORCHINDUCTOR_CACHE_DIR"
        is_first = "torch._dynamo" not in sys.modules and name not in os.environ
        if is_first:
            os.environ[name] = tempfile.gettempdir()
        try:
            importlib.import_module("torch._dynamo.trace_rules")
            # Emptied here, since each rank would empty these caches when it joins, and in doing so
            # copy a sixth of all pages that it copies.
            clear_caches = torch_private.find("torch._dynamo.trace_rules:clear_lru_cache")
            if clear_caches is not None:
                clear_caches()
        except ImportError:
            pass
        finally:
            if is_first:
                os.environ.pop(name)


def cuda_in_use(needs_cuda: bool = True) -> str | None:
    """Say why a fork of this process could not do its work, or None if it can.

    Args:
        needs_cuda: Whether a rank will use a GPU. A driver that was started by anything but torch
            does no harm to a rank on the CPU.
    """
    if torch.version.cuda is None:
        return None
    if torch.cuda.is_initialized():
        return _already_used()
    if gpu_count() and _autograd_threads():
        return _(
            "this kernel already ran backward() on a machine with a GPU, which started threads "
            "that a worker's backward() cannot inherit. Restart the kernel and call backward() "
            "only inside the function that launch runs."
        )
    if driver_started() and (needs_cuda or _torch_started_it):
        return _already_used()
    return None


def _already_used() -> str:
    return _(
        "this kernel already uses CUDA: {who} started it. Restart the kernel and keep CUDA inside "
        "the function that launch runs.",
        who=_who(),
    )


def driver_started() -> bool:
    """Whether anything has initialised libcuda, which is asked only if something has loaded it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0  # 3 = not initialised
    except (OSError, AttributeError):  # not loaded; or a system without RTLD_NOLOAD
        return False


def _autograd_threads() -> bool:
    """Whether autograd has started a thread for a GPU."""
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            if name.read_text().startswith("pt_autograd_"):
                return True
    return False


def collapse_pages(ranks: int) -> None:
    """Collapse pages of this process into large ones, each time that 64 more ranks were started.

    A fork copies an entry for each page of the kernel, some 95,000 of 4 KiB after `import torch`.
    Linux can put 512 neighbours into one. That takes 0.6 to 1.0 s of CPU time, or 4 ms if there are
    no new pages, and saves 10 of the 27 ms that each rank costs from then on (measured on two
    cores).

    Args:
        ranks: How many are about to be started.

    Source: Linux man-pages, madvise(2), MADV_COLLAPSE (since Linux 6.1; an older one declines).
    """
    global _ranks_started
    ranks_before = _ranks_started
    _ranks_started += ranks
    is_due = _ranks_started // _WORTH_IT > ranks_before // _WORTH_IT
    if not is_due or not _MAPS.exists():
        return
    left = _AT_MOST
    for line in _MAPS.read_text().splitlines():
        addresses, access, _, _, inode, *name = line.split()
        begin, end = (int(number, 16) for number in addresses.split("-"))
        size = end - begin
        is_private = access == "rw-p" and inode == "0" and name in ([], ["[heap]"])
        if is_private and size <= left:
            left -= size
            LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_COLLAPSE)


def watch() -> None:
    """From now on, note which line of the learner's starts CUDA's driver.

    Calls that go through torch's Python tell the line. If the driver is started in any other way,
    the cell is noted after which it was running.
    """
    torch_private.wrap("torch._C:_cuda_getDeviceCount", _noting)  # a CPU wheel has none
    torch_private.wrap("torch._C:_cuda_init", _noting)
    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _look)


def _noting(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, after which the learner's line that has made it is known."""

    def note_and_call(*args: Any) -> Any:
        global _torch_started_it
        _torch_started_it = True
        if not _starts:
            line = _line_below(sys._getframe(1))
            if line is not None:
                _starts.append(_("`{code}` ({place})", code=line.code, place=line.place))
        return call(*args)

    return note_and_call


def _line_below(frame: FrameType) -> Frame | None:
    """The learner's line in this frame or a caller's."""
    frames = []
    for caller, line in traceback.walk_stack(frame):
        frames.append(Frame(caller.f_code.co_filename, line, "<module>"))
    frames.reverse()
    return learners_frame(frames)


def _look(result: Any) -> None:
    """After a cell: note it if the driver has started in it, unless `_noting` has seen the line."""
    if _starts or not driver_started():
        return
    cell = _("cell [{number}]", number=result.execution_count)
    for number, line in enumerate(result.info.raw_cell.splitlines(), start=1):
        if "backward(" in line:  # autograd's engine counts the GPUs, in C++
            place = _("{file}, line {line}", file=cell, line=number)
            _starts.append(_("`{code}` ({place})", code=line.strip(), place=place))
            return
    _starts.append(_("something in {cell}", cell=cell))


def _who() -> str:
    """What started CUDA: a line or a cell; otherwise, imported packages that are known to do so."""
    if _starts:
        return _starts[0]
    imported = [name for name in _CUDA_PACKAGES if name in sys.modules]
    if imported:
        return _("perhaps the import of {packages}", packages=_(" or ").join(imported))
    return _("a call or an import")
