"""The buttons below the answers of a learner's lab."""

import base64
import html
import json
import re

import nbformat
import pytest

from course_tools import ROOT
from course_tools.learner import copies
from course_tools.learner.buttons import WORDS, add_buttons
from course_tools.learner.jupyterlab import course_newer

JUPYTERLAB = ROOT / "course_tools/learner/jupyterlab"
LABS = sorted((ROOT / "exercises").glob("[0-9]*.ipynb"))
ARGS = re.compile(r'command="course:(\w+)" data-commandlinker-args="([^"]*)"')


def copy_of(lab, tmp_path):
    return copies.copied(lab, ROOT, tmp_path)


def rows_of(notebook):
    return [cell for cell in notebook.cells if cell.id.startswith("buttons-")]


def commands_of(row):
    return {name: json.loads(html.unescape(args)) for name, args in ARGS.findall(row.source)}


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_each_row_stands_below_its_answer_and_names_the_check_of_the_same_exercise(lab, tmp_path):
    notebook = copy_of(lab, tmp_path)
    ids = [cell.id for cell in notebook.cells]
    rows = rows_of(notebook)
    assert rows
    for row in rows:
        commands = commands_of(row)
        assert list(commands) == ["check", "hint", "answer", "progress"]
        answer = ids.index(commands["check"]["answer"])
        check = ids.index(commands["check"]["check"])
        assert ids.index(row.id) == answer + 1 < check
        between = notebook.cells[answer:check]
        assert not any(cell.source.startswith("## ") for cell in between)
        assert "check(" in notebook.cells[check].source


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_every_exercise_that_is_counted_has_its_buttons(lab, tmp_path):
    notebook = copy_of(lab, tmp_path)
    counted = re.findall(r'"(\w+)"', notebook.cells[-1].source)
    assert len(rows_of(notebook)) >= len(counted)


def test_our_answer_comes_back_from_the_page_as_it_was(tmp_path):
    notebook = copy_of(ROOT / "exercises" / "02_process_groups.ipynb", tmp_path)
    rows = rows_of(notebook)
    assert not any("def place_of" in row.source for row in rows)
    answers = [base64.b64decode(commands_of(row)["answer"]["packed"]).decode() for row in rows]
    answer = next(answer for answer in answers if "def place_of" in answer)
    assert "\n        if local_rank < count:\n" in answer
    assert "SOLUTION" not in answer


def test_where_learners_have_no_solutions_there_is_no_button_for_one():
    lab = nbformat.read(ROOT / "exercises" / "02_process_groups.ipynb", as_version=4)
    add_buttons(lab, None, "")
    rows = rows_of(lab)
    assert rows
    for row in rows:
        assert "answer" not in commands_of(row)
        assert "<details" not in row.source


def test_the_words_are_there_in_both_languages():
    assert len(WORDS[""]) == len(WORDS["zh"])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_finds_every_word_that_it_says_and_none_is_cut(language):
    said = course_newer.texts_of_page({"COURSE_LANG": language})
    page = (JUPYTERLAB / "labextensions/ddp-course/static/course.js").read_text()
    asked = set(re.findall(r"words\('(\w+)'\)", page)) - {"courseNewer"}
    assert asked == said.keys()
    missing = said["courseMissing"].format(
        name="by_weights", heading="One model, or two that look?"
    )
    assert len(missing) < 140  # where JupyterLab cuts a notice
