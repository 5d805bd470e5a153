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
BY_HAND = "conclusion"  # the tag of a cell of prose, which a person reads
NO_CELL = "it has none of this lab's answers: no cell has the id or defines the name of one"
# Cell magics whose cell is Python all the same.
PYTHON_MAGICS = re.compile(r"%%(time|timeit|capture|prun|memit)\b")
SHELL_LINE = re.compile(r"^(?P<indent>[ \t]*)([%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.MULTILINE)
# A cell that defines a name; it need not be Python as a whole.
DEFINES = r"^(?:async +)?(?:def|class) +{0}\b|^(?:\w+ *, *)*{0}(?: *, *\w+)*(?: *:[^=\n]*)? *=(?!=)"
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


def read(path: Path) -> Notebook:
    """A notebook, which may come from any program or hand; ValueError says why it is none."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_MB << 20:
        raise ValueError(f"{path.name} is no plain file of at most {LARGEST_MB} MB")
    content = path.read_bytes()
    try:
        text = content.decode(json.detect_encoding(content))
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # as some editors on Windows save it
    try:
        return notebook_of(nbformat.convert(nbformat.reader.reads(text), 4))
    except FAULTS as error:
        why = type(error).__name__
        if "\n<<<<<<< " in text:
            why = "it holds the marks of a merge, <<<<<<< and >>>>>>>"
        raise ValueError(f"{path.name} is no notebook: {why}") from None


def notebook_of(notebook: NotebookNode) -> Notebook:
    """What grading looks at in a notebook of the fourth format."""
    cells = []
    prose = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            cells.append(Cell({str(grade_id), str(cell.get("id"))}, as_python(cell.source)))
        elif BY_HAND in cell.metadata.get("tags", []):
            prose = cell.source
    texts = notebook.metadata.get("course", {}).get("texts", {})
    return Notebook(cells, prose, set(texts))


def as_python(text: str) -> str:
    """A cell without IPython's own lines, its line numbers as they were."""
    first_line, _, lines_below = text.lstrip().partition("\n")
    if first_line.startswith("%%"):
        if not PYTHON_MAGICS.match(first_line):
            return ""  # a shell script, a page, a file to be written
        lines_above = text.count("\n") - lines_below.count("\n")
        text = "\n" * lines_above + lines_below
    # A line such as `%matplotlib inline` or `!pip list` does nothing to names.
    return SHELL_LINE.sub(r"\g<indent>pass", text)


def written(notebook: Notebook, lab_cells: list[LabCell]) -> Written:
    """What there is of a lab in a notebook."""
    copied = _indices_of_copied_cells(notebook.cells, lab_cells)
    answers: dict[str, str] = {}
    of_answers: set[int] = set()  # indices of the learner's cells
    for lab_index, lab_cell in enumerate(lab_cells):
        if lab_cell["kind"] != "answer":
            continue
        indices = _cells_of_answer(lab_index, lab_cells, notebook.cells, copied)
        if indices:
            texts = [notebook.cells[index].text for index in indices]
            answers[lab_cell["name"]] = "\n".join(texts)
            of_answers.update(indices)
            copied[indices[0]] = lab_index  # what stands above it is above it in the lab, too
    others: dict[int, list[LabCell]] = defaultdict(list)  # by the index of the lab's cell below
    taken_names = _taken_names(lab_cells)
    for index, cell in enumerate(notebook.cells):
        text = _new_definitions(cell.text, taken_names)
        if text and index not in of_answers:
            other = {"name": f"code cell {index + 1}", "kind": "answer", "text": text}
            below = min(copied[index + 1 :], default=len(lab_cells))
            others[below].append(other | {"functions": [], "values": []})
    cells = []
    for lab_index, lab_cell in enumerate(lab_cells):
        text = answers.get(lab_cell["name"], lab_cell["text"])
        cells += [*others[lab_index], lab_cell | {"text": text}]
    cells += others[len(lab_cells)]
    return Written(cells, answers, _remarks(notebook, lab_cells))


def _remarks(notebook: Notebook, lab_cells: list[LabCell]) -> list[str]:
    """What a teacher should know of a copy."""
    remarks = []
    changed = [cell for cell in lab_cells if cell["id"] not in notebook.original_ids]
    if notebook.original_ids and changed:
        count = f"{len(changed)} of {len(lab_cells)} code cells have changed since"
        remarks.append(f"it is a copy of a different version of the course: {count}")
    return remarks


def _indices_of_copied_cells(cells: list[Cell], lab_cells: list[LabCell]) -> list[int]:
    """For each of a learner's cells the index of the lab's that it is a copy of, by id or text.

    One that is no copy has an index beyond the lab's.
    """
    indices = []
    for cell in cells:
        index = len(lab_cells)
        for lab_index, lab_cell in enumerate(lab_cells):
            has_id = not cell.ids.isdisjoint({lab_cell["name"], lab_cell["id"]})
            if has_id or cell.text.strip() == lab_cell["text"].strip():
                index = lab_index
        indices.append(index)
    return indices


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
    for name in _names_of(lab_cells[lab_index]):
        pattern = re.compile(DEFINES.format(re.escape(name)), re.MULTILINE)
        defining = [index for index, cell in enumerate(cells) if pattern.search(cell.text)]
        above_check = [index for index in defining if index < end]
        chosen.update((above_check or defining)[-1:])
    if not chosen and lab_index in copied:
        chosen.add(copied.index(lab_index))
    return sorted(chosen)


def _names_of(lab_cell: LabCell) -> set[str]:
    """The names that an answer has to define."""
    return {*lab_cell.get("functions", ()), *lab_cell.get("values", ())}


def _taken_names(lab_cells: list[LabCell]) -> set[str]:
    """What no other cell of a learner's may bind: the lab's own names, and those of answers."""
    names = set()
    for lab_cell in lab_cells:
        names |= binds_and_uses(lab_cell["text"]).bound | _names_of(lab_cell)
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
        if _is_for_show(statement) or binds_and_uses(ast.unparse(statement)).bound & taken_names:
            continue
        first_line = statement.lineno
        for decorator in getattr(statement, "decorator_list", []):
            first_line = min(first_line, decorator.lineno)
        of_statement = slice(first_line - 1, statement.end_lineno)
        kept_lines[of_statement] = lines[of_statement]
    kept_text = "\n".join(kept_lines).rstrip()
    return kept_text if binds_and_uses(kept_text).bound else ""


def _is_for_show(statement: ast.stmt) -> bool:
    """Whether it is an expression, such as `check(...)`, and no call of a method."""
    if not isinstance(statement, ast.Expr):
        return False
    return not isinstance(getattr(statement.value, "func", None), ast.Attribute)
