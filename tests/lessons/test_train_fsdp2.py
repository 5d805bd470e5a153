"""The FSDP2 script to take home: the same numbers, whoever starts it, also with fewer ranks."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from course_tools.notebooks import build
from course_utils import launch

NOTEBOOKS = build.ROOT / "notebooks"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NOTEBOOKS))
        import train_fsdp2

        yield train_fsdp2


def alone(steps, clip=0.01):
    """The oracle: one process, which knows nothing of shards."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)])
    model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    norms = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(12, 32, dtype=torch.float64)).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
    return model.state_dict(), norms


def apart(ones, others):
    assert ones.keys() == others.keys()
    return max((ones[name] - others[name]).abs().max().item() for name in ones)


def run(script, path, steps, world_size):
    how = {"world_size": world_size, "backend": "gloo", "device": "cpu", "timeout": 100}
    return launch(script.train, str(path), steps, **how)


def test_four_ranks_save_and_three_read_and_train_on_as_if_undisturbed(script, tmp_path):
    wanted, norms = alone(4)
    assert min(norms) > 0.01, "clipping changes every step"
    run(script, tmp_path / "a", 2, world_size=4)
    for weights in run(script, tmp_path / "a", 4, world_size=3):
        assert apart(weights, wanted) < 1e-12
    only_two_steps, _ = alone(2)
    assert apart(only_two_steps, wanted) > 1e-4, "the control"


def test_each_rank_has_written_its_own_shards(script, tmp_path):
    run(script, tmp_path / "b", 1, world_size=4)
    files = [path for path in (tmp_path / "b").iterdir() if path.suffix == ".distcp"]
    assert len(files) == 4
    chunks = dcp.FileSystemReader(tmp_path / "b").read_metadata().state_dict_metadata
    assert len(chunks["model.0.0.weight"].chunks) == 4


def test_under_torchrun_it_trains_the_same(script, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(NOTEBOOKS / "train_fsdp2.py"), f"--path={tmp_path / 'c'}", "--steps=3"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    _, norms = alone(3)
    assert ran.stdout.count("gradient norm") == 3
    assert f"step 2: gradient norm {norms[2]:.4f}" in ran.stdout
    weights, _ = alone(3)
    for found in run(script, tmp_path / "c", 3, world_size=3):  # nothing left to do but to read
        assert apart(found, weights) < 1e-12
