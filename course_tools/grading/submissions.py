"""What learners have handed in: whose it is, which notebook counts and why, and what is left out.

Below submitted/ there is a folder for each learner, or what Canvas or Moodle pack of a class: a
zip, or what was in it. Every file gets a row, and everybody of whom there is nothing gets one too.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from course_tools.grading import unpack
from course_tools.grading.class_files import Learners, is_folder_name
from course_tools.grading.learner_cells import NO_CELL, Written

# Canvas: lovelaceada_LATE_123_456_lab_02.ipynb; Moodle: Ada Lovelace_123_assignsubmission_file_
CANVAS = re.compile(r"(?P<who>[^_]+)(?:_late)?_\d+_\d+_.+", re.IGNORECASE)
MOODLE = re.compile(r"(?P<who>[^_]+)_\d+_assignsubmission_.*")
DATE = re.compile(r"20\d\d-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d)?")
GRADED, IGNORED, NOT_GRADED, MISSING = "graded", "ignored", "NOT GRADED", "missing"
# What a notebook has of a lab, by its slug; ValueError if it is no notebook.
Finder = Callable[[Path, str], Written]


class Row(NamedTuple):
    """A line of submissions.csv."""

    student: str  # empty where a file is nobody's
    lab: str  # its slug, or empty where that is not known
    file: str  # below submitted/
    what: str
    why: str


class Age(NamedTuple):
    """How new a notebook is: by its own record, else by its time, else by its name."""

    record: str  # a date in its name, or what nbgrader noted beside it
    changed_s: int
    name: list[tuple[int, str]]  # in which 10 comes after 2


def whose(name: str) -> str | None:
    """Whom a platform's file or folder belongs to; None where no platform has named it."""
    match = MOODLE.fullmatch(name) or CANVAS.fullmatch(name)
    return match["who"] if match and is_folder_name(match["who"]) else None


def unpack_all(submitted: Path) -> dict[Path, str]:
    """Unpack a class's zips into submitted/, others beside themselves; what became of each."""
    done = {}
    for path in sorted(submitted.glob("*.zip")):
        if not whose(path.stem):
            done[path] = unpack.unpack(path, submitted, unpack.MOST_BYTES_OF_ALL)
    for path in sorted(submitted.rglob("*.zip")):
        if path not in done:
            done[path] = unpack.unpack(path, path.with_suffix(""))
    return done


def collect(
    submitted: Path, learners: Learners, labs: Collection[str], find: Finder, known: Collection[str]
) -> list[Row]:
    """A row for each file.

    Args:
        submitted: The folder.
        learners: Those of the list of names; whoever else has handed in is added.
        labs: The slugs of the labs that are to be graded.
        find: Says which answers a notebook has.
        known: Names of files that the course itself lays out for learners.
    """
    packed = unpack_all(submitted)
    rows, counted = [], Counter()
    candidates: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path in sorted(submitted.rglob("*")):
        student = _owner(path, submitted, learners)
        if _is_folder(path) or ".ipynb_checkpoints" in path.parts:
            continue
        if path.name in known or path.name.startswith(("lesson_", "challenge", ".")):
            counted[student] += 1
            continue
        lab, fault = "", packed.get(path, "")
        if not student and not fault:
            fault = "nobody's: put it into submitted/NAME/"
        elif not fault:
            lab, fault = _lab_of(path, labs, find)
        if fault:
            rows.append(Row(student, lab, path.relative_to(submitted).as_posix(), IGNORED, fault))
        else:
            candidates[student, lab].append(path)
    for (student, lab), paths in candidates.items():
        rows += _chosen(student, lab, paths, submitted, find)
    for student, number in counted.items():
        rows.append(Row(student, "", "", IGNORED, f"{number} hidden files or the course's own"))
    graded = {(row.student, row.lab) for row in rows if row.what == GRADED}
    return [
        row._replace(what=NOT_GRADED) if row.lab and (row.student, row.lab) not in graded else row
        for row in sorted(rows)
    ]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _owner(path: Path, submitted: Path, learners: Learners) -> str:
    """The learner whose file or folder it is; empty if nobody can tell."""
    top, *below = path.relative_to(submitted).parts
    name = whose(top)
    if not name and (below or _is_folder(path)):
        name = top
    return learners.add(name) if name else ""


def missing(rows: Iterable[Row], learners: Learners, labs: Iterable[str]) -> list[Row]:
    """A row for everybody of whom there is nothing of a lab."""
    there = {(row.student, row.lab) for row in rows}
    return [
        Row(student, lab, "", MISSING, "nothing was handed in")
        for student in learners.all()
        for lab in labs
        if (student, lab) not in there
    ]


def _lab_of(path: Path, labs: Collection[str], find: Finder) -> tuple[str, str]:
    """The lab of a file, by its name or else by its answers; and why it cannot be graded."""
    if path.suffix.casefold() != ".ipynb":
        kind = path.suffix or "file without an ending"
        return "", f"a {kind} is no notebook: ask for the .ipynb file"
    name = re.sub(r"\s", "_", path.stem.casefold())
    named = [slug for slug in labs if slug in name]
    try:
        for some in (named, labs):
            found = {slug: len(find(path, slug).answers) for slug in some}
            best = max(found, key=found.__getitem__, default="")
            if best and found[best]:
                return best, ""
    except ValueError as error:
        return "".join(named[:1]), str(error)
    return "".join(named[:1]), NO_CELL


def _chosen(student: str, lab: str, paths: list[Path], submitted: Path, find: Finder) -> list[Row]:
    """Rows of a learner's notebooks of a lab: the newest counts."""
    files = {path: path.relative_to(submitted).as_posix() for path in paths}
    *others, newest = sorted(paths, key=_age)
    why = _why(_age(newest), [_age(path) for path in others])
    remarks = find(newest, lab).remarks
    rows = [Row(student, lab, files[newest], GRADED, "; ".join([why, *remarks]))]
    older = f"not the newest, which is {files[newest]}"
    return rows + [Row(student, lab, files[path], IGNORED, older) for path in others]


def _age(path: Path) -> Age:
    stamp = path.with_name("timestamp.txt")
    noted = stamp.read_text(errors="replace") if stamp.is_file() else path.stem
    parts = re.findall(r"(\d+)|(\D+)", str(path.with_suffix("")))
    name = [(int(number or 0), text) for number, text in parts]
    return Age(max(DATE.findall(noted), default=""), int(path.stat().st_mtime), name)


def _why(age: Age, others: list[Age]) -> str:
    if not others:
        return "the only one"
    if age.record > max(other.record for other in others):
        return f"the newest by its own record, {age.record}"
    if age.changed_s > max(other.changed_s for other in others if other.record == age.record):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(age.changed_s))
        return f"the newest by its time, {when}"
    return "the last by its name: their times are the same"
