"""A prediction beside what was measured."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from course_material.predictions import _asked
from course_tools.notebooks.predictions import _measured, answers, questions
from course_utils import predict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_asked():
    _asked.clear()
    yield
    _asked.clear()


@pytest.mark.parametrize(
    ("answer", "value", "options", "told"),
    [
        (..., 10, {}, "it is: 10 (no prediction)"),
        (..., 0.8712, {"about": True}, "it is: about 0.871 (no prediction)"),
        (..., torch.tensor([1, 2]), {}, "it is: [1, 2] (no prediction)"),
        (10, 10, {}, "it is: 10; predicted 10: right"),
        (6, 10, {}, "it is: 10; predicted 6: off by 4"),
        (6, torch.tensor(10.0), {}, "it is: 10; predicted 6: off by 4"),
        (1_000_000, 10, {}, "it is: 10; predicted 1,000,000: 100,000 times as much"),
        (3, 0, {}, "it is: 0; predicted 3: off by 3"),
        (0, 2, {}, "it is: 2; predicted 0: off by 2"),
        (0.3, 0.1 + 0.2, {}, "it is: 0.3; predicted 0.3: right"),
        (2, 1.8, {"within": 0.2, "about": True}, "it is: about 1.8; predicted 2: right"),
        (2, 1.5, {"within": 0.2, "about": True}, "it is: about 1.5; predicted 2: off by 0.5"),
        ("Ring ", "ring", {}, "it is: ring; predicted Ring : right"),
        ("tree", "ring", {}, "it is: ring; predicted tree: not so"),
        (True, False, {}, "it is: False; predicted True: not so"),
        (1, True, {}, "it is: True; predicted 1: not so"),
        ((1, 2, 4), [1, 2, 3], {}, "it is: [1, 2, 3]; predicted [1, 2, 4]: 2 of 3 right"),
        (1, [1, 2, 3], {}, "it is: [1, 2, 3]; predicted 1: 1 of 3 right, and 2 missing"),
        ([1, 2, 3], [1, 2], {}, "it is: [1, 2]; predicted [1, 2, 3]: 2 of 2 right, and 1 too many"),
        ([1, 2], 1, {}, "it is: 1; predicted [1, 2]: 1 of 1 right, and 1 too many"),
        ([], [1], {}, "it is: 1; predicted []: 0 of 1 right"),
        ([5, 1, 2], {1, 2, 5}, {}, "it is: [1, 2, 5]; predicted [5, 1, 2]: right"),
        ({2, 1}, {1, 2, 5}, {}, "it is: [1, 2, 5]; predicted [1, 2]: 2 of 3 right, and 1 missing"),
        ([1, 3], {1}, {}, "it is: 1; predicted [1, 3]: 1 of 1 right, and 1 too many"),
        (2, {1}, {}, "it is: 1; predicted 2: off by 1"),
        (np.array([1, 2]), (1, 2), {}, "it is: [1, 2]; predicted [1, 2]: right"),
        ("0 1 0 1", [0, 1, 0, 1], {}, "it is: [0, 1, 0, 1]; predicted [0, 1, 0, 1]: right"),
        ("5 1, 2", {1, 2, 5}, {}, "it is: [1, 2, 5]; predicted [5, 1, 2]: right"),
        ("ring tree", ["ring", "tree"], {}, "it is: [ring, tree]; predicted [ring, tree]: right"),
    ],
)
def test_the_answer_stands_beside_what_was_measured(capsys, answer, value, options, told):
    predict("it is", answer).measured(value, **options)
    assert capsys.readouterr().out.startswith(told)


def test_a_number_to_choose_is_a_name_and_not_off_by_anything(capsys):
    predict("the message blames rank", 0, choices=(0, 1)).measured(1)
    assert capsys.readouterr().out == "the message blames rank: 1; predicted 0: not so\n"


@pytest.mark.parametrize("answer", [[0, 1], (0, 1), "0 1", "[0, 1]", torch.tensor([0, 1])])
def test_an_answer_in_the_cell_may_be_written_in_any_way(capsys, answer):
    predict("they are", answer, count=2).measured([0, 1])
    assert capsys.readouterr().out == "they are: [0, 1]; predicted [0, 1]: right\n"


@pytest.mark.parametrize("answer", [0, [0], "0"])
def test_an_answer_in_the_cell_with_too_few_numbers_stays_open(capsys, answer):
    asked = predict("they are", answer, count=2)
    assert capsys.readouterr().out == "they are 0: that makes 1, and 2 are wanted.\n"
    asked.measured([0, 1])
    assert "(no prediction)" in capsys.readouterr().out


def test_as_many_are_asked_for_as_are_measured():
    """So that no form of a lesson refuses the right number of answers."""
    asked = 0
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        answers_of_chapter = answers(notebook.cells)
        for _cell, question in questions(notebook.cells):
            cell = answers_of_chapter[question.name].cell
            measured = _measured(cell, question)
            is_set = f"{question.name}.measured({{" in cell.source or "_runs" in question.name
            if measured.startswith("[") and not is_set:
                assert question.count == len(measured.split(", ")), (path.name, question.text)
                asked += 1
            else:
                assert question.count == 0, (path.name, question.text)
    assert asked > 20


def test_an_answer_that_is_no_choice_is_asked_for_again_and_stays_open(capsys):
    asked = predict("the winner is", "star", choices=("ring", "tree"))
    told = "the winner is: 'star' is not one of the answers. They are: ring, tree.\n"
    assert capsys.readouterr().out == told
    asked.measured("ring")
    assert "(no prediction)" in capsys.readouterr().out


def test_the_score_counts_what_is_right_and_names_what_is_not(capsys):
    predict("a", 1).measured(1)
    predict("b", 2).measured(3)
    predict("c").measured(3)
    predict("d", 4)  # its cell was not run
    capsys.readouterr()
    assert predict() is None
    assert capsys.readouterr().out == (
        "1 of 4 predictions were right, 2 are open.\nWorth another look:\n  b\n"
    )


def test_of_several_answers_those_that_are_right_are_counted_too(capsys):
    predict("a", [1, 2]).measured([1, 3])
    predict("b", [1, 2]).measured([3, 4])
    capsys.readouterr()
    predict()
    score, *_open = capsys.readouterr().out.splitlines()
    assert score == "0 of 2 predictions were right in every part, 1 in some."


def test_without_a_single_answer_all_are_open(capsys):
    predict("a")
    predict()
    assert capsys.readouterr().out == "0 of 1 predictions were right, 1 is open.\n"


def test_a_cell_that_is_run_again_asks_the_same_question(capsys):
    predict("a", 1).measured(2)
    predict("a", 2).measured(2)
    predict()
    assert capsys.readouterr().out.endswith("1 of 1 predictions were right.\n")
