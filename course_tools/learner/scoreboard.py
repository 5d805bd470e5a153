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
    exercises = _rows_of_exercises(scores_file, labs)
    predictions = _rows_of_predictions(scores_file)
    section_of_exercises = _table(_EXERCISES[language], exercises)
    section_of_predictions = _table(_PREDICTIONS[language], predictions)
    return section_of_exercises + section_of_predictions


def _rows_of_exercises(scores_file: Path, labs: Iterable[Path]) -> list[str]:
    """How many exercises pass, for each lab in which one does."""
    rows = []
    for lab in labs:
        exercises = _exercises(lab)
        all_passed = verdicts.passed_in(lab, scores_file)
        passed = all_passed.intersection(exercises)
        if passed:
            link = f"[{lab.stem}]({lab.name})"
            rows.append(f"| {link} | {len(passed)} / {len(exercises)} |")
    return rows


def _rows_of_predictions(scores_file: Path) -> list[str]:
    """How many predictions were right, for each chapter with a prediction."""
    rows = []
    by_chapter = scores.read(scores_file)
    for chapter, answers in sorted(by_chapter.items()):
        right = sum(answers.values())
        rows.append(f"| {chapter} | {right} / {len(answers)} |")
    return rows


def _table(title: tuple[str, str], rows: list[str]) -> str:
    """A section with a table, or nothing if it has no rows."""
    if not rows:
        return ""
    heading, columns = title
    lines = "\n".join(rows)
    return f"\n{heading}\n\n{columns}\n| --- | --- |\n{lines}\n"


def _exercises(lab: Path) -> list[str]:
    """The answers that a lab's last cell, `progress("mean_of_all", ...)`, counts."""
    cells = verdicts.code_cells(lab)
    for cell in reversed(cells):
        if cell.startswith("progress("):
            return _arguments(cell)
    return []


def _arguments(call: str) -> list[str]:
    """The texts that a call is given; none if it isn't Python."""
    try:
        tree = ast.parse(call)
    except SyntaxError:
        return []
    texts = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text):
                texts.append(text)
    return texts
