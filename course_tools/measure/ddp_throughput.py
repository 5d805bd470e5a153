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
    for _ in range(1 + blocks):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            outputs = model(images)
            loss = cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
        seconds = time.perf_counter() - begun
        seconds_of_blocks.append(seconds)
    _warm_up, *counted = seconds_of_blocks
    images_of_block = steps * batch * dist.get_world_size()
    return images_of_block / statistics.median(counted)


def under_launch() -> float:
    """Images per second in ranks of `launch`."""
    results = launch(train, world_size=RANKS, backend="gloo")
    return results[0]


def under_torchrun() -> float:
    """Images per second in processes of torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", "-m", "course_tools.measure.ddp_throughput"]
    loopback = "lo"
    if sys.platform == "darwin":
        loopback = "lo0"
    timeout_s = 120.0 * slowness()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result")
        settings = {
            "GLOO_SOCKET_IFNAME": loopback,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": folder,
            "RESULT": str(file),
        }
        environment = os.environ | settings
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=timeout_s)
        result = file.read_text()
    return json.loads(result)


def paired(repeats: int) -> dict[str, list[float]]:
    """Images per second in `repeats` turns; who goes first alternates."""
    with_launch = []
    with_torchrun = []
    for turn in range(repeats):
        torchrun_first = turn % 2 == 1
        if torchrun_first:
            with_torchrun.append(under_torchrun())
        with_launch.append(under_launch())
        if not torchrun_first:
            with_torchrun.append(under_torchrun())
    return {"launch": with_launch, "torchrun": with_torchrun}


def main() -> None:
    """One rank of torchrun."""
    dist.init_process_group("gloo")
    images_per_s = train()
    if dist.get_rank() == 0:
        result = json.dumps(images_per_s)
        file = Path(os.environ["RESULT"])
        file.write_text(result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
