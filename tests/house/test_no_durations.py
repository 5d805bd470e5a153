"""No test asserts how long something took: that fails on a slower or busier machine.

Speed belongs into `course_tools.measure.bench`, as a ratio. What a promise names ("stopped within
two seconds") is waited for with a deadline of ten times as much (helpers/deadline.py), and is
not measured.

The rule: no `assert` may compare by <, <=, > or >= what stems from a clock. Within a function a
name stems from a clock if it was assigned, or was appended, an expression with a clock's call or
with such a name; a function of the same file stems from one if it returns such an expression.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def from_a_clock(node: ast.AST | None, names: set[str]) -> bool:
    """Whether an expression reads a clock, or something that did."""
    return any(
        (isinstance(part, ast.Attribute) and ast.unparse(part) in {f"time.{c}" for c in CLOCKS})
        or (isinstance(part, ast.Name) and part.id in names)
        for part in (ast.walk(node) if node else ())
    )


def taken_in(node: ast.AST) -> tuple[list[ast.AST], ast.AST | None]:
    """What a statement assigns to, and what it assigns; `x.append(y)` does so as well."""
    if isinstance(node, ast.Assign):
        return node.targets, node.value
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return [node.target], node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return ([node.func.value], node.args[0]) if node.func.attr == "append" else ([], None)
    return [], None


def clocked(function: ast.AST, names: set[str]) -> set[str]:
    """The names in a function that stem from a clock."""
    while True:
        more = {
            part.id
            for node in ast.walk(function)
            for targets, value in [taken_in(node)]
            if from_a_clock(value, names)
            for target in targets
            for part in ast.walk(target)
            if isinstance(part, ast.Name)
        }
        if more <= names:
            return names
        names = names | more


def durations(source: str) -> list[int]:
    """The lines of a test file that assert a duration."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTION)]
    returning = {
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and from_a_clock(node.value, clocked(function, set()))
    }
    return sorted(
        {
            compared.lineno
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Assert)
            for compared in ast.walk(node.test)
            if isinstance(compared, ast.Compare) and isinstance(compared.ops[0], ORDER)
            if from_a_clock(compared, clocked(function, returning))
        }
    )


@pytest.mark.parametrize(
    "body",
    [
        "start = time.monotonic(); run(); assert time.monotonic() - start < 2",
        "start = time.perf_counter(); spent = time.perf_counter() - start; assert 2 >= spent",
        "times = []; times.append(time.thread_time()); assert median(times) < 3",
    ],
)
def test_an_assertion_of_a_duration_is_found(body):
    assert durations(f"def test_x(): {body}") == [1]


def test_one_behind_a_function_is_found_and_a_deadline_is_none():
    source = "def spent():\n    return time.time()\ndef test_x():\n    assert spent() < 5\n"
    assert durations(source) == [4]
    assert durations("def f():\n    while time.monotonic() < end: pass\n    assert done") == []


def test_no_test_asserts_a_duration():
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (lines := durations(path.read_text(encoding="utf-8")))
    }
    assert found == {}
