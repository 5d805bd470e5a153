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
from course_utils.launcher.language import _, listed, ngettext


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
            return _("1 core: ranks take turns; results are right, but nothing gets faster")
        return _("{n} cores: {n} ranks run at the same time; more ranks take turns", n=n)

    def _memory(self) -> str:
        memory = _("{size} of memory", size=_size(self.memory_bytes))
        if self.shm_bytes is None:
            return memory
        shm = f"/dev/shm {_size(self.shm_bytes)}"
        if self.shm_bytes < 2**27:
            shm = _("{shm}: enough for launch, too small for DataLoader workers", shm=shm)
        return _("{memory}, {shm}", memory=memory, shm=shm)

    def _gpus(self) -> str:
        count = len(self.gpus)
        gloo = _("launch uses gloo on the CPU")
        if not count and self.refusal:
            return _(
                "a GPU that CUDA cannot use ({refusal}): {gloo}", refusal=self.refusal, gloo=gloo
            )
        if not count:
            return _("no GPU: {gloo}", gloo=gloo)
        number = ngettext("{count} GPU", "{count} GPUs", count, count=count)
        names = ", ".join(sorted(set(self.gpus)))
        gpus = _("{number} ({names})", number=number, names=names)
        if " MIG " in self.gpus[0]:  # of several slices, the driver shows a process the first one
            gpus = _(
                "1 slice of a GPU ({name}), more of which no process can use", name=self.gpus[0]
            )
        if not self.nccl:
            return _("{gpus}, but this torch has no NCCL: {gloo}", gpus=gpus, gloo=gloo)
        if count == 1:
            return _(
                "{gpus}: {gloo}, and the GPU where you say device='cuda'", gpus=gpus, gloo=gloo
            )
        return _(
            "{gpus}: launch uses NCCL for up to {count} ranks, gloo on the CPU for more",
            gpus=gpus,
            count=count,
        )

    def _software(self) -> str:
        has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # from Python 3.13 on
        threads = _("no GIL")
        if has_gil:
            threads = _("threads share the GIL")
        backends = []
        if self.gloo:
            backends.append("gloo")
        if self.nccl:
            backends.append("NCCL")
        names = _("no backend")
        if backends:
            names = listed(backends)
        version = torch.__version__.split("+")[0]
        return _(
            "Python {python} ({threads}), torch {version} with {backends} built in",
            python=platform.python_version(),
            threads=threads,
            version=version,
            backends=names,
        )


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
