"""Which cells above a cell needs: read off their syntax, so that no more of them have to run.

JupyterLab's button "Run what it needs" asks this in the learner's kernel (`course.js`).
"""

import ast
import symtable
from collections.abc import Iterator

# Calls that change nothing in the kernel: they show, judge, or run in ranks of their own.
_CHANGE_NOTHING = {"check", "display", "launch", "print", "progress"}
# Names that hide what a cell makes or needs.
_HIDE_NAMES = {"eval", "exec", "get_ipython", "globals", "locals"}


def needed(sources: list[str], wanted: str) -> list[int]:
    """Tell which cells a cell needs, directly or by way of other cells.

    A cell is needed if it makes a name that is used, or may change its value. What is changed under
    a second name, or inside a function whose result is kept, is not seen.

    Args:
        sources: The code cells above, from the top.
        wanted: The cell that is to run after them.

    Returns:
        Their numbers, in order: all of them where a cell can't be read so, as one with `%magics`.
    """
    everything = list(range(len(sources)))
    try:
        names = _used(_table(wanted))
        cells = [(_touched(source), _used(_table(source))) for source in sources]
    except SyntaxError:
        return everything
    found: set[int] = set()
    before = -1
    while before < len(found):
        before = len(found)
        for number, (touched, used) in enumerate(cells):
            if touched & names:
                found.add(number)
                names |= used
    if names & _HIDE_NAMES:
        return everything
    return sorted(found)


def _table(source: str) -> symtable.SymbolTable:
    return symtable.symtable(source, "cell", "exec")


def _used(table: symtable.SymbolTable) -> set[str]:
    """Names that have to come from somewhere: of a function, those that aren't its own."""
    is_cell = table.get_type() == "module"
    used = set()
    for symbol in table.get_symbols():
        if symbol.is_declared_global() and symbol.is_assigned():
            raise SyntaxError("a function that changes a cell's name can be called anywhere")
        if symbol.is_referenced() and (is_cell or symbol.is_global()):
            used.add(symbol.get_name())
    for inner in table.get_children():
        used |= _used(inner)
    return used


def _touched(source: str) -> set[str]:
    """Names that a cell makes, and those whose values it may change."""
    touched = set()
    for symbol in _table(source).get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            touched.add(symbol.get_name())
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            touched.update(_changed(statement))
    return touched


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names in `x[0] = 1`, `x.rate = 1`, and in a call whose result isn't kept: `x.append(y)`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            raise SyntaxError("nobody knows what it imports")
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _owner(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Name) and call.func.id in _CHANGE_NOTHING:
                continue
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            if isinstance(call.func, ast.Attribute):
                values.append(call.func)
            for value in values:
                yield from _owner(value)


def _owner(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
