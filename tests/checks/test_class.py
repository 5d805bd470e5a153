"""A class hands in: everybody has a row, the right file counts, and only the teacher sees it."""

import os
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import forty_four
import hostile
import nbformat
import pytest
import test_grade
from warm_kernels import WARM

from course_tools.grading import class_files, grade, sandbox, submissions, unpack
from course_tools.notebooks import build
from course_tools.notebooks.cells import BuildError

SLUG = test_grade.SLUG
MODELS = {name: hostile.RIGHT.replace("NAME", name).strip() for name in ("a", "b")}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Forty-four submissions, graded in one go by somebody who lets everybody read all files."""
    root = tmp_path_factory.mktemp("c")
    folder = root / "my class"
    test_grade.small(root, *MODELS, options='"timeout": 15.0')
    wanted = forty_four.hand_in(folder, SLUG, test_grade.blank(root), MODELS, build.ROOT)
    before = os.umask(0)
    with mock.patch.object(grade, "subprocess", WARM):
        status = grade.main([str(folder), "--root", str(root), "--only", "3"])
    umask = os.umask(before)
    rows = test_grade.table(folder / "graded/submissions.csv")
    return SimpleNamespace(folder=folder, wanted=wanted, status=status, umask=umask, rows=rows)


@pytest.mark.slow
@pytest.mark.skipif(bool(sandbox.refused()), reason="some of them would do harm")
def test_of_forty_four_submissions_each_gets_what_it_is_worth(graded):
    """The share of exercises that are right, or what became of the submission."""
    assert len(graded.wanted) == 45  # and one who hands in nothing
    found = {row["student"]: row["what"] for row in graded.rows if row["lab"]}
    for line in test_grade.table(graded.folder / "graded/grades.csv"):
        if line["03 total"]:
            found[line["student"]] = float(line["03 total"]) / 4
    assert {who.lstrip("'"): what for who, what in found.items()} == graded.wanted
    assert graded.status == 0


@pytest.mark.slow
def test_every_file_and_every_learner_has_a_row(graded):
    submitted = graded.folder / "submitted"
    there = {p.relative_to(submitted).as_posix() for p in submitted.rglob("*") if not p.is_dir()}
    assert {row["file"].lstrip("'") for row in graded.rows} - {""} == there
    assert all(row["why"] for row in graded.rows)
    why = {row["student"]: row["why"] for row in graded.rows if row["what"] == "graded"}
    assert "by its time, 2023-11-1" in why["attempts"]


@pytest.mark.slow
def test_nobody_but_the_teacher_can_look_into_the_folder_of_a_class(graded):
    assert graded.folder.stat().st_mode & 0o777 == 0o700
    for path in (graded.folder / "graded").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert graded.umask == 0


NAMES = {"functions": ["f"], "values": []}
ANSWER = {"name": "answer-f", "id": "f", "kind": "answer", "text": "", **NAMES}
CHECK = {"name": "check-f", "id": "g", "kind": "check", "text": ""}
NOTEBOOK = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("def f(): pass")])


def submitted(folder: Path, *files: str) -> list[submissions.Row]:
    """What is chosen of these files, all of which hold answers of lab 02."""
    for number, file in enumerate(files):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(nbformat.writes(NOTEBOOK))
        os.utime(path, (number, number))
    learners = class_files.Learners()
    rows, _ = submissions.collect(folder, learners, {"02_groups": [ANSWER, CHECK]})
    return rows


@pytest.mark.parametrize(
    ("newer", "older", "why"),
    [
        ("ada/lab_02_groups_2026-11-22.ipynb", "ada/lab_02_groups.ipynb", "its own record"),
        ("ada/10/lab.ipynb", "ada/2/lab.ipynb", "by its time"),
        ("Ada_7_assignsubmission_file_/x.ipynb", "ada/lab_02_groups.ipynb", "by its time"),
    ],
)
def test_the_newest_counts_by_its_own_record_and_then_by_its_time(tmp_path, newer, older, why):
    files = [older, newer] if "time" in why else [newer, older]
    rows = {row.file: row for row in submitted(tmp_path, *files)}
    assert (rows[newer].what, rows[older].what) == ("graded", "ignored")
    assert why in rows[newer].why
    assert newer in rows[older].why
    assert len({row.student for row in rows.values()}) == 1


def test_what_the_course_lays_out_is_no_submission_and_what_is_nobodys_is_said(tmp_path):
    files = "ada/chapter_02_groups.ipynb", "ada/challenge.ipynb", "ada/a/train.py", "loose.ipynb"
    script, challenge, lesson, loose = sorted(submitted(tmp_path, *files), key=lambda row: row.file)
    assert script.why == "a .py is no notebook: ask for the .ipynb file"
    assert {challenge.why, lesson.why} == {"the course's own"}
    assert "put it into submitted/NAME/" in loose.why


def test_a_lab_that_nbgrader_lays_out_counts_although_a_lesson_has_its_name(tmp_path):
    (row,) = submitted(tmp_path, "ada/02_groups/02_groups.ipynb")
    assert (row.student, row.lab, row.what) == ("ada", "02_groups", "graded")


LINK = 0o120777 << 16


def test_no_file_of_a_zip_lies_elsewhere_and_none_becomes_a_link(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("../x", "/y", "a/../../z", "link"):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = LINK * (name == "link")
            archive.writestr(entry, "/etc/passwd")
    here = tmp_path / "to/here"
    assert unpack.unpack(tmp_path / "a.zip", here) == "unpacked"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {*files} == {tmp_path / "a.zip", here / "x", here / "y", here / "a/z", here / "link"}
    assert not (here / "link").is_symlink()


@pytest.mark.parametrize("kind", ["bomb", "no zip", "link"])
def test_a_zip_that_is_none_or_too_large_is_refused_in_a_sentence(tmp_path, kind):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(1 << 20))
    if kind == "no zip":
        path.write_text("PK")
    if kind == "link":
        path.rename(tmp_path / "b.zip")
        path.symlink_to(tmp_path / "b.zip")
    assert unpack.unpack(path, tmp_path / "to", 1 << 19).startswith("refused: ")
    assert not list(tmp_path.glob("to/*"))


def test_an_unpacked_file_that_the_teacher_has_mended_stays(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("x", (2025, 1, 1, 0, 0, 0)), "one")
    for text in ("one", "by the teacher"):
        unpack.unpack(tmp_path / "a.zip", tmp_path)
        assert (tmp_path / "x").read_text() == text
        (tmp_path / "x").write_text("by the teacher")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "class.txt names nobody"),
        (b"ada\nFran\xe7ois\n", "line 2 of class.txt is not UTF-8: save it as UTF-8"),
        (b"ada\n../escaped\n", "line 2 of class.txt: no folder can be called '../escaped'"),
        (b"ada\n..\n", "line 2 of class.txt: no folder can be called '..'"),
        (b"ada\nAda\n", "line 2 of class.txt: Ada is ada already"),
    ],
)
def test_a_list_of_names_that_cannot_be_understood_is_refused_before_anything_is_graded(
    tmp_path, capsys, data, why
):
    (tmp_path / "class.txt").write_bytes(data)
    (tmp_path / "submitted/ada").mkdir(parents=True)
    assert grade.main([str(tmp_path)]) == 1
    assert f"not graded: {why}" in capsys.readouterr().err
    assert not (tmp_path / "graded").exists()


@pytest.mark.parametrize("text", ["ada, Ada Lovelace", "ada;Ada Lovelace", "ada\tAda Lovelace"])
def test_a_learner_is_known_by_every_name_that_a_platform_has(tmp_path, text):
    (tmp_path / "class.txt").write_text(text, encoding="utf-8")
    learners = class_files.read_class(tmp_path / "class.txt")
    for name in ("ada", "ADA", "ada lovelace", "lovelaceada"):
        assert learners.known(name) == "ada"
    assert learners.all() == ["ada"]


POSSIBLE = {"03_collectives": {"sums": 1.0, "conclusion": 6.0}}


def marks(folder: Path, text: str) -> list[class_files.Mark]:
    learners = class_files.Learners()
    learners.add("ada")
    (folder / "marks.csv").write_text(text, encoding="utf-8")
    return class_files.read_marks(folder / "marks.csv", learners, POSSIBLE)


@pytest.mark.parametrize(
    "text",
    [
        "learner,lab,exercise,points,reason\nAda,03,conclusion,4.5,no control\n",
        "\ufefflearner;lab;exercise;points;reason\nada;lab 3;conclusion;4,5;no control\n;;;;\n",
    ],
)
def test_marks_are_read_as_spreadsheets_write_them(tmp_path, text):
    assert marks(tmp_path, text) == [
        class_files.Mark("ada", "03_collectives", "conclusion", 4.5, "no control")
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bob,03,sums,1,", "line 2 of marks.csv: nobody is called 'bob'"),
        ("ada,04,sums,1,", "line 2 of marks.csv: there is no lab '04'"),
        (
            "ada,03,sum,1,",
            "line 2 of marks.csv: 03_collectives has no .sum.; it has sums",
        ),
        ("ada,03,sums,2,", "line 2 of marks.csv: sums is worth 0 to 1, not 2"),
        ("ada,03,sums,nan,", "line 2 of marks.csv: sums is worth 0 to 1, not nan"),
        ("ada,03,sums,much,", "line 2 of marks.csv: could not convert string to float"),
        ("ada,03,sums,1,\nada,3,sums,0,", "line 3 of marks.csv: that mark was given above"),
    ],
)
def test_marks_that_cannot_be_understood_are_refused_by_their_line(tmp_path, line, why):
    with pytest.raises(BuildError, match=why):
        marks(tmp_path, f"learner,lab,exercise,points,reason\n{line}\n")
