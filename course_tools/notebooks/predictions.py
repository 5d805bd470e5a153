"""The predictions of a chapter on its page: a form for each, and what answers it is folded."""

import ast
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from course_tools.notebooks.course_map import Say

ASKS_OR_ANSWERS = re.compile(r"predict\(|\.measured\(")


class Question(NamedTuple):
    """One prediction of a chapter."""

    number: int  # from 0, in the chapter's order
    name: str  # the variable that holds it
    text: str
    choices: list[str]
    count: int  # how many answers are wanted; 0 if it doesn't say


class Answer(NamedTuple):
    """What answers a prediction."""

    cell: NotebookNode
    within: float  # how near to what was measured a prediction must be


def questions(cells: Iterable[NotebookNode]) -> Iterator[tuple[NotebookNode, Question]]:
    """Yields the cells that ask, each with what it asks."""
    number = 0
    for cell in cells:
        tree = _tree(cell)
        for statement in tree.body:
            if not isinstance(statement, ast.Assign):
                continue
            call = statement.value
            if not _is_call(call, "predict") or not call.args:
                continue
            question = Question(
                number=number,
                name=statement.targets[0].id,
                text=call.args[0].value,
                choices=_choices(tree, call),
                count=_count(call),
            )
            yield cell, question
            number += 1


def _tree(cell: NotebookNode) -> ast.Module:
    """The code of a cell that asks or answers; of any other cell, none."""
    nothing = ast.parse("")
    if cell.cell_type != "code":
        return nothing
    if ASKS_OR_ANSWERS.search(cell.source) is None:
        return nothing
    return ast.parse(cell.source)


def _is_call(node: Any, name: str) -> bool:
    """Whether this calls a function or a method of that name."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    *_owner, last_name = called.split(".")
    return last_name == name


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    """What a call gives by this name, if it does."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return None


def _count(call: ast.Call) -> int:
    """How many answers a question wants, if it says so."""
    written = _argument(call, "count")
    if written is None:
        return 0
    return ast.literal_eval(written)


def _choices(tree: ast.Module, call: ast.Call) -> list[str]:
    """What one may choose among: written there, or in plain values of the same cell."""
    written = _argument(call, "choices")
    if written is None:
        return []
    no_builtins = {"__builtins__": {}}
    values: dict[str, Any] = {"tuple": tuple}
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AugAssign):
            continue
        if not _has_call(statement):
            code = ast.unparse(statement)
            exec(code, no_builtins, values)
    expression = ast.unparse(written)
    choices = eval(expression, no_builtins, values)
    return [str(choice) for choice in choices]


def _has_call(statement: ast.stmt) -> bool:
    """Whether a statement calls anything."""
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def answers(cells: Iterable[NotebookNode]) -> dict[str, Answer]:
    """By the variable of a question, the first cell that answers it and how near one must be."""
    by_variable: dict[str, Answer] = {}
    for cell in cells:
        tree = _tree(cell)
        for node in ast.walk(tree):
            if not _is_call(node, "measured"):
                continue
            called = ast.unparse(node.func)
            variable, *_ = called.split(".")
            within = _within(node)
            answer = Answer(cell, within)
            by_variable.setdefault(variable, answer)
    return by_variable


def _within(call: ast.Call) -> float:
    """How near a prediction must be, as `measured(..., within=)` says; 0 if it doesn't."""
    written = _argument(call, "within")
    if written is None:
        return 0.0
    return ast.literal_eval(written)


def fold(cells: list[NotebookNode], chapter: str, say: Say = str) -> int:
    """Folds what answers a prediction, puts the question on the page; returns how many there are.

    Between a question and its answer an experiment may show the answer, so all of it is folded.
    """
    asked = list(questions(cells))
    answered = answers(cells)
    positions = {id(cell): position for position, cell in enumerate(cells)}
    for cell, question in asked:
        no_answer = Answer(cell, 0.0)
        answer = answered.get(question.name, no_answer)
        asking = positions[id(cell)]
        answering = positions[id(answer.cell)]
        experiments = cells[asking + 1 : answering + 1]
        for experiment in experiments:
            _hide_output(experiment, question)
        measured = _measured(answer.cell, question)
        form = ask(chapter, question, measured, answer.within, say)
        cell.outputs.append(markup(form))
    _put_score(cells, chapter)
    return len(asked)


