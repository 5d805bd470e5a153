"""What a chapter's cells define, without what they do."""

import ast
import contextlib
import sys
from typing import Any
from unittest import mock

from nbformat import NotebookNode

import build

DOES = {"launch", "check", "predict", "show", "print", "display", "hardware", "measured"}
DEFINES = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
ASSIGNS = ast.Assign | ast.AugAssign


def notebook(chapter: str) -> NotebookNode:
    """A chapter, such as "04", as its source has it."""
    target = build.targets(build.HERE, [chapter])[0]
    assert target.source.parent.name == "lessons"
    return build.plan(target)


def definitions(chapter: str) -> dict[str, Any]:
    """Run a chapter's imports, definitions and those assignments that start nothing."""
    names: dict[str, Any] = {"__name__": "__main__"}
    # Chapter 04 imports a script that lies beside it.
    beside = mock.patch.object(sys, "path", [*sys.path, str(build.HERE / "notebooks")])
    code = [cell.source for cell in notebook(chapter).cells if cell.cell_type == "code"]
    for number, text in enumerate(code):
        for node in ast.parse(text).body:
            if isinstance(node, DEFINES) or (isinstance(node, ASSIGNS) and not does(node)):
                where = f"<chapter {chapter}, code cell {number}>"
                # It may need what a launch has returned, or its own source.
                with contextlib.suppress(NameError, OSError), beside:
                    exec(compile(ast.Module([node], []), where, "exec"), names)
    return names


def does(node: ast.AST) -> bool:
    """Whether a statement starts, shows or judges something."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(getattr(call, "id", getattr(call, "attr", "")) in DOES for call in calls)
