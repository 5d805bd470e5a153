"""How fast all ranks add up numbers, by nccl-tests' formula; under `launch` or under torchrun.

torchrun --standalone --nproc-per-node=4 -m course_tools.measure.bandwidth    prints it as JSON
"""

import json
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

SIZES = tuple(1 << power for power in range(10, 29, 2))  # bytes, 1 KiB to 256 MiB
WARM_UP_CALLS = 5


class Row(NamedTuple):
    """One size: bytes of a rank's tensor, microseconds of a call, and its bus bandwidth."""

    size: int
    us: float
    bus_gb_s: float  # 10^9 bytes a second


def all_reduce(sizes: Sequence[int] = SIZES, calls: int = 20) -> list[Row]:
    """Time `all_reduce` of float32 in a rank that has joined a group, in place and warmed up.

    The bus bandwidth is size / time * 2 (n - 1) / n for n ranks: what each rank's link carries in
    a ring, whatever their number. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    n = dist.get_world_size()
    share = 2 * (n - 1) / n
    rows = []
    for size in sizes:
        tensor = torch.zeros(size // 4, device=device)
        for _ in range(WARM_UP_CALLS):
            dist.all_reduce(tensor)
        _finish()
        dist.barrier()
        _finish()
        begun = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(tensor)
        _finish()
        seconds = (time.perf_counter() - begun) / calls
        bus_bytes_s = size / seconds * share
        row = Row(size, 1e6 * seconds, bus_bytes_s / 1e9)
        rows.append(row)
    return rows


def _finish() -> None:
    """Wait for what is queued on the GPU; on the CPU nothing is."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """As one of torchrun's processes: join, measure, and let rank 0 print."""
    if torch.cuda.is_available():
        device = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(device)
    dist.init_process_group()
    sizes = SIZES
    wanted_sizes = os.environ.get("BANDWIDTH_SIZES")
    if wanted_sizes is not None:
        sizes = json.loads(wanted_sizes)
    rows = all_reduce(sizes)
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
