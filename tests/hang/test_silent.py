"""Mistakes that torch lets pass are said after the run, and right programs are left in peace."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch

ANY = torch.ones(2)


class Half(nn.Module):
    """Half of it takes no part, unless it is asked for the whole."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.used, self.unused, self.whole = nn.Linear(2, 1), nn.Linear(2, 1), whole

    def forward(self, x):
        return self.used(x) + self.unused(x) if self.whole else self.used(x)


@pytest.fixture
def said(capfd):
    """What `launch` says after a run."""

    def run(work, **options) -> list[str]:
        launch(work, backend="gloo", device="cpu", **options)
        lines = capfd.readouterr().out.splitlines()
        return [line for line in lines if line.startswith("launch: ") and " on the CPU" not in line]

    return run


def test_a_step_in_which_a_parameter_took_no_part_is_said_once(said):
    def work() -> None:
        step(DistributedDataParallel(Half()))

    (line,) = said(work)
    assert "stayed unfinished on ranks 0 and 1, so its gradients are not averaged" in line
    assert "find_unused_parameters=True" in line


def test_an_all_reduce_of_two_dtypes_is_said_with_its_line(said):
    def work() -> int:
        dtype = torch.float32 if dist.get_rank() else torch.int32
        tensor = torch.ones(3, dtype=dtype)
        for _ in range(2):
            dist.all_reduce(tensor)

    (line,) = said(work)
    assert "launch: all_reduce at test_silent.py, line" in line
    assert "dist.all_reduce(tensor), was handed int32 on rank 0 and float32 on rank 1" in line


def step(model: nn.Module) -> None:
    model(ANY).sum().backward()


def allows_unused() -> None:
    step(DistributedDataParallel(Half(), find_unused_parameters=True))


def frozen() -> None:
    model = Half()
    model.unused.requires_grad_(False)
    step(DistributedDataParallel(model))


def without_sync() -> None:
    model = DistributedDataParallel(Half(whole=True))
    step(model)
    with model.no_sync():
        step(model)


def without_sync_and_unused() -> None:
    model = DistributedDataParallel(Half())
    with model.no_sync():
        step(model)


def static_graph() -> None:
    model = DistributedDataParallel(Half(), static_graph=True)
    for _ in range(3):
        step(model)


def forward_alone() -> None:
    model = DistributedDataParallel(Half(whole=True))
    step(model)
    model(ANY)


def evaluated() -> None:
    model = DistributedDataParallel(Half()).eval()
    with torch.no_grad():
        model(ANY)


def uneven() -> None:
    model = DistributedDataParallel(Half(whole=True))
    with Join([model]):
        for _ in range(2 + dist.get_rank()):
            step(model)


def two_models() -> None:
    first, second = (DistributedDataParallel(Half(whole=True)) for _ in range(2))
    second(first(ANY).expand(2)).sum().backward()
    step(first)


def goes_away() -> None:
    model = DistributedDataParallel(Half(whole=True))
    step(model)
    del model
    step(Half())


def bits_alike() -> None:
    dtype = torch.bool if dist.get_rank() else torch.uint8
    dist.all_reduce(torch.ones(3, dtype=dtype), op=dist.ReduceOp.MAX)


def tries_and_goes_on() -> None:
    with contextlib.suppress(RuntimeError):
        dist.reduce(ANY, dst=7)
    dist.all_reduce(ANY.clone())


RIGHT = [
    allows_unused, frozen, without_sync, without_sync_and_unused, static_graph, forward_alone,
    evaluated, uneven, two_models, goes_away, bits_alike, tries_and_goes_on,
]  # fmt: skip


@pytest.mark.parametrize("work", RIGHT)
def test_of_a_right_program_nothing_is_said(work, said):
    assert said(work) == []


def test_of_one_rank_which_has_nobody_to_average_with_nothing_is_said(said):
    assert said(lambda: step(DistributedDataParallel(Half())), world_size=1) == []
