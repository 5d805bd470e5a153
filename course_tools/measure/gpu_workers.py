"""What chapters run in ranks where there are GPUs, by itself, without the rest of a chapter.

`source/devices.toml` has it. tests/lessons/test_second_device.py runs each on a pretended GPU, and
`make gpu` on real ones.
"""

import ast
import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

from nbformat import NotebookNode

from course_tools.notebooks import build
from course_tools.texts import read_toml

DOES = {
    "launch",
    "check",
    "predict",
    "show",
    "print",
    "display",
    "hardware",
    "measured",
    "torchrun",
}
DEFINES = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
ASSIGNS = ast.Assign | ast.AugAssign
# A statement may need what a launch has returned or has filled in, or its own source.
NEEDS_WHAT_IS_NOT_THERE = NameError, KeyError, OSError


class Starts(Exception):
    """A statement would start ranks, which costs seconds each time."""


def _tables(kind: str = "workers") -> dict[str, Any]:
    """Returns by chapter what a part of `source/devices.toml` says of it or of its workers."""
    path = build.ROOT / "source/devices.toml"
    devices = read_toml(path)
    return devices[kind]


def workers() -> dict[str, dict[str, str]]:
    """Returns by chapter each worker that a pretended GPU can run, and how it is run."""
    return _without_preparation(_tables())


def only_on_gpus() -> dict[str, dict[str, str]]:
    """Returns by chapter each worker that only real GPUs can run, and how it is run."""
    return _without_preparation(_tables("only_on_gpus"))


def left_out() -> dict[str, dict[str, str]]:
    """Returns by chapter each worker that is not run by itself, and why."""
    return _tables("left_out")


def on_real_gpus() -> dict[str, dict[str, str]]:
    """Returns by chapter, in order, each worker that real GPUs run, and how it is run."""
    both: dict[str, dict[str, str]] = {}
    for tables in (workers(), only_on_gpus()):
        for chapter, table in tables.items():
            both[chapter] = both.get(chapter, {}) | table
    return dict(sorted(both.items()))


def on_the_cpu_alone() -> dict[str, str]:
    """Returns the chapters of which nothing runs on a GPU, each with the reason."""
    of_gpus = on_real_gpus()
    reasons = _tables("why") | _tables("launches_nothing")
    return {chapter: why for chapter, why in reasons.items() if chapter not in of_gpus}


def _without_preparation(tables: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Returns the tables without what is run before their workers."""
    for table in tables.values():
        table.pop("prepare", None)
    return tables


def prepared(chapter: str) -> dict[str, Any]:
    """Returns the names in which a chapter's workers are run."""
    lesson = notebook(chapter)
    names = definitions(lesson)
    for kind in ("workers", "only_on_gpus"):
        table = _tables(kind).get(chapter, {})
        exec(table.get("prepare", ""), names)
    return names


def notebook(chapter: str) -> NotebookNode:
    """Returns a chapter, such as "04", as its source has it."""
    targets = build.targets(build.ROOT, [chapter])
    lesson = targets[0]
    assert lesson.source.parent.name == "lessons"
    return build.plan(lesson)


def definitions(lesson: NotebookNode) -> dict[str, Any]:
    """Runs imports, definitions and those assignments that start nothing; returns the names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    # Chapter 04 imports a script that lies beside it.
    notebooks = build.ROOT / "notebooks"
    path = [*sys.path, str(notebooks)]
    code_cells = [cell for cell in lesson.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code_cells):
        label = f"<code cell {number}>"
        tree = ast.parse(cell.source)
        for statement in tree.body:
            if not starts_nothing(statement):
                continue
            module = ast.Module([statement], [])
            program = compile(module, label, "exec")
            beside = mock.patch.object(sys, "path", path)
            undefined = contextlib.suppress(Starts, *NEEDS_WHAT_IS_NOT_THERE)
            with undefined, beside, no_ranks():
                exec(program, names)
    return names


@contextlib.contextmanager
def no_ranks() -> Iterator[None]:
    """Raises Starts where a launch is about to begin, however many functions lead there."""

    def refuse(*_: Any) -> None:
        raise Starts

    # By its name: in the package, `launch` is the function.
    module = importlib.import_module("course_utils.launcher.launch")
    with mock.patch.object(module, "WorkerGroup", refuse):
        yield


def starts_nothing(statement: ast.AST) -> bool:
    """Returns whether a statement imports, defines, or assigns what nothing has to start for."""
    if isinstance(statement, DEFINES):
        return True
    if not isinstance(statement, ASSIGNS):
        return False
    return not does(statement)


def does(statement: ast.AST) -> bool:
    """Returns whether a statement starts, shows or judges something."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in DOES:
                return True
            case ast.Call(func=ast.Attribute(attr=name)) if name in DOES:
                return True
    return False
