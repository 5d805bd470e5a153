"""DDP throughput of one function, as `launch` and as `torchrun` start it.

The function measures itself, after a warm-up: what is compared is how fast the ranks train, not how
long they take to start.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch
from course_utils.launcher.deadlines import slowness

RANKS = 2


def train(blocks: int = 10, steps: int = 50, batch: int = 64) -> float:
    """What every rank does; returns images per second over all ranks, of the median block."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    images = torch.randn(batch, 784)
    labels = torch.arange(batch) % 10
    seconds_of_blocks = []
    for _ in range(1 + blocks):  # the first one warms up
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
        seconds_of_blocks.append(time.perf_counter() - begun)
    median_s = statistics.median(seconds_of_blocks[1:])
    return steps * batch * dist.get_world_size() / median_s


def under_launch() -> float:
    results = launch(train, world_size=RANKS, backend="gloo")
    return results[0]


def under_torchrun() -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", "-m", "course_tools.measure.ddp_throughput"]
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **loopback, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        environment["RESULT"] = f"{folder}/result"
        timeout_s = 120.0 * slowness()
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=timeout_s)
        result = Path(folder, "result").read_text()
    return json.loads(result)


def paired(repeats: int) -> dict[str, list[float]]:
    """Images per second in `repeats` turns; who goes first alternates."""
    runs = {"launch": under_launch, "torchrun": under_torchrun}
    results: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        torchrun_first = turn % 2 == 1
        for name in sorted(runs, reverse=torchrun_first):
            run = runs[name]
            results[name].append(run())
    return results


def main() -> None:
    """One rank of torchrun."""
    dist.init_process_group("gloo")
    images_per_s = train()
    if dist.get_rank() == 0:
        Path(os.environ["RESULT"]).write_text(json.dumps(images_per_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
