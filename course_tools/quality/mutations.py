"""Small mistakes in a solution: each a text of the cell with one thing changed.

A statement dropped or exchanged with the next, an operator, a number or a name swapped, a condition
turned round or gone, a keyword left out, an argument given twice.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

MARKED = re.compile(r"### BEGIN SOLUTION.*?### END SOLUTION", re.S)
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "//",
    ast.Pow: "*", ast.MatMult: "*", ast.BitAnd: "|", ast.BitOr: "&", ast.And: "or", ast.Or: "and",
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
PAIRS = ("min max", "any all", "rank world_size")
OF_AN_OBJECT = ("sum mean", "get_rank get_world_size", "SUM MAX", "zeros ones", "train eval")
NAMES, ATTRIBUTES = (
    {a: b for pair in pairs for a, b in (pair.split(), pair.split()[::-1])}
    for pairs in (PAIRS, PAIRS + OF_AN_OBJECT)
)
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
    """What stands between two places of a text, in bytes, and what shall stand there."""

    start: int
    end: int
    text: str
    told: str = ""  # where the line before and after do not say it


def mutants(source: str) -> list[Mutant]:
    """Every mistake in what stands between the markers of a code cell, each once."""
    text, found, seen = source.encode(), {}, Counter()
    spans = [(len(source[: m.start()].encode()), len(source[: m.end()].encode()))
             for m in MARKED.finditer(source)]  # fmt: skip
    for edit in _edits(ast.parse(source), text):
        if any(start <= edit.start and edit.end <= end for start, end in spans):
            made = (text[: edit.start] + edit.text.encode() + text[edit.end :]).decode()
            if made not in found and made != source and _is_python(made):
                change = edit.told or _change(text, edit)
                seen[change] += 1
                again = f" ({seen[change]})" if seen[change] > 1 else ""
                found[made] = Mutant(change + again, made)
    return list(found.values())


def _is_python(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _change(text: bytes, edit: Edit) -> str:
    """Such as `total += buffer -> total -= buffer`, of the lines that differ; of many the first."""
    start, end = text.rfind(b"\n", 0, edit.start) + 1, text.find(b"\n", edit.end)
    before, after = text[start : edit.start].decode(), text[edit.end : end].decode()
    old = before + text[edit.start : edit.end].decode() + after
    short = (own.strip().partition("\n") for own in (old, before + edit.text + after))
    return " -> ".join(first + " ..." * bool(more) for first, more, _ in short)


def _edits(tree: ast.Module, text: bytes) -> Iterator[Edit]:
    begins = [0]  # of each line
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    inside = {id(own) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
              for own in ast.walk(node)}  # fmt: skip  # whose places Python 3.11 does not know

    def edit(node: ast.AST, new: str, last: ast.AST | None = None) -> Edit:
        end = last or node
        return Edit(begins[node.lineno - 1] + node.col_offset,
                    begins[end.end_lineno - 1] + end.end_col_offset, new)  # fmt: skip

    def said(node: ast.AST, last: ast.AST | None = None) -> str:
        one = edit(node, "", last)
        return text[one.start : one.end].decode()

    def between(left: ast.AST, right: ast.AST, new: str) -> Edit:
        """Instead of the operator between two operands, whose parentheses stay."""
        start, end = edit(left, "").end, edit(right, "").start
        gap = re.sub(r"[^()\s\\]+(?: +[^()\s\\]+)?", new, text[start:end].decode(), count=1)
        return Edit(start, end, gap)

    names = Counter(n.id for n in ast.walk(tree) if _is_written(n))
    names.update(n.arg for n in ast.walk(tree) if isinstance(n, ast.arg))
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        for block in (getattr(node, part, None) for part in ("body", "orelse", "finalbody")):
            for own in block if isinstance(block, list) else ():
                if not _is_vain(own, names):
                    yield edit(own, "pass")
            for one, two in pairwise(block) if isinstance(block, list) else ():
                if not _are_apart(one, two):
                    gap = text[edit(one, "").end : edit(two, "").start].decode()
                    told = f"{said(one).splitlines()[0]} <-> {said(two).splitlines()[0]}"
                    yield edit(one, said(two) + gap + said(one), two)._replace(told=told)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield between(node.left, node.right, OPERATORS[type(node.op)])
        elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            yield between(node.target, node.value, OPERATORS[type(node.op)] + "=")
        elif isinstance(node, ast.BoolOp):
            yield between(*node.values[:2], OPERATORS[type(node.op)])
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for (left, right), op in zip(pairwise(operands), node.ops, strict=True):
                yield between(left, right, OPERATORS[type(op)])
        elif isinstance(node, ast.UnaryOp):
            yield edit(node, said(node.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield edit(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield edit(node, repr(node.value + 1))
            yield edit(node, f"({node.value - 1!r})" if node.value < 1 else repr(node.value - 1))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
            yield edit(node, NAMES[node.id])
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            one = edit(node, "")
            yield one._replace(start=one.end - len(node.attr), text=ATTRIBUTES[node.attr])
        elif isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            for own, other in zip(given, [*given[1:], *given[:1]], strict=True):
                yield edit(own, said(other))
            for keyword in node.keywords:
                before = text[: edit(keyword, "").start].decode().rstrip()
                start = len((before[:-1] if before[-1] == "," else before).encode())
                yield edit(keyword, "")._replace(start=start)
        for test in getattr(node, "ifs", [getattr(node, "test", None)]):
            if isinstance(test, ast.expr):
                if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], SAME)):
                    yield edit(test, f"not ({said(test)})")
                for truth in () if isinstance(node, ast.While) else ("True", "False"):
                    yield edit(test, truth)


def _is_written(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_plain(node: ast.stmt) -> bool:
    """Whether all that it does is to give names to values."""
    targets = node.targets if isinstance(node, ast.Assign) else [node]
    return all(isinstance(own, ast.Name | ast.Tuple) for own in targets)


def _is_vain(node: ast.stmt, names: Counter[str]) -> bool:
    """Whether without it there is a name that nobody knows, or nothing else."""
    if isinstance(node, ast.Assign):
        written = [n.id for own in node.targets for n in ast.walk(own) if isinstance(n, ast.Name)]
        return _is_plain(node) and all(names[name] == 1 for name in written)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    defines = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass
    return is_text or isinstance(node, defines)


def _are_apart(one: ast.stmt, two: ast.stmt) -> bool:
    """Whether it cannot matter which comes first."""
    jumps = ast.FunctionDef | ast.ClassDef | ast.Return | ast.Raise | ast.Import | ast.ImportFrom
    if isinstance(one, jumps) or isinstance(two, jumps):
        return True
    own, other = (list(ast.walk(node)) for node in (one, two))
    deeds = [any(map(_may_act, nodes)) for nodes in (own, other)]
    names = [{n.id for n in nodes if isinstance(n, ast.Name)} for nodes in (own, other)]
    if not any(deeds) and _is_plain(one) and _is_plain(two):  # both may read the same
        written = [{n.id for n in ast.walk(node) if _is_written(n)} for node in (one, two)]
        return not (written[0] & names[1] or written[1] & names[0])
    return not all(deeds) and not (names[0] & names[1]) - {"dist", "torch"}


def _may_act(node: ast.AST) -> bool:
    called = getattr(node, "func", None)
    return called is not None and not NO_DEED.fullmatch(ast.unparse(called).split(".")[-1])
