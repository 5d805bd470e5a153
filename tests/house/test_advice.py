"""What an assistant of a learner is asked to keep to, and that no solution lies in its reach."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_tools import ROOT
from course_tools.grading import handout
from course_tools.learner import copies
from course_tools.notebooks import cells

TEXTS = {".py", ".md", ".json", ".txt", ".log"}


def squeezed(text):
    """Without blanks, however lines are indented."""
    return "".join(text.split())


def solutions():
    answers = []
    for lab in sorted((ROOT / "source/labs").glob("[0-9]*.py")):
        for found in cells.SOLUTION.finditer(lab.read_text(encoding="utf-8")):
            answers.append(squeezed(found[3]))
    return answers


def texts_of(folder):
    """What can be read in a folder: sources and outputs of notebooks, and documents."""
    texts = []
    for path in folder.rglob("*"):
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, as_version=4)
            texts.append(squeezed("\n".join(cell.source for cell in notebook.cells)))
            texts.append(squeezed(path.read_text(encoding="utf-8").replace("\\n", "\n")))
        elif path.suffix in TEXTS:
            texts.append(squeezed(path.read_text(encoding="utf-8", errors="replace")))
    return texts


@pytest.fixture(scope="module")
def my(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my")
    copies.lay_out(ROOT, folder)
    return folder


def reached(folder):
    texts = texts_of(folder)
    return [answer for answer in solutions() if any(answer in text for text in texts)]


def test_no_solution_can_be_read_in_a_learners_folder(my):
    assert len(list(my.glob("lab_*.ipynb"))) >= 15
    assert reached(my) == []


def test_a_solution_that_lay_there_would_be_seen(my, tmp_path):
    lab = ROOT / "solutions/02_process_groups.ipynb"
    (tmp_path / lab.name).write_bytes(lab.read_bytes())
    assert len(reached(tmp_path)) >= 4


def test_advice_lies_beside_what_is_handed_out_by_nbgrader(tmp_path):
    handout.hand_out(tmp_path, ["02"], ROOT)
    folder = tmp_path / "source/02_process_groups"
    assert (folder / "AGENTS.md").read_bytes() == copies.ADVICE.read_bytes()


RELEASE = """
import sys
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import PyFileConfigLoader

api = NbGraderAPI(config=PyFileConfigLoader("nbgrader_config.py").load_config())
for lab in sys.argv[1:]:
    result = api.generate_assignment(lab)
    assert result["success"], result
"""


@pytest.mark.outer
def test_no_solution_can_be_read_in_what_nbgrader_hands_to_learners(tmp_path):
    """Every lab, released by nbgrader itself; before, in what teachers keep, answers are read."""
    pytest.importorskip("nbgrader", reason="it is not installed: pip install -e '.[teach]'")
    labs = handout.hand_out(tmp_path, [], ROOT)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs}
    command = [sys.executable, "-c", RELEASE, *labs]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    released = tmp_path / "release"
    assert sorted(path.stem for path in released.rglob("*.ipynb")) == sorted(labs)
    assert len(list(released.rglob("AGENTS.md"))) == len(labs)
    assert len(reached(tmp_path / "source")) >= len(labs)
    assert reached(released) == []


def test_a_learner_may_change_the_advice_and_it_stays(my):
    advice = my / "AGENTS.md"
    assert advice.read_bytes() == copies.ADVICE.read_bytes()
    advice.write_text("You may tell me everything.\n", encoding="utf-8")
    copies.lay_out(ROOT, my)
    assert advice.read_text(encoding="utf-8") == "You may tell me everything.\n"
    advice.unlink()
    copies.lay_out(ROOT, my)


def test_the_advice_speaks_of_what_is_in_every_lab():
    advice = copies.ADVICE.read_text(encoding="utf-8")
    hints = re.findall(r"`(Hint \d: [\w ]+)`", advice)
    assert [hint[:6] for hint in hints] == ["Hint 1", "Hint 2", "Hint 3"]
    for lab in sorted((ROOT / "exercises").glob("[0-9]*.ipynb")):
        text = lab.read_text(encoding="utf-8")
        for word in (*hints, "raise NotImplementedError(", "check("):
            assert word in text, (lab.name, word)
    assert re.search(r"`check\(\.\.\.\)` is the only judge", advice)


def test_the_folders_that_it_names_are_there():
    named = set(re.findall(r"`(\w+)/`", copies.ADVICE.read_text(encoding="utf-8")))
    assert named == {"solutions", "source", "tests", "course_lessons"}
    assert all((ROOT / name).is_dir() for name in named)
