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
        n = self.cores
        cores = f"{n} cores: {n} ranks run at the same time; more ranks take turns"
        if n == 1:
            cores = "1 core: ranks take turns; results are right, but nothing gets faster"
        memory = f"{_size(self.memory_bytes)} of memory"
        if self.shm_bytes is not None:
            small = ": enough for launch, too small for DataLoader workers"
            memory += f", /dev/shm {_size(self.shm_bytes)}{small * (self.shm_bytes < 2**27)}"
        built = [name for name, there in (("gloo", self.gloo), ("NCCL", self.nccl)) if there]
        names, version = " and ".join(built) or "no backend", torch.__version__.split("+")[0]
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        python = f"{platform.python_version()} ({'threads share the GIL' if gil else 'no GIL'})"
        software = f"Python {python}, torch {version} with {names} built in"
        return "\n".join([cores, memory, self._gpus(), software])

    def _gpus(self) -> str:
        count, gloo = len(self.gpus), "launch uses gloo on the CPU"
        if not count:
            why = f"a GPU that CUDA cannot use ({self.refusal})" if self.refusal else "no GPU"
            return f"{why}: {gloo}"
        text = f"{count} GPU{'s' * (count > 1)} ({', '.join(sorted(set(self.gpus)))})"
        if " MIG " in self.gpus[0]:  # of more the driver shows a process the first one only
            text = f"1 slice of a GPU ({self.gpus[0]}), more of which no process can use"
        if not self.nccl:
            return f"{text}, but this torch has no NCCL: {gloo}"
        if count == 1:
            return f"{text}: {gloo}, and the GPU where you say device='cuda'"
        return f"{text}: launch uses NCCL for up to {count} ranks, gloo on the CPU for more"


def hardware() -> Hardware:
    """Read what this machine leaves to this process, without touching CUDA.

    Cores are those of its affinity and its container's quota, memory is in bytes by its container's
    limit, and GPUs are the names of those that CUDA_VISIBLE_DEVICES leaves and the driver accepts.
    """
    quota, limit = _container_limits()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Hardware(
        cores=max(1, int(min(cores, quota))),
        memory_bytes=int(min(physical, limit)),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        gpus=(found := usable_gpus()).names,
        gloo=dist.is_gloo_available(),
        nccl=dist.is_nccl_available(),
        refusal=found.refusal,
    )


def _container_limits(group: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Cores and bytes that a container leaves (Linux control groups v2), infinite without one."""
    try:
        quota, period = (group / "cpu.max").read_text().replace("max", "inf").split()
        limit = (group / "memory.max").read_text().replace("max", "inf")
        return float(quota) / int(period), float(limit)
    except (OSError, ValueError):
        return math.inf, math.inf


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.0f} GiB"
