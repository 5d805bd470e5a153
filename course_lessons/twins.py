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

_MEET_S = 3.0  # in which all replicas have to be at work; nobody who is right waits for it


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
    """What `data_parallel` does: its output, gradients, and how many replicas worked at once."""

    @wraps(fn)
    def tried(batch: torch.Tensor, devices: int) -> dict[str, Any]:
        model = _small_network()
        at_once = _count_at_work(model, devices)
        output = fn(model, batch, devices)
        output.square().mean().backward()
        return _outcome(output, model, max(at_once))

    return tried


def _count_at_work(model: nn.Module, expected: int) -> list[int]:
    """The list in which each replica of a model notes how many were at work when it began.

    Each waits for the others in the beginning; once one has waited in vain, nobody does any more.
    """
    at_once = [0]
    at_work = 0
    is_hopeless = False
    changed = threading.Condition()

    def begin(*_: Any) -> None:
        nonlocal at_work, is_hopeless
        with changed:
            at_work += 1
            at_once.append(at_work)
            changed.notify_all()
            if not is_hopeless:
                all_came = changed.wait_for(lambda: max(at_once) >= expected, timeout=_MEET_S)
                is_hopeless = not all_came

    def end(*_: Any) -> None:
        nonlocal at_work
        with changed:
            at_work -= 1

    model.register_forward_pre_hook(begin)  # replicas inherit both, and what they share
    model.register_forward_hook(end)
    return at_once


def _outcome(output: torch.Tensor, model: nn.Module, at_work: int) -> dict[str, Any]:
    return {
        "output": output,
        "gradients": _gradients(model),
        "replicas at work at the same time": at_work,
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
