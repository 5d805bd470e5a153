"""What a learner has done so far, as sections of the course map: exercises and predictions."""

import ast
from collections.abc import Iterable
from pathlib import Path

from course_material import scores, verdicts

_EXERCISES = {
    "": ("## Your exercises", "| lab | passed, and not changed since |"),
    "zh": ("## 你的练习", "| 实验 | 通过，且此后没有改动 |"),
}
_PREDICTIONS = {
    "": ("## Your predictions", "| chapter | right, of those that you made |"),
    "zh": ("## 你的预测", "| 章 | 猜对的，以及猜过的 |"),
}


def sections(scores_file: Path, labs: Iterable[Path], language: str) -> str:
    """Both sections; one is left out before its first entry.

    Args:
        scores_file: What `course_material.scores` keeps.
        labs: The learner's newest copies.
        language: `zh`, or nothing for English.
    """
    exercises = []
    for lab in labs:
        names = _exercises(lab)
        passed = verdicts.passed_in(lab, scores_file).intersection(names)
        if passed:
            exercises.append(f"| [{lab.stem}]({lab.name}) | {len(passed)} / {len(names)} |")
    predictions = []
    for chapter, answers in sorted(scores.read(scores_file).items()):
        right = sum(answers.values())
        predictions.append(f"| {chapter} | {right} / {len(answers)} |")
    return _table(_EXERCISES[language], exercises) + _table(_PREDICTIONS[language], predictions)


def _table(title: tuple[str, str], rows: list[str]) -> str:
    """A section with a table, or nothing if it has no rows."""
    if not rows:
        return ""
    heading, columns = title
    lines = "\n".join(rows)
    return f"\n{heading}\n\n{columns}\n| --- | --- |\n{lines}\n"


def _exercises(lab: Path) -> list[str]:
    """The answers that a lab's last cell, `progress("mean_of_all", ...)`, counts."""
    for cell in reversed(verdicts.code_cells(lab)):
        if cell.startswith("progress("):
            return _arguments(cell)
    return []


def _arguments(call: str) -> list[str]:
    """The texts that a call is given; none if it isn't Python."""
    try:
        tree = ast.parse(call)
    except SyntaxError:
        return []
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [constant.value for constant in constants if isinstance(constant.value, str)]
