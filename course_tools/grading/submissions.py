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
    if match is None or not is_folder_name(match["who"]):
        return None
    return match["who"]


def unpack_all(submitted: Path) -> dict[Path, str]:
    """Unpack a class's zips into submitted/, others beside themselves; what became of each."""
    done: dict[Path, str] = {}
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
    became_of_zips = unpack_all(submitted)
    rows = []
    course_files: Counter[str] = Counter()  # by learner
    notebooks: dict[tuple[str, str], list[Path]] = defaultdict(list)  # by learner and lab
    for path in sorted(submitted.rglob("*")):
        student = _owner(path, submitted, learners)
        if _is_folder(path) or ".ipynb_checkpoints" in path.parts:
            continue
        if path.name in known or path.name.startswith(("lesson_", "challenge", ".")):
            course_files[student] += 1
            continue
        lab = ""
        if path in became_of_zips:
            fault = became_of_zips[path]
        elif not student:
            fault = "nobody's: put it into submitted/NAME/"
        else:
            lab, fault = _lab_of(path, labs, find)
        if fault:
            file = path.relative_to(submitted).as_posix()
            rows.append(Row(student, lab, file, IGNORED, fault))
        else:
            notebooks[student, lab].append(path)
    for (student, lab), paths in notebooks.items():
        rows += _rows_of_lab(student, lab, paths, submitted, find)
    for student, number in course_files.items():
        rows.append(Row(student, "", "", IGNORED, f"{number} hidden files or the course's own"))
    return _with_not_graded(sorted(rows))


def _with_not_graded(rows: list[Row]) -> list[Row]:
    """The rows: a lab's file is NOT GRADED, not just ignored, where its learner has no other."""
    graded = {(row.student, row.lab) for row in rows if row.what == GRADED}
    marked_rows = []
    for row in rows:
        if row.lab and (row.student, row.lab) not in graded:
            row = row._replace(what=NOT_GRADED)
        marked_rows.append(row)
    return marked_rows


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
    handed_in = {(row.student, row.lab) for row in rows}
    missing_rows = []
    for student in learners.all():
        for lab in labs:
            if (student, lab) not in handed_in:
                row = Row(student, lab, "", MISSING, "nothing was handed in")
                missing_rows.append(row)
    return missing_rows


def _lab_of(path: Path, labs: Collection[str], find: Finder) -> tuple[str, str]:
    """The lab of a file, by its name or else by its answers; and why it cannot be graded."""
    if path.suffix.casefold() != ".ipynb":
        kind = path.suffix or "file without an ending"
        return "", f"a {kind} is no notebook: ask for the .ipynb file"
    name = re.sub(r"\s", "_", path.stem.casefold())
    named_labs = [slug for slug in labs if slug in name]
    first_named = named_labs[0] if named_labs else ""
    try:
        lab = _with_most_answers(path, named_labs, find) or _with_most_answers(path, labs, find)
    except ValueError as error:
        return first_named, str(error)
    if lab:
        return lab, ""
    return first_named, NO_CELL


def _with_most_answers(path: Path, labs: Collection[str], find: Finder) -> str:
    """Of which of these labs a notebook has the most answers; empty if of none."""
    best_lab = ""
    most_answers = 0
    for slug in labs:
        answers = len(find(path, slug).answers)
        if answers > most_answers:
            best_lab = slug
            most_answers = answers
    return best_lab


def _rows_of_lab(
    student: str, lab: str, paths: list[Path], submitted: Path, find: Finder
) -> list[Row]:
    """Rows of a learner's notebooks of a lab: the newest counts."""
    *older, newest = sorted(paths, key=_age)
    why = _why(_age(newest), [_age(path) for path in older])
    remarks = find(newest, lab).remarks
    file = newest.relative_to(submitted).as_posix()
    rows = [Row(student, lab, file, GRADED, "; ".join([why, *remarks]))]
    for path in older:
        older_file = path.relative_to(submitted).as_posix()
        rows.append(Row(student, lab, older_file, IGNORED, f"not the newest, which is {file}"))
    return rows


def _age(path: Path) -> Age:
    text_with_dates = path.stem
    stamp = path.with_name("timestamp.txt")
    if stamp.is_file():
        text_with_dates = stamp.read_text(errors="replace")
    latest_date = max(DATE.findall(text_with_dates), default="")
    name = []
    for number, text in re.findall(r"(\d+)|(\D+)", str(path.with_suffix(""))):
        name.append((int(number or 0), text))
    return Age(latest_date, int(path.stat().st_mtime), name)


def _why(age: Age, others: list[Age]) -> str:
    if not others:
        return "the only one"
    with_same_record = [other for other in others if other.record == age.record]
    if not with_same_record:  # it is the newest, so the others' are older
        return f"the newest by its own record, {age.record}"
    if age.changed_s > max(other.changed_s for other in with_same_record):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(age.changed_s))
        return f"the newest by its time, {when}"
    return "the last by its name: their times are the same"
