"""Grades as a table for a spreadsheet: a line for each learner, a column for each exercise."""

import csv
import json
from pathlib import Path


def exercise(check: str) -> str:
    """The exercise's name."""
    return check.removeprefix("check-")


def column(slug: str, check: str) -> str:
    """What an exercise's column is called: `02 rank_of`."""
    return f"{slug[:2]} {exercise(check)}"


def total(slug: str) -> str:
    """What the column is called that has the sum of a lab."""
    return f"{slug[:2]} total"


def write(folder: Path) -> str:
    """Write grades.csv of what grade.py has written; returns what there is to say about it.

    An empty cell means that nothing was graded; a zero was earned.
    """
    lines: dict[str, dict[str, str]] = {}
    columns: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/*.json")):
        points = json.loads(path.read_text(encoding="utf-8"))["points"]
        names = [column(path.stem, check) for check in points]
        columns[path.stem] = [*names, total(path.stem)]
        numbers = [*points.values(), sum(points.values())]
        line = lines.setdefault(path.parent.name, {"student": path.parent.name})
        line |= {
            name: f"{number:g}" for name, number in zip(columns[path.stem], numbers, strict=True)
        }
    with (folder / "grades.csv").open("w", encoding="utf-8", newline="") as file:
        header = ["student", *(name for slug in sorted(columns) for name in columns[slug])]
        table = csv.DictWriter(file, header, restval="")
        table.writeheader()
        table.writerows(lines.values())
    return f"{folder / 'grades.csv'}: {len(lines)} learners"
