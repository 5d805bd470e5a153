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
    count = len(sources)
    everything = list(range(count))
    try:
        names = _used_in(wanted)
        touched = [_touched(source) for source in sources]
        used = [_used_in(source) for source in sources]
    except SyntaxError:
        return everything
    numbers: set[int] = set()
    count_before = -1
    while len(numbers) > count_before:  # a cell that is needed may need others
        count_before = len(numbers)
        for number in everything:
            if touched[number] & names:
                numbers.add(number)
                names |= used[number]
    if names & _HIDE_NAMES:
        return everything
    return sorted(numbers)


def _table(source: str) -> symtable.SymbolTable:
    return symtable.symtable(source, "cell", "exec")


def _used_in(source: str) -> set[str]:
    """Names that have to come from somewhere before a cell can run."""
    table = _table(source)
    return _used(table)


def _used(table: symtable.SymbolTable) -> set[str]:
    """Names that have to come from somewhere: of a function, those that aren't its own."""
    type_of_table = table.get_type()
    is_cell = type_of_table == "module"
    used = set()
    for symbol in table.get_symbols():
        changes_a_cells_name = symbol.is_declared_global() and symbol.is_assigned()
        if changes_a_cells_name:
            raise SyntaxError("a function that changes a cell's name can be called anywhere")
        if not symbol.is_referenced():
            continue
        if is_cell or symbol.is_global():
            name = symbol.get_name()
            used.add(name)
    for inner in table.get_children():
        used |= _used(inner)
    return used


def _touched(source: str) -> set[str]:
    """Names that a cell makes, and those whose values it may change."""
    touched = set()
    table = _table(source)
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            name = symbol.get_name()
            touched.add(name)
    tree = ast.parse(source)
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        changed = _changed(statement)
        touched.update(changed)
    return touched


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names in `x[0] = 1`, `x.rate = 1`, and in a call whose result isn't kept: `x.append(y)`."""
    for node in ast.walk(statement):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                raise SyntaxError("nobody knows what it imports")
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield from _owner(node)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from _owner(node)
            case ast.Expr(value=ast.Call() as call):
                yield from _changed_by_call(call)


def _changed_by_call(call: ast.Call) -> Iterator[str]:
    """Names whose values a call may change: those of its arguments, and the one before its dot."""
    function = call.func
    if isinstance(function, ast.Name) and function.id in _CHANGE_NOTHING:
        return
    for argument in call.args:
        yield from _owner(argument)
    for keyword in call.keywords:
        yield from _owner(keyword.value)
    if isinstance(function, ast.Attribute):
        yield from _owner(function)


def _owner(node: ast.expr) -> Iterator[str]:
    """The name that stands in front of all dots and brackets, if a name stands there."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
