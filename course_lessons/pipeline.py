"""A stack of layers cut into stages, as chapter 18 builds it: a stage, and two schedules.

GPipe is that of Y. Huang and others, 2019 (https://arxiv.org/abs/1811.06965). One forward, one
backward (1F1B) is that of D. Narayanan and others, 2019 (https://arxiv.org/abs/1806.03377), with a
flush at the end of each batch, as in https://arxiv.org/abs/2104.04473.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

Action = tuple[str, int]  # "F" or "B", forward or backward, and the number of a microbatch
Schedule = Callable[[int, int, int], list[Action]]  # of (stage, stages, count)


class Neighbours:
    """What a stage has before anything is computed: its layers, microbatches and neighbours.

    Attributes:
        layers: This stage's part of the model.
        inputs, targets: A tensor (rows, width) for each microbatch. Inputs are those of the model
            on the first stage, and targets are right on the last; elsewhere they mean nothing.
        count: How many microbatches there are.
        rank: This stage's number, from 0.
        is_first, is_last: Whether this is the first stage, or the last one.
        held: By number of a microbatch, what backward will need of it.
        most_held: The most microbatches that were held at once.
    """

    def __init__(
        self, layers: nn.Module, inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
    ) -> None:
        self.layers, self.inputs, self.targets = layers, inputs, targets
        self.count = len(inputs)
        self.rank = dist.get_rank()
        self.is_first = self.rank == 0
        self.is_last = self.rank == dist.get_world_size() - 1
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.most_held = 0
        self.under_way: list[tuple[dist.Work, torch.Tensor]] = []

    def loss(self, y: torch.Tensor, k: int) -> torch.Tensor:
        """The mean loss of microbatch k."""
        return mse_loss(y, self.targets[k])

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor to a stage, and go on at once; `run` waits for it at its end."""
        tensor = tensor.detach().contiguous()
        self.under_way.append((dist.isend(tensor, to), tensor))

    def receive(self, source: int) -> torch.Tensor:
        """Wait for the next tensor of a stage, as large as a microbatch."""
        tensor = torch.empty_like(self.inputs[0])
        dist.recv(tensor, source)
        return tensor

    def run(self, actions: Sequence[Action]) -> None:
        """Do what a schedule says, in its order."""
        for kind, k in actions:
            if kind == "F":
                self.forward(k)
            else:
                self.backward(k)
            self.most_held = max(self.most_held, len(self.held))
        for work, _tensor in self.under_way:
            work.wait()
        self.under_way.clear()


class Stage(Neighbours):
    """What a stage does with microbatch k."""

    def forward(self, k):
        if self.is_first:
            x = self.inputs[k]
        else:
            x = self.receive(self.rank - 1).requires_grad_()
        y = self.layers(x)
        if self.is_last:
            y = self.loss(y, k) / self.count
        else:
            self.send(y, self.rank + 1)
        self.held[k] = x, y

    def backward(self, k):
        x, y = self.held.pop(k)
        gradient = None if self.is_last else self.receive(self.rank + 1)
        y.backward(gradient)
        if not self.is_first:
            self.send(x.grad, self.rank - 1)


class BlockingStage(Stage):
    """The same, with a `send` that returns only once its tensor has been received."""

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor to a stage, and wait until it is there."""
        dist.send(tensor.detach().contiguous(), to)


def gpipe(stage, stages, count):
    """All forwards, then all backwards."""
    forwards = [("F", k) for k in range(count)]
    backwards = [("B", k) for k in range(count)]
    return forwards + backwards


def one_f_one_b(stage, stages, count):
    """As many forwards as there are stages behind this one; then in turn; then what is left."""
    warm_up = min(stages - stage - 1, count)
    actions = [("F", k) for k in range(warm_up)]
    for k in range(count - warm_up):
        actions += [("F", warm_up + k), ("B", k)]
    actions += [("B", k) for k in range(count - warm_up, count)]
    return actions


def refuse_incomplete(actions: Sequence[Action], count: int) -> None:
    """Raise ValueError unless each microbatch goes forward once, and later backward once."""
    for k in range(count):
        for kind in ("F", "B"):
            times = list(actions).count((kind, k))
            if times != 1:
                raise ValueError(f"the schedule has {(kind, k)} {times} times, instead of once")
        if actions.index(("B", k)) < actions.index(("F", k)):
            raise ValueError(f"the schedule has {('B', k)} before {('F', k)}")
    if len(actions) > 2 * count:
        raise ValueError(f"the schedule has {len(actions)} actions for {count} microbatches")


class Slot(NamedTuple):
    """What a stage does from `begin` to `end`, in any unit."""

    stage: int
    kind: str  # "F" or "B"
    k: int
    begin: float
    end: float


def timetable(
    by_stage: Sequence[Sequence[Action]], forward: float = 1, backward: float = 2
) -> list[Slot]:
    """What the stages do when, if messages take no time, until none of them can go on.

    Args:
        by_stage: The actions of each stage.
        forward, backward: What each takes, in any unit.
    """
    stages = range(len(by_stage))
    free, done, position = [0.0 for _ in stages], {}, [0 for _ in stages]
    slots, moved = [], True
    while moved:
        moved = False
        for stage in stages:
            while position[stage] < len(by_stage[stage]):
                kind, k = by_stage[stage][position[stage]]
                before = stage - 1 if kind == "F" else stage + 1
                begin = done.get((kind, k, before), None if before in stages else 0.0)
                if begin is None:
                    break
                took = forward if kind == "F" else backward
                begin = max(free[stage], begin)
                free[stage] = done[kind, k, stage] = begin + took
                slots.append(Slot(stage, kind, k, begin, begin + took))
                position[stage] += 1
                moved = True
    return slots


def ticks(by_stage: Sequence[Sequence[Action]], forward: float = 1, backward: float = 2) -> float:
    """When the last stage is done, if messages take no time.

    Args:
        by_stage: The actions of each stage.
        forward, backward: What each takes, in any unit.

    Raises:
        ValueError: The stages wait for each other for ever.
    """
    slots = timetable(by_stage, forward, backward)
    if len(slots) < sum(len(actions) for actions in by_stage):
        raise ValueError("the stages wait for each other for ever")
    return max((slot.end for slot in slots), default=0.0)
