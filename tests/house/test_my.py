"""A learner's own copies: never replaced, and an update takes the answers along."""

import datetime
import logging
import os
import re
from pathlib import Path

import nbformat
import pytest

from course_tools import ROOT
from course_tools.learner import copies, workspace
from course_tools.notebooks.cells import compose, read_percent

TODAY = datetime.date(2026, 11, 22)
LESSON = (
    "# %% [markdown]\n# Go on with [the lab](../exercises/01_sums.ipynb), [next](02_x.ipynb).\n"
)
LAB = """# %%
import torch

# %% [markdown]
# Write `double`.

# %%
def double(x):
    raise NotImplementedError("about 1 line")

# %%
def triple(x):
    raise NotImplementedError("about 1 line")
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    notebook = read_percent(text)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
            cell.outputs = [nbformat.v4.new_output("stream", text="the answer is 4\n")]
    nbformat.write(notebook, path)


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_MY", raising=False)
    tmp_path = tmp_path / "course"
    tmp_path.mkdir()
    write(tmp_path / "notebooks" / "01_sums.ipynb", LESSON)
    write(tmp_path / "exercises" / "01_sums.ipynb", LAB)
    return tmp_path


def sources(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def edit(path, **answers):
    """Answer exercises, as JupyterLab saves it: the cells keep their ids."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for name, body in answers.items():
            if f"def {name}(" in cell.source:
                cell.source = f"def {name}(x):\n    {body}"
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11"}
    nbformat.write(notebook, path)


def test_copies_have_no_outputs_and_their_links_lead_to_each_other(course, capsys):
    assert workspace.main([], course) == 0
    assert "2 notebooks of your own are in my/" in capsys.readouterr().out
    assert sources(course / "my" / "chapter_01_sums.ipynb") == [
        "Go on with [the lab](lab_01_sums.ipynb), [next](chapter_02_x.ipynb)."
    ]
    assert "the answer is 4" not in (course / "my" / "lab_01_sums.ipynb").read_text()


