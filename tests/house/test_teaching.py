"""The instructor's book: plans that add up, all answers, and nothing that is not there."""

import re
import tomllib
from pathlib import Path

import nbformat
import pytest

from course_tools.notebooks import course_map, teaching

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "teaching").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
EXERCISES = sorted((ROOT / "exercises").glob("[0-9]*.ipynb"))
SESSIONS = [
    pytest.param(session, id=f"{name}: {session['title']}")
    for name, plan in teaching.plans().items()
    for session in plan["sessions"]
]


@pytest.mark.parametrize("session", SESSIONS)
def test_the_minutes_of_a_session_add_up_and_leave_time_to_talk(session):
    minutes = [int(row[-1]) for row in teaching.session_rows(ROOT, session)]
    assert sum(minutes) == session["minutes"]
    assert teaching.LEAST <= minutes[-1] / session["minutes"] <= teaching.MOST


def test_half_a_day_four_times_90_minutes_and_six_weeks():
    lengths = [[s["minutes"] for s in plan["sessions"]] for plan in teaching.plans().values()]
    assert lengths == [[105, 105], [90] * 4, [90] * 12]


SIX_WEEKS = teaching.plans()["six_weeks"]
# A head is rounded to the nearest 5 minutes, so it may be 2.5 off. A new paragraph or a new
# measurement of the run times may move the count by as much again before the head has to follow.
MARGIN_MIN = 5
FOR_THOSE_WHO_GO_ON = {"10", "12", "13", "14", "16", "17", "18", "19"}


def assigned(plan):
    """What its sessions and home work name, part by part: ("05", 6), ("lab 05", 1)."""
    for session in plan["sessions"]:
        for where in [*session["home"], *(what for what, _ in session["do"])]:
            if named := re.fullmatch(r"((?:lab )?\d\d)(?: (\d+)(?:-(\d+))?)?", where):
                name, first, last = named.groups()
                count = len(numbered(name))
                for part in range(int(first or 1), int(last or first or count) + 1):
                    yield name, part


def numbered(name):
    """The parts of a lesson, or the exercises of a lab."""
    _, parts = teaching.chapter(ROOT, name)
    return [part for part in parts if re.match(r"\d+ ·", part.title)]


def test_in_six_weeks_every_part_of_a_lesson_and_every_graded_exercise_has_its_week():
    chapters = {path.name[:2] for path in NOTEBOOKS} - FOR_THOSE_WHO_GO_ON
    wanted = [*sorted(chapters), *(f"lab {number}" for number in SIX_WEEKS["graded"])]
    named = set(assigned(SIX_WEEKS))
    missing = [
        (name, part)
        for name in wanted
        for part in range(1, len(numbered(name)) + 1)
        if (name, part) not in named
    ]
    assert missing == []


def test_six_weeks_assign_the_chapter_of_every_lab_and_grade_what_the_rubric_marks():
    named = {name for name, _ in assigned(SIX_WEEKS)}
    assert {f"lab {number}" for number in SIX_WEEKS["graded"]} | set(SIX_WEEKS["graded"]) <= named
    marked = re.findall(r"^## Lab (\d\d)", (ROOT / "teaching/rubric.md").read_text(), re.M)
    assert marked
    assert set(marked) <= set(SIX_WEEKS["graded"])


def test_a_week_has_no_more_home_work_than_the_plan_says():
    minutes = [teaching.home_minutes(ROOT, session) for session in SIX_WEEKS["sessions"]]
    weeks = [sum(minutes[first : first + 2]) for first in range(0, len(minutes), 2)]
    assert max(weeks) <= 60 * SIX_WEEKS["home_hours"], weeks


def test_the_parts_of_a_lesson_are_all_of_it():
    for notebook in course_map.chapters().values():
        parts = teaching.cells_of_parts(notebook)
        assert [cell for cells in parts for cell in cells] == notebook.cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_chapter_takes_as_long_as_it_says(path):
    notebook = nbformat.read(path, as_version=4)
    said = int(course_map.facts(notebook)["minutes"])
    counted = teaching.minutes_of(ROOT, path.name[:2]).total()
    assert abs(said - counted) <= MARGIN_MIN, f"counted: {counted:.0f}"
    assert said % 5 == 0


