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
OPERATORS = {  # by each operator, what stands in its place
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.MatMult: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.And: "or",
    ast.Or: "and",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
PAIRS = ("min max", "any all", "rank world_size")
PAIRS_OF_ATTRIBUTES = ("sum mean", "get_rank get_world_size", "SUM MAX", "zeros ones", "train eval")
OPERATOR = re.compile(r"[^()\s\\]+(?: +[^()\s\\]+)?")  # one word or sign, or two: `not in`
NO_DEED = re.compile(
    r"bool|clone|(empty|zeros)_like|enumerate|float|get_rank|get_world_size|int|is_grad_enabled|"
    r"len|list|max|min|range|sorted|sum|tolist|tuple|zip"
)
# Statements whose order is left as it is.
DEFINES = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
STAY = DEFINES | ast.Return | ast.Raise
SAME = ast.Eq | ast.NotEq | ast.In | ast.NotIn | ast.Is | ast.IsNot  # whose swap is the opposite


Span = tuple[int, int]  # of a text, from one byte to another
TimesWritten = Counter[str]  # by name, how often something is given to it


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
        if self.start < start:
            return False
        return self.end <= end

    def applied_to(self, text: bytes) -> bytes:
        """The whole text, changed."""
        before = text[: self.start]
        instead = self.text.encode()
        after = text[self.end :]
        return before + instead + after


Edits = Iterator[Edit]


def mutants(source: str) -> list[Mutant]:
    """Every mistake in what stands between the markers of a code cell, each once."""
    text = source.encode()
    spans = _marked_spans(source)
    by_source: dict[str, Mutant] = {}
    times_seen = Counter()
    editor = Editor(source)
    for edit in editor.edits():
        is_marked = any(edit.is_within(span) for span in spans)
        if not is_marked:
            continue
        changed_text = edit.applied_to(text)
        changed = changed_text.decode()
        if changed == source:
            continue
        if changed in by_source:
            continue
        if not _is_python(changed):
            continue
        change = edit.change or _change(text, edit)
        times_seen[change] += 1
        times = times_seen[change]
        if times > 1:
            change += f" ({times})"
        by_source[changed] = Mutant(change, changed)
    each_once = by_source.values()
    return list(each_once)


def _marked_spans(source: str) -> list[Span]:
    """What stands between the markers of a cell."""
    spans = []
    for match in MARKED.finditer(source):
        first_sign = match.start()
        above = source[:first_sign]
        bytes_above = above.encode()
        marked = match[0]
        marked_bytes = marked.encode()
        start = len(bytes_above)
        end = start + len(marked_bytes)
        span = (start, end)
        spans.append(span)
    return spans


def _is_python(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _change(text: bytes, edit: Edit) -> str:
    """Such as `total += buffer -> total -= buffer`, of the lines that differ; of many the first."""
    end_of_line_before = text.rfind(b"\n", 0, edit.start)
    start = end_of_line_before + 1
    end = text.find(b"\n", edit.end)
    lines = text[start:end]
    start_in_lines = edit.start - start
    end_in_lines = edit.end - start
    edit_of_lines = Edit(start_in_lines, end_in_lines, edit.text)
    changed_lines = edit_of_lines.applied_to(lines)
    old = _first_line(lines)
    new = _first_line(changed_lines)
    return f"{old} -> {new}"


def _first_line(text: bytes) -> str:
    """The first line of a text, with three dots if more come."""
    decoded = text.decode()
    stripped = decoded.strip()
    line, _, more = stripped.partition("\n")
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
        self.names = _times_written(self.tree)
        start = 0  # in bytes
        self.line_starts = [start]
        lines = self.text.splitlines(keepends=True)
        for line in lines:
            start += len(line)
            self.line_starts.append(start)

    def edits(self) -> Edits:
        """Every mistake, not only those between the markers."""
        in_f_strings = self._in_f_strings()
        for node in ast.walk(self.tree):
            id_of_node = id(node)
            if id_of_node in in_f_strings:
                continue
            for block in _blocks(node):
                yield from self._of_block(block)
            yield from self._of_expression(node)
            is_while = isinstance(node, ast.While)
            for test in _tests(node):
                yield from self._of_test(test, is_while)

    def _in_f_strings(self) -> set[int]:
        """The ids of what stands in f-strings, whose places Python 3.11 does not know."""
        ids: set[int] = set()
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.JoinedStr):
                continue
            for inner_node in ast.walk(node):
                id_of_node = id(inner_node)
                ids.add(id_of_node)
        return ids

    def _edit(self, node: ast.AST, new: str) -> Edit:
        """`new` instead of a node."""
        start, end = self._span(node)
        return Edit(start, end, new)

    def _span(self, node: ast.AST) -> Span:
        """Where in the text a node is; its lines count from 1."""
        lines_before_first = node.lineno - 1
        lines_before_last = node.end_lineno - 1
        start_of_first_line = self.line_starts[lines_before_first]
        start_of_last_line = self.line_starts[lines_before_last]
        start = start_of_first_line + node.col_offset
        end = start_of_last_line + node.end_col_offset
        return start, end

    def _source(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self._span(node)
        source = self.text[start:end]
        return source.decode()

    def _gap(self, left: ast.AST, right: ast.AST) -> Edit:
        """What stands between two nodes, left as it is."""
        _, start = self._span(left)
        end, _ = self._span(right)
        between = self.text[start:end]
        text = between.decode()
        return Edit(start, end, text)

    def _operator(
        self, left: ast.AST, operator: ast.AST, right: ast.AST, ending: str = ""
    ) -> Edits:
        """Another operator between two operands, whose parentheses stay; none for some."""
        kind = type(operator)
        if kind not in OPERATORS:
            return
        other_operator = OPERATORS[kind]
        new = other_operator + ending
        gap = self._gap(left, right)
        text = OPERATOR.sub(new, gap.text, count=1)
        yield gap._replace(text=text)

    def _of_block(self, block: list[ast.stmt]) -> Edits:
        """A statement dropped, or exchanged with the next."""
        for statement in block:
            is_vain = _is_vain(statement, self.names)
            if not is_vain:
                yield self._edit(statement, "pass")
        for statement, following in pairwise(block):
            are_apart = _are_apart(statement, following)
            if not are_apart:
                yield self._exchanged(statement, following)

    def _exchanged(self, statement: ast.stmt, following: ast.stmt) -> Edit:
        """Two statements, each in the other's place."""
        first = self._source(statement)
        second = self._source(following)
        gap = self._gap(statement, following)
        start, _ = self._span(statement)
        _, end = self._span(following)
        exchanged = second + gap.text + first
        lines_of_first = first.splitlines()
        lines_of_second = second.splitlines()
        first_line = lines_of_first[0]
        second_line = lines_of_second[0]
        change = f"{first_line} <-> {second_line}"
        return Edit(start, end, exchanged, change)

    def _of_expression(self, node: ast.AST) -> Edits:
        """An operator, a number or a name swapped, a call with other arguments."""
        match node:
            case ast.BinOp(left, operator, right):
                yield from self._operator(left, operator, right)
            case ast.AugAssign(target, operator, value):
                yield from self._operator(target, operator, value, "=")
            case ast.BoolOp(operator, [first, second, *_]):
                yield from self._operator(first, operator, second)
            case ast.Compare():
                yield from self._of_comparison(node)
            case ast.UnaryOp(operand=operand):
                operand_alone = self._source(operand)
                yield self._edit(node, operand_alone)
            case ast.Constant(True):
                yield self._edit(node, "False")
            case ast.Constant(False):
                yield self._edit(node, "True")
            case ast.Constant(int(value) | float(value)):
                yield from self._of_number(node, value)
            case ast.Name(name, ast.Load()) if name in NAMES:
                other_name = NAMES[name]
                yield self._edit(node, other_name)
            case ast.Attribute(attr=name) if name in ATTRIBUTES:
                yield self._of_attribute(node, name)
            case ast.Call():
                yield from self._of_call(node)

    def _of_comparison(self, node: ast.Compare) -> Edits:
        """Another operator in the place of each, as of both in `0 < x <= 1`."""
        left = node.left
        pairs = zip(node.ops, node.comparators, strict=True)
        for operator, right in pairs:
            yield from self._operator(left, operator, right)
            left = right

    def _of_attribute(self, node: ast.Attribute, name: str) -> Edit:
        """The other name of a pair instead of an attribute's, behind the same dot."""
        other_name = ATTRIBUTES[name]
        _, end = self._span(node)
        length = len(name)
        start = end - length
        return Edit(start, end, other_name)

    def _of_number(self, node: ast.AST, value: float) -> Edits:
        """A number that is larger by one, or smaller."""
        more = value + 1
        written = repr(more)
        yield self._edit(node, written)
        less = value - 1
        written = repr(less)
        if less < 0:
            written = f"({written})"
        yield self._edit(node, written)

    def _of_call(self, call: ast.Call) -> Edits:
        """An argument given in the place of the one before it, or a keyword left out."""
        arguments = list(call.args)
        for keyword in call.keywords:
            arguments.append(keyword.value)
        all_but_first = arguments[1:]
        first_at_the_end = arguments[:1]
        following = all_but_first + first_at_the_end
        pairs = zip(arguments, following, strict=True)
        for argument, other in pairs:
            instead = self._source(other)
            yield self._edit(argument, instead)
        for keyword in call.keywords:
            yield self._without(keyword)

    def _without(self, keyword: ast.keyword) -> Edit:
        """A keyword left out, with the comma before it."""
        start, end = self._span(keyword)
        above = self.text[:start]
        stripped = above.rstrip()
        before = stripped.removesuffix(b",")
        end_of_text_before = len(before)
        return Edit(end_of_text_before, end, "")

    def _of_test(self, test: ast.expr, is_of_while: bool) -> Edits:
        """A condition turned round, or gone; a loop that never ends is no mistake to look for."""
        if not _turned_by_swap(test):
            condition = self._source(test)
            opposite = f"not ({condition})"
            yield self._edit(test, opposite)
        if not is_of_while:
            yield self._edit(test, "True")
            yield self._edit(test, "False")


def _turned_by_swap(test: ast.expr) -> bool:
    """Whether another operator alone makes the opposite of a condition."""
    if not isinstance(test, ast.Compare):
        return False
    first_operator = test.ops[0]
    return isinstance(first_operator, SAME)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yields each list of statements that a node has."""
    for part in ("body", "orelse", "finalbody"):
        block = getattr(node, part, None)
        if isinstance(block, list):
            yield block


def _tests(node: ast.AST) -> list[ast.expr]:
    """The conditions of a statement or comprehension."""
    if isinstance(node, ast.comprehension):
        return node.ifs
    if hasattr(node, "test"):
        return [node.test]
    return []


def _times_written(tree: ast.AST) -> TimesWritten:
    """How often each name is given to something, arguments included."""
    names = Counter()
    for node in ast.walk(tree):
        if _is_written(node):
            names[node.id] += 1
        elif isinstance(node, ast.arg):
            names[node.arg] += 1
    return names


def _is_written(node: ast.AST) -> bool:
    """Whether this is a name that something is given to."""
    if not isinstance(node, ast.Name):
        return False
    return isinstance(node.ctx, ast.Store)


def _is_plain(node: ast.stmt) -> bool:
    """Whether all that it does is to give names to values."""
    if not isinstance(node, ast.Assign):
        return False
    return all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)


def _is_vain(node: ast.stmt, names: TimesWritten) -> bool:
    """Whether without it there is a name that nobody knows, or nothing else."""
    if isinstance(node, ast.Assign):
        if not _is_plain(node):
            return False
        return _gives_only_new_names(node, names)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, DEFINES | ast.Pass)


def _gives_only_new_names(node: ast.Assign, names: TimesWritten) -> bool:
    """Whether no other statement gives something to any of the names that this one does."""
    for target in node.targets:
        for name in _names(target):
            times = names[name]
            if times != 1:
                return False
    return True


def _are_apart(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether it cannot matter which comes first."""
    if isinstance(first, STAY):
        return True
    if isinstance(second, STAY):
        return True
    first_acts = _acts(first)
    second_acts = _acts(second)
    if first_acts and second_acts:
        return False
    first_names = _names(first)
    second_names = _names(second)
    acts = first_acts or second_acts
    if not acts and _is_plain(first) and _is_plain(second):
        # Both may read the same.
        written_by_first = _written(first)
        written_by_second = _written(second)
        read_by_second = written_by_first & second_names
        read_by_first = written_by_second & first_names
        return not read_by_second and not read_by_first
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
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        _owner, _dot, name = function.rpartition(".")
        if not NO_DEED.fullmatch(name):
            return True
    return False
