"""Lessons that let the learner take MNIST instead of the embedded digits, run on its real files."""

import re

import mnist_files
import pytest

from course_tools.notebooks import build

SMALL = 'source = "embedded"'


def _with_mnist(slug, last):
    """Return the lesson, not yet executed, with MNIST in place of the embedded digits.

    It ends after the cell in which `last` stands.
    """
    notebook = build.plan(build.targets(build.ROOT, [slug])[0])
    (cell,) = [cell for cell in notebook.cells if SMALL in cell.source]
    cell.source = cell.source.replace(SMALL, 'source = "mnist"')
    for cell in notebook.cells:  # an epoch of all 60,000 may take its time on a busy machine
        cell.source = cell.source.replace(', backend="gloo")', ', backend="gloo", timeout=300)')
    end = max(n for n, cell in enumerate(notebook.cells, 1) if last in cell.source)
    notebook.cells = notebook.cells[:end]
    return notebook


def _printed(slug, digits, last, monkeypatch, tmp_path):
    """Run the lesson up to there, all of whose assertions hold; returns what it printed."""
    mnist_files.unpack(tmp_path / "MNIST" / "raw", digits)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    notebook = _with_mnist(slug, last)
    build.execute(notebook, build.ROOT / "notebooks")
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert f"{digits} digits to train with, {min(digits, 10_000)} to test with" in printed
    return printed


@pytest.mark.slow
@mnist_files.needs_mnist
def test_a_lesson_trains_on_the_real_mnist(monkeypatch, tmp_path):
    last = "launch(seeded, train_with_ddp"
    printed = _printed("04_ddp_training", 1_000, last, monkeypatch, tmp_path)
    losses = [float(loss) for loss in re.findall(r"batch \d+: loss ([\d.]+)", printed)]
    assert losses[-1] < losses[0]


@pytest.mark.soak
@mnist_files.needs_mnist
def test_a_whole_lesson_learns_from_the_real_mnist(monkeypatch, tmp_path):
    printed = _printed("04_ddp_training", 60_000, "", monkeypatch, tmp_path)
    right = re.search(r"right: about ([\d.]+) % of the test digits", printed)
    assert float(right[1]) >= 80  # after 34 steps of 64 of its 60,000 digits; guessing gives 10
