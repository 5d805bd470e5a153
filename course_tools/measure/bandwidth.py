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
    on_gpu = torch.cuda.is_available()
    finish = torch.cuda.synchronize if on_gpu else lambda: None
    share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    rows = []
    for size in sizes:
        tensor = torch.zeros(size // 4, device="cuda" if on_gpu else "cpu")
        for turn in range(calls + 5):
            if turn == 5:
                finish()
                dist.barrier()
                finish()
                begun = time.perf_counter()
            dist.all_reduce(tensor)
        finish()
        seconds = (time.perf_counter() - begun) / calls
        rows.append(Row(size, 1e6 * seconds, size / seconds * share / 1e9))
    return rows


def main() -> None:
    """As one of torchrun's processes: join, measure, and let rank 0 print."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    rows = all_reduce(json.loads(os.environ.get("BANDWIDTH_SIZES", "null")) or SIZES)
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
