"""What checks said in a lab, kept beyond the kernel."""

import os
import time

import nbformat
import pytest

from course_checks import outcome
from course_checks.outcome import CHANGED, NOT_CHECKED, PASSED, WRONG, Outcome, note
from course_material import scores, verdicts
from course_utils import check, progress

ANSWER = "def mean_of_all(tensor):\n    return tensor"
LATER = ANSWER.replace("return tensor", "return tensor / 2")
SPEC = "def mean_of_all_spec(tensors):\n    return tensors"


@pytest.fixture
def kernel(monkeypatch):
    """The cells that this kernel has run; empty it, and it is another kernel."""
    cells = []
    monkeypatch.setattr(verdicts, "_cells_of_this_kernel", lambda: cells)
    monkeypatch.setattr(outcome, "_outcomes", {})
    return cells


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A saved lab, whose verdicts are kept."""
    path = tmp_path / "lab_02_process_groups.ipynb"
    monkeypatch.setenv(scores.FILE, str(tmp_path / ".predictions.json"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    save(path, ANSWER)
    return path


def save(path, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in (*sources, SPEC)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def restart(kernel):
    kernel.clear()
    outcome._outcomes.clear()


def state():
    (one,) = progress("mean_of_all")
    return one.state


@pytest.mark.parametrize("said", [PASSED, WRONG])
def test_a_verdict_counts_in_a_later_kernel_whether_or_not_the_answer_ran_there(kernel, lab, said):
    kernel += [ANSWER, SPEC]
    note(Outcome("mean_of_all", said))
    restart(kernel)
    assert state() == said
    kernel += ["", ANSWER + "\n"]
    assert state() == said


def test_it_does_not_count_of_an_answer_that_was_changed_since(kernel, lab):
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", PASSED))
    restart(kernel)
    save(lab, LATER)
    assert state() == CHANGED
    save(lab, ANSWER)
    assert state() == PASSED
    kernel += [ANSWER, LATER]
    assert state() == CHANGED


def test_in_the_same_kernel_it_counts_until_the_answer_is_edited_run_or_not(kernel, lab):
    save(lab, "def mean_of_all(tensor):\n    raise NotImplementedError")
    a_minute_ago = time.time() - 60
    os.utime(lab, (a_minute_ago, a_minute_ago))
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", PASSED))
    assert state() == PASSED  # though the answer has not been saved yet
    save(lab, ANSWER)
    assert state() == PASSED
    save(lab, LATER)  # edited, and not yet run
    assert state() == CHANGED
    save(lab, ANSWER)
    kernel.append(LATER)  # edited and run, and not yet saved
    assert state() == CHANGED
    kernel.append(ANSWER)
    assert state() == PASSED
    save(lab, ANSWER, "def mean_of_all(tensor):\n    ...  # an attempt that was left further down")
    assert state() == PASSED


def test_what_this_kernel_has_checked_counts_first(kernel, lab):
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", PASSED))
    restart(kernel)
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", WRONG))
    assert state() == WRONG


@pytest.mark.parametrize("name", ["", "chapter_02_process_groups.ipynb", "lab_03_x.ipynb"])
def test_a_verdict_of_one_lab_says_nothing_elsewhere(kernel, lab, monkeypatch, name):
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", PASSED))
    restart(kernel)
    kernel.append(ANSWER)
    monkeypatch.setenv("JPY_SESSION_NAME", name)
    assert state() == NOT_CHECKED


def test_verdicts_are_no_predictions(kernel, lab):
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", PASSED))
    assert scores.read(lab.parent / ".predictions.json") == {}


def test_nothing_is_told_where_the_notebook_cannot_be_read(kernel, lab):
    kernel.append(ANSWER)
    note(Outcome("mean_of_all", PASSED))
    restart(kernel)
    lab.unlink()
    assert state() == NOT_CHECKED
    lab.write_text("{")
    assert state() == NOT_CHECKED


def test_an_answer_that_lacks_a_name_of_a_cell_further_up_is_not_called_wrong(lab):
    def mean_of_all(x):
        return x / number_of_ranks  # noqa: F821

    options = {"spec": list, "inputs": lambda rank, n, case: 1.0, "world_sizes": (1,)}
    assert check(mean_of_all, **options).state == WRONG  # no cell defines it
    save(lab, "%time\n1", "number_of_ranks = 2", ANSWER)
    outcome = check(mean_of_all, **options)
    assert outcome.state == NOT_CHECKED
    assert "number_of_ranks is not there yet" in str(outcome)
    save(lab, ANSWER, "number_of_ranks = 2")
    assert check(mean_of_all, **options).state == WRONG
