# ruff: noqa: E501
# %% [markdown]
# Imports of these sections, for the chapter's one import cell.

# %% tags=["part-imports"]
import importlib.util
import inspect
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch

# %% [markdown]
# ## One function, three launchers
#
# A cluster is shared, so a **scheduler** hands out its machines, and starts the ranks. It need not change what they do. Here is a function that
# asks `torch.distributed` for its rank and knows nothing else of where it runs:


# %% tags=["part-slurm", "part-ray"]
def train():
    """Twenty steps; what any rank returns, the ranks all have."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(dim=1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(1280, 64), torch.randint(10, (1280,))
    for step in range(20):
        mine = slice(64 * step + rank, 64 * (step + 1), world_size)
        optimizer.zero_grad()
        nll_loss(model(inputs[mine]), labels[mine]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).tolist()


by_launch = launch(train, backend="gloo")[0]

# %% [markdown]
# Its result under `launch` is what the others have to meet; a list, because Ray refuses tensors as results. They start scripts, so the function goes into one as it stands, and a helper runs a command
# in a **session** of its own. All that a command starts, and all that those start, belong to its session: so nothing of it outlives the cell, whatever happens.

# %% tags=["part-slurm", "part-ray"]
SCRIPT = f"""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel


{inspect.getsource(train)}
"""


def run_in_session(*command, timeout=120, **options):
    """Run a command, return what it says; then end what is left of its session."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **piped, **options)
    try:
        said = process.communicate(timeout=timeout)[0]
        if process.returncode:
            raise RuntimeError(f"{command[0]} failed: {said[-2000:]}")
        return said
    finally:
        for pid in [process.pid, *(int(path.name) for path in Path("/proc").glob("[0-9]*"))]:
            with suppress(ProcessLookupError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def same(weights):
    return torch.allclose(torch.tensor(weights), torch.tensor(by_launch), rtol=0, atol=1e-6)


# %% [markdown]
# ## Slurm: `srun` starts the ranks
#
# On a **Slurm** cluster you write a *batch script* and hand it over with `sbatch`. Comments say what is wanted; when the machines are free, Slurm runs the
# script on the first of them. `srun`, inside it, runs a command on all: one task, one rank.

# %% tags=["part-slurm", "row-E5"]
JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
srun --label python train.py
"""

# %% [markdown]
# Rank 0 runs on the first machine of the job's list, and the port follows from the job's number: two jobs that share a machine get two. With GPUs, `--ntasks-per-node` and `--gpus-per-node`
# are the same number. A task learns who it is from **Slurm's own names**, which `torch` does not know:

# %% tags=["part-slurm", "row-E5"]
JOINING = """
rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world_size)
node, local_rank = os.environ["SLURM_NODEID"], os.environ["SLURM_LOCALID"]
print(f"rank {rank} of {world_size}: node {node}, local rank {local_rank}")
torch.save(train(), f"weights_{rank}.pt")
dist.destroy_process_group()
"""

# %% [markdown]
# Here is no Slurm. So two **stand-ins** take the place of its commands: they start the tasks on this machine, in the environment that Slurm would give them. The batch script and
# `train.py` run as they are; what the stand-ins cannot show is the waiting, and a network.

# %% tags=["part-slurm"]
SRUN = """#!/bin/bash
[ "$1" = --label ] && shift
set -o pipefail
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 "$@" 2>&1 | sed "s/^/$task: /" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""
SCONTROL = """#!/bin/bash
seq -f "127.0.0.%g" 1 "$SLURM_JOB_NUM_NODES"
"""


def free_job_id():
    """A number whose port is free on this machine."""
    while True:
        number = random.randrange(20_000)
        with socket.socket() as port, suppress(OSError):
            port.bind(("127.0.0.1", 10_000 + number))
            return number


# %% [markdown]
# Then Slurm's part for a job of two nodes with one task each, done by hand: its names are set, and its commands found before all others.


# %% tags=["part-slurm", "row-E5"]
def run_job(folder):
    """Write the job's files; run the batch script as `sbatch` would."""
    texts = {"srun": SRUN, "scontrol": SCONTROL, "job.sh": JOB, "train.py": SCRIPT + JOINING}
    for name, text in texts.items():
        Path(folder, name).write_text(text)
        Path(folder, name).chmod(0o700)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    slurm = {"SLURM_JOB_ID": str(free_job_id()), "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_JOB_NODELIST": "127.0.0.[1-2]", "GLOO_SOCKET_IFNAME": loopback}
    slurm["PATH"] = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = run_in_session("./job.sh", cwd=folder, env=os.environ | slurm)
    return said, [torch.load(path) for path in sorted(Path(folder).glob("weights_*.pt"))]


# %% [markdown]
# **Predict.** Which local ranks do the two ranks have, and are their weights `launch`'s?

