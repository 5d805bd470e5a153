"""Real nbgrader on real submissions: cheats first, then wrong, blank and right answers."""

import csv
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import cheats
import labs
import nbformat
import pytest
from warm_kernels import NURSERY, WARM, warm

import course_utils
from course_tools.child_process import in_child_process
from course_tools.grading import answers_as_text, grade, handout, judge, sandbox
from course_tools.grading.learner_cells import for_the_judge
from course_tools.notebooks import build
from course_utils.launcher import transport

pytestmark = pytest.mark.slow
LAB = "02_process_groups"
TEACHING = (labs.ROOT / "teaching/README.md").read_text()
COMMANDS = re.findall(r"^    nbgrader (.*)$", TEACHING, re.M)  # what a teacher types
WRONG = {
    "mean_of_all": "def mean_of_all(tensor):\n    dist.all_reduce(tensor)\n    return tensor",
    "rank_of": "def rank_of(node, local_rank, processes):\n"
    "    return node * processes[0] + local_rank",
    "meet": "def meet(place, number):\n    return number",
    "grid_sums": "def grid_sums(tensor, columns):\n    return tensor, tensor",
}
EXERCISES = *WRONG, "place_of"
ALL = dict.fromkeys(EXERCISES, 1) | dict.fromkeys(cheats.CHEATS, 2)
TWO = (*EXERCISES, *list(cheats.CHEATS)[:2])  # what the lab itself asks for, and two of two points


class Course:
    """A teacher's folder, with submissions and what nbgrader says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder / "course", folder / "t"
        self.temporary.mkdir()
        sources = folder / "source/labs"
        sources.mkdir(parents=True)
        lab = (labs.ROOT / f"source/labs/{LAB}.py").read_text()
        (sources / f"{LAB}.py").write_text(f"{lab}\n{cheats.LAB}")
        assert handout.main(["--to", str(self.folder), "--root", str(folder)]) == 0
        self.nbgrader(COMMANDS[0])

    def nbgrader(self, command: str) -> None:
        """Run it as a teacher does, who has activated .venv.

        In a fork, and its kernels are forked: nbgrader takes three seconds to import, torch two.
        """
        NURSERY.warm()
        in_child_process(lambda: self._forked(command.split()), timeout=300)

    def _forked(self, words: list[str]) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ.update({"PATH": path, "TMPDIR": str(self.temporary)})
        os.chdir(self.folder)
        tempfile.tempdir = None  # as TMPDIR says
        with warm():
            NbGraderApp.launch_instance(words)  # a SystemExit fails `in_child_process`

    def read(self, place: str) -> nbformat.NotebookNode:
        return nbformat.read(self.folder / place / f"{LAB}/{LAB}.ipynb", as_version=4)

    def models(self) -> dict[str, str]:
        found = {
            nbgrader_plugin.identity(cell) or "": cell.source for cell in self.read("source").cells
        }
        return {name: found[f"answer-{name}"] for name in TWO}

    def hand_in(self, who: str, answers: dict[str, str], edit=None) -> Path:
        """Write these answers, by exercise, into the hand-out; returns the learner's folder."""
        notebook = self.read("release")
        for cell in notebook.cells:
            kind, _, name = (nbgrader_plugin.identity(cell) or "").partition("-")
            if kind == "answer" and answers.get(name):
                cell.source = answers[name]
        if edit:
            edit(notebook)
        folder = self.folder / "submitted" / who / LAB
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / f"{LAB}.ipynb")
        return folder

    def points(self, who: str) -> dict[str, float]:
        """By exercise."""
        with Gradebook(f"sqlite:///{self.folder}/gradebook.db") as book:
            grades = book.find_submission_notebook(LAB, LAB, who).grades
            return {grade.name.removeprefix("check-"): grade.score for grade in grades}

    def said(self, who: str, name: str) -> str:
        """What a graded notebook shows below a check."""
        cells = self.read(f"autograded/{who}").cells
        outputs = [
            o for c in cells if nbgrader_plugin.identity(c) == f"check-{name}" for o in c.outputs
        ]
        return "\n".join(o.get("evalue") or o.data["text/plain"] for o in outputs)


@pytest.fixture(scope="module", autouse=True)
def nbgrader():
    """Loaded when these tests begin, so that where others run forks are not of it as well."""
    global Gradebook, NbGraderApp, nbgrader_plugin
    pytest.importorskip("nbgrader", reason="it is not installed: pip install -e '.[teach]'")
    from nbgrader.api import Gradebook
    from nbgrader.apps import NbGraderApp

    from course_tools.grading import nbgrader_plugin


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    """Everything is handed in, graded and exported once; other answers have the cheats' help."""
    made = Course(tmp_path_factory.mktemp("g"))
    others = WRONG | {"place_of": made.models()["place_of"]}
    folder = made.hand_in("cheat", cheats.CHEATS | others, cheats.edit)
    (folder / "course_utils.py").write_text("check = lambda *args, **options: None")
    made.hand_in("killer", made.models() | {"place_of": cheats.KILLER})
    made.hand_in("right", made.models())
    for command in COMMANDS[1:]:
        made.nbgrader(command)
    return made


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("knows_the_seeds", "wrong with numbers drawn a moment ago"),
        ("calls_it_by_another_name", "to be solved without all_reduce"),
        ("brings_code", "builtins.exec is no type of data"),
        ("brings_code_in_the_recording", "builtins.exec is no type of data"),
        ("changes_a_class", "must not change a class"),
        ("knows_two_ranks_only", "✗ wrong: knows_two_ranks_only (3 ranks"),
        ("rank_of", "✗ wrong: rank_of (1 rank, 400 processes"),
    ],
)
def test_the_teacher_is_told_how_a_cheat_or_an_answer_failed(course, name, why):
    assert why in course.said("cheat", name)


