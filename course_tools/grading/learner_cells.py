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
    metadata = cell.metadata.nbgrader
    lab_cell = {"name": metadata.grade_id, "id": exercise_id, "text": cell.source, "kind": "other"}
    if metadata.solution:
        functions, values = bound(cell.source)
        lab_cell["kind"] = "answer"
        lab_cell["text"] = cut_solution(cell.source)
        lab_cell["functions"] = functions
        lab_cell["values"] = values
    elif metadata.grade:
        lab_cell["kind"] = "check"
    return lab_cell


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
    # By index of the learner's cell, the index of the lab's cell that it is a copy of.
    lab_index_of = [lab.index_of(cell) for cell in cells]
    answers = {}
    answer_indices: set[int] = set()
    for lab_index, answer in lab.answers.items():
        indices = _cells_of_answer(lab_index, answer, lab, cells, lab_index_of)
        if indices:
            texts = [cells[index].text for index in indices]
            answers[answer["name"]] = "\n".join(texts)
            answer_indices.update(indices)
            lab_index_of[indices[0]] = lab_index  # what stands above it is above it in the lab, too
    others = {}
    for index, cell in enumerate(cells):
        if index in answer_indices:
            continue
        text = lab.new_definitions(cell.text)
        if text:
            before = lab.first_cell(lab_index_of[index + 1 :])
            others[f"code cell {index + 1}"] = before, text
    remarks = [] if answers else [NO_CELL]
    return Written(answers, others, remarks + lab.other_version(notebook))


def to_judge(lab_cells: list[dict[str, Any]], learners: Written) -> list[dict[str, Any]]:
    """The lab's cells with a learner's answers in them, and before them what else was written."""
    cells = []
    for lab_cell in lab_cells:
        name = lab_cell["name"]
        cells += _others_before(name, learners)
        text = learners.answers.get(name, lab_cell["text"])
        cells.append({**lab_cell, "text": text})
    return cells + _others_before("", learners)


def _others_before(lab_cell_name: str, learners: Written) -> list[dict[str, Any]]:
    """What else was written above a cell of the lab; with an empty name, below all of them."""
    cells = []
    for name, (before, text) in learners.others.items():
        if before == lab_cell_name:
            cell = {"name": name, "kind": "answer", "text": text, "functions": [], "values": []}
            cells.append(cell)
    return cells


def read(path: Path) -> dict[str, Any]:
    """A notebook as it stands in its file; ValueError says why it is none."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_MB << 20:
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
        cells = []
        for sheet in sheets:
            cells += [cell for cell in sheet["cells"] if cell["cell_type"] == "code"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is no notebook: {type(error).__name__}") from None
    for cell in cells:
        source = cell.get("source", cell.get("input", ""))
        if isinstance(source, list):
            source = "".join(map(str, source))
        nbgrader = _dict_in(cell.get("metadata"), "nbgrader")
        ids = []
        for cell_id in (nbgrader.get("grade_id"), cell.get("id")):
            if isinstance(cell_id, str):
                ids.append(cell_id)
        yield Cell(tuple(ids), as_python(str(source)))


def _dict_in(metadata: Any, key: str) -> dict[str, Any]:
    """A dictionary in metadata; an empty one if there is none, or the metadata is no dictionary."""
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, dict) else {}


def as_python(text: str) -> str:
    """A cell without IPython's own lines, its line numbers as they were."""
    text = text.replace("\r\n", "\n")
    first_line, _, lines_below = text.lstrip().partition("\n")
    if first_line.startswith("%%"):
        if not PYTHON_MAGICS.match(first_line):
            return ""  # a shell script, a page, a file to be written
        blank_start = text[: len(text) - len(text.lstrip())]
        lines_above = len(blank_start.splitlines()) + 1
        text = "\n" * lines_above + lines_below
    # A line such as `%matplotlib inline` or `!pip list` does nothing to names.
    return SHELL_LINE.sub(r"\g<indent>pass", text)


