"""The script to take home: one training, whoever starts its ranks, in one piece or in two."""

import os
import socket
import subprocess
import sys
from pathlib import Path

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


def by_torchrun(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [([sys.executable, *start, SCRIPT], {})]


def by_srun(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """The environment that srun gives two tasks, and the address that a batch script chooses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
    names = ("SLURM_PROCID", "SLURM_LOCALID")
    return [
        (
            [sys.executable, SCRIPT],
            address | dict.fromkeys(names, n) | {"SLURM_STEP_NUM_TASKS": "2"},
        )
        for n in "01"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_torchrun, by_srun])
def test_whoever_starts_the_ranks_the_weights_are_the_same(launched, way, tmp_path):
    # Two threads of OpenMP would add up in another order.
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": LOOPBACK}
    started = [
        subprocess.Popen(
            [*command, f"--path={tmp_path}/started.pt"],
            env={**os.environ, **quiet, **own, "PYTHONPATH": str(build.HERE)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for command, own in way(tmp_path)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), said
    assert equal(torch.load(tmp_path / "started.pt"), launched)
    assert sum(text.count("epoch 1: loss") for text in said) == 1


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
