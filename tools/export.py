"""Grades as files for a spreadsheet, for Canvas and for Moodle.

Canvas takes a gradebook with a learner's login and a column for each assignment, whose second line
has the points that are possible. Moodle takes any table in which a column says who it is; which
one, and which assignment a column is, is chosen when it is imported. With a class list that one of
them has exported, its lines and names are kept, and the labs' columns stand behind them.
"""

import csv
import json
from pathlib import Path
from typing import NamedTuple

CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
POSSIBLE = "Points Possible"


class Grades(NamedTuple):
    """By learner and lab, points; by lab, the points that are possible."""

    points: dict[str, dict[str, float]]
    of: dict[str, float]


def exercise(check: str) -> str:
    """The exercise's name."""
    return check.removeprefix("check-")


def read(folder: Path) -> Grades:
    """What grade.py has written."""
    points: dict[str, dict[str, float]] = {}
    of: dict[str, float] = {}
    for path in sorted(folder.glob("*/*.json")):
        found = json.loads(path.read_text())
        points.setdefault(path.parent.name, {})[path.stem] = sum(found["points"].values())
        of[path.stem] = sum(found["of"].values())
    return Grades(points, dict(sorted(of.items())))


def write(folder: Path, roster: Path | None = None) -> list[str]:
    """Write the tables; returns what there is to say about them."""
    grades = read(folder)
    _table(folder / "grades.csv", [["student", "lab", "points", "of"]] + [
        [who, lab, f"{points:g}", f"{grades.of[lab]:g}"]
        for who, own in grades.points.items() for lab, points in own.items()
    ])  # fmt: skip
    canvas = [[who, "", "", who, ""] for who in grades.points]
    _table(folder / "canvas.csv", filled([CANVAS, [POSSIBLE, "", "", "", ""], *canvas], grades))
    moodle = [[who] for who in grades.points]
    _table(folder / "moodle.csv", filled([["username"], *moodle], grades))
    said = [f"{folder}: grades.csv, canvas.csv, moodle.csv"]
    if roster:
        with roster.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
        lines = [line[: len(CANVAS)] for line in lines] if lines[0][:2] == CANVAS[:2] else lines
        _table(folder / f"filled_{roster.name}", filled(lines, grades))
        known = {word.strip() for line in lines for word in line}
        if lost := [who for who in grades.points if who not in known]:
            said.append(f"not in {roster.name}: {', '.join(lost)}")
        said[0] += f", filled_{roster.name}"
    return said


def filled(lines: list[list[str]], grades: Grades) -> list[list[str]]:
    """A class list with the labs' columns; a learner is known by any column, such as the login."""
    made = [[*lines[0], *grades.of]]
    for line in lines[1:]:
        words = {word.strip() for word in line}
        who = next((name for name in grades.points if name in words), None)
        own = grades.of if POSSIBLE in words else grades.points.get(who or "", {})
        made.append([*line, *(f"{own[lab]:g}" if lab in own else "" for lab in grades.of)])
    return made


def _table(path: Path, lines: list[list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