def test_only_a_cell_that_is_tagged_so_keeps_its_output(course):
    text = LAB.replace("# %%\nimport torch", '# %% tags=["keep-output"]\nimport torch')
    write(course / "exercises" / "01_sums.ipynb", text)
    workspace.main([], course)
    notebook = nbformat.read(course / "my" / "lab_01_sums.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [bool(cell.outputs) for cell in code] == [True, False, False]
    assert {cell.execution_count for cell in code} == {None}


def test_the_handlers_of_logging_stay_open(course, monkeypatch):
    """One of absl's, which Keras imports, closes its stream with it: the tests' own."""
    closed, handler = [], logging.StreamHandler()
    monkeypatch.setattr(handler, "close", lambda: closed.append(handler))
    copies.notary.cache_clear()
    workspace.main([], course)
    assert not closed


def test_a_second_time_nothing_is_touched_and_nothing_said(course, capsys):
    workspace.main([], course)
    lab = course / "my" / "lab_01_sums.ipynb"
    edit(lab, double="return 2 * x")
    before, _ = lab.read_bytes(), capsys.readouterr()
    assert workspace.main([], course) == 0
    assert capsys.readouterr().out == ""
    assert lab.read_bytes() == before


def test_copies_with_the_name_of_an_earlier_edition_get_todays_with_all_that_leads_to_them(
    course, capsys
):
    workspace.main([], course)
    my = course / "my"
    lesson, lab = my / "chapter_01_sums.ipynb", my / "lab_01_sums.ipynb"
    of_today = lesson.read_text()
    lesson.rename(my / "lesson_01_sums.ipynb")
    again = my / "lesson_01_sums_2026-11-22.ipynb"
    again.write_text(of_today)
    edit(lab, double="return 2 * x  # see lesson_01_sums")
    mine = nbformat.read(lab, as_version=4)
    mine.cells[1].source += " See [this](lesson_01_sums.ipynb)."
    nbformat.write(mine, lab)
    copies.notary().sign(mine)
    os.utime(lab, (1000, 1000))
    notes = my / "notes.ipynb"
    notes.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    as_written = notes.read_bytes()
    tabs = my / ".workspaces/tabs"
    tabs.parent.mkdir()
    tabs.write_text('"notebook:my/lesson_01_sums.ipynb", "my/lesson_plan.ipynb"')
    capsys.readouterr()
    assert workspace.main([], course) == 0
    said = capsys.readouterr().out
    assert said == "2 notebooks are called chapter_... now, no longer lesson_...\n"
    assert list(my.glob("lesson_*.ipynb")) == []
    assert (my / "chapter_01_sums_2026-11-22.ipynb").exists()
    assert tabs.read_text() == '"notebook:my/chapter_01_sums.ipynb", "my/lesson_plan.ipynb"'
    now = nbformat.read(lab, as_version=4)
    assert now.cells[1].source.endswith("See [this](chapter_01_sums.ipynb).")
    assert "# see lesson_01_sums" in now.cells[2].source
    assert copies.notary().check_signature(now)
    assert lab.stat().st_mtime == 1000
    assert notes.read_bytes() == as_written
    workspace.main([], course)
    assert capsys.readouterr().out == ""


def test_links_of_an_earlier_edition_make_no_copy_outdated(course, capsys):
    workspace.main([], course)
    lesson = course / "my/chapter_01_sums.ipynb"
    notebook = nbformat.read(lesson, as_version=4)
    texts = notebook.metadata["course"]["texts"]
    for cell in notebook.cells:
        cell.source = cell.source.replace("chapter_", "lesson_")
        texts[cell.id] = copies.digest(cell.source)
    nbformat.write(notebook, lesson)
    lesson.rename(lesson.with_name("lesson_01_sums.ipynb"))
    capsys.readouterr()
    workspace.main([], course)
    assert "has a newer original" not in capsys.readouterr().out
    assert "[next](chapter_02_x.ipynb)" in lesson.read_text()


def test_a_copy_keeps_an_earlier_name_where_todays_is_taken(course, capsys):
    workspace.main([], course)
    lesson = course / "my/chapter_01_sums.ipynb"
    earlier = lesson.with_name("lesson_01_sums.ipynb")
    earlier.write_text("mine")
    before = lesson.read_bytes()
    capsys.readouterr()
    workspace.main([], course)
    assert capsys.readouterr().out == ""
    assert (earlier.read_text(), lesson.read_bytes()) == ("mine", before)


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n{", "{}", ""])
def test_a_copy_that_was_broken_or_emptied_is_left_as_it_is(course, capsys, text):
    workspace.main([], course)
    lab = course / "my" / "lab_01_sums.ipynb"
    lab.write_text(text)
    assert workspace.main([], course) == 0
    assert "lab_01_sums.ipynb has a newer original" in capsys.readouterr().out
    said = copies.fresh(course, lab.parent, "lab_01_sums", TODAY)
    assert said.endswith("Your lab_01_sums.ipynb could not be read, and is as it was.")
    assert lab.read_text() == text


def test_after_an_update_the_answers_move_into_a_new_copy_and_the_old_one_stays(course, capsys):
    workspace.main([], course)
    lab = course / "my" / "lab_01_sums.ipynb"
    edit(lab, double="return 2 * x", triple="return 3 * x")
    before, _ = lab.read_bytes(), capsys.readouterr()
    text = LAB.replace("Write `double`", "Write `double` and `triple`")
    text = text.replace("triple(x):\n", "triple(x):\n    # three times\n")
    write(course / "exercises" / "01_sums.ipynb", text)

    workspace.main([], course)
    assert (
        capsys.readouterr().out
        == "lab_01_sums.ipynb has a newer original: make fresh only=lab_01_sums\n"
    )
    said = copies.fresh(course, lab.parent, "lab_01_sums", TODAY)
    assert said == (
        "New: lab_01_sums_2026-11-22.ipynb, with 2 cells that you wrote. "
        "Your lab_01_sums.ipynb is as it was.\n"
        "  new or changed: Write `double` and `triple`.\n"
        "  new or changed: def triple(x):"
    )
    assert lab.read_bytes() == before
    assert sources(lab.with_stem("lab_01_sums_2026-11-22")) == [
        "import torch",
        "Write `double` and `triple`.",
        "def double(x):\n    return 2 * x",
        'def triple(x):\n    # three times\n    raise NotImplementedError("about 1 line")',
        "def triple(x):\n    return 3 * x",
    ]
    workspace.main([], course)
    assert capsys.readouterr().out.strip() == ""  # the newest copy is the learner's now
    said = copies.fresh(course, lab.parent, "lab_01_sums", TODAY)
    assert said == "lab_01_sums_2026-11-22.ipynb is up to date."
    assert len(list(lab.parent.glob("lab_*.ipynb"))) == 2


def test_an_answer_stands_between_its_new_stub_and_the_buttons(course):
    text = LAB + "\n# %%\ncheck(triple)\n"
    write(course / "exercises" / "01_sums.ipynb", text)
    workspace.main([], course)
    lab = course / "my" / "lab_01_sums.ipynb"
    edit(lab, triple="return 3 * x")
    text = text.replace("triple(x):\n", "triple(x):\n    # three times\n")
    write(course / "exercises" / "01_sums.ipynb", text)

    said = copies.fresh(course, lab.parent, "lab_01_sums", TODAY)
    assert said.endswith("as it was.\n  new or changed: def triple(x):")
    stub, answer, buttons, check = sources(lab.with_stem("lab_01_sums_2026-11-22"))[-4:]
    assert "# three times" in stub
    assert answer == "def triple(x):\n    return 3 * x"
    assert "course-buttons" in buttons
    assert check == "check(triple)"


def test_a_cell_that_was_thrown_away_comes_back(course):
    workspace.main([], course)
    lab = course / "my" / "lab_01_sums.ipynb"
    notebook = nbformat.read(lab, as_version=4)
    del notebook.cells[1]
    nbformat.write(notebook, lab)
    said = copies.fresh(course, lab.parent, "lab_01_sums", TODAY)
    assert said.endswith("\n  back again: Write `double`.")
    assert len(sources(lab.with_stem("lab_01_sums_2026-11-22"))) == 4


def test_the_course_map_leads_to_the_newest_copies(course):
    (course / "notebooks" / "README.md").write_text("[lab](../exercises/01_sums.ipynb)\n")
    workspace.main([], course)
    write(course / "exercises" / "01_sums.ipynb", LAB.replace("Write", "Now write"))
    copies.fresh(course, course / "my", "lab_01_sums", TODAY)
    workspace.main([], course)
    text = (course / "my" / "course_map.md").read_text()
    assert text.startswith("[lab](lab_01_sums_2026-11-22.ipynb)\n")


def test_a_cell_of_ones_own_stays_behind_the_cell_that_it_followed(course):
    workspace.main([], course)
    lab = course / "my" / "lab_01_sums.ipynb"
    notebook = nbformat.read(lab, as_version=4)
    notebook.cells.insert(1, nbformat.v4.new_code_cell("torch.ones(3)"))
    nbformat.write(notebook, lab)
    write(course / "exercises" / "01_sums.ipynb", LAB.replace("triple", "thrice"))
    copies.fresh(course, lab.parent, "lab_01_sums", TODAY)
    write(course / "exercises" / "01_sums.ipynb", LAB)
    copies.fresh(course, lab.parent, "lab_01_sums", TODAY)  # a second one on the same day
    for name in ("lab_01_sums_2026-11-22", "lab_01_sums_2026-11-22_2"):
        assert sources(lab.with_stem(name))[:3] == [
            "import torch",
            "torch.ones(3)",
            "Write `double`.",
        ]
        assert nbformat.validate(nbformat.read(lab.with_stem(name), as_version=4)) is None


def test_a_fresh_copy_of_what_has_none_is_a_first_one(course):
    said = copies.fresh(course, course / "my", "lab_01_sums", TODAY)
    assert said == "New: lab_01_sums.ipynb, with 0 cells that you wrote."


def test_a_name_that_is_not_there_is_told(course, capsys):
    assert workspace.main(["--fresh", "07"], course) == 1
    assert "there are: chapter_01_sums, lab_01_sums" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "top", "first"),
    [("my", "", "my/chapter_00_start_here.ipynb"), ("../home/ddp", "../home/ddp", "chapter_00")],
)
def test_jupyterlab_opens_on_the_first_copy(course, monkeypatch, folder, top, first):
    write(course / "notebooks" / "00_start_here.ipynb", LESSON)
    monkeypatch.setenv("COURSE_MY", str(course / folder))
    workspace.main([], course)
    command = " ".join(workspace.lab_command(course, copies.home(course))[0]) + " "
    assert f"--ServerApp.root_dir={(course / top).resolve()} " in command
    assert f"--LabApp.default_url=/lab/tree/{first}" in command


