"""What chapters run in ranks where there are GPUs, by itself, without the rest of a chapter.

`source/devices.toml` has it. tests/lessons/test_second_device.py runs each on a pretended GPU, and
`make gpu` on real ones.
"""

import ast
import contextlib
import sys
import tomllib
from typing import Any
from unittest import mock

from nbformat import NotebookNode

from course_tools.notebooks import build

DOES = {"launch", "check", "predict", "show", "print", "display", "hardware", "measured"}
DEFINES = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
ASSIGNS = ast.Assign | ast.AugAssign


def workers() -> dict[str, dict[str, str]]:
    """Returns by chapter each worker and how it is run; an empty text where it is not."""
    text = (build.ROOT / "source/devices.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)["workers"]
    for table in tables.values():
        table.pop("prepare", None)
    return tables


def prepared(chapter: str) -> dict[str, Any]:
    """Returns the names in which a chapter's workers are run."""
    names = definitions(notebook(chapter))
    text = (build.ROOT / "source/devices.toml").read_text(encoding="utf-8")
    exec(tomllib.loads(text)["workers"][chapter].get("prepare", ""), names)
    return names


def notebook(chapter: str) -> NotebookNode:
    """Returns a chapter, such as "04", as its source has it."""
    target = build.targets(build.ROOT, [chapter])[0]
    assert target.source.parent.name == "lessons"
    return build.plan(target)


def definitions(lesson: NotebookNode) -> dict[str, Any]:
    """Runs imports, definitions and those assignments that start nothing; returns the names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    # Chapter 04 imports a script that lies beside it.
    path = [*sys.path, str(build.ROOT / "notebooks")]
    code = [cell.source for cell in lesson.cells if cell.cell_type == "code"]
    for number, text in enumerate(code):
        for node in ast.parse(text).body:
            if isinstance(node, DEFINES) or (isinstance(node, ASSIGNS) and not does(node)):
                program = compile(ast.Module([node], []), f"<code cell {number}>", "exec")
                beside = mock.patch.object(sys, "path", path)
                # It may need what a launch has returned or has filled in, or its own source.
                with contextlib.suppress(NameError, KeyError, OSError), beside:
                    exec(program, names)
    return names


def does(node: ast.AST) -> bool:
    """Returns whether a statement starts, shows or judges something."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(getattr(call, "id", getattr(call, "attr", "")) in DOES for call in calls)
