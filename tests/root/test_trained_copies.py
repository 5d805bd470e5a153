"""A model of the notebook is as it was when ranks have trained it: that is told, once."""

import pytest
import torch
import torch.distributed as dist
from second_device import second_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch, trained_copies

net = nn.Linear(2, 1)


def train(model: nn.Module) -> None:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    wrapped(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def train_the_global() -> None:
    train(net)


def train_through_another() -> None:
    train_the_global()


def train_and_return() -> dict[str, torch.Tensor]:
    train(net)
    return net.state_dict()


def train_a_new_one() -> None:
    train(nn.Linear(2, 1))


def use_it() -> None:
    with torch.no_grad():
        net(torch.ones(1, 2))


def return_on_rank_0() -> dict[str, torch.Tensor] | None:
    train(net)
    return net.state_dict() if dist.get_rank() == 0 else None


def wrap_it_and_go_back() -> None:
    DistributedDataParallel(net)(torch.ones(1, 2)).sum().backward()


@pytest.fixture
def said(capfd, monkeypatch):
    monkeypatch.setattr(trained_copies, "_was_told", False)

    def run(fn, *args) -> list[str]:
        launch(fn, *args, backend="gloo", device="cpu")
        return [line for line in capfd.readouterr().out.splitlines() if "each its own copy" in line]

    return run


def a_closure():
    inner = nn.Linear(2, 1)
    return lambda: train(inner)


@pytest.mark.parametrize(
    ("fn", "args", "name"),
    [
        (train_the_global, (), "net"),
        (train_through_another, (), "net"),
        (train, (nn.Linear(2, 1),), "model"),
        (lambda: train(net), (), "net"),
        (a_closure(), (), "inner"),
    ],
)
def test_a_model_of_the_notebook_that_only_ranks_have_trained_is_told_of_once(fn, args, name, said):
    (line,) = said(fn, *args)
    assert f"the ranks have changed {name}, each its own copy, and returned nothing" in line
    assert f"Return {name}.state_dict()" in line
    assert said(fn, *args) == []


SILENT = [
    train_and_return,
    return_on_rank_0,
    train_a_new_one,
    use_it,
    wrap_it_and_go_back,
]


@pytest.mark.parametrize("fn", SILENT)
def test_nothing_is_said_of_what_was_returned_or_is_no_model_of_the_notebook(fn, said):
    assert said(fn) == []


@pytest.mark.parametrize("trains", [True, False])
def test_a_rank_that_moves_its_weights_to_a_gpu_is_compared_as_well(trains):
    model = nn.Linear(2, 2)
    with second_device():
        before = trained_copies._sample(model)
        model.to("cuda")
        if trains:
            with torch.no_grad():
                model.weight.add_(1)
        assert model.weight.device.type == "cuda"
        after = trained_copies._sample(model)
        assert trained_copies._differ(before, after) is trains
