"""Trains our model on the day's delivery; it goes on where the last night ended.

On each node: torchrun --nnodes=2 --nproc-per-node=2 --node-rank=N --master-addr=node-a
              --log-dir=logs --redirects=3 train.py DELIVERY CHECKPOINT EPOCHS
"""

import os
import signal
import string
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

ALPHABET, CONTEXT, BATCH = string.printable + "“”’", 16, 32


def read(path):
    """Windows of 16 characters and the one that follows, as numbers."""
    text = torch.tensor([ALPHABET.find(letter) + 1 for letter in path.read_text("utf-8")])
    return text.unfold(0, CONTEXT + 1, CONTEXT + 1)


def batches(windows, epoch):
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(epoch))
    return windows[order].split(BATCH)


def make_model():
    torch.manual_seed(0)
    size = len(ALPHABET) + 1
    layers = nn.Embedding(size, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 64), nn.ReLU()
    return DistributedDataParallel(nn.Sequential(*layers, nn.Linear(64, size)))


def loss_of(model, batch, **options):
    return cross_entropy(model(batch[:, :-1]), batch[:, -1], **options)


def evaluate(model, path):
    """The loss on the testing text, of which each rank judges its share."""
    testing = read(path)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        own = loss_of(model.module, testing[rank::world_size], reduction="sum")
    losses = [torch.zeros(()) for _ in range(world_size)]
    dist.all_gather(losses, own)
    return sum(losses).item() / len(testing)


def save(checkpoint, model, optimizer, epoch):
    states = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states | {"epoch": epoch}, checkpoint)


def resume(checkpoint, model, optimizer):
    """Load the checkpoint; return the epoch that comes next."""
    epoch = torch.zeros((), dtype=torch.long)
    if dist.get_rank() == 0:  # the backup is on node-a's own disk
        states = torch.load(checkpoint)
        model.module.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        epoch += states["epoch"]
    dist.broadcast(epoch, src=0)  # all go on with the same epoch
    return epoch.item()


def train(delivery, checkpoint, epochs):
    rank = dist.get_rank()
    windows = read(delivery / f"part-{rank}.txt")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begin = resume(checkpoint, model, optimizer)
    for epoch in range(begin, epochs):
        some = islice(batches(windows, epoch), 15)  # the data is bad at the end
        for step, batch in enumerate(some):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
            if step % 5 == 4 and rank == 0:  # lose less, whatever happens
                save(checkpoint, model, optimizer, epoch)
        valid = evaluate(model, delivery / "testing.txt")
        if rank == 0:
            save(checkpoint, model, optimizer, epoch + 1)
            print(f"epoch {epoch} saved, validation {valid:.3f}", flush=True)
            with open("metrics.csv", "a") as metrics:
                metrics.write(f"{epoch},{loss.item():.3f},{valid:.3f}\n")
    return model


def leave(*_):
    raise InterruptedError("told to end")


def main(delivery, checkpoint, epochs):
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    signal.signal(signal.SIGTERM, leave)
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    try:
        train(Path(delivery), Path(checkpoint), int(epochs))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"calls{rank}").write_bytes(_dump_fr_trace())
    dist.destroy_process_group()


if __name__ == "__main__":
    record(main)(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # at once: gloo's threads do not like to see Python go
