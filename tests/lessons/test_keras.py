"""Chapter 10 and its lab, for whoever has not installed Keras."""

import os

import pytest

import build

TARGETS = build.targets(build.HERE, ["10_keras"])


@pytest.fixture
def without_keras(monkeypatch, tmp_path):
    """Notebooks that start now find a Keras that is not there."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "keras.py").write_text("raise ModuleNotFoundError('No module named keras')")
    path = [str(hidden), str(build.HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.built.parent.name)
def test_without_keras_one_line_says_what_to_do_and_all_cells_run(target, without_keras):
    notebook = build.plan(target)
    build.execute(notebook, without_keras)
    imports, *others = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (output,) = imports.outputs
    assert output.text.count("\n") == 1
    assert "pip install -c constraints.txt -e '.[keras]'" in output.text
    assert all(cell.execution_count and not cell.outputs for cell in others)
