"""Results that are only a factor off, told as such."""

import math

import pytest
import torch

from course_checks.multiples import factor_in_words

WANTED = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, -6.0])]


def times(factor):
    return [factor * row for row in WANTED]


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (3, "is 3 times what is wanted"),
        (3 / 2, "is 3/2 times what is wanted"),
        (1 / 3, "is 1/3 of what is wanted"),
        (1, ""),
        (-2, ""),
        (0, ""),
        (4, ""),  # more than there are ranks
        (1.37, ""),
    ],
)
def test_a_factor_that_ranks_may_divide_by_is_told(factor, words):
    told = factor_in_words(WANTED, times(factor))
    assert words in told
    assert bool(words) == bool(told)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_results_that_are_no_finite_numbers_have_no_factor(odd):
    row = torch.tensor([odd, 1.0])
    assert factor_in_words([row, row], [torch.ones(2), torch.ones(2)]) == ""
    assert factor_in_words([torch.ones(2), torch.ones(2)], [row, row]) == ""
    assert factor_in_words([row, row], [row, row]) == ""


def test_one_rank_that_differs_has_none():
    assert factor_in_words(WANTED, [*times(2)[:2], WANTED[2]]) == ""


def test_other_shapes_whole_numbers_and_words_have_none():
    assert factor_in_words(WANTED, [row[:1] for row in times(2)]) == ""
    assert factor_in_words([1, 2], [2, 4]) == ""
    assert factor_in_words(["a", "b"], ["a", "b"]) == ""
    assert factor_in_words([torch.zeros(2)] * 2, [torch.ones(2)] * 2) == ""
