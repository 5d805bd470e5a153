"""The course map: every row of the articles has a cell that was run, and the map says which."""

import re

import nbformat
import pytest

from course_tools.notebooks import course_map

NOTEBOOKS = course_map.ROOT / "notebooks"
EXERCISES = course_map.ROOT / "exercises"
LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.fixture
def course(monkeypatch):
    """The whole course in memory, to be changed; `rows()` are those that still have their cell."""
    notebooks = course_map.chapters() | course_map.labs()
    monkeypatch.setattr(course_map, "chapters", lambda root: notebooks)
    monkeypatch.setattr(course_map, "labs", lambda root: {})
    return [cell for notebook in notebooks.values() for cell in notebook.cells]


def tags_of(row: str) -> set[str]:
    return {f"row-{row}"}


def test_every_row_of_the_articles_has_its_cell_and_every_tag_its_row():
    assert course_map.missing() == []


def test_the_map_is_what_the_notebooks_say():
    path = NOTEBOOKS / "README.md"
    assert path.read_text(encoding="utf-8") == course_map.text(), "make notebooks writes it anew"


@pytest.mark.parametrize("row", ["A1", "C9", "D4", "E2"])
def test_a_row_whose_cells_go_is_missed(course, row):
    for cell in course:
        cell.metadata["tags"] = set(cell.metadata.get("tags", [])) - tags_of(row)
    assert course_map.missing() == [f"{row}: no cell that was run carries the tag row-{row}"]


def test_a_cell_that_was_not_run_does_not_count(course):
    for cell in course:
        if "row-A2" in cell.metadata.get("tags", []):
            cell.execution_count = None
    assert [line[:2] for line in course_map.missing()] == ["A2"]


def test_a_tag_for_a_row_that_does_not_exist_is_found(course):
    course[-1].metadata["tags"] = ["row-Z1"]
    course[-1] |= {"execution_count": 1, "outputs": [nbformat.v4.new_output("stream")]}
    assert course_map.missing() == ["row-Z1: no such row"]


def test_a_chapter_that_does_not_say_how_long_it_takes_is_an_error():
    lesson = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 00 \u00b7 New")])
    with pytest.raises(ValueError, match=r"question as .* minutes as .* hardware as") as told:
        course_map.facts(lesson)
    assert "below `# 00 \u00b7 New` does not say" in str(told.value)
    assert "minutes as in `30 minutes`" in str(told.value)


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_who_breaks_a_first_cell_reads_a_sentence_and_no_traceback(monkeypatch, capsys, arguments):
    def lost(*_):
        raise ValueError("the first cell below `# 00` does not say its minutes")

    monkeypatch.setattr(course_map, "text", lost)
    assert course_map.main(arguments) == 1
    assert "does not say its minutes" in capsys.readouterr().err


def backends(notebook) -> set[str]:
    return {backend for _, backend in course_map.launches(notebook)}


def test_every_chapter_whose_launches_say_gloo_says_why_and_no_other():
    gloo = {p.name[:2] for p, n in course_map.chapters().items() if "gloo" in backends(n)}
    assert gloo == set(course_map.reasons())


def test_in_a_chapter_that_is_made_for_both_a_comment_says_why_a_launch_takes_gloo():
    silent = []
    for path, notebook in course_map.chapters().items():
        if not {"auto", "gloo"} <= backends(notebook) or path.name[:2] in ("01", "14"):
            continue  # these two use several GPUs in one cell, which is not run without
        for cell in notebook.cells:
            says_gloo = cell.cell_type == "code" and 'backend="gloo"' in cell.source
            if says_gloo and "# " not in cell.source:
                silent.append(f"{path.name}: {cell.source}")
    assert silent == []


def test_a_launch_is_counted_by_what_it_says():
    code = "launch(f)\nlaunch(f, backend='gloo')\n[launch(g, 1, backend=None) for _ in x]"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    assert course_map.launches(notebook) == [("f", "auto"), ("f", "gloo"), ("g", "own")]


def links_at_the_end(path):
    """The notebooks and the map that its last two Markdown cells lead to, by name."""
    cells = nbformat.read(path, as_version=4).cells
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\(([^)#]*?(?:\.ipynb|README\.md))\)", "\n".join(prose[-2:]))
    return {(path.parent / link).resolve() for link in links}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem[:2])
def test_a_lesson_ends_with_its_lab_and_with_what_comes_next(lesson):
    ends = links_at_the_end(lesson)
    lab = EXERCISES / lesson.name
    assert not lab.exists() or lab in ends
    assert {path for path in ends if path.parent == NOTEBOOKS} - {lesson}


@pytest.mark.parametrize("lab", sorted(EXERCISES.glob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_a_lab_ends_with_a_link_onward(lab):
    assert links_at_the_end(lab) - {NOTEBOOKS / lab.name, lab}


def test_whoever_follows_these_links_comes_from_the_first_lesson_to_the_last():
    nexts = {lesson: links_at_the_end(lesson) & set(LESSONS) for lesson in LESSONS}
    reached, found = set(), {LESSONS[0]}
    while found - reached:
        reached |= found
        found = set().union(*(nexts[lesson] for lesson in reached))
    assert [lesson.stem for lesson in LESSONS if lesson not in reached] == []
