"""What learners write in chapter 04, and the checks that judge it in real workers.

A training in several ranks is right if its weights are those that one process gets on all the data.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lessons import ddp_mistakes
from course_material.digits import digits
from course_utils.launcher.language import N_

Weights = dict[str, torch.Tensor]
_MOST_RANKS = 4  # that the six lines are tried on
DIGITS = 48  # divisible by every world size that is tried
PARTS = ("model", "optimizer", "epoch")  # of a checkpoint, as the lesson asks for them
SLOW_SAVE_S = 0.2  # long enough for a rank that doesn't wait to look for the file too early


# ---- six lines -----------------------------------------------------------------------------------


def small_mlp() -> nn.Sequential:
    """A network for digits, in double precision so that rounding hides no mistake."""
    layers = nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10)
    return nn.Sequential(*layers).double()


def few_digits(count: int) -> TensorDataset:
    """The first digits of the training data: images of shape (count, 1, 28, 28), and labels."""
    training = digits(train=True)
    return TensorDataset(training.data[:count].double(), training.targets[:count])


def by_weights(train: Callable[..., nn.Module]) -> Callable[..., Weights]:
    """The weights of the network that `train` returns, under the names of a plain network."""

    @wraps(train)
    def trained(model: nn.Module, data: TensorDataset, global_batch: int, epochs: int) -> Weights:
        network = train(model, data, global_batch, epochs)
        if not isinstance(network, nn.Module):
            raise TypeError(f"train returned {network!r:.40}. Return the trained network.")
        is_wrapped = isinstance(network, DistributedDataParallel)
        if is_wrapped and dist.get_world_size() < _MOST_RANKS:
            network = network.module  # the wrapper is told of last, when all else is right
        return dict(network.state_dict())

    return trained


def in_one_process(model: nn.Module, data: TensorDataset, global_batch: int, epochs: int) -> None:
    """Train on all the data, in the order in which the samplers of all ranks deal it out."""
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, batch_size=global_batch, sampler=sampler)
    _train_on(model, loader, epochs, sampler.set_epoch)


def _train_on(
    model: nn.Module, loader: DataLoader, epochs: int, before_epoch: Callable[[int], None]
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        before_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()


def _six_lines_spec(
    models: Sequence[nn.Module],
    datasets: Sequence[TensorDataset],
    global_batches: Sequence[int],
    epoch_counts: Sequence[int],
) -> list[Weights]:
    in_one_process(models[0], datasets[0], global_batches[0], epoch_counts[0])
    return [dict(models[0].state_dict())] * len(models)


# What comes of five mistakes that raise no error. Each has the lists of the specification.


def _same_order_again(
    models: Sequence[nn.Module],
    datasets: Sequence[TensorDataset],
    global_batches: Sequence[int],
    epoch_counts: Sequence[int],
) -> list[Weights]:
    sampler = DistributedSampler(datasets[0], num_replicas=1, rank=0)
    loader = DataLoader(datasets[0], batch_size=global_batches[0], sampler=sampler)
    _train_on(models[0], loader, epoch_counts[0], lambda epoch: None)
    return [dict(models[0].state_dict())] * len(models)


def _all_digits_shuffled(
    models: Sequence[nn.Module],
    datasets: Sequence[TensorDataset],
    global_batches: Sequence[int],
    epoch_counts: Sequence[int],
) -> list[Weights]:
    """On one rank, where the check begins: each rank draws an order of its own."""
    loader = DataLoader(datasets[0], batch_size=global_batches[0], shuffle=True)
    _train_on(models[0], loader, epoch_counts[0], lambda epoch: None)
    return [dict(models[0].state_dict())] * len(models)


def _batch_not_divided(
    models: Sequence[nn.Module],
    datasets: Sequence[TensorDataset],
    global_batches: Sequence[int],
    epoch_counts: Sequence[int],
) -> list[Weights]:
    of_all_ranks = [global_batches[0] * len(models)]
    return _six_lines_spec(models, datasets, of_all_ranks, epoch_counts)


def _each_alone(
    models: Sequence[nn.Module],
    datasets: Sequence[TensorDataset],
    global_batches: Sequence[int],
    epoch_counts: Sequence[int],
) -> list[Weights]:
    world_size = len(models)
    for rank, model in enumerate(models):
        sampler = DistributedSampler(datasets[rank], num_replicas=world_size, rank=rank)
        local_batch = global_batches[rank] // world_size
        loader = DataLoader(datasets[rank], batch_size=local_batch, sampler=sampler)
        _train_on(model, loader, epoch_counts[rank], sampler.set_epoch)
    return [dict(model.state_dict()) for model in models]


def _in_its_wrapper(*lists: Any) -> list[Weights]:
    renamed = []
    for weights in _six_lines_spec(*lists):
        renamed.append({f"module.{name}": tensor for name, tensor in weights.items()})
    return renamed


_MISTAKES = {
    ddp_mistakes.SAME_ORDER: _same_order_again,
    ddp_mistakes.OWN_ORDERS: _all_digits_shuffled,
    ddp_mistakes.BATCH_NOT_DIVIDED: _batch_not_divided,
    N_(
        "These are the weights of ranks that train alone, each on its own digits: who averages the "
        "gradients?"
    ): _each_alone,
    N_(
        "The weights are right, but what is returned is the wrapper, which puts `module.` before "
        "each name: return the network inside, `model.module`."
    ): _in_its_wrapper,
}
_LENGTHS = {"1 epoch, batches of 12": (12, 1), "3 epochs, batches of 24": (24, 3)}


def _six_lines_inputs(rank: int, world_size: int, case: str) -> tuple[Any, ...]:
    global_batch, epochs = _LENGTHS[case]
    return small_mlp(), few_digits(DIGITS), global_batch, epochs


SIX_LINES = {
    "spec": _six_lines_spec,
    "inputs": _six_lines_inputs,
    "cases": tuple(_LENGTHS),
    "world_sizes": (1, 2, 3, _MOST_RANKS),
    "work": 1.5,  # a rank computes its share, not the whole batch
    "hide": (in_one_process,),
    "mistakes": _MISTAKES,
    "rtol": 1e-6,
}


# ---- spread --------------------------------------------------------------------------------------


def keeping_weights(spread: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], tuple]:
    """What `spread` returns, and the weights as it leaves them."""

    @wraps(spread)
    def compared(weights: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return spread(weights), weights

    return compared


def _spread_spec(rows: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    all_rows = torch.stack(list(rows))
    largest_difference = (all_rows.amax(0) - all_rows.amin(0)).max()
    return [(largest_difference, row) for row in rows]


def _spread_inputs(rank: int, world_size: int, case: str) -> torch.Tensor:
    weights = torch.arange(-2.0, 4.0)
    is_last = rank == world_size - 1
    if case == "one weight differs on the last rank" and is_last:
        weights[2] += 0.25
    elif case == "rank 0 lies between the others":
        weights[4] += (0, 1, -2, 0.5)[rank]
    elif case == "each rank differs in its own weight":
        weights[rank] += 0.5
    elif case == "one rank has a nan" and is_last:
        weights[3] = float("nan")
    elif case == "the same weights in a different order":
        weights = weights.roll(rank)
    return weights


SPREAD = {
    "spec": _spread_spec,
    "inputs": _spread_inputs,
    "world_sizes": (1, 2, 3, 4),
    "cases": (
        "all are equal",
        "one weight differs on the last rank",
        "rank 0 lies between the others",
        "each rank differs in its own weight",
        "the same weights in a different order",
        "one rank has a nan",
    ),
}


# ---- the script, step 1: join --------------------------------------------------------------------

_SLURM_NAMES = {
    "RANK": "SLURM_PROCID",
    "LOCAL_RANK": "SLURM_LOCALID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
}


def joining(join: Callable[[], torch.device]) -> Callable[[str], dict[str, Any]]:
    """What a rank knows of the group after `join`, whoever has started it."""

    @wraps(join)
    def joined(started_by: str) -> dict[str, Any]:
        if started_by == "srun":
            for name, slurm_name in _SLURM_NAMES.items():
                os.environ[slurm_name] = os.environ.pop(name)
        if started_by == "launch":
            dist.init_process_group("gloo")
        device = join()
        if not dist.is_initialized():
            return {"is in a group": False}
        sum_of_ranks = torch.tensor(dist.get_rank(), device=device)
        dist.all_reduce(sum_of_ranks)
        outcome = {
            "is in a group": True,
            "rank": dist.get_rank(),
            "world size": dist.get_world_size(),
            "sum of ranks": sum_of_ranks.item(),
            "returns a device": isinstance(device, torch.device),
        }
        dist.destroy_process_group()
        return outcome

    return joined


def _join_spec(started_by: Sequence[str]) -> list[dict[str, Any]]:
    world_size = len(started_by)
    outcomes = []
    for rank in range(world_size):
        outcome = {"is in a group": True, "rank": rank, "world size": world_size}
        outcome["sum of ranks"] = sum(range(world_size))
        outcome["returns a device"] = True
        outcomes.append(outcome)
    return outcomes


def _join_inputs(rank: int, world_size: int, case: str) -> str:
    return case.removeprefix("started by ")


JOIN = {
    "spec": _join_spec,
    "inputs": _join_inputs,
    "cases": ("started by torchrun", "started by srun", "started by launch"),
    "world_sizes": (2, 3),
    "backend": None,
    "allow": ("environment",),
}


# ---- step 2: train_epoch -------------------------------------------------------------------------


def over_an_epoch(train_epoch: Callable[..., float]) -> Callable[..., dict[str, Any]]:
    """The mean loss that `train_epoch` returns, and the weights it ends with."""

    @wraps(train_epoch)
    def trained(network: nn.Module, batches: list[tuple], clip: float) -> dict[str, Any]:
        model = DistributedDataParallel(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loss = train_epoch(model, batches, optimizer, clip, torch.device("cpu"))
        return {"mean loss": float(loss), "weights": dict(network.state_dict())}

    return trained


def _epoch_spec(
    networks: Sequence[nn.Module], batches: Sequence[list[tuple]], clips: Sequence[float]
) -> list[dict[str, Any]]:
    network, ranks = networks[0], len(networks)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    loss_sum, samples = 0.0, 0
    for step_batches in zip(*batches, strict=True):
        optimizer.zero_grad()
        for inputs, labels in step_batches:
            loss = cross_entropy(network(inputs), labels)
            (loss / ranks).backward()
            loss_sum += loss.item() * len(labels)
            samples += len(labels)
        nn.utils.clip_grad_norm_(network.parameters(), clips[0])
        optimizer.step()
    outcome = {"mean loss": loss_sum / samples, "weights": dict(network.state_dict())}
    return [outcome] * ranks


def _epoch_inputs(rank: int, world_size: int, case: str) -> tuple[nn.Module, list[tuple], float]:
    sizes = [4, 4, 4] if case == "equal batches" else [6, 5, 1 + rank]
    batches = []
    for size in sizes:
        inputs = torch.randn(size, 5, dtype=torch.float64)
        batches.append((inputs, torch.randint(3, (size,))))
    clip = 0.05 if case == "gradients that have to be clipped" else 100.0
    return nn.Linear(5, 3).double(), batches, clip


EPOCH = {
    "spec": _epoch_spec,
    "inputs": _epoch_inputs,
    "cases": ("equal batches", "a smaller last batch", "gradients that have to be clipped"),
    "world_sizes": (1, 2, 3),
    "work": 1.5,
    "rtol": 1e-5,
}


# ---- step 3: save and load -----------------------------------------------------------------------


def stopping(save: Callable[..., None], load: Callable[..., int]) -> Callable[..., dict[str, Any]]:
    """Train, save, train, save; then resume in a new network, train on, and say what happened."""

    @wraps(save)
    def stopped(networks: list[nn.Module], batches: list[tuple]) -> dict[str, Any]:
        path = Path(_folder_of_rank_0(), "checkpoint.pt")
        model, optimizer = _wrapped(networks[0])
        outcome: dict[str, Any] = {"load() without a file": load(path, model, optimizer)}
        _steps(model, optimizer, batches[:2])
        writes = _counted_save(save, path, model, optimizer, 1)
        outcome["every rank finds the file"] = path.exists()
        outcome["ranks that wrote"] = _sum_over_ranks(writes > 0)
        first_file = _identity(path)
        _steps(model, optimizer, batches[2:4])
        _counted_save(save, path, model, optimizer, 2)
        dist.barrier()
        outcome["the old file was replaced, not overwritten"] = _identity(path) != first_file
        outcome["files"] = sorted(entry.name for entry in path.parent.iterdir())
        outcome["parts in the file"] = _parts_in(path)
        model, optimizer = _wrapped(networks[1])
        outcome["load() returned"] = load(path, model, optimizer)
        _steps(model, optimizer, batches[4:])
        outcome["weights"] = dict(model.module.state_dict())
        return outcome

    return stopped


def _folder_of_rank_0() -> str:
    """A new folder that all ranks know; it goes when the worker's temporary files go."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return str(names[0])


