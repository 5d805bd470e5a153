"""A copy of the course for learners: it works, others can read it, and no solution is in reach."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_tools.grading import handout
from course_tools.learner import copies
from course_tools.notebooks import build, cells

ROOT = build.ROOT
TEXTS = {".py", ".md", ".po", ".json", ".jsonl", ".toml", ".txt"}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """Made by somebody whose files nobody else can read."""
    folder = tmp_path_factory.mktemp("h") / "course"
    before = os.umask(0o077)
    try:
        assert handout.main(["--to", str(folder), "--repository"]) == 0
    finally:
        os.umask(before)
    return folder


def squeezed(text: str) -> str:
    """Without blanks, however lines are indented."""
    return "".join(text.split())


def solutions() -> list[str]:
    labs = sorted((ROOT / "source/labs").glob("[0-9]*.py"))
    texts = [found[3] for lab in labs for found in cells.SOLUTION.finditer(lab.read_text())]
    return [squeezed(text) for text in texts]


def texts_of(folder: Path) -> list[str]:
    texts = []
    for path in folder.rglob("*"):
        if path.suffix == ".ipynb":
            cells_of = nbformat.read(path, as_version=4).cells
            texts.append(squeezed("\n".join(cell.source for cell in cells_of)))
        elif path.suffix in TEXTS:
            texts.append(squeezed(path.read_text(errors="replace")))
    return texts


def test_no_solution_is_in_reach(course):
    texts = texts_of(course)
    assert len(texts) > 100
    assert [answer for answer in solutions() if any(answer in text for text in texts)] == []
    published = texts_of(ROOT / "solutions")
    assert all(any(answer in text for text in published) for answer in solutions())


def test_nothing_speaks_of_files_that_are_not_there(course):
    assert not {"solutions", "teaching", ".git", "my"} & {path.name for path in course.iterdir()}
    assert (course / "AGENTS.md").read_bytes() == copies.ADVICE.read_bytes()
    for path in course.rglob("*.md"):
        links = re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text())
        assert [to for to in links if not (path.parent / to).exists()] == [], path
    for name in ("README.md", "README.zh.md", "exercises/README.md"):
        text = (course / name).read_text()
        assert not re.search("make test|make gpu|in `solutions/`|teaching/|CHANGELOG", text)
        assert "make lab" in text or "make progress" in text
        assert len(text.splitlines()) > 0.9 * len((ROOT / name).read_text().splitlines()) - 3
    done = subprocess.run(["make", "-C", course, "help"], capture_output=True, text=True)
    targets = set(re.findall(r"^([a-z-]+) ", done.stdout, re.M))
    assert targets == {
        "lab", "fresh", "quick", "progress", "challenge", "doctor", "clean", "help"
    }  # fmt: skip


def test_everybody_can_read_it(course):
    modes = {oct(p.stat().st_mode & 0o777): p for p in (course, *course.rglob("*"))}
    assert modes.keys() <= {"0o755", "0o644"}, modes


def test_a_folder_that_is_there_is_left_alone(course):
    with pytest.raises(cells.BuildError, match="is there already"):
        handout.withheld(ROOT, course)


def run(course: Path, *command: str, **environment: str) -> str:
    """What a command prints there; `.venv` is a link to the one of here."""
    done = subprocess.run(
        [sys.executable, *command], cwd=course, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_chinese_works_in_it(course, tmp_path):
    run(course, "-m", "course_tools.learner.workspace", COURSE_LANG="zh", COURSE_MY=str(tmp_path))
    assert "分钟" in (tmp_path / "zh/lab_02_process_groups.ipynb").read_text()
    english = len((course / "notebooks/README.md").read_text().splitlines())
    chinese = (tmp_path / "zh/course_map.md").read_text()
    assert "课程路线" in chinese
    assert len(chinese.splitlines()) > english / 2


def test_make_quick_finds_its_tests_in_it(course):
    """All of their imports, too; an administrator runs them."""
    said = run(course, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    assert int(re.search(r"(\d+)(?:/\d+)? tests collected", said)[1]) > 300
