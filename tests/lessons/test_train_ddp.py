"""The script to take home: one training, whoever starts its ranks, in one piece or in two."""

import os
import socket
import subprocess
import sys

import pytest
import torch

import build
from course_utils import launch

NOTEBOOKS = build.HERE / "notebooks"
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


@pytest.mark.slow
def test_under_sruns_environment_the_weights_are_those_of_launch(launched, tmp_path):
    """Chapter 04 itself shows the same for torchrun."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
    # Two threads of OpenMP would add up in another order.
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": LOOPBACK}
    both = {**os.environ, **quiet, **address, "PYTHONPATH": str(build.HERE)}
    both |= {"SLURM_STEP_NUM_TASKS": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, f"--path={tmp_path}/started.pt"],
            env=both | {"SLURM_PROCID": task, "SLURM_LOCALID": task},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for task in "01"
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert equal(torch.load(tmp_path / "started.pt"), launched)
    assert said[0].count("epoch 1: loss") == 1
    assert "epoch" not in said[1]


def test_stopped_and_started_again_it_goes_on_with_the_same_numbers(launched, train, tmp_path):
    path = tmp_path / "stopped.pt"
    first = launch(train, str(path), 1, device="cpu", backend="gloo")
    again = launch(train, str(path), 2, device="cpu", backend="gloo")
    assert "epoch 0" in first.output[0]
    assert "epoch 0" not in again.output[0]
    assert equal(torch.load(path), launched)
    assert [path.name for path in tmp_path.iterdir()] == ["stopped.pt"]


def test_the_ranks_have_one_model(train, tmp_path):
    results = launch(train, str(tmp_path / "a.pt"), 1, device="cpu", backend="gloo")
    for name, weight in results[0].items():
        if "running" not in name:  # a batch norm's own statistics are each rank's
            assert torch.equal(weight, results[1][name])