def test_the_course_map_is_copied_and_renewed_until_somebody_writes_into_it(course, capsys):
    original, copy = course / "notebooks" / "README.md", course / "my" / "course_map.md"
    original.write_text("[00](01_sums.ipynb), [lab](../exercises/01_sums.ipynb)\n")
    workspace.main([], course)
    assert copy.read_text().startswith("[00](chapter_01_sums.ipynb), [lab](lab_01_sums.ipynb)\n")
    original.write_text("# New\n[00](01_sums.ipynb)\n")
    workspace.main([], course)
    assert copy.read_text().startswith("# New\n[00](chapter_01_sums.ipynb)\n")
    mine = "I am here.\n" + copy.read_text()
    copy.write_text(mine)
    capsys.readouterr()
    workspace.main([], course)
    assert capsys.readouterr().out.strip() == ""
    original.write_text("# Newer\n")
    workspace.main([], course)
    assert "course_map.md is yours, and has a newer original" in capsys.readouterr().out
    assert copy.read_text() == mine


def test_every_link_in_every_copy_leads_to_a_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    assert workspace.main([]) == 0
    texts = {"course_map.md": (tmp_path / "course_map.md").read_text()}
    for path in tmp_path.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        texts[path.name] = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    links = [
        (name, link)
        for name, text in texts.items()
        for link in re.findall(
            r"""(?:\]\(|(?:href|src)=["'])((?!https?:)[^)"'#\s\[]+)[)"'#\s]""", text
        )
    ]
    assert [(name, link) for name, link in links if not (tmp_path / link).is_file()] == []
    assert {Path(link).parent for _, link in links} == {Path()}
    assert ("chapter_00_start_here.ipynb", "course_map.md") in links
    lessons = [f"{name}.ipynb" for name in copies.originals(ROOT) if name.startswith("chapter_")]
    assert {link for name, link in links if name == "course_map.md"} >= set(lessons)


