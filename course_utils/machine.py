"""What this machine has, read without a CUDA context."""

import contextlib
import math
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from course_utils.launcher.placement import gpu_count


@dataclass(frozen=True, repr=False)
class Hardware:
    """What this machine has; printed, it says what the course can show here. Sizes in bytes."""

    cores: int
    memory_bytes: int
    shm_bytes: int | None
    gpus: tuple[str, ...]
    gloo: bool
    nccl: bool

    def __str__(self) -> str:
        """Say in four lines what this machine can show in the course."""
        return "\n".join([self._cores(), self._memory(), self._gpus(), self._software()])

    __repr__ = __str__

    def _cores(self) -> str:
        if self.cores == 1:
            return "1 core: ranks take turns; results are right, but nothing gets faster"
        return f"{self.cores} cores: {self.cores} ranks run at the same time; more ranks take turns"

    def _memory(self) -> str:
        text = f"{_size(self.memory_bytes)} of memory"
        if self.shm_bytes is None:
            return text
        small = ": enough for launch, too small for DataLoader workers"
        return f"{text}, /dev/shm {_size(self.shm_bytes)}{small * (self.shm_bytes < 2**27)}"

    def _gpus(self) -> str:
        count = len(self.gpus)
        if not count:
            return "no GPU: launch uses gloo on the CPU"
        text = f"{count} GPU{'s' * (count > 1)} ({', '.join(sorted(set(self.gpus)))})"
        if not self.nccl:
            return f"{text}, but this torch has no NCCL: launch uses gloo on the CPU"
        ranks = "1 rank" if count == 1 else f"up to {count} ranks"
        return f"{text}: launch uses NCCL for {ranks}, gloo on the CPU for more"

    def _software(self) -> str:
        built = [name for name, there in (("gloo", self.gloo), ("NCCL", self.nccl)) if there]
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        threads = "threads share the GIL" if gil else "no GIL"
        python, version = platform.python_version(), torch.__version__.split("+")[0]
        names = " and ".join(built) or "no backend"
        return f"Python {python} ({threads}), torch {version} with {names} built in"


def hardware() -> Hardware:
    """Read cores, memory, GPUs and versions of this machine, without touching CUDA.

    Returns:
        What this process may use: cores by its affinity and its container's quota, memory in
        bytes by its container's limit, the names of the GPUs that CUDA_VISIBLE_DEVICES leaves.
    """
    quota, limit = _container_limits()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Hardware(
        cores=max(1, int(min(_affinity(), quota))),
        memory_bytes=int(min(physical, limit)),
        shm_bytes=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        gpus=_gpu_names(gpu_count()),
        gloo=dist.is_gloo_available(),
        nccl=dist.is_nccl_available(),
    )


def _gpu_names(count: int) -> tuple[str, ...]:
    """Name the visible GPUs in CUDA's order; "GPU" for each that nvidia-smi does not name."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    told = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # it is not there, or fails
        if count:
            how = {"capture_output": True, "text": True, "timeout": 10, "check": True}
            told = subprocess.run(query, **how).stdout
    rows = [line.split(", ", 2) for line in told.splitlines() if line.count(", ") >= 2]

    def name(key: str) -> str:
        """Of a GPU by its index, or by the start of its uuid."""
        return next((n for i, uuid, n in rows if key == i or uuid.startswith(key)), "GPU")

    return tuple(name(str(key)) for key in torch.cuda._parse_visible_devices()[:count])


def _container_limits(group: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Cores and bytes that a container leaves (Linux control groups v2), infinite without one."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        limit = (group / "memory.max").read_text().strip()
    except (OSError, ValueError):
        return math.inf, math.inf
    cores = math.inf if quota == "max" else int(quota) / int(period)
    return cores, math.inf if limit == "max" else int(limit)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.0f} GiB"
