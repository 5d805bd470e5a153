"""Two circles of tests, and no test that stands in neither."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import circles
import pytest

ROOT = Path(__file__).resolve().parents[2]


def collected(marks: str) -> set[str]:
    """The names of all tests and cells that these marks choose."""
    command = "-m pytest --collect-only -q --nbval --nbval-current-env --ignore-glob=*/zh/*"
    places = ("tests", "notebooks", "exercises", "solutions")
    done = subprocess.run(
        [sys.executable, *command.split(), "-m", marks, *places],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return {line for line in done.stdout.splitlines() if "::" in line}


def chosen_by(target: str) -> str:
    """The marks that a target asks for."""
    recipe = (ROOT / "source/targets.mk").read_text().split(f"\n{target}: ")[1].split("\n\n")[0]
    return re.search(r'-m "([^"]+)"', recipe)[1]


@pytest.fixture(scope="module")
def everything() -> set[str]:
    return collected("not soak")


def test_every_test_stands_in_a_circle(everything):
    inner, outer = collected(chosen_by("test")), collected(chosen_by("rest"))
    assert inner | outer == everything
    assert inner - outer
    assert outer - inner


def test_every_pattern_names_a_test(everything):
    items = [SimpleNamespace(nodeid=name) for name in everything]
    assert circles.unmatched(items) == []


def test_every_exercise_is_asked_about_a_wrong_answer_in_the_inner_circle(everything):
    first = {name for name in everything if "test_a_first_wrong_answer_is_rejected" in name}
    all_of_them = {name for name in everything if "test_wrong_answers_are_rejected[" in name}
    labs = {name for name in all_of_them if name.startswith("tests/labs/test_labs")}
    assert len(first) == len(labs) > 50