def test_ids_tell_an_edited_cell_in_every_committed_notebook():
    for path in copies.originals(ROOT).values():
        cells = nbformat.read(path, as_version=4).cells
        assert [cell.id for cell in compose(cells).cells] == [cell.id for cell in cells], path.name


def test_a_script_of_a_lesson_is_copied_once_and_then_the_learners(course, capsys):
    (course / "notebooks" / "train.py").write_text("epochs = 2\n")
    workspace.main([], course)
    copy = course / "my" / "train.py"
    assert copy.read_text() == "epochs = 2\n"
    copy.write_text("epochs = 3\n")
    capsys.readouterr()
    workspace.main([], course)
    assert "train.py differs from its original: move it away to get that" in capsys.readouterr().out
    assert copy.read_text() == "epochs = 3\n"


def test_the_evidence_of_the_capstone_is_copied_with_its_folders(course):
    (course / "notebooks/incident/monday").mkdir(parents=True)
    (course / "notebooks/incident/monday/calls0").write_bytes(b"\x80\x04")
    workspace.main([], course)
    assert (course / "my/incident/monday/calls0").read_bytes() == b"\x80\x04"


def test_the_diagram_of_the_course_map_becomes_links(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    workspace.main([])
    text = (tmp_path / "course_map.md").read_text()
    assert "mermaid" not in text
    listed = "\n".join(line for line in text.splitlines() if line.startswith("- **"))
    lessons = [name for name in copies.originals(ROOT) if name.startswith("chapter_")]
    assert re.findall(r"\]\((\w+)\.ipynb\)", listed) != []
    assert sorted(re.findall(r"\]\((\w+)\.ipynb\)", listed)) == sorted(lessons)
