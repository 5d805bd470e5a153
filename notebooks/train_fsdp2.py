"""Trains a sharded network with FSDP2: on CPUs or GPUs, under torchrun or launch.

    torchrun --standalone --nproc-per-node=4 train_fsdp2.py --steps 4
    launch(train, "checkpoint", 4, world_size=4)      (in a notebook of the course)

Started again, also with a different number of ranks, it goes on after the last step that was saved.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def join() -> torch.device:
    """Join the group of all ranks, unless somebody has done it, and take this rank's device."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(device_id=device if device.type == "cuda" else None)
    return device


def sharded_network(device: torch.device) -> nn.Module:
    """Four blocks, each gathered before its forward and its backward, and freed after each."""
    torch.manual_seed(0)  # the same first weights on every rank
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(*blocks).double().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Each rank writes its own shards; all ranks call it."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Each rank reads what it holds, whoever wrote it; returns how many steps were made."""
    if not (path / ".metadata").exists():
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return state["step"]


def train(path="checkpoint", steps=4, clip=0.01) -> dict[str, torch.Tensor]:
    """Train as one of all ranks; returns the whole weights, on the CPU."""
    device = join()
    model = sharded_network(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(load(Path(path), model, optimizer), steps):
        torch.manual_seed(step)  # your own data goes here; each rank takes its part
        inputs = torch.randn(12, 32, dtype=torch.float64)
        inputs = inputs[dist.get_rank() :: dist.get_world_size()].to(device)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)  # of all ranks' shards together
        optimizer.step()
        full_norm = norm.full_tensor().item()  # a collective: every rank calls it
        if dist.get_rank() == 0:
            print(f"step {step}: gradient norm {full_norm:.4f}")
        save(Path(path), model, optimizer, step + 1)
    return {name: shard.full_tensor().cpu() for name, shard in model.state_dict().items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a sharded network with FSDP2.")
    parser.add_argument("--path", default="checkpoint")
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    train(arguments.path, arguments.steps)
    dist.destroy_process_group()