def test_an_answer_that_kills_the_grading_kernel_gets_no_points_from_there_on(course):
    assert course.points("killer") == dict.fromkeys(ALL, 0) | {"mean_of_all": 1, "rank_of": 1}


def test_cheats_and_wrong_answers_get_no_points_and_a_right_one_among_them_does(course):
    assert course.points("cheat") == dict.fromkeys(ALL, 0) | {"place_of": 1}


def test_what_is_right_gets_all_points_and_what_is_blank_none(course):
    assert course.points("right") == dict.fromkeys(ALL, 0) | {name: ALL[name] for name in TWO}


def test_in_sandboxes_all_is_worth_as_much_but_one_that_kills_costs_only_its_own_point(course):
    """The killer's other answers are all right, so that "right" would show nothing more."""
    (course.folder / "submitted/right").rename(course.folder / "right")
    with mock.patch.object(grade, "subprocess", WARM):
        assert grade.main([str(course.folder), "--root", str(course.folder.parent)]) == 0

    def points(who: str) -> dict[str, float]:
        return json.loads((course.folder / f"graded/{who}/{LAB}.json").read_text())["points"]

    assert points("cheat") == course.points("cheat")
    if not sandbox.refused():
        others = {name: ALL[name] for name in TWO if name != "place_of"}
        assert points("killer") == dict.fromkeys(ALL, 0) | others


def test_the_exported_grades_are_the_sums(course):
    with (course.folder / "grades.csv").open() as file:
        rows = [(float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)]
    points = 1, 2, sum(ALL[name] for name in TWO)  # of the cheat, the killer and the right one
    assert rows == [(of_learner, sum(ALL.values())) for of_learner in points]


def test_the_hand_out_is_the_exercise_and_says_nothing_of_what_is_hidden(course):
    exercise = nbformat.read(labs.ROOT / f"exercises/{LAB}.ipynb", as_version=4)
    released = [cell.source for cell in course.read("release").cells]
    assert released[: len(exercise.cells)] == [cell.source for cell in exercise.cells]
    text = (
        (course.folder / f"release/{LAB}/{LAB}.ipynb")
        .read_text()
        .replace("source_hidden", "folded")
    )
    assert not [word for word in ("hidden", "HIDDEN", "require(", "SOLUTION") if word in text]


def test_grading_leaves_no_file_behind(course):
    """Each kernel works in a temporary folder of its own, and its ranks where it does."""
    assert os.listdir(course.temporary) == []


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_every_lab_gives_its_own_solution_all_points(slug, monkeypatch):
    """In this process, and on two ranks: solutions/ has the other sizes."""
    target = build.Target(labs.ROOT / f"source/labs/{slug}.py", labs.ROOT, False)
    cells = []
    for cell in handout.graded(build.plan(target)).cells:
        if cell.cell_type == "code":
            cells.append(for_the_judge(cell, cell.id) | {"text": cell.source})
    # What `begin` and the judge put in place of these.
    monkeypatch.setattr(transport, "Unpickler", transport.Unpickler)
    monkeypatch.setattr(course_utils, "check", None)
    monkeypatch.setattr(answers_as_text, "display", None)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(answers_as_text, "check", on_few_ranks)
    verdicts = []
    judge.judge(cells, lambda **verdict: verdicts.append(verdict))
    checks = [verdict for verdict in verdicts if "check" in verdict]
    assert checks
    assert [verdict for verdict in checks if not verdict["passed"]] == []


def on_few_ranks(fn, **options):
    return labs.check_here(fn, **next(labs.cheapest_first(options)) | labs.PATIENT)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('# %% tags=["points-2"]\nx = 1\n', "points-2 belongs to the cell with the check"),
        ("# %%\ncheck(1 + 1, spec=f)\n", "check is given 1 + 1, which has no name"),
        ("# %%\ncheck(f)\n\n# %%\ncheck(f)\n", "there are two cells check-f"),
    ],
)
def test_a_lab_that_cannot_be_graded_is_refused(tmp_path, capsys, text, why):
    (tmp_path / "source/labs").mkdir(parents=True)
    (tmp_path / "source/labs/01_bad.py").write_text(text)
    assert handout.main(["--to", str(tmp_path / "to"), "--root", str(tmp_path)]) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
