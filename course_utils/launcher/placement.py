"""Which backend and device a rank gets, decided without a CUDA context."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

RESTART = "Restart the kernel and keep CUDA inside the function that launch runs."


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
    for holds, sentence in _refusals(backend, device, world_size, gpus):
        if holds:
            raise ValueError(sentence)
    enough = world_size <= gpus and dist.is_nccl_available()
    on_gpu = device == "cuda" or backend == "nccl" or (backend in ("auto", None) and enough)
    devices = tuple(f"cuda:{r % gpus}" if on_gpu else "cpu" for r in range(world_size))
    if backend != "auto":
        return Placement(backend, devices)
    if enough:  # under NCCL alone a collective on a CPU tensor would be an error
        return Placement("cpu:gloo,cuda:nccl", devices, "launch: NCCL, one GPU per rank")
    reasons = {
        "device='cpu'": device == "cpu",
        "no GPU here": not gpus,
        "this torch has no NCCL": world_size <= gpus,
        _counts(world_size, gpus): True,
    }
    why = next(reason for reason, holds in reasons.items() if holds)
    where = "shared GPUs" if on_gpu else "the CPU"
    return Placement("gloo", devices, f"launch: gloo on {where} ({why})")


def _refusals(
    backend: str | None, device: str, world_size: int, gpus: int
) -> Iterator[tuple[bool, str]]:
    """Whether something cannot work, and a sentence that says what to do; the first one counts."""
    hint = " (MPI is not built into torch's wheels)" if backend == "mpi" else ""
    known = backend in ("auto", "gloo", "nccl", None)
    yield not known, f"backend={backend!r}{hint}: choose 'auto', 'gloo', 'nccl' or None"
    hint = " (launch gives each rank its own GPU)" if str(device)[:5] == "cuda:" else ""
    known = device in ("auto", "cpu", "cuda")
    yield not known, f"device={device!r}{hint}: choose 'auto', 'cpu' or 'cuda'"
    none = device == "cuda" and not gpus
    yield none, "device='cuda' needs a GPU and none is visible here; use device='cpu'"
    if backend == "nccl":
        built = dist.is_nccl_available()
        yield not built, "backend='nccl': this torch was built without NCCL; use backend='gloo'"
        on_cpu = device == "cpu"
        yield on_cpu, "NCCL moves GPU tensors only: with device='cpu' use backend='gloo'"
        fewer = f"world_size={gpus} or fewer, or " * (gpus > 0)
        sentence = f"NCCL needs one GPU per rank: {_counts(world_size, gpus)}; use {fewer}"
        yield world_size > gpus, f"{sentence}backend='gloo'"


def _counts(ranks: int, gpus: int) -> str:
    return f"{ranks} rank{'s' * (ranks != 1)}, {gpus} GPU{'s' * (gpus != 1)}"


def cuda_in_use() -> str | None:
    """Say why a fork of this process could not use CUDA, or None when it can."""
    if torch.version.cuda is None:
        return None
    already = "this kernel already uses CUDA:"
    if torch.cuda.is_initialized():
        return f"{already} a tensor or a model was put on a GPU. {RESTART}"
    if _driver_started():
        calls = "a call such as torch.cuda.is_available(), or an import such as keras"
        return f"{already} {calls}, started the driver. {RESTART}"
    if gpu_count() and _autograd_threads():
        return """this kernel already ran backward() on a machine with a GPU, which started \
threads that a worker's backward() cannot inherit. Restart the kernel and call backward() only \
inside the function that launch runs."""
    return None


def _driver_started() -> bool:
    """Whether anything has initialised libcuda, which is asked only if something has loaded it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        count = ctypes.c_int()
        return driver.cuDeviceGetCount(ctypes.byref(count)) == 0  # 3 = not initialised
    except (OSError, AttributeError):  # not loaded; or a system without RTLD_NOLOAD
        return False


def _autograd_threads() -> bool:
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has just ended
            if name.read_text().startswith("pt_autograd_"):
                return True
    return False
