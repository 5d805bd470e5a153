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
Results = dict[tuple[str, str], dict[str, Any]]  # by learner and lab, what `grade` has written


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
    results = {}
    points: dict[tuple[str, str], dict[str, float]] = {}  # by learner and lab
    for path in sorted(folder.glob("*/[0-9]*.json")):
        student_and_lab = path.parent.name, path.stem
        results[student_and_lab] = json.loads(path.read_text(encoding="utf-8"))
        points[student_and_lab] = dict(results[student_and_lab]["points"])
    texts: dict[str, str] = defaultdict(str)  # by learner
    for mark in marks:
        points.setdefault((mark.student, mark.lab), {})[mark.exercise] = mark.points
        texts[mark.student] += f"{mark.lab[:2]} {mark.exercise}: {mark.points:g}. {mark.reason}\n"
    for student, text in texts.items():
        path = folder / student / "by_hand.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _write(folder / "grades.csv", grades(points, students, possible))
    _write(folder / "submissions.csv", [row._asdict() for row in rows])
    _write(folder / "statistics.csv", statistics(results))


def grades(
    points: dict[tuple[str, str], dict[str, float]], students: Iterable[str], possible: Possible
) -> Table:
    """A line for each learner, a column for each exercise, each conclusion and each lab's sum.

    An empty cell means that nothing was graded, or marked yet; a zero was earned.
    """
    labs = sorted({lab for _student, lab in points})
    table = []
    for student in students:
        line = {"student": student}
        for lab in labs:
            of_lab = points.get((student, lab), {})
            for name in possible[lab]:
                line[f"{lab[:2]} {name}"] = f"{of_lab[name]:g}" if name in of_lab else ""
            line[f"{lab[:2]} total"] = f"{sum(of_lab.values()):g}" if of_lab else ""
        table.append(line)
    return table


def statistics(results: Results) -> Table:
    """A line for each exercise: how many pass, who does not, and what most are told."""
    graded: Counter[tuple[str, str]] = Counter()
    messages: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # of each who has failed
    for (student, lab), result in results.items():
        for exercise, points in result["points"].items():
            graded[lab, exercise] += 1
            if not points:
                messages[lab, exercise][student] = _gist(result["said"][exercise])
    table = []
    for (lab, exercise), count in graded.items():
        failed = messages[lab, exercise]
        commonest = Counter(failed.values()).most_common(COMMON)
        line = {
            "lab": lab[:2],
            "exercise": exercise,
            "graded": str(count),
            "passed": str(count - len(failed)),
            "failed": "; ".join(failed),
            "messages": "; ".join(f"{number} x {text}" for text, number in commonest),
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
        writer = csv.DictWriter(file, list(table[0]) if table else ["student"])
        writer.writeheader()
        for line in table:
            safe_line = {}
            for column, text in line.items():
                safe_line[column] = f"'{text}" if FORMULA.match(text) else text
            writer.writerow(safe_line)
