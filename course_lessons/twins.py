"""What learners write in chapter 01, `DataParallel` with threads and with ranks, and its checks.

Both have to leave the gradients that one process has which runs the plain model on the whole batch.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn

_MEET_S = 3.0  # in which all replicas have to be running; nobody who is right waits for it


def network(width: int, depth: int = 8) -> nn.Sequential:
    """So many square layers, each followed by a ReLU; the same numbers in every call."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


def replica_of(model: nn.Module) -> nn.Module:
    """Copy a model as `DataParallel` does: the copy's gradients flow back to the original.

    Its tensors are no parameters, but results of a copy of the original's parameters.
    """
    replica = copy.deepcopy(model)
    for module, original in zip(replica.modules(), model.modules(), strict=True):
        for name, parameter in original.named_parameters(recurse=False):
            delattr(module, name)
            setattr(module, name, parameter.clone())
    return replica


def _small_network() -> nn.Sequential:
    return network(4, depth=2)


def _gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def by_threads(fn: Callable[..., torch.Tensor]) -> Callable[..., dict[str, Any]]:
    """What `data_parallel` does: its output, gradients, and how many replicas ran together."""

    @wraps(fn)
    def tried(batch: torch.Tensor, devices: int) -> dict[str, Any]:
        model, all_here = _small_network(), threading.Barrier(devices)
        running_together = []

        def meet(*_: Any) -> None:
            try:
                all_here.wait(timeout=_MEET_S)
            except threading.BrokenBarrierError:
                return
            running_together.append(True)

        model.register_forward_pre_hook(meet)  # replicas inherit it, and share the barrier
        output = fn(model, batch, devices)
        output.square().mean().backward()
        return _outcome(output, model, len(running_together))

    return tried


def _outcome(output: torch.Tensor, model: nn.Module, running_together: int) -> dict[str, Any]:
    return {
        "output": output,
        "gradients": _gradients(model),
        "replicas that ran together": running_together,
    }


def _plain(batches: Sequence[torch.Tensor], devices: Sequence[int]) -> list[dict[str, Any]]:
    model = _small_network()
    output = model(batches[0])
    output.square().mean().backward()
    return [_outcome(output, model, devices[0])]


def _batch_and_devices(rank: int, world_size: int, case: str) -> tuple[torch.Tensor, int]:
    return torch.randn(12, 4), int(case.split()[0])


def by_ranks(fn: Callable[..., None]) -> Callable[[torch.Tensor], list]:
    """What `in_processes` leaves behind: the gradients of this rank's model."""

    @wraps(fn)
    def tried(batch: torch.Tensor) -> list[torch.Tensor | None]:
        model = _small_network()
        fn(model, batch)
        return _gradients(model)

    return tried


def _plain_on_every_rank(batches: Sequence[torch.Tensor]) -> list[list]:
    model = _small_network()
    model(batches[0]).square().mean().backward()
    return [_gradients(model)] * len(batches)


def _same_batch(rank: int, world_size: int, case: str) -> torch.Tensor:
    return torch.arange(48.0).view(12, 4) / 10 - 2


THREADS = {
    "spec": _plain,
    "inputs": _batch_and_devices,
    "cases": ("2 devices", "3 devices"),
    "world_sizes": (1,),
}
RANKS = {
    "spec": _plain_on_every_rank,
    "inputs": _same_batch,
    "cases": ("12 samples",),
    "world_sizes": (1, 2, 3, 4),
    "work": 1.2,  # a rank computes its share, not the whole batch
}
