"""What a learner has written in a notebook of a lab: the answers, and whatever they use.

For a learner counts what happens when all cells run from top to bottom; `make progress` does just
that. Grading runs the teacher's cells instead of the learner's, so here is picked out what is the
learner's own:

- An answer is known by the name that it defines, else by its cell's id, since cells are split,
  pasted and written anew, and some programs drop all ids. Where several cells define it, the last
  one above its check counts.
- Other cells may hold what an answer uses: an import, a helper, a table. Of these comes along what
  defines something that neither the lab nor an answer defines.

Nothing is run here.
"""

import ast
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from course_tools.grading.answers_as_text import binds_and_uses, bound
from course_tools.notebooks.cells import cut_solution

LARGEST_MB = 100
LARGEST_BYTES = LARGEST_MB << 20
BY_HAND = "conclusion"  # the tag of a cell of prose, which a person reads
NO_CELL = "it has none of this lab's answers: no cell has the id or defines the name of one"
# Cell magics whose cell is Python all the same.
PYTHON_MAGICS = re.compile(r"%%(time|timeit|capture|prun|memit)\b")
SHELL_LINE = re.compile(r"^(?P<indent>[ \t]*)([%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.MULTILINE)
# A cell that defines a name; it need not be Python as a whole.
DEFINES = (
    r"^(?:async +)?(?:def|class) +{0}\b"
    r"|^(?:\w+ *, *)*{0}(?: *, *\w+)*(?: *:[^=\n]*)? *=(?!=)"  # an assignment, to others as well
)
# What JSON that is no notebook, or is no JSON, ends in.
FAULTS = (
    ValueError, TypeError, KeyError, AttributeError, RecursionError, nbformat.ValidationError
)  # fmt: skip

LabCell = dict[str, Any]  # as for `judge`, with its id in the exercise as well


class Cell(NamedTuple):
    """A learner's code cell."""

    ids: set[str]  # nbgrader's and Jupyter's, as far as there are any
    text: str  # as Python


class Notebook(NamedTuple):
    """A learner's notebook."""

    cells: list[Cell]
    prose: str  # what a person is to read
    original_ids: set[str]  # of the exercise that it was copied from, if it says so


class Written(NamedTuple):
    """What a learner has written for a lab."""

    cells: list[LabCell]  # the lab's, with the answers in them, and before them what else there is
    answers: dict[str, str]  # by the answer's name, its text
    remarks: list[str]  # for the teacher


def for_the_judge(cell: NotebookNode, exercise_id: str) -> LabCell:
    """A code cell of the teacher's notebook, in the form that `judge` is given.

    Args:
        cell: One with nbgrader's metadata.
        exercise_id: The id of the same cell in the exercise, where its solution is cut out.
    """
    metadata = cell.metadata.nbgrader
    lab_cell = {
        "name": metadata.grade_id,
        "id": exercise_id,
        "text": cell.source,
        "kind": "other",
    }
    if metadata.solution:
        functions, values = bound(cell.source)
        lab_cell["kind"] = "answer"
        lab_cell["text"] = cut_solution(cell.source)
        lab_cell["functions"] = functions
        lab_cell["values"] = values
    elif metadata.grade:
        lab_cell["kind"] = "check"
    return lab_cell


def read(path: Path) -> Notebook:
    """A notebook, which may come from any program or hand; ValueError says why it is none."""
    name = path.name
    is_plain = path.is_file() and not path.is_symlink()
    if not is_plain or path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{name} is no plain file of at most {LARGEST_MB} MB")
    content = path.read_bytes()
    encoding = json.detect_encoding(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # as some editors on Windows save it
    try:
        notebook = nbformat.reader.reads(text)
        of_fourth_format = nbformat.convert(notebook, 4)
        return notebook_of(of_fourth_format)
    except FAULTS as error:
        why = type(error).__name__
        if "\n<<<<<<< " in text:
            why = "it holds the marks of a merge, <<<<<<< and >>>>>>>"
        raise ValueError(f"{name} is no notebook: {why}") from None


def notebook_of(notebook: NotebookNode) -> Notebook:
    """What grading looks at in a notebook of the fourth format."""
    cells = []
    prose = ""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code":
            nbgraders = cell.metadata.get("nbgrader", {})
            grade_id = nbgraders.get("grade_id")
            cell_id = cell.get("id")
            ids = {str(grade_id), str(cell_id)}
            text = as_python(cell.source)
            cells.append(Cell(ids, text))
        elif BY_HAND in tags:
            prose = cell.source
    course = notebook.metadata.get("course", {})
    original_ids = set(course.get("texts", {}))
    return Notebook(cells, prose, original_ids)


def as_python(text: str) -> str:
    """A cell without IPython's own lines, its line numbers as they were."""
    without_blanks = text.lstrip()
    first_line, _, lines_below = without_blanks.partition("\n")
    if first_line.startswith("%%"):
        if not PYTHON_MAGICS.match(first_line):
            return ""  # a shell script, a page, a file to be written
        lines_above = text.count("\n") - lines_below.count("\n")
        text = "\n" * lines_above + lines_below
    # A line such as `%matplotlib inline` or `!pip list` does nothing to names.
    return SHELL_LINE.sub(r"\g<indent>pass", text)


def written(notebook: Notebook, lab_cells: list[LabCell]) -> Written:
    """What there is of a lab in a notebook."""
    learners_cells = notebook.cells
    copied = _indices_of_copied_cells(learners_cells, lab_cells)
    answers = {}
    of_answers = set()  # indices of the learner's cells
    for lab_index, lab_cell in enumerate(lab_cells):
        if lab_cell["kind"] != "answer":
            continue
        indices = _cells_of_answer(lab_index, lab_cells, learners_cells, copied)
        if not indices:
            continue
        name = lab_cell["name"]
        texts = [learners_cells[index].text for index in indices]
        answers[name] = "\n".join(texts)
        of_answers.update(indices)
        topmost = indices[0]
        copied[topmost] = lab_index  # what stands above it is above it in the lab, too
    others = _other_cells(learners_cells, lab_cells, copied, of_answers)
    cells = []
    for lab_index, lab_cell in enumerate(lab_cells):
        cells += others[lab_index]
        name = lab_cell["name"]
        text = answers.get(name, lab_cell["text"])
        cells.append(lab_cell | {"text": text})
    at_the_end = len(lab_cells)
    cells += others[at_the_end]
    remarks = _remarks(notebook, lab_cells)
    return Written(cells, answers, remarks)


def _other_cells(
    cells: list[Cell], lab_cells: list[LabCell], copied: list[int], of_answers: set[int]
) -> dict[int, list[LabCell]]:
    """What answers may use of a learner's other cells, by the index of the lab's cell below.

    Args:
        cells: The learner's.
        lab_cells: The lab's.
        copied: As `_indices_of_copied_cells` gives them.
        of_answers: The indices of the learner's cells that are answers.
    """
    at_the_end = len(lab_cells)
    taken_names = _taken_names(lab_cells)
    others = defaultdict(list)
    for index, cell in enumerate(cells):
        if index in of_answers:
            continue
        text = _new_definitions(cell.text, taken_names)
        if not text:
            continue
        copied_below = copied[index + 1 :]
        below = min(copied_below, default=at_the_end)
        other = {
            "name": f"code cell {index + 1}",
            "kind": "answer",
            "text": text,
            "functions": [],
            "values": [],
        }
        others[below].append(other)
    return others


def _remarks(notebook: Notebook, lab_cells: list[LabCell]) -> list[str]:
    """What a teacher should know of a copy."""
    if not notebook.original_ids:
        return []
    ids = {cell["id"] for cell in lab_cells}
    changed = len(ids - notebook.original_ids)
    if not changed:
        return []
    count = f"{changed} of {len(lab_cells)} code cells have changed since"
    return [f"it is a copy of a different version of the course: {count}"]


def _indices_of_copied_cells(cells: list[Cell], lab_cells: list[LabCell]) -> list[int]:
    """For each of a learner's cells the index of the lab's that it is a copy of, by id or text.

    One that is no copy has an index beyond the lab's.
    """
    indices = []
    for cell in cells:
        index = len(lab_cells)
        for lab_index, lab_cell in enumerate(lab_cells):
            if _is_copy(cell, lab_cell):
                index = lab_index
        indices.append(index)
    return indices


def _is_copy(cell: Cell, lab_cell: LabCell) -> bool:
    """Whether a learner's cell has the id or the text of the lab's."""
    if lab_cell["name"] in cell.ids:
        return True
    if lab_cell["id"] in cell.ids:
        return True
    text = lab_cell["text"]
    return cell.text.strip() == text.strip()


def _cells_of_answer(
    lab_index: int, lab_cells: list[LabCell], cells: list[Cell], copied: list[int]
) -> list[int]:
    """The indices of a learner's cells that make up an answer, from top to bottom."""
    kinds = [lab_cell["kind"] for lab_cell in lab_cells]
    check_index = kinds.index("check", lab_index)
    end = len(cells)
    if check_index in copied:
        end = copied.index(check_index)
    chosen = set()
    answer = lab_cells[lab_index]
    for name in _names_of(answer):
        defining = _indices_of_cells_that_define(name, cells)
        above_check = [index for index in defining if index < end]
        candidates = above_check or defining
        if candidates:
            chosen.add(candidates[-1])
    if not chosen and lab_index in copied:
        chosen.add(copied.index(lab_index))
    return sorted(chosen)


def _indices_of_cells_that_define(name: str, cells: list[Cell]) -> list[int]:
    """The indices of a learner's cells that define a name, from top to bottom."""
    defines = DEFINES.format(re.escape(name))
    pattern = re.compile(defines, re.MULTILINE)
    indices = []
    for index, cell in enumerate(cells):
        if pattern.search(cell.text):
            indices.append(index)
    return indices


def _names_of(lab_cell: LabCell) -> set[str]:
    """The names that an answer has to define."""
    functions = lab_cell.get("functions", ())
    values = lab_cell.get("values", ())
    return {*functions, *values}


def _taken_names(lab_cells: list[LabCell]) -> set[str]:
    """What no other cell of a learner's may bind: the lab's own names, and those of answers."""
    names = set()
    for lab_cell in lab_cells:
        names_of_text = binds_and_uses(lab_cell["text"])
        names |= names_of_text.bound
        names |= _names_of(lab_cell)
    return names


def _new_definitions(text: str, taken_names: set[str]) -> str:
    """What a cell defines under names that are free; the other lines are left empty."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):  # it defines nothing
        return ""
    lines = text.splitlines()
    kept_lines = [""] * len(lines)
    for statement in statements:
        if _is_for_show(statement):
            continue
        text_of_statement = ast.unparse(statement)
        names = binds_and_uses(text_of_statement)
        if names.bound & taken_names:
            continue
        first_line = statement.lineno
        decorators = getattr(statement, "decorator_list", [])
        if decorators:
            first_line = decorators[0].lineno
        of_statement = slice(first_line - 1, statement.end_lineno)
        kept_lines[of_statement] = lines[of_statement]
    kept_text = "\n".join(kept_lines).rstrip()
    names = binds_and_uses(kept_text)
    if not names.bound:
        return ""
    return kept_text


def _is_for_show(statement: ast.stmt) -> bool:
    """Whether it is an expression, such as `check(...)`, and no call of a method."""
    if not isinstance(statement, ast.Expr):
        return False
    called = getattr(statement.value, "func", None)
    return not isinstance(called, ast.Attribute)
