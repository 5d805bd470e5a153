"""Tables for a spreadsheet, of what make grade has found: grades, submissions, statistics."""

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from course_tools.grading.class_files import Mark
from course_tools.grading.submissions import Row

COMMON = 3  # messages of an exercise that are shown
FORMULA = re.compile(r"[=+@-](?!\d*\.?\d*$)")  # how one begins; -1.5 is none
Table = list[dict[str, str]]


def exercise(check: str) -> str:
    """The exercise's name."""
    return check.removeprefix("check-")


def read(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What `grade` has written, by learner and lab."""
    results = {}
    for path in sorted(folder.glob("*/[0-9]*.json")):
        student, lab = path.parent.name, path.stem
        results[student, lab] = json.loads(path.read_text(encoding="utf-8"))
    return results


def write(folder: Path, rows: Iterable[Row], marks: Iterable[Mark], students: list[str]) -> None:
    """Write grades.csv, submissions.csv and statistics.csv, and by_hand.txt for each learner."""
    results = read(folder)
    _write(folder / "grades.csv", grades(results, marks, students))
    _write(folder / "submissions.csv", [row._asdict() for row in rows])
    _write(folder / "statistics.csv", statistics(results))
    texts: dict[str, str] = defaultdict(str)  # by learner
    for mark in marks:
        texts[mark.student] += f"{mark.lab[:2]} {mark.exercise}: {mark.points:g}. {mark.reason}\n"
    for student, text in texts.items():
        path = folder / student / "by_hand.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def grades(
    results: dict[tuple[str, str], dict[str, Any]], marks: Iterable[Mark], students: list[str]
) -> Table:
    """A line for each learner, a column for each exercise, each conclusion and each lab's sum.

    An empty cell means that nothing was graded, or marked yet; a zero was earned.
    """
    points: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)  # by learner and lab
    exercises: dict[str, list[str]] = defaultdict(list)  # by lab, in their order
    for (student, lab), result in results.items():
        of_lab = points[student, lab]  # empty where no exercise has points
        for check, earned in result["points"].items():
            of_lab[exercise(check)] = earned
            _add(exercises[lab], exercise(check))
        for name in result["by_hand"]:
            _add(exercises[lab], name)
    for mark in marks:
        points[mark.student, mark.lab][mark.exercise] = mark.points
        _add(exercises[mark.lab], mark.exercise)
    everybody = set(students)
    for student, _lab in points:
        everybody.add(student)
    table = []
    for student in sorted(everybody):
        line = {"student": student}
        for lab in sorted(exercises):
            of_lab = points.get((student, lab), {})
            for name in exercises[lab]:
                line[f"{lab[:2]} {name}"] = f"{of_lab[name]:g}" if name in of_lab else ""
            line[f"{lab[:2]} total"] = f"{sum(of_lab.values()):g}" if of_lab else ""
        table.append(line)
    return table


def _add(names: list[str], name: str) -> None:
    """Add a name to those of a lab, unless it is there."""
    if name not in names:
        names.append(name)


def statistics(results: dict[tuple[str, str], dict[str, Any]]) -> Table:
    """A line for each exercise: how many pass, who does not, and what most are told."""
    messages: dict[tuple[str, str], dict[str, str]] = {}  # by exercise, of each who has failed
    graded: Counter[tuple[str, str]] = Counter()
    for (student, lab), result in results.items():
        for check, points in result["points"].items():
            lab_and_exercise = lab[:2], exercise(check)
            graded[lab_and_exercise] += 1
            of_exercise = messages.setdefault(lab_and_exercise, {})
            if not points:
                of_exercise[student] = _gist(result["said"][check])
    table = []
    for (lab, name), count in graded.items():
        of_exercise = messages[lab, name]
        commonest = []
        for text, number in Counter(of_exercise.values()).most_common(COMMON):
            commonest.append(f"{number} x {text}")
        line = {
            "lab": lab,
            "exercise": name,
            "graded": str(count),
            "passed": str(count - len(of_exercise)),
            "failed": "; ".join(of_exercise),
            "messages": "; ".join(commonest),
        }
        table.append(line)
    return table


def _gist(verdict: str) -> str:
    """The sentence that says what is wrong; numbers, in which answers differ, are left out."""
    sentence, *paragraphs = verdict.split("\n\n")
    for paragraph in paragraphs:
        if not paragraph.startswith("  rank"):
            sentence = paragraph
            break
    first_line = sentence.strip().split("\n")[0]
    return re.sub(r"\d+(\.\d+)?", "N", first_line)[:120]


def _write(path: Path, table: Table) -> None:
    """A table whose words no spreadsheet takes for a formula: learners choose some of them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        columns = list(table[0]) if table else ["student"]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for line in table:
            safe_line = {}
            for column, text in line.items():
                is_formula = FORMULA.match(text) is not None
                safe_line[column] = f"'{text}" if is_formula else text
            writer.writerow(safe_line)
