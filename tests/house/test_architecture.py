"""The house stands: no circle, no arrow up, nothing longer than it may be."""

import sys
from pathlib import Path

import pytest

from course_tools.quality import architecture


@pytest.fixture
def house(tmp_path):
    """Returns a function that builds a house of modules, each with its text."""

    def build(**modules: str) -> dict[str, Path]:
        for name, text in {"": "_ROOMS = {'launch': 'x'}", **modules}.items():
            inside = [] if name.startswith("course_") else ["course_utils"]
            path = tmp_path.joinpath(*inside, *filter(None, name.split("__")))
            folder = path if not name or name.count("__") == 0 else path.parent
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
            (path.with_suffix(".py") if folder != path else path / "__init__.py").write_text(text)
        return architecture.modules(tmp_path)

    return build


TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import course_utils.record.log"


@pytest.mark.parametrize("text", ["def f():\n    from course_utils.record import log", TYPED])
def test_an_arrow_up_is_found_wherever_the_import_stands(house, text):
    known = house(launcher__team=text, record__log="")
    assert architecture.problems(known) == ["an arrow up: launcher.team imports record.log"]


def test_a_room_that_may_import_two_modules_of_another_may_import_no_third(house):
    known = house(
        network__replay="from course_utils.record import event, log",
        record__event="",
        record__log="",
    )
    assert architecture.problems(known) == ["an arrow up: network.replay imports record.log"]


def test_a_library_that_knows_who_judges_its_answers_is_found(house):
    known = house(launcher__rank="import course_checks.check", course_checks__check="")
    assert architecture.problems(known) == [
        "an arrow up: launcher.rank imports course_checks.check",
        "a package from outside: launcher.rank imports course_checks",
    ]


def test_material_that_knows_the_launcher_is_found(house, tmp_path):
    (tmp_path / "course_material").mkdir()
    (tmp_path / "course_material/text.py").write_text("from course_utils import launch")
    speaks = "from course_utils.launcher.language import _"
    (tmp_path / "course_material/form.py").write_text(speaks)
    found = "an arrow up: course_material/text.py imports course_utils"
    assert architecture.problems(house(), tmp_path) == [found]


def test_a_library_that_knows_the_tools_is_found(house):
    known = house(launcher__rank="import course_tools.site.pages", course_tools__site__pages="")
    assert architecture.problems(known) == [
        "an arrow up: launcher.rank imports course_tools.site.pages",
        "a package from outside: launcher.rank imports course_tools",
    ]


def test_a_room_of_the_tools_that_imports_one_it_may_not_is_found(house):
    known = house(
        course_tools__notebooks__build="from course_tools.grading import grade",
        course_tools__grading__grade="",
    )
    found = "an arrow up: course_tools.notebooks.build imports course_tools.grading.grade"
    assert architecture.problems(known) == [found]


def test_a_tool_that_leans_on_the_tests_is_found(house, tmp_path):
    helpers = tmp_path / "tests/helpers"
    helpers.mkdir(parents=True)
    (helpers / "labs.py").touch()
    known = house(course_tools__quality__mutants="import json\nimport labs")
    found = "a part of the tests: course_tools.quality.mutants imports labs"
    assert architecture.problems(known, tmp_path) == [found]


def test_a_circle_within_a_room_is_found(house):
    one, two = (f"from course_utils.hang.{name} import x" for name in ("two", "one"))
    (found,) = architecture.problems(house(hang__one=one, hang__two=two))
    assert "hang.one <- hang.two" in found or "hang.two <- hang.one" in found


def test_a_circle_between_rooms_is_found(house):
    up, down = "import course_utils.hang.b", "import course_utils.record.a"
    found = architecture.problems(house(record__a=up, hang__b=down, record__c="", hang__d=""))
    assert any("record" in line and "a circle" in line for line in found)
    assert "an arrow up: record.a imports hang.b" in found


def test_a_package_that_a_room_must_do_without_is_found(house):
    known = house(network__model="import math, torch", launcher__rank="import torch, numpy")
    assert architecture.problems(known) == [
        "a package from outside: launcher.rank imports numpy",
        "a package from outside: network.model imports torch",
    ]


def test_a_room_that_has_grown_too_large_is_found(house):
    most = architecture.NODES["launcher"]
    known = house(launcher__team="x = 1\n" * most)  # three nodes each
    assert architecture.problems(known) == [f"launcher: {3 * most} nodes, at most {most}"]


def test_docstrings_do_not_count(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""Why."""\nx = 1\n')
    assert architecture.nodes(file) == len(["Assign", "Name", "Constant"])


def test_too_many_public_names_are_found(house):
    known = house()
    most = architecture.PUBLIC_NAMES
    known["course_utils"].write_text(f"_ROOMS = {dict.fromkeys(map(str, range(most + 1)))}")
    assert architecture.problems(known) == [f"{most + 1} public names, at most {most}"]


def test_the_house_stands():
    assert list(architecture.problems(architecture.modules())) == []


def test_the_command_prints_every_room_with_its_size(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["architecture"])
    architecture.main()
    rooms = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(architecture.ALLOWED) <= set(rooms)
