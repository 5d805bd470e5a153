"""Real nbgrader on real submissions: cheats first, then wrong, blank and right ones."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import cheats
import kernels
import labs
import nbformat
import pytest
from nbclient import NotebookClient

import build
import handout

pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e '.[teach]'")
import grading
from nbgrader.api import Gradebook

LAB, CHEATED = "02_process_groups", "01_cheats"
WRONG = {
    "rank_of": "by_the_first_node",
    "place_of": "place_from_a_list",  # the one that is right
    "meet": "ranks_added_instead",
    "grid_sums": "columns_first",
}


class Course:
    """A teacher's folder, with submissions and what nbgrader says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder / "course", folder / "t"
        self.temporary.mkdir()
        sources = folder / "source/labs"
        sources.mkdir(parents=True)
        (sources / f"{CHEATED}.py").write_text(cheats.LAB)
        (sources / f"{LAB}.py").write_text((labs.ROOT / f"source/labs/{LAB}.py").read_text())
        assert handout.main(["--to", str(self.folder), "--root", str(folder)]) == 0
        self.log = "".join(self.nbgrader("generate_assignment", name) for name in (LAB, CHEATED))

    def nbgrader(self, *command: str) -> str:
        """Run it as a teacher does, who has activated .venv."""
        begun = time.monotonic()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {kernels.MARK: kernels.SESSION, "PATH": path, "TMPDIR": str(self.temporary)}
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *command], cwd=self.folder, timeout=200,
            env={**os.environ, **own}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        print(f"{time.monotonic() - begun:.1f} s: nbgrader {' '.join(command)}")
        return done.stdout + done.stderr

    def released(self, lab: str) -> nbformat.NotebookNode:
        return nbformat.read(self.folder / f"release/{lab}/{lab}.ipynb", as_version=4)

    def hand_in(self, who: str, lab: str, answers: dict[str, str], edit=None) -> None:
        """Write these answers, by exercise, into a hand-out."""
        notebook = self.released(lab)
        for cell in notebook.cells:
            kind, _, name = (grading.identity(cell) or "").partition("-")
            if kind == "answer" and answers.get(name):
                cell.source = answers[name]
        if edit:
            edit(notebook)
        path = self.folder / "submitted" / who / lab / f"{lab}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)

    def models(self, lab: str) -> dict[str, str]:
        notebook = nbformat.read(self.folder / f"source/{lab}/{lab}.ipynb", as_version=4)
        found = {grading.identity(cell): cell.source for cell in notebook.cells}
        return {name[7:]: text for name, text in found.items() if name and name[:7] == "answer-"}

    def points(self, who: str, lab: str) -> dict[str, float]:
        """By exercise."""
        with Gradebook(f"sqlite:///{self.folder}/gradebook.db") as book:
            grades = book.find_submission_notebook(lab, lab, who).grades
            return {grade.name[6:]: grade.score for grade in grades}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    """Everything is handed in, graded and exported once."""
    made = Course(tmp_path_factory.mktemp("g"))
    made.hand_in("blank", LAB, {})
    wrong = (labs.ROOT / f"tests/wrong/{LAB}.py").read_text()
    made.hand_in("wrong", LAB, {name: f"{wrong}\n{name} = {fn}" for name, fn in WRONG.items()})
    made.hand_in("right", LAB, made.models(LAB))
    made.hand_in("cheat", CHEATED, cheats.CHEATS, cheats.edit)
    shadow = made.folder / f"submitted/cheat/{CHEATED}/course_utils.py"
    shadow.write_text("check = lambda *args, **options: None")
    made.hand_in("killer", CHEATED, made.models(CHEATED) | {"edits_the_check": cheats.KILLER})
    made.hand_in("right", CHEATED, made.models(CHEATED))
    made.log += "".join(made.nbgrader("autograde", name) for name in (LAB, CHEATED))
    made.log += made.nbgrader("export", "--to", "grades.csv")
    return made


@pytest.mark.parametrize("name", cheats.CHEATS)
def test_a_cheat_gets_no_points(course, name):
    assert course.points("cheat", CHEATED)[name] == 0


def test_an_answer_that_kills_the_grading_kernel_gets_no_points(course):
    assert sum(course.points("killer", CHEATED).values()) == 0


def test_a_blank_submission_gets_no_points(course):
    assert course.points("blank", LAB) == dict.fromkeys(WRONG, 0)


def test_of_a_wrong_submission_only_what_is_right_gets_points(course):
    assert course.points("wrong", LAB) == dict.fromkeys(WRONG, 0) | {"place_of": 1}


def test_a_right_submission_gets_all_points(course):
    assert course.points("right", LAB) == dict.fromkeys(WRONG, 1)
    assert course.points("right", CHEATED) == dict.fromkeys(cheats.CHEATS, 2)


def test_the_exported_grades_are_the_sums(course):
    with (course.folder / "grades.csv").open() as file:
        rows = {(row["assignment"], row["student_id"]): row for row in csv.DictReader(file)}
    got = {key: (float(row["score"]), float(row["max_score"])) for key, row in rows.items()}
    most = 2.0 * len(cheats.CHEATS)
    assert got[LAB, "right"] == (4, 4)
    assert got[LAB, "wrong"] == (1, 4)
    assert got[LAB, "blank"] == (0, 4)
    assert got[CHEATED, "cheat"] == (0, most)
    assert got[CHEATED, "right"] == (most, most)


def test_a_teacher_reads_in_the_graded_notebook_why_an_answer_is_wrong(course):
    path = course.folder / f"autograded/wrong/{LAB}/{LAB}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    [graded] = [cell for cell in cells if grading.identity(cell) == "check-rank_of"]
    assert graded.outputs[0].data["text/plain"].startswith("✗ wrong: rank_of (5 ranks")


def test_the_hand_out_is_the_exercise_and_says_nothing_of_what_is_hidden(course):
    exercise = nbformat.read(labs.ROOT / f"exercises/{LAB}.ipynb", as_version=4)
    assert [c.source for c in course.released(LAB).cells] == [c.source for c in exercise.cells]
    text = (course.folder / f"release/{CHEATED}/{CHEATED}.ipynb").read_text()
    assert "hidden" not in text.lower()
    assert "require" not in text
    assert "SOLUTION" not in text


def test_grading_leaves_no_process_and_no_file_behind(course):
    assert kernels.alive() == set()
    assert os.listdir(course.temporary) == []


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_every_lab_gives_its_own_solution_all_points(slug):
    target = build.Target(labs.ROOT / f"source/labs/{slug}.py", labs.ROOT, False)
    source = handout.graded(build.plan(target))
    texts = {grading.identity(cell): cell.source for cell in source.cells}
    run = grading.compose(source, {name: text for name, text in texts.items() if name})
    NotebookClient(run, kernel_name="python3", timeout=120, allow_errors=True).execute()
    checks = [cell for cell in run.cells if (grading.identity(cell) or "")[:6] == "check-"]
    errors = [out for cell in checks for out in cell.outputs if out.output_type == "error"]
    assert checks
    assert errors == []


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
