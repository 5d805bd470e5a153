"""Trains a sharded network with FSDP2: on CPUs or GPUs, under torchrun or launch.

    torchrun --standalone --nproc-per-node=4 train_fsdp2.py checkpoint 5
    launch(train, "checkpoint", 5, world_size=4)      (in a notebook of the course)

What trains comes first, in thirty lines: `sharded_network` and `train`. The four functions below
them make it a job that may be stopped. Started again, also with a different number of ranks, it
goes on after the last step that was saved. The number of ranks has to divide the global batch.
"""

import os
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

# ---- what trains ---------------------------------------------------------------------------------


def sharded_network(device):
    """Four blocks, each gathered before its forward and its backward, and freed after each."""
    torch.manual_seed(0)  # the same first weights on every rank
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(*blocks).double().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(path, steps, max_norm=0.01):
    """Train as one of all ranks; returns the full weights, on the CPU."""
    device = join()
    model = sharded_network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first_step = load(path, model, optimizer)
    for step, inputs in enumerate(islice(batches(first_step), steps - first_step), first_step):
        optimizer.zero_grad()
        model(inputs.to(device)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # of all ranks' shards
        optimizer.step()
        full_norm = norm.full_tensor().item()  # a collective: every rank calls it
        if dist.get_rank() == 0:
            print(f"step {step}: gradient norm {full_norm:.4f}")
        save(path, model, optimizer, step + 1)
    return {name: shard.full_tensor().cpu() for name, shard in model.state_dict().items()}


# ---- around it: ranks, data, checkpoints ---------------------------------------------------------

DATA = torch.randn(36, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
GLOBAL_BATCH = 12


def join():
    """Join the group of all ranks, unless somebody has done it, and take this rank's device."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # Slurm may show each rank its own GPU only: then that's number 0, whatever LOCAL_RANK is.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(device_id=device if device.type == "cuda" else None)
    return device


def batches(step):
    """This rank's part of the global batches from `step` on, also from the middle of an epoch."""
    while True:
        epoch, done = divmod(step * GLOBAL_BATCH, len(DATA))
        order = torch.randperm(len(DATA), generator=torch.Generator().manual_seed(epoch))
        for batch in order[done:].split(GLOBAL_BATCH):
            yield DATA[batch[dist.get_rank() :: dist.get_world_size()]]
            step += 1


def save(path, model, optimizer, step):
    """Each rank writes its own shards, into a folder per step; all ranks call it."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": step}
    dcp.save(state, checkpoint_id=Path(path, f"step_{step:06}"))


def load(path, model, optimizer):
    """Each rank reads what it holds, whoever wrote it; returns how many steps were made."""
    complete = sorted(Path(path).glob("step_*/.metadata"))  # which is written last
    if not complete:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=complete[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"]


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
    dist.destroy_process_group()
