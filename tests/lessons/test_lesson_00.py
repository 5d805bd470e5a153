"""Chapter 00: what its cells print about one model in two processes holds."""

import ast

import labs
import nbformat
import pytest
import torch
from torch.utils.data import DistributedSampler

from course_tools.notebooks import build
from course_utils import check, digits, launch

SOURCE = build.ROOT / "source/lessons/00_start_here.py"
BUILT = build.ROOT / "notebooks/00_start_here.ipynb"
KINDS = ast.Import, ast.ImportFrom, ast.FunctionDef
EPOCHS = 25  # as in the lesson


@pytest.fixture(scope="module")
def lesson():
    names = {"training": digits(train=True), "testing": digits(train=False)}
    for number, text in enumerate(labs.sources(SOURCE)):
        kept = [line for line in ast.parse(text).body if isinstance(line, KINDS) or _makes(line)]
        labs.run("\n".join(map(ast.unparse, kept)), f"<lesson 00 {number}>", names)
    return names


def _makes(line):
    return isinstance(line, ast.Assign) and "average_check" in ast.unparse(line.targets[0])


WRONG = {
    "the sum": "return gradient",
    "of two ranks": "return gradient / 2",
    "nothing": "gradient / dist.get_world_size()",
    "another average": "return gradient.mean()",
    "of none but oneself": "return gradient / (dist.get_rank() + 1)",
    "an unknown name": "return gradient / world_size",
}


def average_by(lesson, line):
    text = f"def average(gradient):\n    dist.all_reduce(gradient)\n    {line}"
    names = dict(lesson)
    labs.run(text, "<an answer>", names)
    return names["average"]


@pytest.mark.slow
@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_rejected(lesson, line):
    assert check(average_by(lesson, line), **lesson["average_check"]).state == "wrong"


def test_the_answer_that_the_lesson_folds_is_right(lesson):
    folded = SOURCE.read_text().partition("<summary>Our answer</summary>")[2]
    line = folded.partition("<code>")[2].partition("</code>")[0]
    assert check(average_by(lesson, line), **lesson["average_check"] | labs.PATIENT).require()


def test_as_long_as_nothing_is_written_the_check_says_so(lesson):
    assert check(lesson["average"], **lesson["average_check"]).state == "not attempted"


def test_the_line_to_write_and_its_check_are_among_the_first_ten_cells():
    texts = [cell.source for cell in nbformat.read(BUILT, as_version=4).cells[:10]]
    assert any("raise NotImplementedError" in text for text in texts)
    assert any("check(average" in text for text in texts)


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


@pytest.mark.parametrize("epoch", [0, 1, 24])
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


def test_digits_and_steps_of_the_training_are_as_many_as_the_text_says(lesson):
    digit_count = len(lesson["training"])
    steps = -(-digit_count // 64)
    text = " ".join(SOURCE.read_text().replace("\n# ", " ").split())
    assert f"through all {digit_count:,} digits {EPOCHS} times" in text
    assert f"that's {steps} steps each time and {EPOCHS * steps} in all" in text
