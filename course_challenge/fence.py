"""What an entry to the challenge is made of: plain Python, tensors, and messages.

An entry is the text of one cell. Its functions and assignments count, and run in ranks alone. What
could lead out of it (modules, names with two underscores, attributes that are no tensor's and no
list's) is refused before a rank starts; so an entry reaches no store, file, clock or memory, and
no collective under whatever name.
"""

import ast
import builtins
import linecache
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from course_challenge import messages

_PLAIN = """
abs all any bool dict divmod enumerate filter float frozenset int isinstance iter len list map max
min next pow print range reversed round set slice sorted str sum tuple zip
AssertionError Exception IndexError KeyError NotImplementedError ValueError
"""
_TORCH = """
Tensor add arange bool broadcast_to cat chunk concat empty empty_like full full_like inference_mode
int16 int32 int64 int8 narrow no_grad ones ones_like split stack sub sum tensor tensor_split uint8
zeros zeros_like
"""
PLAIN = {}
for _name in _PLAIN.split():
    PLAIN[_name] = getattr(builtins, _name)
TORCH = set(_TORCH.split())
_OUT = re.compile(
    r"^_|stor(e|age)|share|hook|ptr|numpy|module|names|^set_$|grad|pin|dlpack|array"
    r"|^type$|^new$|as_subclass"
)
METHODS = {"wait", "split", "join"}
for _kind in (torch.Tensor, list, dict, set, tuple, int, float):
    for _name in dir(_kind):
        if not _OUT.search(_name):
            METHODS.add(_name)
_NAMES_OF = {
    "torch": TORCH,
    "dist": set(vars(messages.MESSAGES)),
    "math": set(vars(math)),
}
_MODULES = set(_NAMES_OF)
_SAYS = {
    ast.ClassDef: "a class",
    ast.Import: "an import, since torch, dist and math are there,",
    ast.ImportFrom: "an import, since torch, dist and math are there,",
    ast.MatchClass: "a pattern of a class",
    ast.AsyncFunctionDef: "a coroutine",
    ast.Global: "a global variable",
}
_BINDS_NAME = (ast.FunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
# What is kept of a cell; a class and a coroutine only to be refused with a word.
_KEPT = (ast.FunctionDef, ast.Assign, ast.AnnAssign, ast.ClassDef, ast.AsyncFunctionDef)


class Refused(Exception):
    """An entry that is not judged, and why."""


class Entry:
    """An entry; calling it, in a rank, calls the function of this name that its text defines.

    Raises:
        Refused: The text leads out of what an entry is made of.
    """

    def __init__(self, name: str, text: str, file: str) -> None:
        self.__name__ = name
        self.text = text
        self.file = file
        self.tree = _fenced(text, name)
        self.fn: Callable | None = None
        lines = text.splitlines(keepends=True)
        known_lines = linecache.getlines(file)
        if lines != known_lines:  # else a hang would be told without its lines
            size = len(text)
            linecache.cache[file] = (size, None, lines, file)

    @classmethod
    def of(cls, fn: Callable) -> "Entry":
        """The entry that a function is, with the cell or file that it stands in."""
        code = getattr(fn, "__code__", None)
        if code is None:
            raise Refused(f"A function is wanted, and this is {fn!r:.60}.")
        file = code.co_filename
        lines = linecache.getlines(file)
        text = "".join(lines)
        return cls(fn.__name__, text, file)

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        if self.fn is None:
            names = {
                "__builtins__": PLAIN,
                "__name__": "entry",
                "torch": torch,
                "dist": messages.MESSAGES,
                "math": math,
            }
            code = compile(self.tree, self.file, "exec", dont_inherit=True)
            exec(code, names)
            self.fn = names[self.__name__]
        return self.fn(*arguments)


def _fenced(text: str, name: str) -> ast.Module:
    """The functions and assignments of a text."""
    tree = _parsed(text)
    imported = set()
    functions = set()
    kept = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
        if isinstance(node, _KEPT):
            kept.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name_here = alias.asname or alias.name
                imported.add(name_here)
    tree.body = kept
    _refuse_problems(tree, imported)
    if name not in functions:
        raise Refused(f"There is no function called {name} in it.")
    return tree


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        line = error.lineno
        problem = error.msg
        raise Refused(f"Line {line}: {problem}.") from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise Refused(f"It cannot be read: {error}") from None


def _refuse_problems(tree: ast.Module, imported: set[str]) -> None:
    """Raises Refused with the first problem of a text, if it has one."""
    bound = _bound(tree)
    known = {*PLAIN, *_MODULES, *bound}
    problems = []
    for node in ast.walk(tree):
        problems_of_node = list(_wrong(node))
        is_name = isinstance(node, ast.Name)
        if is_name and node.id not in known:
            problem = _unknown(node.id, imported)
            problems_of_node.append(problem)
        for problem in problems_of_node:
            placed = (node.lineno, node.end_col_offset, problem)
            problems.append(placed)
    if not problems:
        return
    line, _column, problem = min(problems)
    raise Refused(f"Line {line}: {problem}")


def _unknown(name: str, imported: set[str]) -> str:
    """What is wrong with a name that is not among the known ones."""
    reason = "it is not defined in this cell, and an entry is one cell"
    if name in imported or hasattr(builtins, name):
        reason = "an entry has plain Python, torch, math and the messages of dist"
    return f"{name} is not to be had here: {reason}."


def _wrong(node: ast.AST) -> Iterator[str]:
    """Yields what is wrong with one node."""
    kind = type(node)
    called = _SAYS.get(kind)
    if called:
        yield f"{called} is nothing that an entry needs."
    if isinstance(node, ast.Attribute):
        yield from _wrong_attribute(node)
    if isinstance(node, ast.keyword):
        return
    context = getattr(node, "ctx", None)
    is_read = isinstance(context, ast.Load)
    for field in ("id", "name", "arg"):
        name = getattr(node, field, None)
        if not name:
            continue
        written = str(name)
        if written.startswith("__"):
            yield f"{name} is not to be had here."
        elif name in _MODULES and not is_read:
            yield f"{name} is not to be bound to something else."


def _wrong_attribute(node: ast.Attribute) -> Iterator[str]:
    name = node.attr
    if not isinstance(node.ctx, ast.Load):
        yield f".{name} is set, and an entry changes no attributes."
    owner = ""
    if isinstance(node.value, ast.Name):
        owner = node.value.id
    allowed = METHODS
    written = f".{name}"
    if owner in _NAMES_OF:
        allowed = _NAMES_OF[owner]
        written = f"{owner}.{name}"
    is_private = name.startswith("_")
    if is_private or name not in allowed:
        alternatives = _what_there_is(owner)
        yield f"{written} is not to be had here. {alternatives}"


def _what_there_is(owner: str) -> str:
    if owner == "dist":
        names = sorted(_NAMES_OF["dist"])
        words = ", ".join(names)
        return f"An all-reduce is to be made of messages alone: dist has {words}."
    if owner == "torch":
        functions = sorted(TORCH - {"Tensor"})
        words = ", ".join(functions)
        return f"torch has {words}."
    return "An entry has the methods of tensors, lists, dicts, sets and numbers."


def _bound(tree: ast.AST) -> Iterator[str]:
    """The names that a text binds somewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            is_read = isinstance(node.ctx, ast.Load)
            if not is_read:
                yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, _BINDS_NAME):
            yield node.name or "_"
