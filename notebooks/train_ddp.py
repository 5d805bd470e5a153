"""Trains a network on digits with DistributedDataParallel: on CPUs or GPUs, on one machine or many.

    torchrun --standalone --nproc-per-node=2 train_ddp.py --epochs 2
    srun --ntasks=8 python train_ddp.py        (MASTER_ADDR and MASTER_PORT set in the batch script)
    launch(train, world_size=2)                (in a notebook of the course)

Stopped and started again, it goes on after the last epoch that was saved, with the same numbers.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import digits  # your own data set goes here


def join() -> torch.device:
    """Join the group of all ranks, unless somebody has done it, and take this rank's device."""
    if "SLURM_STEP_NUM_TASKS" in os.environ and "RANK" not in os.environ:  # started by srun
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
        os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # Slurm may show each rank its own GPU only: then that's number 0, whatever LOCAL_RANK is.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(device_id=device if device.type == "cuda" else None)
    return device


def convnet() -> nn.Module:
    """A small network with batch normalisation and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip


def save(path: Path, model: DistributedDataParallel, optimizer: Optimizer, epoch: int) -> None:
    """Rank 0 writes, and nobody goes on before the file is whole."""
    if dist.get_rank() == 0:
        network = model.module.state_dict()  # a plain network can read it, without DDP
        parts = {"model": network, "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(parts, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # at no moment is there half a file
    dist.barrier()


def load(path: Path, model: DistributedDataParallel, optimizer: Optimizer) -> int:
    """Every rank reads; returns the epoch to go on with."""
    if not path.exists():
        return 0
    parts = torch.load(path, map_location=next(model.parameters()).device)
    model.module.load_state_dict(parts["model"])
    optimizer.load_state_dict(parts["optimizer"])
    return parts["epoch"]


def train_epoch(model, loader, optimizer, clip: float, device: torch.device) -> float:
    """One pass over the data; returns the mean loss over the samples of all ranks."""
    total = torch.zeros(2, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        # Forward and loss, not backward; most CPUs gain nothing by it.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # here DDP averages the gradients
        nn.utils.clip_grad_norm_(model.parameters(), clip)  # of the average: the same everywhere
        optimizer.step()
        total[0] += loss.detach() * len(labels)
        total[1] += len(labels)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train(path="checkpoint.pt", epochs=2, global_batch=64, lr=0.02, clip=1.0) -> dict:
    """Train as one of all ranks; returns the weights."""
    device, training = join(), digits(True)
    torch.manual_seed(0)  # the first weights, whoever started this process
    cards = None if device.type == "cpu" else [device.index]  # this process has one card, or none
    model = DistributedDataParallel(convnet().to(device), device_ids=cards)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, global_batch // dist.get_world_size(), sampler=sampler)
    for epoch in range(load(Path(path), model, optimizer), epochs):
        sampler.set_epoch(epoch)  # a new order in every epoch
        torch.manual_seed(1000 * epoch + dist.get_rank())  # dropout of its own, also when resumed
        loss = train_epoch(model, loader, optimizer, clip, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}")
        save(Path(path), model, optimizer, epoch + 1)
    return {name: weight.cpu() for name, weight in model.module.state_dict().items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trains on digits with DDP.")
    parser.add_argument("--path", default="checkpoint.pt", help="of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of a gradient")
    train(**vars(parser.parse_args()))
    dist.destroy_process_group()