def _put_score(cells: list[NotebookNode], chapter: str) -> None:
    """Puts a place for the score below each cell that calls `predict()` without a question."""
    score = f'<p class="score" data-chapter="{chapter}"></p>'
    for cell in cells:
        if cell.cell_type != "code":
            continue
        lines = cell.source.splitlines()
        if "predict()" in lines:
            cell.outputs = [markup(score)]


def _hide_output(cell: NotebookNode, question: Question) -> None:
    """Tags a cell whose output tells what is asked."""
    if cell.cell_type != "code" or not cell.outputs:
        return
    tags = cell.metadata.setdefault("tags", [])
    tells = f"tells-{question.number}"
    for tag in ("hide-output", tells):
        if tag not in tags:
            tags.append(tag)


def _measured(cell: NotebookNode, question: Question) -> str:
    """What a cell printed as the answer of a question; nothing if it printed none."""
    printed = ""
    for output in cell.outputs:
        printed += output.get("text", "")
    asked = re.escape(question.text)
    pattern = rf"^{asked}: (?:about )?(.*) \(no prediction\)$"
    match = re.search(pattern, printed, re.MULTILINE)
    if match is None:
        return ""
    return match[1]


def _buttons(choices: list[str], say: Say) -> str:
    """A button for each choice."""
    yes_no = {"True": say("yes"), "False": say("no")}
    buttons = ""
    for choice in choices:
        value = html.escape(choice)
        label = yes_no.get(choice, value)
        button = f'<input type="radio" name="answer" value="{value}" required>'
        buttons += f"<label>{button}{label}</label>"
    return buttons


def _line(measured: str, say: Say) -> str:
    """A line to write an answer on; below it a slider, if the answer is a number."""
    label = say("your answer")
    hint = say("a number or a word")
    if measured.startswith("["):
        hint = say("a list: numbers or words")
    line = f'<input type="text" name="answer" aria-label="{label}" required '
    line += f'autocomplete="off" placeholder="{hint}">'
    if _number(measured) is not None:
        roughly = say("your answer, roughly")
        line += f'<input type="range" max="100" step="any" aria-label="{roughly}">'
    return line


def ask(
    chapter: str,
    question: Question,
    measured: str,
    within: float,
    say: Say = str,
) -> str:
    """The form of a question: choices, a slider beside a number, or a line for anything else."""
    choices = question.choices
    if not choices and measured in ("True", "False"):
        choices = ["True", "False"]
    if choices:
        fields = _buttons(choices, say)
    else:
        fields = _line(measured, say)
    first = say("Predict first:")
    compare = say("Compare")
    text = html.escape(question.text)
    facts = {
        "chapter": chapter,
        "number": question.number,
        "question": question.text,
        "measured": measured,
        "within": within,
        "count": question.count,
    }
    data = ""
    for name, value in facts.items():
        escaped = html.escape(str(value))
        data += f' data-{name}="{escaped}"'
    return (
        f'<form class="ask"{data}><fieldset><legend>{first} {text} …'
        f"</legend>{fields}<button>{compare}</button></fieldset><output></output></form>"
    )


def _number(text: str) -> float | None:
    """A number that was printed, or None."""
    without_commas = text.replace(",", "")
    try:
        return float(without_commas)
    except ValueError:
        return None


def markup(text: str) -> NotebookNode:
    """Returns an output of nothing but HTML."""
    data = {"text/html": text, "text/plain": ""}
    return nbformat.v4.new_output("display_data", data)


def asked_in(path: Path) -> int:
    """How many predictions a chapter asks for."""
    notebook = nbformat.read(path, as_version=4)
    asked = list(questions(notebook.cells))
    return len(asked)
