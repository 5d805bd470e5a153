"""What a learner has written in a notebook of a lab: the answers, and whatever they use.

For a learner counts what happens when all cells run from top to bottom; `make progress` does just
that. Grading runs the teacher's cells instead of the learner's, so here is picked out what is the
learner's own:

- An answer is known by its cell's id, else by the name that it defines, since cells are split,
  pasted and written anew, and some programs drop all ids. Where several cells define it, the last
  one above its check counts.
- Other cells may hold what an answer uses: an import, a helper, a table. Of these comes along what
  defines something that neither the lab nor an answer defines.

Nothing is run here.
"""

import ast
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nbformat import NotebookNode

from course_tools.grading.answers_as_text import binds_and_uses, bound
from course_tools.notebooks.cells import cut_solution

LARGEST_MB = 100
NO_CELL = "it has none of this lab's answers: no cell has the id or defines the name of one"
MERGE_MARKS = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)
# Cell magics whose cell is Python all the same.
PYTHON_MAGICS = re.compile(r"%%(time|timeit|capture|prun|memit)\b")
SHELL_LINE = re.compile(r"^(?P<indent>[ \t]*)([%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.MULTILINE)
DEFINES = r"^(?:async +)?(?:def|class) +{0}\b|^{0} *="


class Cell(NamedTuple):
    """A code cell."""

    ids: tuple[str, ...]  # nbgrader's and Jupyter's, as far as there are any
    text: str  # as Python


class Written(NamedTuple):
    """What a learner has written."""

    answers: dict[str, str]  # by the answer's name, its text
    others: dict[str, tuple[str, str]]  # by a cell's name: before which cell of the lab, its text
    remarks: list[str]  # for the teacher


def for_the_judge(cell: NotebookNode, exercise_id: str) -> dict[str, Any]:
    """A code cell of the teacher's notebook, in the form that `judge` is given.

    Args:
        cell: One with nbgrader's metadata.
        exercise_id: The id of the same cell in the exercise, where its solution is cut out.
    """
    about = cell.metadata.nbgrader
    entry = {"name": about.grade_id, "id": exercise_id, "kind": "other", "text": cell.source}
    if about.solution:
        functions, values = bound(cell.source)
        entry |= {"kind": "answer", "functions": functions, "values": values}
        entry["text"] = cut_solution(cell.source)
    elif about.grade:
        entry["kind"] = "check"
    return entry


def written(path: Path, lab_cells: list[dict[str, Any]]) -> Written:
    """What there is in a notebook, which may come from any program or hand.

    Args:
        path: The notebook's file.
        lab_cells: As for `judge`, each with its `id` in the exercise as well.

    Raises:
        ValueError: It is no notebook; the message says why.
    """
    return written_in(read(path), lab_cells, path.name)


def written_in(
    notebook: dict[str, Any], lab_cells: list[dict[str, Any]], name: str = "it"
) -> Written:
    """As `written`, of a notebook that has been read; `name` is what an error calls it."""
    cells = list(code_cells(notebook, name))
    lab = Lab(lab_cells)
    places = [lab.place_of(cell) for cell in cells]
    answers = {}
    used = set()
    for number, answer in lab.answers.items():
        chosen = _cells_of_answer(number, answer, lab, cells, places)
        if chosen:
            answers[answer["name"]] = "\n".join(cells[place].text for place in chosen)
            used.update(chosen)
            places[chosen[0]] = number  # what stands above it is above it in the lab, too
    others = {}
    for place, cell in enumerate(cells):
        text = "" if place in used else lab.new_definitions(cell.text)
        if text:
            before = lab.next_cell(places[place + 1 :])
            others[f"code cell {place + 1}"] = before, text
    remarks = [] if answers else [NO_CELL]
    return Written(answers, others, remarks + lab.other_version(notebook))


def to_judge(lab_cells: list[dict[str, Any]], learners: Written) -> list[dict[str, Any]]:
    """The lab's cells with a learner's answers in them, and before them what else was written."""
    filled = []
    for cell in [*lab_cells, {"name": ""}]:
        for name, (before, text) in learners.others.items():
            if before == cell["name"]:
                own = {"name": name, "kind": "answer", "text": text}
                filled.append(own | {"functions": [], "values": []})
        if cell["name"]:
            filled.append(cell | {"text": learners.answers.get(cell["name"], cell["text"])})
    return filled


def read(path: Path) -> dict[str, Any]:
    """A notebook as it stands in its file; ValueError says why it is none."""
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_MB << 20:
        raise ValueError(f"{path.name} is no plain file of at most {LARGEST_MB} MB")
    content = path.read_bytes()
    try:
        notebook = _parsed(content)
        if not isinstance(notebook, dict):
            raise TypeError(type(notebook).__name__)
    except (ValueError, TypeError, RecursionError) as error:
        why = type(error).__name__
        if MERGE_MARKS.search(content):
            why = "it holds the marks of a merge, <<<<<<< and >>>>>>>"
        raise ValueError(f"{path.name} is no notebook: {why}") from None
    return notebook


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        return json.loads(content.decode("latin-1"))  # as some editors on Windows save it


def code_cells(notebook: dict[str, Any], name: str) -> Iterator[Cell]:
    """The code cells of a notebook, of nbformat 3 as well; ValueError if it has no list of them."""
    try:
        sheets = notebook.get("worksheets") or [notebook]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is no notebook: {type(error).__name__}") from None
    for cell in code:
        source = cell.get("source", cell.get("input", ""))
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        metadata = cell.get("metadata")
        graded = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        graded = graded if isinstance(graded, dict) else {}
        ids = graded.get("grade_id"), cell.get("id")
        yield Cell(tuple(own for own in ids if isinstance(own, str)), as_python(text))


def as_python(text: str) -> str:
    """A cell without IPython's own lines, its line numbers as they were."""
    text = text.replace("\r\n", "\n")
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith("%%"):
        if not PYTHON_MAGICS.match(first):
            return ""  # a shell script, a page, a file to be written
        blank = "\n" * (len(text[: len(text) - len(text.lstrip())].splitlines()) + 1)
        text = blank + rest
    return SHELL_LINE.sub(_nothing, text)


def _nothing(line: re.Match[str]) -> str:
    """What a line such as `%matplotlib inline` or `!pip list` does to names: nothing."""
    return f"{line['indent']}pass"


class Lab:
    """What is known of the lab whose copy a notebook is."""

    def __init__(self, cells: list[dict[str, Any]]) -> None:
        self.cells = cells
        self.answers = {n: cell for n, cell in enumerate(cells) if cell["kind"] == "answer"}
        self.by_id = {cell[key]: n for n, cell in enumerate(cells) for key in ("name", "id")}
        self.by_text = {cell["text"].strip(): n for n, cell in enumerate(cells)}
        # Of no other cell a learner's may bind these: the judge's own, and the answers.
        self.taken = {name for cell in cells for name in binds_and_uses(cell["text"])[0]}
        for cell in self.answers.values():
            self.taken.update(names_of(cell))
        self.statements = {
            ast.dump(node) for cell in cells for node in _parsed_text(cell["text"]).body
        }

    def place_of(self, cell: Cell) -> int | None:
        """Which cell of the lab a learner's is, by its id or by its text."""
        for own in cell.ids:
            if own in self.by_id:
                return self.by_id[own]
        return self.by_text.get(cell.text.strip())

    def next_cell(self, places: list[int | None]) -> str:
        """The name of the first cell of the lab among these; empty if there is none."""
        known = [place for place in places if place is not None]
        return self.cells[min(known)]["name"] if known else ""

    def check_of(self, answer: int) -> int:
        """The place of the check that follows an answer."""
        later = range(answer, len(self.cells))
        checks = [place for place in later if self.cells[place]["kind"] == "check"]
        return checks[0] if checks else len(self.cells)

    def new_definitions(self, text: str) -> str:
        """What a cell defines that the lab has not; the other lines are left empty."""
        lines = text.splitlines()
        kept = [""] * len(lines)
        for node in _parsed_text(text).body:
            if ast.dump(node) in self.statements or self._is_for_show(node):
                continue
            if binds_and_uses(ast.unparse(node))[0] & self.taken:
                continue
            decorators = getattr(node, "decorator_list", [])
            begin = min([node.lineno, *(own.lineno for own in decorators)]) - 1
            kept[begin : node.end_lineno] = lines[begin : node.end_lineno]
        return "\n".join(kept).rstrip()

    @staticmethod
    def _is_for_show(node: ast.stmt) -> bool:
        """Whether a statement only shows something, such as `print(...)` and `check(...)`."""
        if not isinstance(node, ast.Expr):
            return False
        return not isinstance(node.value, ast.Call) or isinstance(node.value.func, ast.Name)

    def other_version(self, notebook: dict[str, Any]) -> list[str]:
        """What there is to say of a copy that was made of another version, or of another lab."""
        metadata = notebook.get("metadata")
        course = metadata.get("course") if isinstance(metadata, dict) else None
        texts = course.get("texts") if isinstance(course, dict) else None
        if not isinstance(texts, dict):
            return []
        changed = [cell for cell in self.cells if cell["id"] not in texts]
        if not changed:
            return []
        count = f"{len(changed)} of {len(self.cells)} code cells"
        return [f"it is a copy of a different version of the course: {count} have changed since"]


def names_of(answer: dict[str, Any]) -> set[str]:
    """The names that an answer has to define."""
    return {*answer["functions"], *answer["values"]}


def _cells_of_answer(
    number: int, answer: dict[str, Any], lab: Lab, cells: list[Cell], places: list[int | None]
) -> list[int]:
    """The places of a learner's cells that make up an answer, from top to bottom."""
    check = lab.check_of(number)
    below = [n for n, place in enumerate(places) if place == check]
    end = below[0] if below else len(cells)
    found = set()
    for name in names_of(answer):
        defining = [n for n, cell in enumerate(cells) if defines(cell.text, name)]
        above = [n for n in defining if n < end]
        if defining:
            found.add((above or defining)[-1])
    by_id = [n for n, cell in enumerate(cells) if set(cell.ids) & {answer["name"], answer["id"]}]
    return sorted(found) or by_id[-1:]


def defines(text: str, name: str) -> bool:
    """Whether a cell binds a name, as far as can be told of one that is no Python."""
    if name in binds_and_uses(text)[0]:
        return True
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return re.search(DEFINES.format(re.escape(name)), text, re.MULTILINE) is not None
    return False


def _parsed_text(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # it defines nothing
        return ast.Module([], [])
