"""Lessons that let the learner take MNIST instead of the embedded digits, run on its real files."""

import re

import mnist_files
import pytest

import build

SMALL = 'source = "embedded"'


def _with_mnist(slug, last):
    """Return the lesson, not yet executed, with MNIST in place of the embedded digits.

    It ends after the cell in which `last` stands.
    """
    notebook = build.plan(build.targets(build.HERE, [slug])[0])
    (cell,) = [cell for cell in notebook.cells if SMALL in cell.source]
    cell.source = cell.source.replace(SMALL, 'source = "mnist"')
    for cell in notebook.cells:  # an epoch of all 60,000 may take its time on a busy machine
        cell.source = cell.source.replace(', backend="gloo")', ', backend="gloo", timeout=300)')
    end = max(n for n, cell in enumerate(notebook.cells, 1) if last in cell.source)
    notebook.cells = notebook.cells[:end]
    return notebook


@pytest.mark.slow
@mnist_files.needs_mnist
@pytest.mark.parametrize(
    ("digits", "last"),
    [(8_000, "% of the test digits"), pytest.param(60_000, "", marks=pytest.mark.soak)],
    ids=["8000", "60000"],
)
@pytest.mark.parametrize("slug", ["04_ddp_training"])
def test_a_lesson_runs_on_the_real_mnist(slug, digits, last, monkeypatch, tmp_path):
    mnist_files.unpack(tmp_path / "MNIST" / "raw", digits)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    notebook = _with_mnist(slug, last)
    build.execute(
        notebook, build.HERE / "notebooks"
    )  # every assertion of the lesson holds, nothing raises
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert f"{digits} digits to train with, {min(digits, 10_000)} to test with" in printed
    right = re.search(r"right: about ([\d.]+) % of the test digits", printed)
    assert float(right[1]) >= 95
