"""Buttons below each answer of a learner's lab: check it, see a hint or our answer, count.

They are Markdown, so they are there without a kernel and before anything has run. What they do is
written in `jupyterlab/labextensions/ddp-course`; a viewer without that shows none of them. Our
answer is packed, so that nobody who reads or searches the file meets it, a learner or an assistant;
the button unpacks it.
"""

import base64
import html
import json

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

WORDS = {
    "": ("▶ Check", "Hint", "Our answer", "Progress"),
    "zh": ("▶ 检查", "提示", "我们的答案", "进度"),
}
_ID = "buttons-"  # and the id of the cell above
_LONGEST_ID = 64  # in a notebook's format
_MARKS = ("### BEGIN SOLUTION", "### END SOLUTION")


def add_buttons(lab: NotebookNode, solution: NotebookNode | None, language: str) -> None:
    """Put a cell with buttons below each answer.

    Args:
        lab: The learner's copy of an exercise notebook.
        solution: The same notebook with answers, or None where learners have none.
        language: `zh`, or nothing for English.
    """
    words = WORDS[language]
    answers = _answers(lab, solution)
    cells = []
    for index, cell in enumerate(lab.cells):
        cells.append(cell)
        answer = answers.get(cell.id)
        if answer is None:
            continue
        cells_below = lab.cells[index + 1 :]
        check = _check_below(cells_below)
        if check is not None:
            row = _row(cell, check, answer, words)
            cells.append(row)
    lab.cells = cells


def is_buttons(cell: NotebookNode) -> bool:
    """Whether a cell is one of those that `add_buttons` adds."""
    return cell.id.startswith(_ID)


def _answers(lab: NotebookNode, solution: NotebookNode | None) -> dict[str, str]:
    """Our answer to each cell that a learner has to write, by the cell's id; empty if unknown."""
    if solution is None or len(solution.cells) != len(lab.cells):
        stubs = filter(_is_stub, lab.cells)
        return {cell.id: "" for cell in stubs}
    answers = {}
    pairs = zip(lab.cells, solution.cells, strict=True)
    for cell, solved in pairs:
        if cell.cell_type != "code":
            continue
        if cell.source != solved.source:
            answers[cell.id] = _unmarked(solved.source)
    return answers


def _is_stub(cell: NotebookNode) -> bool:
    """Whether a learner has to write in a cell."""
    return cell.cell_type == "code" and "raise NotImplementedError(" in cell.source


def _unmarked(source: str) -> str:
    """A solved cell without the markers around the solution."""
    lines = []
    for line in source.split("\n"):
        stripped = line.strip()
        if not stripped.startswith(_MARKS):
            lines.append(line)
    return "\n".join(lines)


def _check_below(cells: list[NotebookNode]) -> NotebookNode | None:
    """The first cell with a check, unless a heading comes before it: then it is another's."""
    for cell in cells:
        is_check = cell.cell_type == "code" and "check(" in cell.source
        if is_check:
            return cell
        is_heading = cell.cell_type == "markdown" and cell.source.startswith("## ")
        if is_heading:
            return None
    return None


def _row(
    cell: NotebookNode, check: NotebookNode, answer: str, words: tuple[str, ...]
) -> NotebookNode:
    """The cell with the buttons below an answer."""
    check_word, hint_word, answer_word, progress_word = words
    ids = {"answer": cell.id, "check": check.id}
    check_button = _button("check", ids, check_word)
    hint_button = _button("hint", ids, hint_word)
    progress_button = _button("progress", {}, progress_word)
    buttons = [check_button, hint_button]
    folded_answer = ""
    if answer:
        ids_and_answer = {**ids, "packed": packed(answer)}
        answer_button = _button("answer", ids_and_answer, answer_word)
        buttons.append(answer_button)
        folded_answer = (
            f'\n<details class="course-answer"><summary>{answer_word}</summary>'
            "<pre><code>solutions/</code></pre></details>"
        )
    buttons.append(progress_button)
    side_by_side = " ".join(buttons)
    text = f'<div class="course-buttons" hidden>{side_by_side}</div>{folded_answer}'
    row = new_markdown_cell(text)
    long_id = f"{_ID}{cell.id}"
    row.id = long_id[:_LONGEST_ID]
    return row


def _button(command: str, args: dict[str, str], word: str) -> str:
    """A button that runs a command of ours in JupyterLab."""
    args_json = json.dumps(args)
    attribute = html.escape(args_json)
    return (
        f'<button data-commandlinker-command="course:{command}" '
        f'data-commandlinker-args="{attribute}">{word}</button>'
    )


def packed(code: str) -> str:
    """Code as the button carries it: no word of it can be read or searched for."""
    encoded = base64.b64encode(code.encode())
    return encoded.decode()
