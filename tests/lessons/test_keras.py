"""Chapter 10 and its lab, for whoever has not installed Keras."""

import os
import re
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from course_tools.child_process import in_child_process
from course_tools.notebooks import build

TARGETS = build.targets(build.ROOT, ["10_keras"])


@pytest.fixture
def without_keras(monkeypatch, tmp_path):
    """Python finds a Keras that is not there."""
    (tmp_path / "keras.py").write_text("raise ModuleNotFoundError('No module named keras')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.built.parent.name)
def test_without_keras_one_line_says_what_to_do_and_all_cells_run(target, without_keras):
    """In a fork with IPython, which has imported torch; a kernel would do it again."""
    sources = [cell.source for cell in build.plan(target).cells if cell.cell_type == "code"]

    def all_cells() -> list[tuple[bool, str]]:
        os.chdir(without_keras)
        for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
            del sys.modules[name]
        shell, told = InteractiveShell.instance(), []
        for source in sources:
            with capture_output() as shown:
                ran = shell.run_cell(source, store_history=True)
            told.append((ran.success, shown.stdout + shown.stderr + str(shown.outputs or "")))
        return told

    (ran, text), *others = in_child_process(all_cells)
    assert ran
    assert text.count("\n") == 1
    pin = re.search(r"^keras==.*", (build.ROOT / "constraints.txt").read_text(), re.M)[0]
    assert f"pip install 'ddp-course[keras]' {pin}" in text
    assert others == [(True, "")] * (len(sources) - 1)
    assert others
