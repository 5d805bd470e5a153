"""Lessons that let the learner take MNIST instead of the embedded digits, run on its real files."""

import pytest
from mnist_files import needs_mnist

import build

SMALL = 'source = "embedded"'


def _with_mnist(slug):
    """Return the lesson, not yet executed, with MNIST in place of the embedded digits."""
    notebook = build.plan(build.targets(build.HERE, [slug])[0])
    (cell,) = [cell for cell in notebook.cells if SMALL in cell.source]
    cell.source = cell.source.replace(SMALL, 'source = "mnist"')
    for cell in notebook.cells:  # an epoch of 60,000 digits may take its time on a busy machine
        cell.source = cell.source.replace(', backend="gloo")', ', backend="gloo", timeout=300)')
    return notebook


@pytest.mark.slow
@needs_mnist
@pytest.mark.parametrize("slug", ["04_ddp_training"])
def test_a_lesson_runs_to_its_end_on_the_real_mnist(slug, unpacked, monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(unpacked))
    notebook = _with_mnist(slug)
    build.execute(notebook, tmp_path)  # every assertion of the lesson holds, nothing raises
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert "60000 digits to train with, 10000 to test with" in printed
    assert "at least 95 % of the test digits are right: True" in printed
