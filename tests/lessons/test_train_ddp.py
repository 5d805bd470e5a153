"""The script to take home: one training, whoever starts its ranks, in one piece or in two."""

import contextlib
import importlib
import io
import os
import runpy
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_tools.child_process import in_child_process
from course_tools.notebooks import build
from course_utils import launch

NOTEBOOKS = build.ROOT / "notebooks"
SCRIPT = str(NOTEBOOKS / "train_ddp.py")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@pytest.fixture(scope="module")
def train():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NOTEBOOKS))
        import train_ddp

        yield train_ddp.train


@pytest.fixture(scope="module")
def launched(train, tmp_path_factory):
    """What two ranks under `launch` have saved after two epochs."""
    path = tmp_path_factory.mktemp("c") / "launched.pt"
    launch(train, str(path), 2, device="cpu", backend="gloo")
    return torch.load(path)


def equal(one: dict, other: dict) -> bool:
    return all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


class OneDevice(TorchDispatchMode):
    """Refuses what has tensors on two devices, as a GPU does, but for copies between them."""

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        options = options or {}
        tensors = [x for x in tree_leaves((arguments, options)) if isinstance(x, torch.Tensor)]
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1 and "copy" not in operator.name():
            raise RuntimeError(f"{operator.name()} has tensors on {devices}")
        return operator(*arguments, **options)


def test_nothing_on_the_cpu_is_mixed_with_what_is_on_the_ranks_device(train, monkeypatch):
    """The meta device has no numbers, but like a GPU it is not the CPU."""
    script, device = importlib.import_module("train_ddp"), torch.device("meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: 0.0)
    summed = []
    monkeypatch.setattr(script.dist, "all_reduce", summed.append)
    model = script.convnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.zeros(4, 1, 28, 28), torch.zeros(4, dtype=torch.int64)
    with OneDevice():
        script.train_epoch(model, [batch], optimizer, 1.0, device)
    assert [total.device for total in summed] == [device]


@pytest.mark.slow
def test_under_sruns_environment_the_weights_are_those_of_launch(launched, tmp_path):
    """Chapter 04 itself shows the same for torchrun."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
    both = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": LOOPBACK, **address}
    both |= {"SLURM_STEP_NUM_TASKS": "2"}

    def task(number: str) -> str:
        """The script in a fork, which has imported DDP: a new Python takes three seconds for it."""

        def script() -> str:
            os.environ.update(both | {"SLURM_PROCID": number, "SLURM_LOCALID": number})
            sys.argv = [SCRIPT, f"--path={tmp_path}/started.pt"]
            with contextlib.redirect_stdout(io.StringIO()) as out:
                runpy.run_path(SCRIPT, run_name="__main__")
            return out.getvalue()

        return in_child_process(
            script, timeout=120
        )  # on one thread: two would add up in another order

    with ThreadPoolExecutor() as pool:
        said = [*pool.map(task, "01")]
    assert equal(torch.load(tmp_path / "started.pt"), launched)
    assert said[0].count("epoch 1: loss") == 1
    assert "epoch" not in said[1]


@pytest.mark.slow
def test_stopped_and_started_again_it_goes_on_with_the_same_numbers(launched, train, tmp_path):
    path = tmp_path / "stopped.pt"
    first = launch(train, str(path), 1, device="cpu", backend="gloo")
    again = launch(train, str(path), 2, device="cpu", backend="gloo")
    assert "epoch 0" in first.output[0]
    assert "epoch 0" not in again.output[0]
    assert equal(torch.load(path), launched)
    assert [path.name for path in tmp_path.iterdir()] == ["stopped.pt"]


def test_a_plain_network_reads_the_checkpoint_as_chapter_04_teaches(train, launched):
    network = importlib.import_module("train_ddp").convnet()
    network.load_state_dict(launched["model"])


def test_the_ranks_have_one_model(train, tmp_path):
    results = launch(train, str(tmp_path / "a.pt"), 1, device="cpu", backend="gloo")
    for name, weight in results[0].items():
        if "running" not in name:  # a batch norm's own statistics are each rank's
            assert torch.equal(weight, results[1][name])