# %% tags=["part-slurm", "row-E5"]
predicted_slurm = "?"

print("predicted:", predicted_slurm)
with tempfile.TemporaryDirectory() as folder:
    said, by_slurm = run_job(folder)
print(*sorted(said.splitlines()), sep="\n")
print("both ranks have launch's weights, to 1e-6:", [same(weights) for weights in by_slurm])
print("one rank alone has them:", same(launch(train, world_size=1, backend="gloo")[0]))

# %% [markdown]
# Two nodes of one task: both are local rank 0, as on any cluster with one GPU per machine. Each rank took every second sample of a batch, DDP averaged, and the weights are
# `launch`'s. The last line is the surprise: one rank has them as well, since equal shares of one global batch are the same training.
#
# Many clusters run `srun torchrun` instead, with one task per node: then `srun` starts an agent on each machine, `torchrun` starts the ranks, and restarts them when one dies.
#
# ## Ray Train: an engine starts the ranks
#
# **Ray** keeps processes of its own on every machine, and places work on them. Its part for training is *Ray Train*. A `TorchTrainer` takes our function, starts a worker for each rank,
# makes the process group, and calls it. It comes with the extra `cluster`, so the chapter asks first.

# %% tags=["part-ray", "row-E5"]
RAY = """
import ray
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

folder = sys.argv[1]
cluster = Cluster()
try:
    for _ in range(2):  # a cluster, as it were: two nodes of one CPU
        limits = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        quiet = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        cluster.add_node(node_ip_address="127.0.0.1", **limits, **quiet)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    print(len({node["NodeID"] for node in ray.nodes()}), "nodes of Ray")
    scaling = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
    storage = RunConfig(storage_path=folder)
    result = TorchTrainer(train, scaling_config=scaling, run_config=storage).fit()
    torch.save(result.return_value, f"{folder}/weights.pt")
finally:
    ray.shutdown()
    cluster.shutdown()
"""

# %% [markdown]
# Only the middle is yours on a real cluster: `ray.init`, a `ScalingConfig`, a `TorchTrainer`. `Cluster` is Ray's tool for tests, which plays two nodes on one machine. `STRICT_SPREAD` refuses to
# put both ranks on one node.
#
# Ray listens on many ports, and by default on the machine's own address. The settings below keep it on loopback, in one folder, and silent: no usage reports, no dashboard. One port they do not reach: torch's store, which rank 0 opens on every interface, as
# it does under `torchrun`.

# %% tags=["part-ray"]
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its effect on Linux: loopback will do
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
}


def run_ray(folder):
    """Ray's script in a session of its own, and what rank 0 returned."""
    Path(folder, "job.py").write_text(SCRIPT + RAY)
    # Each of Ray's twelve processes would import this for a second, and none needs it.
    Path(folder, "rfc3987_syntax.py").write_text("raise ImportError\n")
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = os.environ | RAY_SETTINGS | {"RAY_TMPDIR": folder, "PYTHONPATH": paths}
    said = run_in_session(sys.executable, "job.py", folder, cwd=folder, env=own)
    return said, torch.load(Path(folder, "weights.pt"))


# %% [markdown]
# **Predict.** The result under Ray: equal to `launch`'s, or not?

# %% tags=["part-ray", "row-E5"]
predicted_ray = "?"

print("predicted:", predicted_ray)
if importlib.util.find_spec("ray") is None:
    print("Ray is not installed; this brings it: .venv/bin/pip install '.[cluster]'")
else:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: it will hold sockets
        said, by_ray = run_ray(folder)
    print(said, end="")
    print("rank 0 has launch's weights, to 1e-6:", same(by_ray))

# %% [markdown]
# The same function, the third time, on two nodes, and the same weights. The price is time: Ray starts a dozen processes, for placing, watching and cleaning up, before the first step. For 20 steps that is absurd; for a night
# on 64 machines it is nothing.
#
# **On a real cluster** `Cluster` goes, and Ray is started on each machine before (`ray start --head` on the first, `ray start --address=HEAD:6379` on the others) or by a cloud's or Kubernetes's own Ray operator.
# `storage_path` must then be a place that all nodes reach, `use_gpu=True` gives each rank a GPU and takes NCCL, and `prepare_data_loader` deals the samples. In return Ray restarts lost workers
# (`FailureConfig`), from the last checkpoint that the function gave to `ray.train.report`. Ports are open to the whole network, and whoever reaches them can run code: keep a cluster behind a firewall.
#
# **Check yourself.** Slurm, Ray, `torchrun`, `launch`: which of them averages the gradients?
#
# <details><summary>Answer</summary>
# None. They start processes and tell each its rank. What is sent during training is DDP's affair, which is why one function runs under all four.
# </details>
