"""`make progress`: it counts all labs, whatever becomes of a kernel."""

import nbformat
import pytest
import zmq
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from course_tools.learner import progress

SAYS = "1 of 2 exercises pass\n✓ one: passed\n– two: not checked yet"


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "lab_01_x.ipynb"
    cell = nbformat.v4.new_code_cell("progress('one', 'two')")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return path


def ran(notebook):
    output = nbformat.v4.new_output("execute_result", {"text/plain": SAYS}, execution_count=1)
    notebook.cells[0].outputs = [output]


def failing(monkeypatch, error, times):
    """The first `times` runs of a notebook raise; returns the list of all runs."""
    runs = []

    def execute(notebook):
        runs.append(notebook)
        if len(runs) <= times:
            raise error
        ran(notebook)

    monkeypatch.setattr(progress, "_execute", execute)
    return runs


@pytest.mark.parametrize(
    "error", [zmq.ZMQError(98), DeadKernelError("Kernel died"), RuntimeError("no reply")]
)
def test_a_kernel_that_does_not_start_is_started_once_more(lab, monkeypatch, error):
    runs = failing(monkeypatch, error, times=1)
    assert progress.overview(lab) == SAYS
    assert len(runs) == 2


def test_one_that_never_starts_is_told_in_a_line(lab, monkeypatch):
    failing(monkeypatch, zmq.ZMQError(98), times=9)
    said = progress.overview(lab)
    assert said.startswith("its kernel did not start, or died: ZMQError: ")
    assert "\n" not in said


def test_a_cell_that_takes_too_long_is_not_run_again(lab, monkeypatch):
    runs = failing(monkeypatch, CellTimeoutError("slow"), times=9)
    assert "a cell was not done after 300 s" in progress.overview(lab)
    assert len(runs) == 1


def test_the_total_counts_what_every_lab_counts():
    total = "All 2 labs: 1 of 3 exercises pass"
    assert progress.total([SAYS, "✗ three: wrong"]) == total


def test_the_total_says_which_share_of_the_labs_it_lacks():
    said = progress.total([SAYS, "its kernel did not start, or died: x"])
    assert said.endswith("1 of 2 exercises pass; 1 of the labs could not be counted")
