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
Table = list[dict[str, str]]


def exercise(check: str) -> str:
    """The exercise's name."""
    return check.removeprefix("check-")


def read(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What `grade` has written, by learner and lab."""
    return {
        (path.parent.name, path.stem): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*/[0-9]*.json"))
    }


def write(folder: Path, rows: Iterable[Row], marks: Iterable[Mark], students: list[str]) -> None:
    """Write grades.csv, submissions.csv and statistics.csv, and by_hand.txt for each learner."""
    results = read(folder)
    _write(folder / "grades.csv", grades(results, marks, students))
    _write(folder / "submissions.csv", [row._asdict() for row in rows])
    _write(folder / "statistics.csv", statistics(results))
    by_hand = defaultdict(list)
    for mark in marks:
        line = f"{mark.lab[:2]} {mark.exercise}: {mark.points:g}. {mark.reason}\n"
        by_hand[mark.student].append(line)
    for student, lines in by_hand.items():
        path = folder / student / "by_hand.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


def grades(
    results: dict[tuple[str, str], dict[str, Any]], marks: Iterable[Mark], students: list[str]
) -> Table:
    """A line for each learner, a column for each exercise, each conclusion and each lab's sum.

    An empty cell means that nothing was graded, or marked yet; a zero was earned.
    """
    points: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    columns: dict[str, list[str]] = defaultdict(list)
    for (student, lab), result in results.items():
        points[student, lab] = {exercise(check): p for check, p in result["points"].items()}
        names = [*points[student, lab], *result["by_hand"]]
        columns[lab] += [name for name in names if name not in columns[lab]]
    for mark in marks:
        points[mark.student, mark.lab][mark.exercise] = mark.points
        if mark.exercise not in columns[mark.lab]:
            columns[mark.lab].append(mark.exercise)
    table = []
    for student in sorted({*students, *(student for student, _ in points)}):
        line = {"student": student}
        for lab in sorted(columns):
            earned = points.get((student, lab), {})
            for name in columns[lab]:
                line[f"{lab[:2]} {name}"] = f"{earned[name]:g}" if name in earned else ""
            line[f"{lab[:2]} total"] = f"{sum(earned.values()):g}" if earned else ""
        table.append(line)
    return table


def statistics(results: dict[tuple[str, str], dict[str, Any]]) -> Table:
    """A line for each exercise: how many pass, who does not, and what most are told."""
    failed: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    graded: Counter[tuple[str, str]] = Counter()
    for (student, lab), result in results.items():
        for check, points in result["points"].items():
            where = lab[:2], exercise(check)
            graded[where] += 1
            if not points:
                failed[where][student] = _gist(result["said"][check])
    return [
        {
            "lab": lab, "exercise": name, "graded": str(count),
            "passed": str(count - len(failed[lab, name])), "failed": "; ".join(failed[lab, name]),
            "messages": "; ".join(
                f"{number} x {text}"
                for text, number in Counter(failed[lab, name].values()).most_common(COMMON)
            ),
        }
        for (lab, name), count in graded.items()
    ]  # fmt: skip


def _gist(said: str) -> str:
    """The sentence that says what is wrong; numbers, in which answers differ, are left out."""
    headline, *paragraphs = said.split("\n\n")
    words = [text for text in paragraphs if not text.startswith("  rank")]
    first = (words or [headline])[0].strip().split("\n")[0]
    return re.sub(r"\d+(\.\d+)?", "N", first)[:120]


def _write(path: Path, table: Table) -> None:
    """A table whose words no spreadsheet takes for a formula: learners choose some of them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]) if table else ["student"])
        writer.writeheader()
        for line in table:
            writer.writerow({
                name: "'" + text if re.match(r"[=+@-](?!\d*\.?\d*$)", text) else text
                for name, text in line.items()
            })  # fmt: skip
