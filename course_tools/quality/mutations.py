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
# Statements whose order is left as it is.
STAY = ast.FunctionDef | ast.ClassDef | ast.Return | ast.Raise | ast.Import | ast.ImportFrom
SAME = ast.Eq | ast.NotEq | ast.In | ast.NotIn | ast.Is | ast.IsNot  # whose swap is the opposite


Span = tuple[int, int]  # of a text, from one byte to another


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

    def is_within(self, span: Span) -> bool:
        """Whether all of the piece lies in that part of the text."""
        start, end = span
        return start <= self.start and self.end <= end

    def applied_to(self, text: bytes) -> bytes:
        """The whole text, changed."""
        before = text[: self.start]
        after = text[self.end :]
        return before + self.text.encode() + after


def mutants(source: str) -> list[Mutant]:
    """Every mistake in what stands between the markers of a code cell, each once."""
    text = source.encode()
    spans = _marked_spans(source)
    by_source: dict[str, Mutant] = {}
    times_seen = Counter()
    for edit in Editor(source).edits():
        if not any(edit.is_within(span) for span in spans):
            continue
        changed = edit.applied_to(text).decode()
        if changed == source or changed in by_source:
            continue
        if not _is_python(changed):
            continue
        change = edit.change or _change(text, edit)
        times_seen[change] += 1
        times = times_seen[change]
        if times > 1:
            change += f" ({times})"
        by_source[changed] = Mutant(change, changed)
    return list(by_source.values())


def _marked_spans(source: str) -> list[Span]:
    """What stands between the markers of a cell."""
    spans = []
    for match in MARKED.finditer(source):
        above = source[: match.start()].encode()
        marked = match[0].encode()
        start = len(above)
        end = start + len(marked)
        spans.append((start, end))
    return spans


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
    before = text[start : edit.start].decode()
    replaced = text[edit.start : edit.end].decode()
    after = text[edit.end : end].decode()
    old = _first_line(before + replaced + after)
    new = _first_line(before + edit.text + after)
    return f"{old} -> {new}"


def _first_line(text: str) -> str:
    """The first line of a text, with three dots if more come."""
    line, _, more = text.strip().partition("\n")
    if more:
        return f"{line} ..."
    return line


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
        start = 0  # in bytes
        self.line_starts = [start]
        for line in self.text.splitlines(keepends=True):
            start += len(line)
            self.line_starts.append(start)
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
            is_while = isinstance(node, ast.While)
            for test in _tests(node):
                yield from self._of_test(test, is_while)

    def _in_f_strings(self) -> set[int]:
        """The ids of what stands in f-strings, whose places Python 3.11 does not know."""
        ids: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.JoinedStr):
                ids.update(map(id, ast.walk(node)))
        return ids

    def _edit(self, node: ast.AST, new: str, last: ast.AST | None = None) -> Edit:
        """`new` instead of a node, or of all from there to the last one."""
        last = last or node
        start = self._byte(node.lineno, node.col_offset)
        end = self._byte(last.end_lineno, last.end_col_offset)
        return Edit(start, end, new)

    def _byte(self, line: int, column: int) -> int:
        """Where in the text a place is; lines count from 1."""
        return self.line_starts[line - 1] + column

    def _source(self, node: ast.AST) -> str:
        place = self._edit(node, "")
        return self.text[place.start : place.end].decode()

    def _gap(self, left: ast.AST, right: ast.AST) -> Edit:
        """What stands between two nodes, left as it is."""
        start = self._edit(left, "").end
        end = self._edit(right, "").start
        between = self.text[start:end]
        return Edit(start, end, between.decode())

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
            first = self._source(statement)
            second = self._source(following)
            gap = self._gap(statement, following)
            exchanged = self._edit(statement, second + gap.text + first, following)
            first_line, *_below = first.splitlines()
            second_line, *_below = second.splitlines()
            yield exchanged._replace(change=f"{first_line} <-> {second_line}")

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
        arguments = list(call.args)
        for keyword in call.keywords:
            arguments.append(keyword.value)
        following = arguments[1:] + arguments[:1]
        for argument, other in zip(arguments, following, strict=True):
            yield self._edit(argument, self._source(other))
        for keyword in call.keywords:
            without = self._edit(keyword, "")
            before = self.text[: without.start].decode()
            before = before.rstrip().removesuffix(",")
            start = len(before.encode())
            yield without._replace(start=start)

    def _of_test(self, test: ast.expr, is_of_while: bool) -> Iterator[Edit]:
        """A condition turned round, or gone; a loop that never ends is no mistake to look for."""
        operator = test.ops[0] if isinstance(test, ast.Compare) else None
        if not isinstance(operator, SAME):  # else its swap is the same
            yield self._edit(test, f"not ({self._source(test)})")
        if not is_of_while:
            yield self._edit(test, "True")
            yield self._edit(test, "False")


def _tests(node: ast.AST) -> list[ast.expr]:
    """The conditions of a statement or comprehension."""
    if isinstance(node, ast.comprehension):
        return node.ifs
    test = getattr(node, "test", None)
    return [test] if test else []


def _is_written(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_plain(node: ast.stmt) -> bool:
    """Whether all that it does is to give names to values."""
    if not isinstance(node, ast.Assign):
        return False
    return all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)


def _is_vain(node: ast.stmt, names: Counter[str]) -> bool:
    """Whether without it there is a name that nobody knows, or nothing else."""
    if isinstance(node, ast.Assign):
        if not _is_plain(node):
            return False
        targets = set()
        for target in node.targets:
            targets |= _names(target)
        return all(names[name] == 1 for name in targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass)


def _are_apart(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether it cannot matter which comes first."""
    if isinstance(first, STAY) or isinstance(second, STAY):
        return True
    first_acts = _acts(first)
    second_acts = _acts(second)
    if first_acts and second_acts:
        return False
    first_names = _names(first)
    second_names = _names(second)
    is_quiet = not first_acts and not second_acts
    if is_quiet and _is_plain(first) and _is_plain(second):
        # Both may read the same.
        is_read_by_second = _written(first) & second_names
        is_read_by_first = _written(second) & first_names
        return not is_read_by_second and not is_read_by_first
    shared = first_names & second_names
    return shared <= {"dist", "torch"}


def _names(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
    return names


def _written(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if _is_written(node):
            names.add(node.id)
    return names


def _acts(tree: ast.AST) -> bool:
    """Whether a call in it may do something beside giving back a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            *_owner, name = ast.unparse(node.func).split(".")
            if not NO_DEED.fullmatch(name):
                return True
    return False
