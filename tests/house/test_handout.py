"""A copy of the course for learners: it works, and no solution is in reach."""

import re

import pytest

import build
import cells
import handout


def test_a_repository_for_learners_has_no_solutions(tmp_path):
    handout.withheld(build.HERE, tmp_path / "course")
    names = {path.name for path in (tmp_path / "course").iterdir()}
    with pytest.raises(cells.BuildError, match="is there already"):
        handout.withheld(build.HERE, tmp_path / "course")
    assert {"course_utils", "exercises", "notebooks", "tools", "Makefile"} <= names
    assert not names & {"solutions", "source", "tests", "teaching", ".git", "my"}
    marked = "BEGIN " + "SOLUTION"
    assert not [p for p in (tmp_path / "course/exercises").glob("*") if marked in p.read_text()]
    readme = (tmp_path / "course/README.md").read_text()
    assert "    make lab" in readme
    assert "    make test" not in readme
    for path in (tmp_path / "course").rglob("*.md"):
        links = re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text())
        assert [to for to in links if not (path.parent / to).exists()] == [], path
