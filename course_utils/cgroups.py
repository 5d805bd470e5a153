"""What a container leaves of the machine: CPU quota and memory limit, from Linux cgroups."""

import math
from collections.abc import Iterator
from pathlib import Path


def limits(root: Path = Path("/")) -> tuple[float, float]:
    """Read the tightest limits on this process, cgroups v1 or v2.

    Args:
        root: Where `proc` and `sys` are; another folder in tests.

    Returns:
        Cores and bytes; `math.inf` where nothing limits, as on macOS.
    """
    cores = memory = math.inf
    for folder in _folders(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        quota = quota or _read(folder / "cpu.cfs_quota_us")
        period = period or _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # "max" and "-1" mean no limit
            cores = min(cores, int(quota) / int(period))
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (text := _read(folder / name)).isdigit():
                memory = min(memory, int(text))
    return cores, memory


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups and of all their ancestors."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        # v1 mounts each controller apart; v2 has one nameless mount, "unified" beside v1.
        for name in controllers.split(",") if controllers else ("", "unified"):
            top = base / name
            folder = top / path.lstrip("/")
            yield from (folder, *(up for up in folder.parents if up.is_relative_to(top)))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
