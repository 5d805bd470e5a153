"""What a learner writes in chapter 04: what its check rejects and what it accepts."""

import ast

import labs
import pytest
import torch
import torch.distributed as dist

from course_utils import check

LESSON = labs.ROOT / "source/lessons/04_ddp_training.py"
MAX, MIN = dist.ReduceOp.MAX, dist.ReduceOp.MIN
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercise define."""
    names = {"__name__": "__main__", "torch": torch, "dist": dist, "check": lambda *_, **__: None}
    for number, source in enumerate(labs.sources(LESSON)):
        if "def spread" in source:
            labs.run(source, f"<lesson 04 {number}>", names)
        elif "import functools" in source:
            own = [line for line in ast.parse(source).body if "functools" in ast.unparse(line)]
            labs.run("\n".join(map(ast.unparse, own)), f"<lesson 04 {number}>", names)
    return names


def judged(lesson, answer, **options):
    return check(lesson["keeping_weights"](answer), **lesson["spread_check"] | options)


def reduced(row, operator):
    copy = row.clone()
    dist.all_reduce(copy, operator)
    return copy


def without_copies(mine):
    largest, smallest = mine, mine
    dist.all_reduce(largest, MAX)
    dist.all_reduce(smallest, MIN)
    return (largest - smallest).max()


def with_one_copy(mine):
    smallest = reduced(mine, MIN)
    dist.all_reduce(mine, MAX)
    return (mine - smallest).max()


def to_rank_0(mine):
    first = mine.clone()
    dist.broadcast(first, src=0)
    return (mine - first).abs().max()


def to_rank_0_on_all_ranks(mine):
    return reduced(to_rank_0(mine), MAX)


def to_the_mean(mine):
    mean = reduced(mine, dist.ReduceOp.SUM) / dist.get_world_size()
    return reduced((mine - mean).abs().max(), MAX)


def of_the_sums(mine):
    return reduced(mine.sum(), MAX) - reduced(mine.sum(), MIN)


def of_the_norms(mine):
    return reduced(mine.norm(), MAX) - reduced(mine.norm(), MIN)


def of_the_largest_weights(mine):
    return reduced(mine.max(), MAX) - reduced(mine.max(), MIN)


def on_the_root_alone(mine):
    found = (reduced(mine, MAX) - reduced(mine, MIN)).max()
    return found if dist.get_rank() == 0 else torch.tensor(0.0)


def a_row_and_no_number(mine):
    return reduced(mine, MAX) - reduced(mine, MIN)


def a_mean_and_no_maximum(mine):
    return (reduced(mine, MAX) - reduced(mine, MIN)).mean()


def all_is_well(mine):
    return torch.tensor(0.0)


def without_asking_for_nan(mine):
    return (reduced(mine, MAX) - reduced(mine, MIN)).max()


def asking_only_its_own_weights(mine):
    if mine.isnan().any():
        return torch.tensor(float("nan"))
    return without_asking_for_nan(mine)


def called_by_rank_0_alone(mine):
    if dist.get_rank() == 0:
        dist.all_reduce(mine.clone(), MAX)
    return torch.tensor(0.0)


WRONG = [
    without_copies, with_one_copy, to_rank_0, to_rank_0_on_all_ranks, to_the_mean, of_the_sums,
    of_the_norms, of_the_largest_weights, on_the_root_alone, a_row_and_no_number,
    a_mean_and_no_maximum, all_is_well, called_by_rank_0_alone,
    without_asking_for_nan, asking_only_its_own_weights,
]  # fmt: skip


def by_all_gather(mine):
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack([(row - other).abs().max() for row in rows for other in rows]).max()


def by_negation(mine):
    both = reduced(torch.cat([mine, -mine]), MAX)
    has_nan = reduced(mine.sum(), dist.ReduceOp.SUM).isnan()
    return float("nan") if has_nan else both.view(2, -1).sum(dim=0).max().item()


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_comparison_is_rejected(lesson, answer):
    outcome = judged(lesson, answer, **labs.HUNG)
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("answer", [by_all_gather, by_negation])
def test_another_right_comparison_passes(lesson, answer):
    assert judged(lesson, answer, **labs.PATIENT).require()


def test_our_own_answer_passes_and_the_stub_is_not_attempted(lesson):
    assert judged(lesson, lesson["spread_done"], **labs.PATIENT).require()
    assert judged(lesson, lesson["spread"]).state == "not attempted"
