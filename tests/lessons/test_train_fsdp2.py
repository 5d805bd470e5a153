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


def alone(script, steps, max_norm=0.01):
    """The oracle: one process, which knows nothing of shards, and reads whole batches."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)])
    model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    norms = []
    for step in range(steps):
        epoch, batch = divmod(step, 3)
        order = torch.randperm(36, generator=torch.Generator().manual_seed(epoch))
        optimizer.zero_grad()
        inputs = script.DATA[order[12 * batch : 12 * batch + 12]]
        model(inputs).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
    return model.state_dict(), norms


def apart(ones, others):
    assert ones.keys() == others.keys()
    return max((ones[name] - others[name]).abs().max().item() for name in ones)


def run(script, path, steps, world_size):
    how = {"world_size": world_size, "backend": "gloo", "device": "cpu", "timeout": 100}
    return launch(script.train, str(path), steps, **how)


def test_four_ranks_save_in_mid_epoch_and_three_train_on_as_if_undisturbed(script, tmp_path):
    wanted, norms = alone(script, 5)
    assert min(norms) > 0.01, "clipping changes every step"
    run(script, tmp_path, 2, world_size=4)
    for weights in run(script, tmp_path, 5, world_size=3):
        assert apart(weights, wanted) < 1e-12
    only_two_steps, _ = alone(script, 2)
    assert apart(only_two_steps, wanted) > 1e-4, "the control"


def test_each_rank_has_written_its_own_shards(script, tmp_path):
    run(script, tmp_path, 1, world_size=4)
    folder = tmp_path / "step_000001"
    assert len(list(folder.glob("*.distcp"))) == 4
    pieces = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    assert len(pieces["model.0.0.weight"].chunks) == 4


def test_a_save_that_was_interrupted_is_passed_over(script, tmp_path):
    run(script, tmp_path, 2, world_size=2)
    (tmp_path / "step_000002/.metadata").unlink()
    wanted, _ = alone(script, 3)
    for weights in run(script, tmp_path, 3, world_size=2):
        assert apart(weights, wanted) < 1e-12


def test_under_torchrun_it_trains_the_same(script, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(NOTEBOOKS / "train_fsdp2.py"), str(tmp_path), "3"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    weights, norms = alone(script, 3)
    assert ran.stdout.count("gradient norm") == 3
    assert f"step 2: gradient norm {norms[2]:.4f}" in ran.stdout
    for found in run(script, tmp_path, 3, world_size=3):  # nothing left to do but to read
        assert apart(found, weights) < 1e-12