def _wrapped(network: nn.Module) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    model = DistributedDataParallel(network)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[torch.Tensor, ...]]
) -> None:
    for inputs, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def _counted_save(save: Callable[..., None], *arguments: Any) -> int:
    """Call `save` with a slow `torch.save`; returns how often this rank has called that."""
    real_save, calls = torch.save, []

    def slow_save(*args: Any, **options: Any) -> None:
        calls.append(args)
        time.sleep(SLOW_SAVE_S)
        real_save(*args, **options)

    with mock.patch.object(torch, "save", slow_save):
        save(*arguments)
    return len(calls)


def _sum_over_ranks(number: int) -> int:
    total = torch.tensor(int(number))
    dist.all_reduce(total)
    return int(total)


def _parts_in(path: Path) -> list[str]:
    """Which of the parts that were asked for are in the file; what else it holds doesn't matter."""
    saved = torch.load(path) if path.exists() else {}
    return [part for part in PARTS if isinstance(saved, dict) and part in saved]


def _identity(path: Path) -> int | None:
    """Which file lies there: a file that is overwritten keeps its number, a new one has its own."""
    return path.stat().st_ino if path.exists() else None


def _stopping_spec(
    networks: Sequence[list[nn.Module]], batches: Sequence[list[tuple]]
) -> list[dict[str, Any]]:
    network, ranks = networks[0][0], len(networks)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step_batches in zip(*batches, strict=True):
        optimizer.zero_grad()
        for inputs, labels in step_batches:
            (cross_entropy(network(inputs), labels) / ranks).backward()
        optimizer.step()
    outcome = {
        "load() without a file": 0,
        "every rank finds the file": True,
        "ranks that wrote": 1,
        "the old file was replaced, not overwritten": True,
        "files": ["checkpoint.pt"],
        "parts in the file": list(PARTS),
        "load() returned": 2,
        "weights": dict(network.state_dict()),
    }
    return [outcome] * ranks


def _stopping_inputs(rank: int, world_size: int, case: str) -> tuple[list[nn.Module], list[tuple]]:
    steps = int(case.split()[0])
    networks: list[nn.Module] = [nn.Linear(5, 3).double(), nn.Linear(5, 3).double()]
    batches = []
    for _ in range(steps):
        batches.append((torch.randn(4, 5, dtype=torch.float64), torch.randint(3, (4,))))
    return networks, batches


STOPPING = {
    "spec": _stopping_spec,
    "inputs": _stopping_inputs,
    "cases": ("5 steps, the last one resumed", "7 steps, the last three resumed"),
    "world_sizes": (1, 2, 3),
    "allow": ("files",),
    "rtol": 1e-6,
}
