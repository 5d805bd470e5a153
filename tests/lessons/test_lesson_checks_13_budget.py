"""Chapter 13's budget in bytes: what its check rejects, and what it lets pass."""

import pytest

from course_lessons import chapter_13
from course_utils import check


def all_divided(parameters, ranks, stage):
    return 16 * parameters / ranks


def nothing_divided(parameters, ranks, stage):
    return 16 * parameters


def by_the_stage(parameters, ranks, stage):
    return 16 * parameters / max(1, stage * ranks)


def float32_weights(parameters, ranks, stage):
    divided = [0, 8, 12, 16][stage]
    return parameters * (16 - divided + divided / ranks)


def no_master_weights(parameters, ranks, stage):
    divided = [0, 8, 10, 12][stage]
    return parameters * (12 - divided + divided / ranks)


def gradients_last(parameters, ranks, stage):
    divided = [0, 2, 4, 16][stage]
    return parameters * (16 - divided + divided / ranks)


def in_gigabytes(parameters, ranks, stage):
    return as_a_table(parameters, ranks, stage) / 1e9


def of_all_ranks(parameters, ranks, stage):
    return as_a_table(parameters, ranks, stage) * ranks


def whole_bytes(parameters, ranks, stage):
    divided = [0, 12, 14, 16][stage]
    return parameters * (16 - divided + divided // ranks)


def as_a_table(parameters, ranks, stage):
    return parameters * [16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks][stage]


WRONG = [
    all_divided, nothing_divided, by_the_stage, float32_weights, no_master_weights,
    gradients_last, in_gigabytes, of_all_ranks, whole_bytes,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_budget_is_rejected(wrong):
    assert check(wrong, **chapter_13.HELD).state == "wrong"


@pytest.mark.slow
def test_a_right_budget_passes_and_the_course_s_own_is_no_answer():
    assert check(as_a_table, **chapter_13.HELD).require()

    def borrowed(parameters, ranks, stage):
        return chapter_13.budget_bytes(parameters, ranks, stage)

    assert check(borrowed, **chapter_13.HELD).state == "wrong"
