"""Which backend and device a rank gets, decided without a CUDA context."""

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Placement:
    """What the ranks of one launch get."""

    backend: str | None  # for `init_process_group`; None where the learner makes the group
    devices: tuple[str, ...]  # "cpu" or "cuda:K" by global rank
    notice: str = ""  # one line that says what "auto" chose; empty when the caller chose


def gpu_count() -> int:
    """Count the GPUs that torch could use, by NVML, which leaves later forks unharmed."""
    if torch.version.cuda is None:  # a CPU wheel cannot use the GPU that NVML would see
        return 0
    return max(0, torch.cuda._device_count_nvml())


def place(backend: str | None, device: str, world_size: int) -> Placement:
    """Choose the backend and the devices from the options of `launch`; ranks share this machine.

    Raises:
        ValueError: The choice is unknown, or this machine or this torch cannot do it.
    """
    gpus = gpu_count() if device != "cpu" else 0
    _refuse(backend, device, world_size, gpus)
    enough = world_size <= gpus and dist.is_nccl_available()
    on_gpu = device == "cuda" or backend == "nccl" or (backend in ("auto", None) and enough)
    devices = tuple(f"cuda:{r % gpus}" if on_gpu else "cpu" for r in range(world_size))
    if backend != "auto":
        return Placement(backend, devices)
    if enough:  # under NCCL alone a collective on a CPU tensor would be an error
        return Placement("cpu:gloo,cuda:nccl", devices, "launch: NCCL, one GPU per rank")
    why = "this torch has no NCCL" if world_size <= gpus else _counts(world_size, gpus)
    if not gpus:
        why = "device='cpu'" if device == "cpu" else "no GPU here"
    where = "shared GPUs" if on_gpu else "the CPU"
    return Placement("gloo", devices, f"launch: gloo on {where} ({why})")


def _refuse(backend: str | None, device: str, world_size: int, gpus: int) -> None:
    if backend not in ("auto", "gloo", "nccl", None):
        hint = " (MPI is not built into torch's wheels)" if backend == "mpi" else ""
        raise ValueError(f"backend={backend!r}{hint}: choose 'auto', 'gloo', 'nccl' or None")
    if device not in ("auto", "cpu", "cuda"):
        hint = " (launch gives each rank its own GPU)" if str(device)[:5] == "cuda:" else ""
        raise ValueError(f"device={device!r}{hint}: choose 'auto', 'cpu' or 'cuda'")
    if device == "cuda" and not gpus:
        raise ValueError("device='cuda' needs a GPU and none is visible here; use device='cpu'")
    if backend != "nccl":
        return
    if not dist.is_nccl_available():
        raise ValueError("backend='nccl': this torch was built without NCCL; use backend='gloo'")
    if device == "cpu":
        raise ValueError("NCCL moves GPU tensors only: with device='cpu' use backend='gloo'")
    if world_size > gpus:
        way = f"use world_size={gpus} or fewer, or backend='gloo'" if gpus else "use backend='gloo'"
        raise ValueError(f"NCCL needs one GPU per rank: {_counts(world_size, gpus)}; {way}")


def _counts(ranks: int, gpus: int) -> str:
    return f"{ranks} rank{'s' * (ranks != 1)}, {gpus} GPU{'s' * (gpus != 1)}"


def cuda_in_use() -> str | None:
    """Say why a fork of this process could not use CUDA, or None when it can."""
    if torch.version.cuda is None:
        return None
    what = ""
    if torch.cuda.is_initialized():
        what = "a tensor or a model was put on a GPU"
    elif _driver_started():
        what = "a call such as torch.cuda.is_available(), or an import such as keras, "
        what += "started the driver"
    if what:
        restart = "Restart the kernel and keep CUDA inside the function that launch runs."
        return f"this kernel already uses CUDA: {what}. {restart}"
    if gpu_count() and _autograd_threads():
        return """this kernel already ran backward() on a machine with a GPU, which started \
threads that a worker's backward() cannot inherit. Restart the kernel and call backward() only \
inside the function that launch runs."""
    return None


def _driver_started() -> bool:
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
