"""Tensors per rank: their numbers in words, and what is refused."""

import matplotlib.pyplot as plt
import pytest
import torch

from course_utils import plot_ranks
from course_utils.pictures.squares import draw, origin, origins, parts

BEFORE = [torch.arange(2) + 10 * rank for rank in range(4)]


@pytest.mark.parametrize(
    ("before", "after", "undefined", "error", "says"),
    [
        ([], [], (), ValueError, "one entry per rank"),
        (BEFORE, BEFORE[:3], (), ValueError, "got 4 and 3"),
        (BEFORE, BEFORE, (4,), ValueError, "there are ranks 0 to 3"),
        (BEFORE, ["x"] * 4, (), TypeError, "a rank holds tensors, numbers or None, not 'x'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(before, after, undefined, error, says):
    with pytest.raises(error, match=says):
        plot_ranks(before, after, undefined=undefined)


def test_garbage_off_root_is_called_undefined_whatever_it_is(shown):
    plot_ranks(BEFORE, [sum(BEFORE), *[torch.tensor([1e30, -7.0])] * 3], undefined=(1, 2, 3))
    assert shown.text == (
        "Before: rank 0 [0, 1], rank 1 [10, 11], rank 2 [20, 21], rank 3 [30, 31]. "
        "After: rank 0 [60, 64], ranks 1 to 3 undefined."
    )
    assert shown.caption == (
        "Each row is a rank. A number has the colour of the rank that it comes from, and a sum a "
        "stripe for each rank in it. Where a ? stands, the result means nothing."
    )


def test_below_it_stands_how_it_is_read_unless_its_author_says_what_to_see(shown):
    plot_ranks(BEFORE, BEFORE)
    assert shown.caption == (
        "Each row is a rank. A number has the colour of the rank that it comes from."
    )
    plot_ranks(BEFORE, BEFORE, caption="Nothing has moved.")
    assert shown.caption == "Nothing has moved."
    assert shown.text.startswith("Before: rank 0 [0, 1], rank 1")


def test_lists_of_tensors_and_ranks_that_hold_nothing(shown):
    plot_ranks([list(BEFORE), None, None, None], BEFORE)
    assert shown.text == (
        "Before: rank 0 [0, 1] [10, 11] [20, 21] [30, 31], ranks 1 to 3 nothing. "
        "After: rank 0 [0, 1], rank 1 [10, 11], rank 2 [20, 21], rank 3 [30, 31]."
    )


def test_many_values_are_summed_up(shown):
    plot_ranks([torch.arange(100.0)] * 2, [torch.zeros(100)] * 2, undefined=(1,))
    assert shown.text == (
        "Before: ranks 0 and 1 100 values from 0 to 99. "
        "After: rank 0 100 values from 0 to 0, rank 1 undefined."
    )


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        (None, []),
        (3, [[3]]),
        (torch.tensor(3), [[3]]),
        (torch.tensor([1, 2]), [[1, 2]]),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([torch.tensor([1]), torch.tensor([[2, 3]])], [[1], [2, 3]]),
        (torch.tensor([], dtype=torch.float32), [[]]),
    ],
)
def test_what_a_rank_holds_is_read_as_lists_of_numbers(own, wanted):
    assert parts(own) == wanted


def test_a_value_belongs_to_the_only_ranks_that_it_can_come_from():
    had = origins([[[1, 0]], [[2, 0]], [[4, 5]]])
    values = ((2, 0), (0, 1), (4, 0), (3, 0), (7, 1), (9, 0))
    assert [origin(had, value, rank) for value, rank in values] == [
        (1,), (1,), (2,), (0, 1), (0, 1, 2), (),
    ]  # fmt: skip
    assert origin(origins([[[0]], [[0]], [[4]]]), 0, 2) == ()  # of rank 0 or of rank 1


def test_of_many_ranks_only_the_sum_of_all_is_looked_for():
    had = origins([[[10.0**rank]] for rank in range(9)])
    assert origin(had, 11, 0) == ()
    assert origin(had, 111_111_111, 0) == tuple(range(9))


def test_squares_show_their_values_and_garbage_a_question_mark():
    figure = draw([[[1, 2]], [[3, 4]]], [[[4, 6]], [[9, 9]]], undefined=(1,))
    seen = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert seen == [["1", "2", "3", "4"], ["4", "6", "?", "?"]]
    assert {patch.get_hatch() for patch in figure.axes[1].patches} == {None, "xx"}
    plt.close(figure)


def test_values_that_are_not_finite_can_be_drawn(shown):
    bad = torch.tensor([float("nan"), float("inf")])
    plot_ranks([bad, bad], [bad, None])
    plot_ranks([bad.repeat(20)] * 2, [bad] * 2)
    assert len(shown) == 4


@pytest.mark.parametrize("squares", [1, 4, 8])
def test_squares_are_readable_in_a_window_of_900_px(squares, smallest_px):
    held = [[list(range(squares))]] * 4
    assert smallest_px(draw(held, held)) >= 9


def test_what_is_wide_stands_one_below_the_other_on_one_scale():
    figure = draw([[[1, 2]]], [[[1.0] * 8]])
    before, after = figure.axes
    assert before.get_position().y0 > after.get_position().y1
    assert before.get_xlim() == after.get_xlim()
    plt.close(figure)
