"""Chapter 00: what its cells print about one model in two processes holds."""

import ast

import labs
import pytest
import torch
from torch.utils.data import DistributedSampler

from course_tools.notebooks import build
from course_utils import digits, launch

KINDS = ast.Import, ast.ImportFrom, ast.FunctionDef
EPOCHS = 25  # half of what the lesson trains


@pytest.fixture(scope="module")
def lesson():
    names = {"training": digits(train=True), "testing": digits(train=False)}
    for number, text in enumerate(labs.sources(build.ROOT / "source/lessons/00_start_here.py")):
        own = [line for line in ast.parse(text).body if isinstance(line, KINDS)]
        labs.run("\n".join(map(ast.unparse, own)), f"<lesson 00 {number}>", names)
    return names


@pytest.fixture(scope="module")
def runs(lesson):
    """What each of two ranks, and then a rank alone, brings home."""
    return [*launch(lesson["train"], EPOCHS), *launch(lesson["train"], EPOCHS, world_size=1)]


@pytest.mark.slow
def test_two_ranks_end_with_the_same_bits_and_a_lone_rank_with_the_same_model(lesson, runs):
    first, second, alone = (lesson["weights"](run["model"]) for run in runs)
    assert torch.equal(first, second)
    assert 0 < (first - alone).abs().max() < 0.01
    shares = [lesson["accuracy"](run["model"]) for run in runs]
    assert min(shares) > 95
    assert max(shares) - min(shares) < 100 / 355 + 1e-3  # one digit


@pytest.mark.slow
def test_the_lone_ranks_loss_is_the_average_of_both(runs):
    first, second, alone = (
        torch.tensor(run["losses"]).view(EPOCHS, -1).mean(dim=1) for run in runs
    )
    torch.testing.assert_close((first + second) / 2, alone, atol=0.001, rtol=0)
    for losses in (first, second, alone):
        assert losses[0] > 1
        assert losses[-1] < 0.1


@pytest.mark.parametrize("epoch", [0, 1, 49])
def test_every_step_has_the_same_digits_for_one_rank_and_for_two(lesson, epoch):
    dealt = {}
    for size in (1, 2):
        samplers = [DistributedSampler(lesson["training"], size, rank) for rank in range(size)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shards, each = [list(sampler) for sampler in samplers], 64 // size
        dealt[size] = [
            {index for shard in shards for index in shard[start : start + each]}
            for start in range(0, len(shards[0]), each)
        ]
    assert dealt[1] == dealt[2]
    assert len(dealt[1]) == 23
    assert lesson["digits_of_step"](22, 1) == lesson["digits_of_step"](22, 2)
