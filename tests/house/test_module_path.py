"""No package changes `sys.path`, which decides what an import means for the whole process.

Where one has to, the place stands here with its reason.
"""

import ast

from course_tools import ROOT
from course_tools.quality import architecture

JUSTIFIED = {
    "course_tools/learner/jupyterlab/jupyter_lab_config.py": "JupyterLab executes it as a file, "
    "and it imports what lies beside it; only the server is concerned",
    "course_utils/watch.py": "it runs a learner's script, for which the first entry is the "
    "script's folder",
    "course_tools/measure/gpu_items.py": "lessons import scripts that lie beside their notebooks",
}
CHANGES = {"append", "insert", "extend", "remove", "pop", "clear"}


def changes_the_path(source: str) -> bool:
    """Whether a source assigns to `sys.path`, or calls a method that changes it."""
    for node in ast.walk(ast.parse(source)):
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_method and node.func.attr in CHANGES and is_path(node.func.value):
            return True
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Subscript):
                target = target.value
            if is_path(target):
                return True
    return False


def is_path(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"


def test_a_change_is_found_in_any_form():
    assert changes_the_path("import sys\nsys.path.insert(0, 'x')")
    assert changes_the_path("import sys\nsys.path += ['x']")
    assert changes_the_path("import sys\nsys.path[:0] = ['x']")
    assert not changes_the_path("import sys\nprint(sys.path)\nsys.path_hooks.append(None)")


def test_only_justified_places_change_it():
    found = set()
    for folder in (*architecture.PACKAGES, architecture.MATERIAL):
        for path in (ROOT / folder).rglob("*.py"):
            if changes_the_path(path.read_text(encoding="utf-8")):
                found.add(str(path.relative_to(ROOT)))
    assert found <= set(JUSTIFIED)
