"""Tables for a spreadsheet, of what make grade has found: grades, submissions, statistics."""

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from course_tools.grading.class_files import Mark, Possible
from course_tools.grading.submissions import Row

COMMON = 3  # messages of an exercise that are shown
FORMULA = re.compile(r"[=+@-](?!\d*\.?\d*$)")  # how one begins; -1.5 is none
Table = list[dict[str, str]]
StudentAndLab = tuple[str, str]
Results = dict[StudentAndLab, dict[str, Any]]  # what `grade` has written
Points = dict[StudentAndLab, dict[str, float]]  # by exercise


def write(
    folder: Path,
    rows: Iterable[Row],
    marks: Iterable[Mark],
    students: Iterable[str],
    possible: Possible,
) -> None:
    """Write grades.csv, submissions.csv and statistics.csv, and by_hand.txt for each learner.

    Args:
        folder: Where `grade` has written its results, and where the tables go.
        rows: Those of submissions.csv.
        marks: Those that a person gives.
        students: Everybody.
        possible: By lab and exercise, the most points.
    """
    results = _results(folder)
    points: Points = defaultdict(dict)
    for student_and_lab, result in results.items():
        points_of_lab = points[student_and_lab]
        points_of_lab.update(result["points"])
    texts: dict[str, str] = defaultdict(str)  # by learner
    for mark in marks:
        student, lab, exercise, number, reason = mark
        points_of_lab = points[student, lab]
        points_of_lab[exercise] = number
        column = _column(lab, exercise)
        texts[student] += f"{column}: {number:g}. {reason}\n"
    for student, text in texts.items():
        folder_of_learner = folder / student
        folder_of_learner.mkdir(exist_ok=True)
        by_hand = folder_of_learner / "by_hand.txt"
        by_hand.write_text(text, encoding="utf-8")
    tables = {
        "grades.csv": grades(points, students, possible),
        "submissions.csv": [row._asdict() for row in rows],
        "statistics.csv": statistics(results),
    }
    for name, table in tables.items():
        _write(folder / name, table)


def _results(folder: Path) -> Results:
    """What `grade` has written for each learner and lab."""
    results: Results = {}
    paths = folder.glob("*/[0-9]*.json")
    for path in sorted(paths):
        student = path.parent.name
        lab = path.stem
        text = path.read_text(encoding="utf-8")
        results[student, lab] = json.loads(text)
    return results


def grades(points: Points, students: Iterable[str], possible: Possible) -> Table:
    """A line for each learner, a column for each exercise, each conclusion and each lab's sum.

    An empty cell means that nothing was graded, or marked yet; a zero was earned.
    """
    labs = {lab for _student, lab in points}
    table = []
    for student in students:
        line = {"student": student}
        for lab in sorted(labs):
            points_of_lab = points.get((student, lab), {})
            total = None
            if points_of_lab:
                total = sum(points_of_lab.values())
            for exercise in possible[lab]:
                earned = points_of_lab.get(exercise)
                column = _column(lab, exercise)
                line[column] = _in_cell(earned)
            column = _column(lab, "total")
            line[column] = _in_cell(total)
        table.append(line)
    return table


def _column(lab: str, exercise: str) -> str:
    """What an exercise is called, such as `03 rank_of`."""
    number = lab[:2]
    return f"{number} {exercise}"


def _in_cell(points: float | None) -> str:
    """Points as a table shows them; nothing where there are none."""
    if points is None:
        return ""
    return f"{points:g}"


def statistics(results: Results) -> Table:
    """A line for each exercise: how many pass, who does not, and what most are told."""
    graded = Counter()  # by lab and exercise
    messages = defaultdict(dict)  # likewise, by everybody who has failed
    for (student, lab), result in results.items():
        points_by_exercise = result["points"]
        verdicts = result["said"]
        for exercise, points in points_by_exercise.items():
            graded[lab, exercise] += 1
            if not points:
                verdict = verdicts[exercise]
                messages_of_exercise = messages[lab, exercise]
                messages_of_exercise[student] = _gist(verdict)
    table = []
    for (lab, exercise), count in graded.items():
        messages_of_failed = messages[lab, exercise]
        passed = count - len(messages_of_failed)
        line = {
            "lab": lab[:2],
            "exercise": exercise,
            "graded": str(count),
            "passed": str(passed),
            "failed": "; ".join(messages_of_failed),
            "messages": _commonest(messages_of_failed.values()),
        }
        table.append(line)
    return table


def _commonest(messages: Iterable[str]) -> str:
    """The messages that most are told, and how many are."""
    counts = Counter(messages)
    parts = []
    for text, count in counts.most_common(COMMON):
        parts.append(f"{count} x {text}")
    return "; ".join(parts)


def _gist(verdict: str) -> str:
    """The sentence that says what is wrong; numbers, in which answers differ, are left out."""
    sentence, *paragraphs = verdict.split("\n\n")
    for paragraph in paragraphs:
        if not paragraph.startswith("  rank"):
            sentence = paragraph
            break
    sentence = sentence.strip()
    first_line, *_further_lines = sentence.split("\n")
    without_numbers = re.sub(r"\d+(\.\d+)?", "N", first_line)
    return without_numbers[:120]


def _write(path: Path, table: Table) -> None:
    """A table whose words no spreadsheet takes for a formula: learners choose some of them."""
    columns = ["student"]
    if table:
        columns = list(table[0])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for line in table:
            safe_line = {}
            for column, text in line.items():
                if FORMULA.match(text):
                    text = f"'{text}"
                safe_line[column] = text
            writer.writerow(safe_line)