IN_SITTINGS = {"04": 4, "13": 5}  # the last part of the first sitting


@pytest.mark.parametrize("number", IN_SITTINGS)
def test_two_sittings_take_as_long_as_a_chapter_says(number):
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    first, second = re.search(r"sittings of (\d+) and (\d+)", notebook.cells[0].source).groups()
    chapter_min = int(course_map.facts(notebook)["minutes"])
    assert int(first) + int(second) == chapter_min

    last = IN_SITTINGS[number]
    prose = "\n".join(cell.source for cell in notebook.cells)
    assert f"**First sitting**, parts 1 to {last}" in prose
    counted = teaching.minutes_of(ROOT, f"{number} 1-{last}").total()
    assert abs(int(first) - counted) <= MARGIN_MIN, f"counted: {counted:.0f}"


@pytest.mark.parametrize("number", [path.name[:2] for path in NOTEBOOKS])
@pytest.mark.parametrize("page", ["README.md", "source/zh/README.po"])
def test_the_front_page_says_the_minutes_of_a_chapter_as_the_chapter_does(page, number):
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    minutes = course_map.facts(notebook)["minutes"]
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = re.findall(rf"\| {number} \| .*?\| (\d+) \| [^|]+\|\"?$", text, re.MULTILINE)
    assert rows
    assert set(rows) == {minutes}


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_a_lab_takes_about_as_long_as_it_says(path):
    first_cell = nbformat.read(path, as_version=4).cells[0].source
    said = int(re.search(r"(\d+) minutes", first_cell)[1])
    counted = teaching.minutes_of(ROOT, f"lab {path.name[:2]}").total()
    assert 0.7 * counted <= said <= 1.4 * counted, f"counted: {counted:.0f}"


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_a_lab_takes_as_long_as_its_exercises_say_together(path):
    first_cell, *cells = nbformat.read(path, as_version=4).cells
    said = int(re.search(r"(\d+) minutes", first_cell.source)[1])
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    together = sum(int(minutes) for minutes in teaching.STATED.findall(prose))
    assert abs(said - together) < 5, f"together: {together}"  # both are rounded


def test_minutes_are_reading_writing_and_running():
    stub = 'def answer():\n    raise NotImplementedError("about 5 lines")'
    cells = [
        nbformat.v4.new_markdown_cell("# In 99 minutes"),
        nbformat.v4.new_markdown_cell("## 1 · " + "word " * 141 + "*Importance ●●○ · 8 minutes.*"),
        nbformat.v4.new_code_cell(stub),
        nbformat.v4.new_markdown_cell("**Write** (3 minutes) a page."),
        nbformat.v4.new_code_cell("x = 1\n\n" * 4),
        nbformat.v4.new_code_cell('held = predict("rank 3 holds", ...)'),
        nbformat.v4.new_code_cell("y = 1\n" * 60, metadata={"jupyter": {"source_hidden": True}}),
    ]
    (part,) = teaching.parts(nbformat.v4.new_notebook(cells=cells), [90])
    assert part.minutes == pytest.approx(((3 + 1 + 141 + 4 + 4) / 150 + 7 / 6 + 1, 5 + 3, 1.5))


def test_running_times_of_other_parts_are_refused():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("## 1 · One")])
    with pytest.raises(ValueError, match="measure them again"):
        teaching.parts(notebook, [1, 2])


def test_all_checkpoint_questions_have_their_answers():
    notebooks = course_map.chapters().values()
    asked = "".join(c.source for n in notebooks for c in n.cells).count("**Check yourself.**")
    found = [q for n in notebooks for part in teaching.parts(n) for q in part.questions]
    assert len(found) == asked >= 60
    text = (ROOT / "teaching/lessons.md").read_text()
    assert all(answer in text for _, answer in found)


def test_all_predictions_are_in_the_lessons_page():
    text = (ROOT / "teaching/lessons.md").read_text()
    asked = [
        what
        for path in sorted((ROOT / "source/lessons").glob("*.py"))
        for what in re.findall(r'= predict\(\s*"([^"]+)"', path.read_text())
    ]
    assert len(asked) > 70
    assert [what for what in asked if what not in text] == []


