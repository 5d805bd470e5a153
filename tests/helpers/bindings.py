"""Which names keep a learner's answer as it was when a later cell of the notebook ran?

A learner edits an answer, runs its cell, and runs its check again: that has to judge the new one.
It does not if a cell in between has evaluated the answer's name, as in `def ring(x, step=answer)`.
"""

import ast
import symtable
from collections.abc import Iterator
from typing import NamedTuple

EAGER = {"listcomp", "setcomp", "dictcomp", "genexpr"}  # these run as soon as they are reached


class Statement(NamedTuple):
    """One statement at the top of a cell, and the names of the notebook in it."""

    cell: int
    text: str
    binds: set[str]
    reads_now: set[str]  # when the statement runs
    reads_later: set[str]  # when a function is called that it defines


def statements(cells: list[str]) -> list[Statement]:
    """All statements of a notebook, in their order."""
    found = []
    modules = imported(cells)
    for number, cell in enumerate(cells):
        for node in ast.parse(cell).body:
            text = ast.unparse(node)
            now, later = _reads(symtable.symtable(text, "cell", "exec"))
            binds = _binds(node, text)
            if not isinstance(node, ast.Import | ast.ImportFrom):
                binds -= modules  # `chapter_08.draw(answer)` keeps nothing
            found.append(Statement(number, text, binds, now, later))
    return found


def imported(cells: list[str]) -> set[str]:
    """The names that a notebook's imports bind."""
    names = set()
    for cell in cells:
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names


def _reads(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Names of the notebook that a scope reads now, and those that it reads later."""
    is_top = table.get_type() == "module"
    of_the_notebook = (s for s in table.get_symbols() if is_top or s.is_global())
    now = {symbol.get_name() for symbol in of_the_notebook if symbol.is_referenced()}
    later: set[str] = set()
    for inner in table.get_children():
        inner_now, inner_later = _reads(inner)
        later |= inner_later
        if inner.get_type() == "class" or inner.get_name() in EAGER:
            now |= inner_now
        else:
            later |= inner_now
    return now, later


def _binds(node: ast.stmt, text: str) -> set[str]:
    """Names that a statement binds, or whose object it changes."""
    table = symtable.symtable(text, "cell", "exec")
    names = {s.get_name() for s in table.get_symbols() if s.is_assigned()}
    for part in _outside_of_functions(node):
        if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            names |= _root(part)  # box.answer = ..., box["answer"] = ...
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            names |= _root(part.value.func)  # answers.append(...)
    return names


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and its parts, without the bodies of the functions that it defines."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for part in ast.iter_child_nodes(node):
            yield from _outside_of_functions(part)


def _root(node: ast.expr) -> set[str]:
    """The name before the first dot or bracket, where there is one of these."""
    inner = node
    while isinstance(inner, ast.Attribute | ast.Subscript):
        inner = inner.value
    return {inner.id} if isinstance(inner, ast.Name) and inner is not node else set()


def reached(names: set[str], cells: list[Statement]) -> set[str]:
    """These names, and all that is read when they are used."""
    seen: set[str] = set()
    to_do = set(names)
    while to_do:
        name = to_do.pop()
        seen.add(name)
        for statement in cells:
            if name in statement.binds:
                to_do |= (statement.reads_now | statement.reads_later) - seen
    return seen


def checks(cells: list[str]) -> Iterator[tuple[int, set[str], set[str]]]:
    """Each call of check: its cell, the names in what it judges, and all names in it."""
    for number, cell in enumerate(cells):
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "check":
                yield number, _names(node.args[0]), _names(node)


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def answers(cut: list[str], whole: list[str]) -> Iterator[str]:
    """The functions and classes that a learner writes: of cells with a stub, cut and whole."""
    for cell, solved in zip(cut, whole, strict=True):
        if cell != solved or 'raise NotImplementedError("about' in cell:
            for node in ast.parse(cell).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield node.name


def kept(answer: str, cells: list[str]) -> Iterator[str]:
    """Say which names keep an old answer from its check, and in which statement."""
    known = statements(cells)
    home = next(s.cell for s in known if answer in s.binds)
    stale: dict[str, str] = {}
    for statement in known:
        holds = statement.reads_now & {answer, *stale}
        if statement.cell != home and holds:
            stale |= dict.fromkeys(statement.binds - {answer}, statement.text)
    for number, judged, used in checks(cells):
        if answer not in reached(judged, known):
            continue
        run_again = set().union(*(s.binds for s in known if s.cell == number))
        for name in (reached(used, known) & stale.keys()) - run_again:
            yield f"{name} keeps {answer} as it was in {stale[name].splitlines()[0]}"
