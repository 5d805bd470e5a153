"""What this machine has, read without a CUDA context."""

import math
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from course_utils.devices.driver import usable_gpus


@dataclass(frozen=True, repr=False)
class Hardware:
    """What this machine has; printed, it says in four lines what the course can show here."""

    cores: int
    memory_bytes: int
    shm_bytes: int | None
    gpus: tuple[str, ...]
    gloo: bool
    nccl: bool
    refusal: str = ""  # why CUDA cannot use a GPU that is there

    def __repr__(self) -> str:
        lines = [self._cores(), self._memory(), self._gpus(), self._software()]
        return "\n".join(lines)

    def _cores(self) -> str:
        n = self.cores
        if n == 1:
            return "1 core: ranks take turns; results are right, but nothing gets faster"
        return f"{n} cores: {n} ranks run at the same time; more ranks take turns"

    def _memory(self) -> str:
        memory = f"{_size(self.memory_bytes)} of memory"
        if self.shm_bytes is None:
            return memory
        shm = f"/dev/shm {_size(self.shm_bytes)}"
        if self.shm_bytes < 2**27:
            shm += ": enough for launch, too small for DataLoader workers"
        return f"{memory}, {shm}"

    def _gpus(self) -> str:
        count = len(self.gpus)
        gloo = "launch uses gloo on the CPU"
        if not count and self.refusal:
            return f"a GPU that CUDA cannot use ({self.refusal}): {gloo}"
        if not count:
            return f"no GPU: {gloo}"
        number = f"{count} GPUs"
        if count == 1:
            number = "1 GPU"
        names = ", ".join(sorted(set(self.gpus)))
        text = f"{number} ({names})"
        if " MIG " in self.gpus[0]:  # of several slices, the driver shows a process the first one
            text = f"1 slice of a GPU ({self.gpus[0]}), more of which no process can use"
        if not self.nccl:
            return f"{text}, but this torch has no NCCL: {gloo}"
        if count == 1:
            return f"{text}: {gloo}, and the GPU where you say device='cuda'"
        return f"{text}: launch uses NCCL for up to {count} ranks, gloo on the CPU for more"

    def _software(self) -> str:
        has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # from Python 3.13 on
        threads = "threads share the GIL" if has_gil else "no GIL"
        python = f"{platform.python_version()} ({threads})"
        backends = []
        if self.gloo:
            backends.append("gloo")
        if self.nccl:
            backends.append("NCCL")
        names = " and ".join(backends) or "no backend"
        version = torch.__version__.split("+")[0]
        return f"Python {python}, torch {version} with {names} built in"


def hardware() -> Hardware:
    """Read what this machine leaves to this process, without touching CUDA.

    Cores are those of the process's affinity and its container's quota. Memory is in bytes, by its
    container's limit. GPUs are the names of those that CUDA_VISIBLE_DEVICES leaves and the driver
    accepts.
    """
    quota, limit = _container_limits()
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):  # macOS has no affinity
        cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = usable_gpus()
    return Hardware(
        cores=max(1, int(min(cores, quota))),
        memory_bytes=int(min(memory_bytes, limit)),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        gpus=gpus.names,
        gloo=dist.is_gloo_available(),
        nccl=dist.is_nccl_available(),
        refusal=gpus.refusal,
    )


def _container_limits(group: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Cores and bytes that a container leaves (Linux control groups v2), infinite without one."""
    try:
        cpu = (group / "cpu.max").read_text().replace("max", "inf")
        memory = (group / "memory.max").read_text().replace("max", "inf")
        quota, period = cpu.split()
        cores = float(quota) / int(period)
        return cores, float(memory)
    except (OSError, ValueError):
        return math.inf, math.inf


def _size(count: int) -> str:
    if count < 2**30:
        return f"{count / 2**20:.0f} MiB"
    return f"{count / 2**30:.0f} GiB"