class Lab:
    """What is known of the lab whose copy a notebook is."""

    def __init__(self, cells: list[dict[str, Any]]) -> None:
        self.cells = cells
        self.answers: dict[int, dict[str, Any]] = {}  # by their index among the cells
        # Of no other cell a learner's may bind these: the judge's own, and the answers.
        self.taken_names: set[str] = set()
        self._index_by_id: dict[str, int] = {}
        self._index_by_text: dict[str, int] = {}
        self._statements: set[str] = set()  # of all cells, as `ast.dump` writes them
        for index, cell in enumerate(cells):
            text = cell["text"]
            self._index_by_id[cell["name"]] = index
            self._index_by_id[cell["id"]] = index
            self._index_by_text[text.strip()] = index
            self.taken_names |= binds_and_uses(text).bound
            if cell["kind"] == "answer":
                self.answers[index] = cell
                self.taken_names |= names_of(cell)
            for statement in _parsed_text(text).body:
                self._statements.add(ast.dump(statement))

    def index_of(self, cell: Cell) -> int | None:
        """Which cell of the lab a learner's is, by its id or by its text."""
        for cell_id in cell.ids:
            if cell_id in self._index_by_id:
                return self._index_by_id[cell_id]
        return self._index_by_text.get(cell.text.strip())

    def first_cell(self, indices: list[int | None]) -> str:
        """The name of the first cell of the lab among these; empty if there is none."""
        known = [index for index in indices if index is not None]
        return self.cells[min(known)]["name"] if known else ""

    def check_of(self, answer_index: int) -> int:
        """The index of the check that follows an answer."""
        for index in range(answer_index, len(self.cells)):
            if self.cells[index]["kind"] == "check":
                return index
        return len(self.cells)

    def new_definitions(self, text: str) -> str:
        """What a cell defines that the lab has not; the other lines are left empty."""
        lines = text.splitlines()
        kept_lines = [""] * len(lines)
        for statement in _parsed_text(text).body:
            if ast.dump(statement) in self._statements or self._is_for_show(statement):
                continue
            if binds_and_uses(ast.unparse(statement)).bound & self.taken_names:
                continue
            first_line = statement.lineno
            for decorator in getattr(statement, "decorator_list", []):
                first_line = min(first_line, decorator.lineno)
            of_statement = slice(first_line - 1, statement.end_lineno)
            kept_lines[of_statement] = lines[of_statement]
        return "\n".join(kept_lines).rstrip()

    @staticmethod
    def _is_for_show(statement: ast.stmt) -> bool:
        """Whether a statement only shows something, such as `print(...)` and `check(...)`."""
        if not isinstance(statement, ast.Expr):
            return False
        is_call = isinstance(statement.value, ast.Call)
        return not is_call or isinstance(statement.value.func, ast.Name)

    def other_version(self, notebook: dict[str, Any]) -> list[str]:
        """What there is to say of a copy that was made of another version, or of another lab."""
        course = _dict_in(notebook.get("metadata"), "course")
        if not isinstance(course.get("texts"), dict):
            return []
        texts = course["texts"]
        changed = [cell for cell in self.cells if cell["id"] not in texts]
        if not changed:
            return []
        count = f"{len(changed)} of {len(self.cells)} code cells"
        return [f"it is a copy of a different version of the course: {count} have changed since"]


def names_of(answer: dict[str, Any]) -> set[str]:
    """The names that an answer has to define."""
    return {*answer["functions"], *answer["values"]}


def _cells_of_answer(
    lab_index: int,
    answer: dict[str, Any],
    lab: Lab,
    cells: list[Cell],
    lab_index_of: list[int | None],
) -> list[int]:
    """The indices of a learner's cells that make up an answer, from top to bottom."""
    end = len(cells)
    check_index = lab.check_of(lab_index)
    if check_index in lab_index_of:
        end = lab_index_of.index(check_index)
    chosen = set()
    for name in names_of(answer):
        defining = [index for index, cell in enumerate(cells) if defines(cell.text, name)]
        above_check = [index for index in defining if index < end]
        if above_check:
            chosen.add(above_check[-1])
        elif defining:
            chosen.add(defining[-1])
    if chosen:
        return sorted(chosen)
    ids = {answer["name"], answer["id"]}
    with_id = [index for index, cell in enumerate(cells) if ids & set(cell.ids)]
    return with_id[-1:]


def defines(text: str, name: str) -> bool:
    """Whether a cell binds a name, as far as can be told of one that is no Python."""
    if name in binds_and_uses(text).bound:
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
