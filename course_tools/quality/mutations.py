"""Small mistakes in a solution: each a text of the cell with one thing changed.

A statement dropped or exchanged with the next, an operator, a number or a name swapped, a condition
turned round or gone, a keyword left out, an argument given twice.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

MARKED = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.DOTALL)
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "//",
    ast.Pow: "*", ast.MatMult: "*", ast.BitAnd: "|", ast.BitOr: "&", ast.And: "or", ast.Or: "and",
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
PAIRS = ("min max", "any all", "rank world_size")
PAIRS_OF_ATTRIBUTES = ("sum mean", "get_rank get_world_size", "SUM MAX", "zeros ones", "train eval")
NO_DEED = re.compile(
    r"bool|clone|(empty|zeros)_like|enumerate|float|get_rank|get_world_size|int|is_grad_enabled|"
    r"len|list|max|min|range|sorted|sum|tolist|tuple|zip"
)
SAME = ast.Eq | ast.NotEq | ast.In | ast.NotIn | ast.Is | ast.IsNot  # whose swap is the opposite


class Mutant(NamedTuple):
    """One mistake: its line and what became of it, by which it is known, and the whole cell."""

    change: str
    source: str


class Edit(NamedTuple):
    """A piece of a text, from one byte to another, and what is to stand there instead."""

    start: int
    end: int
    text: str
    change: str = ""  # where the line before and after do not say it


def mutants(source: str) -> list[Mutant]:
    """Every mistake in what stands between the markers of a code cell, each once."""
    text = source.encode()
    spans = []
    for match in MARKED.finditer(source):
        start, end = len(source[: match.start()].encode()), len(source[: match.end()].encode())
        spans.append((start, end))
    by_source: dict[str, Mutant] = {}
    times_seen: Counter[str] = Counter()
    for edit in Editor(source).edits():
        if not any(start <= edit.start and edit.end <= end for start, end in spans):
            continue
        changed = (text[: edit.start] + edit.text.encode() + text[edit.end :]).decode()
        if changed == source or changed in by_source or not _is_python(changed):
            continue
        change = edit.change or _change(text, edit)
        times_seen[change] += 1
        if times_seen[change] > 1:
            change += f" ({times_seen[change]})"
        by_source[changed] = Mutant(change, changed)
    return list(by_source.values())


def _is_python(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _change(text: bytes, edit: Edit) -> str:
    """Such as `total += buffer -> total -= buffer`, of the lines that differ; of many the first."""
    start = text.rfind(b"\n", 0, edit.start) + 1
    end = text.find(b"\n", edit.end)
    before, after = text[start : edit.start].decode(), text[edit.end : end].decode()
    replaced = text[edit.start : edit.end].decode()
    old = _first_line(before + replaced + after)
    new = _first_line(before + edit.text + after)
    return f"{old} -> {new}"


def _first_line(text: str) -> str:
    """The first line of a text, with three dots if more come."""
    line, _, more = text.strip().partition("\n")
    return f"{line} ..." if more else line


def _both_ways(pairs: Iterable[str]) -> dict[str, str]:
    """By each name of a pair, the other one."""
    exchanged = {}
    for pair in pairs:
        name, other = pair.split()
        exchanged[name] = other
        exchanged[other] = name
    return exchanged


NAMES = _both_ways(PAIRS)
ATTRIBUTES = _both_ways(PAIRS + PAIRS_OF_ATTRIBUTES)


class Editor:
    """Finds the mistakes that one can make in a cell."""

    def __init__(self, source: str) -> None:
        self.text = source.encode()
        self.tree = ast.parse(source)
        self.line_starts = [0]  # in bytes
        for line in self.text.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.names: Counter[str] = Counter()  # how often each is written to
        for node in ast.walk(self.tree):
            if _is_written(node):
                self.names[node.id] += 1
            elif isinstance(node, ast.arg):
                self.names[node.arg] += 1

    def edits(self) -> Iterator[Edit]:
        """Every mistake, not only those between the markers."""
        in_f_strings = self._in_f_strings()
        for node in ast.walk(self.tree):
            if id(node) in in_f_strings:
                continue
            for part in ("body", "orelse", "finalbody"):
                block = getattr(node, part, None)
                if isinstance(block, list):
                    yield from self._of_block(block)
            yield from self._of_expression(node)
            tests = getattr(node, "ifs", [getattr(node, "test", None)])
            for test in tests:
                if isinstance(test, ast.expr):
                    yield from self._of_test(test, isinstance(node, ast.While))

    def _in_f_strings(self) -> set[int]:
        """The ids of what stands in f-strings, whose places Python 3.11 does not know."""
        ids: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.JoinedStr):
                ids.update(map(id, ast.walk(node)))
        return ids

    def _edit(self, node: ast.AST, new: str, last: ast.AST | None = None) -> Edit:
        """`new` instead of a node, or of all from there to the last one."""
        end = last or node
        return Edit(
            self.line_starts[node.lineno - 1] + node.col_offset,
            self.line_starts[end.end_lineno - 1] + end.end_col_offset,
            new,
        )

    def _source(self, node: ast.AST) -> str:
        place = self._edit(node, "")
        return self.text[place.start : place.end].decode()

    def _gap(self, left: ast.AST, right: ast.AST) -> Edit:
        """What stands between two nodes, left as it is."""
        start, end = self._edit(left, "").end, self._edit(right, "").start
        return Edit(start, end, self.text[start:end].decode())

    def _operator(self, left: ast.AST, right: ast.AST, new: str) -> Edit:
        """Instead of the operator between two operands, whose parentheses stay."""
        gap = self._gap(left, right)
        text = re.sub(r"[^()\s\\]+(?: +[^()\s\\]+)?", new, gap.text, count=1)
        return gap._replace(text=text)

    def _of_block(self, block: list[ast.stmt]) -> Iterator[Edit]:
        """A statement dropped, or exchanged with the next."""
        for statement in block:
            if not _is_vain(statement, self.names):
                yield self._edit(statement, "pass")
        for statement, following in pairwise(block):
            if _are_apart(statement, following):
                continue
            first, second = self._source(statement), self._source(following)
            exchanged = second + self._gap(statement, following).text + first
            change = f"{first.splitlines()[0]} <-> {second.splitlines()[0]}"
            yield self._edit(statement, exchanged, following)._replace(change=change)

    def _of_expression(self, node: ast.AST) -> Iterator[Edit]:
        """An operator, a number or a name swapped, a call with other arguments."""
        match node:
            case ast.BinOp(left, op, right) if type(op) in OPERATORS:
                yield self._operator(left, right, OPERATORS[type(op)])
            case ast.AugAssign(target, op, value) if type(op) in OPERATORS:
                yield self._operator(target, value, OPERATORS[type(op)] + "=")
            case ast.BoolOp(op, [first, second, *_]):
                yield self._operator(first, second, OPERATORS[type(op)])
            case ast.Compare(left, ops, comparators):
                operands = pairwise([left, *comparators])
                for (operand, following), op in zip(operands, ops, strict=True):
                    yield self._operator(operand, following, OPERATORS[type(op)])
            case ast.UnaryOp(operand=operand):
                yield self._edit(node, self._source(operand))
            case ast.Constant(bool(value)):
                yield self._edit(node, str(not value))
            case ast.Constant(int(value) | float(value)):
                less = repr(value - 1)
                yield self._edit(node, repr(value + 1))
                yield self._edit(node, f"({less})" if value < 1 else less)
            case ast.Name(name, ast.Load()) if name in NAMES:
                yield self._edit(node, NAMES[name])
            case ast.Attribute(attr=name) if name in ATTRIBUTES:
                end = self._edit(node, "").end
                yield Edit(end - len(name), end, ATTRIBUTES[name])
            case ast.Call():
                yield from self._of_call(node)

    def _of_call(self, call: ast.Call) -> Iterator[Edit]:
        """An argument given in the place of the one before it, or a keyword left out."""
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        following = [*arguments[1:], *arguments[:1]]
        for argument, other in zip(arguments, following, strict=True):
            yield self._edit(argument, self._source(other))
        for keyword in call.keywords:
            without = self._edit(keyword, "")
            before = self.text[: without.start].decode().rstrip()
            before = before.removesuffix(",")
            yield without._replace(start=len(before.encode()))

    def _of_test(self, test: ast.expr, is_of_while: bool) -> Iterator[Edit]:
        """A condition turned round, or gone; a loop that never ends is no mistake to look for."""
        is_swapped = isinstance(test, ast.Compare) and isinstance(test.ops[0], SAME)
        if not is_swapped:
            yield self._edit(test, f"not ({self._source(test)})")
        if not is_of_while:
            yield self._edit(test, "True")
            yield self._edit(test, "False")


def _is_written(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_plain(node: ast.stmt) -> bool:
    """Whether all that it does is to give names to values."""
    targets = node.targets if isinstance(node, ast.Assign) else [node]
    return all(isinstance(target, ast.Name | ast.Tuple) for target in targets)


def _is_vain(node: ast.stmt, names: Counter[str]) -> bool:
    """Whether without it there is a name that nobody knows, or nothing else."""
    if isinstance(node, ast.Assign):
        targets: set[str] = set()
        for target in node.targets:
            targets |= _names(target)
        return _is_plain(node) and all(names[name] == 1 for name in targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass)


def _are_apart(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether it cannot matter which comes first."""
    jumps = ast.FunctionDef | ast.ClassDef | ast.Return | ast.Raise | ast.Import | ast.ImportFrom
    if isinstance(first, jumps) or isinstance(second, jumps):
        return True
    first_acts, second_acts = _acts(first), _acts(second)
    if first_acts and second_acts:
        return False
    first_names, second_names = _names(first), _names(second)
    if not (first_acts or second_acts) and _is_plain(first) and _is_plain(second):
        # Both may read the same.
        return not (_written(first) & second_names or _written(second) & first_names)
    return not (first_names & second_names) - {"dist", "torch"}


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _written(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if _is_written(node)}


def _acts(tree: ast.AST) -> bool:
    """Whether a call in it may do something beside giving back a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if not NO_DEED.fullmatch(name):
                return True
    return False
