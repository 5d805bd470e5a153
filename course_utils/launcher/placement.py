"""Which backend and device a rank gets, decided without a CUDA context."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

RESTART = "Restart the kernel and keep CUDA inside the function that launch runs."


@dataclass(frozen=True)
class Placement:
    """What the ranks of one launch get.

    Attributes:
        backend: The string for `init_process_group`; None where the learner makes the group.
        devices: "cpu" or "cuda:K" for each rank of this machine, in the order of global ranks.
        notice: One line that says what "auto" chose; empty when the caller chose.
    """

    backend: str | None
    devices: tuple[str, ...]
    notice: str = ""


def gpu_count() -> int:
    """Count the GPUs that torch could use, by NVML, which leaves later forks unharmed."""
    if torch.version.cuda is None:  # a CPU wheel cannot use the GPU that NVML would see
        return 0
    return max(0, torch.cuda._device_count_nvml())


def place(backend: str | None, device: str, world_size: int) -> Placement:
    """Choose the backend of a launch and the device of each rank.

    Args:
        backend: "auto", "gloo", "nccl", or None where the learner makes the group.
        device: "auto", "cpu" or "cuda".
        world_size: Number of ranks; all of them share the GPUs of this machine.

    Raises:
        ValueError: The choice is unknown, or this machine or this torch cannot do it.
    """
    _refuse_unknown(backend, device)
    gpus = gpu_count() if device != "cpu" else 0
    enough = 0 < world_size <= gpus and dist.is_nccl_available()
    if device == "cuda" and not gpus:
        raise ValueError("device='cuda' needs a GPU and none is visible here; use device='cpu'")
    if backend == "nccl":
        _refuse_nccl(device, world_size, gpus)
    on_gpu = device == "cuda" or backend == "nccl" or (backend in ("auto", None) and enough)
    devices = tuple(f"cuda:{r % gpus}" if on_gpu else "cpu" for r in range(world_size))
    if backend != "auto":
        return Placement(backend, devices)
    # Under NCCL alone a collective on a CPU tensor would be an error: gloo stands beside it.
    chosen = "cpu:gloo,cuda:nccl" if enough else "gloo"
    return Placement(chosen, devices, _notice(enough, on_gpu, device, world_size, gpus))


def cuda_in_use() -> str | None:
    """Say why a fork of this process could not use CUDA, or None when it can."""
    if torch.version.cuda is None:
        return None
    if torch.cuda.is_initialized():
        return f"this kernel already uses CUDA: a tensor or a model was put on a GPU. {RESTART}"
    if _driver_started():
        return (
            "this kernel already uses CUDA: a call such as torch.cuda.is_available(), or an "
            f"import such as keras, started the driver. {RESTART}"
        )
    if gpu_count() and _autograd_threads(Path("/proc/self/task")):
        return (
            "this kernel already ran backward() on a machine with a GPU, which started threads "
            "that a worker's backward() cannot inherit. Restart the kernel and call backward() "
            "only inside the function that launch runs."
        )
    return None


def _refuse_unknown(backend: str | None, device: str) -> None:
    if backend not in ("auto", "gloo", "nccl", None):
        hint = " (MPI is not built into torch's wheels)" if backend == "mpi" else ""
        raise ValueError(f"backend={backend!r}{hint}: choose 'auto', 'gloo', 'nccl' or None")
    if device not in ("auto", "cpu", "cuda"):
        hint = " (launch gives each rank its own GPU)" if str(device)[:5] == "cuda:" else ""
        raise ValueError(f"device={device!r}{hint}: choose 'auto', 'cpu' or 'cuda'")


def _refuse_nccl(device: str, world_size: int, gpus: int) -> None:
    if not dist.is_nccl_available():
        raise ValueError("backend='nccl': this torch was built without NCCL; use backend='gloo'")
    if device == "cpu":
        raise ValueError("NCCL moves GPU tensors only: with device='cpu' use backend='gloo'")
    if world_size > gpus:
        fewer = f"world_size={gpus} or fewer, or " * (gpus > 0)
        counts = f"{_many(world_size, 'rank')}, {_many(gpus, 'GPU')}"
        raise ValueError(f"NCCL needs one GPU per rank: {counts}; use {fewer}backend='gloo'")


def _notice(enough: bool, on_gpu: bool, device: str, world_size: int, gpus: int) -> str:
    if enough:
        return "launch: NCCL, one GPU per rank"
    where = "shared GPUs" if on_gpu else "the CPU"
    if device == "cpu":
        why = "device='cpu'"
    elif not gpus:
        why = "no GPU here"
    elif world_size <= gpus:
        why = "this torch has no NCCL"
    else:
        why = f"{_many(world_size, 'rank')}, {_many(gpus, 'GPU')}"
    return f"launch: gloo on {where} ({why})"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _driver_started() -> bool:
    """Ask libcuda, only if something has loaded it, whether anything has initialised it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        count = ctypes.c_int()
        return driver.cuDeviceGetCount(ctypes.byref(count)) == 0  # 3 = not initialised
    except (OSError, AttributeError):  # not loaded; or a system without RTLD_NOLOAD
        return False


def _autograd_threads(tasks: Path) -> bool:
    return any(_read(comm).startswith("pt_autograd_") for comm in tasks.glob("*/comm"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has just ended
        return ""
