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


def _tables() -> dict[str, dict[str, str]]:
    """Returns by chapter what `source/devices.toml` says of its workers."""
    text = (build.ROOT / "source/devices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["workers"]


def workers() -> dict[str, dict[str, str]]:
    """Returns by chapter each worker and how it is run; an empty text where it is not."""
    tables = _tables()
    for table in tables.values():
        table.pop("prepare", None)
    return tables


def prepared(chapter: str) -> dict[str, Any]:
    """Returns the names in which a chapter's workers are run."""
    names = definitions(notebook(chapter))
    preparation = _tables()[chapter].get("prepare", "")
    exec(preparation, names)
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
            if not starts_nothing(node):
                continue
            program = compile(ast.Module([node], []), f"<code cell {number}>", "exec")
            beside = mock.patch.object(sys, "path", path)
            # It may need what a launch has returned or has filled in, or its own source.
            with contextlib.suppress(NameError, KeyError, OSError), beside:
                exec(program, names)
    return names


def starts_nothing(node: ast.AST) -> bool:
    """Returns whether a statement imports, defines, or assigns what nothing has to start for."""
    if isinstance(node, DEFINES):
        return True
    return isinstance(node, ASSIGNS) and not does(node)


def does(node: ast.AST) -> bool:
    """Returns whether a statement starts, shows or judges something."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            name = getattr(part.func, "id", getattr(part.func, "attr", ""))
            if name in DOES:
                return True
    return False
