"""The predictions of a chapter on its page: a form for each, and what answers it is folded."""

import ast
import html
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode


class Question(NamedTuple):
    """One prediction of a chapter."""

    number: int  # from 0, in the chapter's order
    name: str  # the variable that holds it
    text: str
    choices: list[str]


def questions(cells: Iterable[NotebookNode]) -> Iterator[tuple[NotebookNode, Question]]:
    """Yields the cells that ask, each with what it asks."""
    number = 0
    for cell in cells:
        for statement in _tree(cell).body:
            call = getattr(statement, "value", None)
            if _is_call(call, "predict") and call.args and isinstance(statement, ast.Assign):
                found = _choices(_tree(cell), call)
                yield cell, Question(number, statement.targets[0].id, call.args[0].value, found)
                number += 1


def _tree(cell: NotebookNode) -> ast.Module:
    asks = cell.cell_type == "code" and ("predict(" in cell.source or ".measured(" in cell.source)
    return ast.parse(cell.source if asks else "")


def _is_call(node: Any, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name


def _choices(tree: ast.Module, call: ast.Call) -> list[str]:
    """What one may choose among: written there, or in plain values of the same cell."""
    given = next((word.value for word in call.keywords if word.arg == "choices"), None)
    if given is None:
        return []
    known: dict[str, Any] = {"tuple": tuple}
    for statement in tree.body:
        plain = not any(isinstance(part, ast.Call) for part in ast.walk(statement))
        if isinstance(statement, ast.Assign | ast.AugAssign) and plain:
            exec(ast.unparse(statement), {"__builtins__": {}}, known)
    return list(map(str, eval(ast.unparse(given), {"__builtins__": {}}, known)))


def answers(cells: Iterable[NotebookNode]) -> dict[str, tuple[NotebookNode, float]]:
    """By the variable of a question, the first cell that answers it and how near one must be."""
    found: dict[str, tuple[NotebookNode, float]] = {}
    for cell in cells:
        for call in (part for part in ast.walk(_tree(cell)) if _is_call(part, "measured")):
            near = {word.arg: word.value for word in call.keywords}.get("within")
            name = ast.unparse(call.func).split(".")[0]
            found.setdefault(name, (cell, ast.literal_eval(near) if near else 0.0))
    return found


def fold(cells: list[NotebookNode], chapter: str, say: Callable[[str], str] = str) -> int:
    """Folds what answers a prediction, puts the question on the page; returns how many there are.

    Between a question and its answer an experiment may show the answer, so all of it is folded.
    """
    asked, answered = list(questions(cells)), answers(cells)
    places = {id(cell): place for place, cell in enumerate(cells)}
    for cell, question in asked:
        last, within = answered.get(question.name, (cell, 0.0))
        for own in cells[places[id(cell)] + 1 : places[id(last)] + 1]:
            if own.cell_type == "code" and own.outputs:
                tags = own.metadata.setdefault("tags", [])
                wanted = "hide-output", f"tells-{question.number}"
                tags += [tag for tag in wanted if tag not in tags]
        told = re.search(
            rf"^{re.escape(question.text)}: (about )?(.*) \(no prediction\)$", _said(last), re.M
        )
        cell.outputs.append(markup(ask(chapter, question, told[2] if told else "", within, say)))
    for cell in cells:
        if cell.cell_type == "code" and "predict()" in cell.source.splitlines():
            cell.outputs = [markup(f'<p class="score" data-chapter="{chapter}"></p>')]
    return len(asked)


def _said(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def ask(
    chapter: str,
    question: Question,
    measured: str,
    within: float,
    say: Callable[[str], str] = str,
) -> str:
    """The form of a question: choices, a slider beside a number, or a line for anything else."""
    choices = question.choices or (["True", "False"] if measured in ("True", "False") else [])
    yes_no = {"True": say("yes"), "False": say("no")}
    if choices:
        fields = "".join(
            f'<label><input type="radio" name="answer" value="{_safe(one)}" required>'
            f"{yes_no.get(one, _safe(one))}</label>"
            for one in choices
        )
    else:
        mine, list_of = say("your answer"), say("a list: numbers or words")
        hint = list_of if measured.startswith("[") else say("a number or a word")
        fields = f'<input type="text" name="answer" aria-label="{mine}" required '
        fields += f'autocomplete="off" placeholder="{hint}">'
        if _number(measured) is not None:
            roughly = say("your answer, roughly")
            fields += f'<input type="range" max="100" step="any" aria-label="{roughly}">'
    first, compare = say("Predict first:"), say("Compare")
    facts = {"chapter": chapter, "number": question.number, "question": question.text}
    facts |= {"measured": measured, "within": within}
    data = " ".join(f'data-{name}="{_safe(str(value))}"' for name, value in facts.items())
    return (
        f'<form class="ask" {data}><fieldset><legend>{first} {_safe(question.text)} …'
        f"</legend>{fields}<button>{compare}</button></fieldset><output></output></form>"
    )


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _safe(text: str) -> str:
    return html.escape(text, quote=True)


def markup(text: str) -> NotebookNode:
    """Returns an output of nothing but HTML."""
    return nbformat.v4.new_output("display_data", {"text/html": text, "text/plain": ""})


def asked_in(path: Path) -> int:
    """How many predictions a chapter asks for."""
    return len(list(questions(nbformat.read(path, as_version=4).cells)))
