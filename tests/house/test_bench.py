"""`make bench against=FOLDER`: how a figure is said that the other checkout doesn't have."""

from pathlib import Path

import pytest

from course_tools.measure import bench

FIGURE = "a new figure"


class PretendedCheckout:
    """Answers as a `Checkout` does, without a process."""

    def __init__(self, folder: str, answer: bench.Turn | str) -> None:
        self.folder = Path(folder)
        self._answer = answer

    def measure(self, figure: str) -> bench.Turn | str:
        return self._answer


@pytest.fixture
def line_about(capsys):
    """Returns a function that says what is printed where the other checkout answers like this."""
    figures = {FIGURE: bench.Figure(lambda: (0.1, 0.2), "beside")}

    def measure(answer_of_other: bench.Turn | str) -> str:
        here = PretendedCheckout("here", (0.1, 0.2))
        there = PretendedCheckout("older", answer_of_other)
        bench.measured(figures, [here, there], 0.0)
        return capsys.readouterr().out.strip()

    return measure


def test_a_figure_that_the_other_checkout_lacks_is_measured_here_alone(line_about):
    line = line_about(repr(KeyError(FIGURE)))
    assert "100.0 ms, beside 200.0 ms: 0.50" in line
    assert line.endswith("; not in older")


def test_a_figure_that_both_have_is_compared(line_about):
    assert "here to there 1.00" in line_about((0.1, 0.2))


def test_a_figure_that_fails_there_says_why(line_about):
    assert line_about("RuntimeError('no memory')") == f"{FIGURE}: failed: RuntimeError('no memory')"
