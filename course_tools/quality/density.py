"""How densely the course's own code is written, and how dense it may be.

Counting lines rewards whoever folds three thoughts into one line. So three other figures are
counted: the nodes of the syntax tree on a line, the expressions that fold a statement into another
one (an assignment inside an expression, a comprehension, a conditional expression), and names that
say nothing about what they hold. A line of code is a line that holds a token which is neither a
comment nor part of a docstring, and docstrings have no nodes that count.

A figure is compared with its limit as it is, not rounded: 5.04 is more than 5.0. A limit that lies
far above its figure guards nothing, so that is a fault, too.

    python -m course_tools.quality.density              a row for each package
    python -m course_tools.quality.density --densest    and the functions to look at first
"""

import argparse
import ast
import functools
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from course_tools import ROOT
from course_tools.quality.architecture import docstrings, syntax_nodes


@dataclass
class Limit:
    """How dense a package may be at most."""

    nodes_per_line: float
    walruses_per_1000_lines: float
    foldings_per_100_lines: float
    vague_percent: float


# Where a package lies today, rounded up. A change may lower a figure, and its limit with it; who
# wants to raise one says why here. Wanted everywhere: 5.5 nodes a line (5.0 in the launcher),
# 2 walruses, 5 foldings, 1 % vague names.
LIMITS = {
    "course_utils/launcher": Limit(4.9, 0.0, 1.4, 0.2),
    "course_utils/record": Limit(5.7, 0.0, 2.8, 0.2),
    "course_utils/hang": Limit(4.7, 0.0, 3.6, 0.0),
    "course_utils/flight": Limit(5.7, 0.0, 2.5, 0.2),
    "course_utils/network": Limit(5.9, 0.0, 2.6, 0.2),  # formulas and vector arithmetic
    "course_utils/pictures": Limit(6.4, 0.0, 2.3, 0.0),  # calls of matplotlib with many arguments
    "course_utils/devices": Limit(4.7, 0.0, 1.7, 0.0),
    "course_utils": Limit(5.4, 0.0, 2.3, 0.1),
    "course_checks": Limit(5.4, 0.0, 0.8, 0.0),
    "course_cluster": Limit(5.2, 0.0, 1.0, 0.0),
    "course_challenge": Limit(5.4, 0.0, 0.5, 0.0),
    "course_lessons": Limit(8.1, 0.0, 7.8, 0.5),
    "course_testing": Limit(5.3, 0.0, 1.6, 0.0),
    "course_lint": Limit(5.3, 0.0, 0.9, 0.0),  # tests of a node's type, several on a line
    "course_museum": Limit(4.6, 0.0, 1.9, 1.4),
    "course_material": Limit(6.3, 0.0, 4.6, 0.7),
    "course_tools": Limit(5.4, 0.0, 0.8, 0.2),
    "tests": Limit(6.3, 1.5, 5.2, 4.3),
}
VAGUE_NAMES = {
    *("told", "said", "own", "found", "one", "theirs", "its", "what", "how", "made", "meet", "it"),
    *("all_", "dead", "few", "rest", "way", "thing", "stuff", "whole", "another", "mine", "ours"),
    *("talks", "speed", "other_", "there", "here"),
}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
FOLDING = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp)
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
MOST_SLACK = 0.2  # by which a limit may lie above its figure
SHORTEST_FUNCTION_TO_LIST = 5  # lines: a function of two lines is read at a glance, however dense


@dataclass
class Count:
    """What was counted in a file or, added up, in a package."""

    lines: int = 0
    nodes: int = 0
    walruses: int = 0
    foldings: int = 0
    names: int = 0
    vague_names: int = 0

    def add(self, other: "Count") -> None:
        """Adds another file's figures to these."""
        self.lines += other.lines
        self.nodes += other.nodes
        self.walruses += other.walruses
        self.foldings += other.foldings
        self.names += other.names
        self.vague_names += other.vague_names

    @property
    def nodes_per_line(self) -> float:
        return ratio(self.nodes, self.lines)

    @property
    def walruses_per_1000_lines(self) -> float:
        return ratio(1000 * self.walruses, self.lines)

    @property
    def foldings_per_100_lines(self) -> float:
        return ratio(100 * self.foldings, self.lines)

    @property
    def vague_percent(self) -> float:
        return ratio(100 * self.vague_names, self.names)


def ratio(counted: int, total: int) -> float:
    """How much of something there is for each of a total, which may be 0 where nothing is."""
    divisor = max(total, 1)
    return counted / divisor


