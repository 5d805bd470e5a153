"""A grid that fills up: which numbers it names, what is bold, and whose stripes a sum has."""

import matplotlib.pyplot as plt

from course_utils.network.trace import Trace
from course_utils.pictures.steps import draw, plot_steps
from course_utils.record.event import Event

HELD = [[[1, 2], [1, 22], [11, 22]], [[10, 20], [11, 20], [11, 22]]]  # a ring of two
SENT = [Event(rank=r, index=k, kind="send", bytes=8, start_s=k, end_s=k + 1, peer=1 - r)
        for r in range(2) for k in range(2)]  # fmt: skip
TRACE = Trace(tuple(SENT), (2.0,) * 2)


def test_the_words_say_what_each_step_brings(shown):
    plot_steps(HELD, TRACE)
    assert shown.text == "New on ranks 0 to 1, step 1: 22, 11; step 2: 11, 22."
    assert shown.caption.startswith("Each row is a rank. An arrow is a message")
    plot_steps([[[1, 2], [3, 4]], [[5, 6], [5, 6]]], TRACE, "Look at rank 0.")
    assert shown.caption == "Look at rank 0."
    assert shown.text == "New on ranks 0 to 1, step 1: 3 and 4, nothing."


def test_there_is_a_grid_per_state_and_an_arrow_to_what_has_changed():
    figure = draw(list(zip(*HELD, strict=True)), TRACE)
    grids = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in grids] == ["before", "after 1 step", "after 2 steps"]
    assert [text.get_text() for text in grids[1].texts if text.get_text()] == [
        "1",
        "22",
        "11",
        "20",
    ]
    bold = [[patch.get_linewidth() > 2 for patch in axes.patches].count(True) for axes in grids]
    assert bold == [0, 2, 2]
    arrows = [sum(text.get_text() == "" for text in axes.texts) for axes in grids]
    assert arrows == [0, 3, 3]  # what goes from the last rank to the first is drawn in two halves
    plt.close(figure)


def test_a_ring_of_four_is_readable_in_a_window_of_900_px(smallest_px):
    states = [[[1111, 2222, 3333, 4444]] * 4] * 7
    assert smallest_px(draw(states, TRACE)) >= 9


def test_the_beginning_stands_above_the_two_halves_of_a_ring():
    figure = draw([[[1, 2, 3, 4]] * 4] * 7, TRACE)
    tops = [round(axes.get_position().y1, 2) for axes in figure.axes if axes.axison]
    assert [tops.count(top) for top in sorted(set(tops), reverse=True)] == [1, 3, 3]
    plt.close(figure)
