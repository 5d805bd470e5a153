"""Two circles of tests, and no test that stands in neither."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import circles
import pytest
import spent
from _pytest.mark.expression import Expression

ROOT = Path(__file__).resolve().parents[2]
# pytest, with a list of what it collects at the end.
LIST = """
import json, sys, pytest

class Names:
    def pytest_collection_finish(self, session):
        marks = lambda item: [mark.name for mark in item.iter_markers()]
        self.line = json.dumps([(item.nodeid, marks(item)) for item in session.items])

names = Names()
status = pytest.main(sys.argv[1:], plugins=[names])
print("\\n" + names.line)
sys.exit(status)
"""


def collected() -> dict[str, set[str]]:
    """The names of all tests and cells but those of `make soak`, and the marks of each."""
    command = "--collect-only -q --nbval --nbval-current-env --ignore-glob=*/zh/*"
    places = ("tests", "notebooks", "exercises", "solutions")
    done = subprocess.run(
        [sys.executable, "-c", LIST, *command.split(), "-m", "not soak", *places],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return {name: set(marks) for name, marks in json.loads(done.stdout.splitlines()[-1])}


def chosen_by(target: str, names: dict[str, set[str]]) -> set[str]:
    """The names that a target asks for, by the marks in its recipe."""
    recipe = (ROOT / "source/targets.mk").read_text().split(f"\n{target}: ")[1].split("\n\n")[0]
    asked = Expression.compile(re.search(r'-m "([^"]+)"', recipe)[1])
    return {name for name, marks in names.items() if asked.evaluate(marks.__contains__)}


@pytest.fixture(scope="module")
def everything() -> dict[str, set[str]]:
    return collected()


def test_every_test_stands_in_a_circle(everything):
    inner, outer = chosen_by("test", everything), chosen_by("rest", everything)
    assert inner | outer == everything.keys()
    assert inner - outer
    assert outer - inner
    unread = {name for name in everything if circles.is_wholly_outer(name.split("::")[0])}
    assert unread  # for `make test`, files that have these are not even read
    assert not unread & inner


def test_every_pattern_names_a_test(everything):
    items = [SimpleNamespace(nodeid=name) for name in everything]
    assert circles.unmatched(items) == []


def test_every_exercise_is_asked_about_a_wrong_answer_in_the_inner_circle(everything):
    first = {name for name in everything if "test_a_first_wrong_answer_is_rejected" in name}
    all_of_them = {name for name in everything if "test_wrong_answers_are_rejected[" in name}
    labs = {name for name in all_of_them if name.startswith("tests/labs/test_labs")}
    assert len(first) == len(labs) > 50


def test_a_process_that_ends_while_its_children_are_counted_has_none(monkeypatch):
    def glob(path, _pattern):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "glob", glob)
    assert spent.descendants(1) == []