def docstring_lines(tree: ast.AST) -> set[int]:
    """The numbers of the lines that docstrings take."""
    numbers: set[int] = set()
    for docstring in docstrings(tree):
        end = docstring.end_lineno + 1
        docstring_numbers = range(docstring.lineno, end)
        numbers.update(docstring_numbers)
    return numbers


def code_lines(source: str, tree: ast.AST) -> int:
    """How many lines hold code: blank lines, comments and docstrings don't count."""
    numbers: set[int] = set()
    text = io.StringIO(source)
    for token in tokenize.generate_tokens(text.readline):
        if token.type in NO_CODE:
            continue
        first_line, _column = token.start
        last_line, _column = token.end
        end = last_line + 1
        lines_of_token = range(first_line, end)
        numbers.update(lines_of_token)
    numbers -= docstring_lines(tree)
    return len(numbers)


def name_given(node: ast.AST) -> str | None:
    """The name that a node gives to a variable, an argument or a function, if it gives one."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            return node.id
        return None
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, FUNCTION):
        return node.name
    return None


def count(source: str) -> Count:
    """Counts one file's source."""
    tree = ast.parse(source)
    result = Count(lines=code_lines(source, tree))
    for node in syntax_nodes(tree):
        result.nodes += 1
        result.walruses += isinstance(node, ast.NamedExpr)
        result.foldings += isinstance(node, FOLDING)
        name = name_given(node)
        if name is None:
            continue
        is_vague = name in VAGUE_NAMES
        result.names += 1
        result.vague_names += is_vague
    return result


@functools.cache  # a file in a room of a package is asked for both
def count_file(path: Path) -> Count:
    """Counts one file."""
    source = path.read_text(encoding="utf-8")
    return count(source)


def count_package(folder: Path) -> Count:
    """Adds up the files of a package, with its sub-packages."""
    total = Count()
    paths = folder.rglob("*.py")
    for path in sorted(paths):
        counted = count_file(path)
        total.add(counted)
    return total


def densest_functions(folder: Path) -> list[tuple[float, str]]:
    """(nodes per line, where it is) of each function worth a look, the densest first."""
    functions = []
    for path in folder.rglob("*.py"):
        place = path.relative_to(folder.parent)
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if not isinstance(node, FUNCTION):
                continue
            lines = lines_of(node)
            if lines < SHORTEST_FUNCTION_TO_LIST:
                continue
            nodes = list(syntax_nodes(node))
            nodes_per_line = len(nodes) / lines
            name = f"{place}:{node.lineno} {node.name}"
            functions.append((nodes_per_line, name))
    functions.sort(reverse=True)
    return functions


def lines_of(node: ast.stmt) -> int:
    """How many lines a statement takes, blank lines and comments among them."""
    lines_before = node.lineno - 1
    return node.end_lineno - lines_before


def problems(root: Path = ROOT) -> Iterator[str]:
    """A sentence for every figure of a package above its limit, or far below it."""
    for package, limit in LIMITS.items():
        folder = root / package
        total = count_package(folder)
        for field in fields(Limit):
            name = field.name
            figure = getattr(total, name)
            allowed = getattr(limit, name)
            if figure > allowed:
                yield f"{package}: {name} is {figure:.3f}, at most {allowed}"
            slack = allowed - figure
            if slack > MOST_SLACK:
                yield f"{package}: {name} is only {figure:.3f}, so {allowed} is too high a limit"


def rows(packages: Iterable[str], root: Path = ROOT) -> Iterator[str]:
    """A line of text for each package."""
    form = "{:24}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}"
    yield form.format("", "lines", "nodes", "a line", "walrus", "folded", "vague %")
    for package in packages:
        folder = root / package
        total = count_package(folder)
        figures = []
        for field in fields(Limit):
            figure = getattr(total, field.name)
            rounded = f"{figure:.1f}"
            figures.append(rounded)
        yield form.format(package, total.lines, total.nodes, *figures)


def main() -> None:
    first_line, *_ = __doc__.splitlines()
    parser = argparse.ArgumentParser(description=first_line)
    parser.add_argument("packages", nargs="*", default=list(LIMITS))
    parser.add_argument("--densest", action="store_true", help="list 25 functions of each package")
    arguments = parser.parse_args()
    for row in rows(arguments.packages):
        print(row)
    if not arguments.densest:
        return
    for package in arguments.packages:
        folder = ROOT / package
        functions = densest_functions(folder)
        densest = functions[:25]
        for nodes_per_line, place in densest:
            print(f"{nodes_per_line:6.1f} nodes a line: {place}")


if __name__ == "__main__":
    main()