def test_pairs_write_what_is_left_to_write_and_no_finished_form():
    notebooks = course_map.chapters().items()
    written = {
        path.name[:2]: [n for part in teaching.parts(own) for n in part.written]
        for path, own in notebooks
    }
    assert written["12"] == ["my_half", "my_top_k", "my_low_rank", "my_fastest"]
    assert written["13"] == [
        "bytes_per_rank", "MyZero1", "MyZero2", "MyZero3", "MyRecompute", "train",
    ]  # fmt: skip
    assert written["04"] == ["train", "spread", "join", "train_epoch", "save"]
    assert written["03"] == ["ring_step"]
    assert not {"finished_step", "OurDDP"} & {name for own in written.values() for name in own}


def test_every_vote_names_its_choices():
    text = (ROOT / "teaching/lessons.md").read_text()
    assert re.findall(r"\*\*vote:\*\* ([^;|]+[^;|) ])(?: \||;)", text) == []
    assert "all_reduce of 3 and 4 numbers (hangs, lies, dies)" in text


def test_what_degrades_speaks_of_every_extra_that_a_learner_or_teacher_can_have():
    text = (ROOT / "teaching/what_degrades.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set(project["optional-dependencies"]) - {"test", "bench"}
    assert [name for name in wanted if f"the extra `{name}`" not in text] == []


def test_the_computed_pages_are_what_notebooks_and_plans_say():
    assert teaching.main(["--check"]) == 0


@pytest.mark.parametrize("where", ["02 0", "02 3-2", "02 99", "lab 02 9"])
def test_a_part_that_is_not_there_is_refused(where):
    with pytest.raises(ValueError, match=r"there are \d+ parts"):
        teaching.minutes_of(ROOT, where)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_of_the_book_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
    gone = [to for to in links if "://" not in to and not (page.parent / to).exists()]
    assert gone == []


def test_misconceptions_name_wrong_answers_that_are_in_the_catalogue():
    text, gone, lab = (ROOT / "teaching/misconceptions.md").read_text(), [], []
    for line in text.splitlines():
        if line.startswith("## "):
            numbers = re.findall(r"\b\d\d\b", line)
            files = [p for n in numbers for p in (ROOT / "tests").glob(f"l*/wrong/{n}_*.py")]
            lab = [path.read_text() for path in files]
        elif name := re.search(r"\| `(\w+)` \|$", line):
            gone += [name[1]] * (not any(name[1] in known for known in lab))
    assert gone == []
    assert text.count("| `") > 50


@pytest.mark.parametrize("page", ["board", "misconceptions"])
def test_a_page_speaks_of_every_chapter(page):
    heads = re.findall(r"^## (.+)$", (ROOT / f"teaching/{page}.md").read_text(), re.M)
    spoken = {number for head in heads for number in re.findall(r"\b\d\d\b", head)}
    assert spoken == {path.name[:2] for path in course_map.chapters()}


def test_a_sketch_for_the_board_fits_on_one_and_stands_below_its_chapter():
    _, *parts = re.split(r"^## ", (ROOT / "teaching/board.md").read_text(), flags=re.M)
    for part, notebook in zip(parts, course_map.chapters().values(), strict=True):
        title, sketch = part.split("\n", 1)[0], re.findall(r"```text\n(.+?)```", part, re.S)
        assert title[5:] == course_map.facts(notebook)["title"]
        assert len(sketch) == 1, title
        assert len(sketch[0].splitlines()) <= 11, title
        assert max(map(len, sketch[0].splitlines())) <= 92, title
        assert "**Ask" in part or title.startswith("11"), title


def test_marked_examples_have_the_points_that_their_rows_add_up_to():
    text = (ROOT / "teaching/rubric.md").read_text()
    examples = re.findall(r"> \*\*(\d+) points?\.\*\*.+?\n\n(\d(?: \+ \d)+)?", text)
    assert len(examples) == 6
    sums = [(total, row) for total, row in examples if row]
    assert len(sums) == 6
    assert all(int(total) == sum(map(int, row.split(" + "))) for total, row in sums)
