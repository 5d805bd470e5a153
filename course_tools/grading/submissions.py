"""What learners have handed in: whose it is, which notebook counts and why, and what is left out.

Below submitted/ there is a folder for each learner, or what Canvas or Moodle pack of a class: a
zip, or what was in it. Every file gets a row, and everybody of whom there is nothing gets one too.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from course_tools.grading import learner_cells, unpack
from course_tools.grading.class_files import Learners
from course_tools.grading.learner_cells import NO_CELL, LabCell, Written

# Canvas: lovelaceada_LATE_123_456_lab_02.ipynb; Moodle: Ada Lovelace_123_assignsubmission_file_
PLATFORM = re.compile(
    r"(?P<who>[^_.][^_]*)_((late_)?\d+_\d+_.+|\d+_assignsubmission_.*)", re.IGNORECASE
)
DATE = re.compile(r"20\d\d-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d)?")
GRADED, IGNORED, NOT_GRADED, MISSING = "graded", "ignored", "NOT GRADED", "missing"
Labs = Mapping[str, list[LabCell]]  # by slug


class Row(NamedTuple):
    """A line of submissions.csv."""

    student: str  # empty where a file is nobody's
    lab: str  # its slug, or empty where that is not known
    file: str  # below submitted/
    what: str
    why: str


class Copy(NamedTuple):
    """A learner's copy of a lab; of several the newest is the largest."""

    student: str
    lab: str
    record: str  # a date in its name, or what nbgrader noted beside it
    changed_s: int
    file: str
    prose: str  # what a person is to read
    written: Written


def whose(name: str) -> str | None:
    """Whom a platform's file or folder belongs to; None where no platform has named it."""
    match = PLATFORM.fullmatch(name)
    return match["who"] if match else None


def unpack_all(submitted: Path) -> dict[Path, str]:
    """Unpack a class's zips into submitted/, others beside themselves; what became of each."""
    done: dict[Path, str] = {}
    for pattern in ("*.zip", "**/*.zip"):  # that of a class may hold others
        for path in sorted(submitted.glob(pattern)):
            is_of_class = path.parent == submitted and not whose(path.stem)
            into = submitted if is_of_class else path.with_suffix("")
            if path not in done:
                done[path] = unpack.unpack(path, into)
    return done


def collect(submitted: Path, learners: Learners, labs: Labs) -> tuple[list[Row], list[Copy]]:
    """A row for each file, and the copies that count.

    Args:
        submitted: The folder.
        learners: Those of the list of names; whoever else has handed in is added.
        labs: All that a notebook may be a copy of.
    """
    became_of_zips = unpack_all(submitted)
    rows = []
    copies: dict[tuple[str, str], list[Copy]] = defaultdict(list)  # by learner and lab
    for path in sorted(submitted.rglob("*")):
        student = _owner(path, submitted, learners)
        if path.is_dir() and not path.is_symlink():
            continue
        file = path.relative_to(submitted).as_posix()
        lab = ""
        what = IGNORED
        if path in became_of_zips:
            why = became_of_zips[path]
        elif not student:
            why = "nobody's: put it into submitted/NAME/"
        elif path.name.startswith(("lesson_", "challenge")):
            why = "the course's own"
        elif "/." in f"/{file}":
            why = "hidden"
        else:
            try:
                copy = _copy(path, student, file, labs)
                copies[student, copy.lab].append(copy)
                continue
            except ValueError as error:
                lab = _named_lab(path, labs)
                if lab:
                    what = NOT_GRADED
                why = str(error)
        rows.append(Row(student, lab, file, what, why))
    for of_lab in copies.values():
        rows += _rows_of_copies(sorted(of_lab))
    return sorted(rows), [max(of_lab) for of_lab in copies.values()]


def _rows_of_copies(copies: list[Copy]) -> list[Row]:
    """Rows of a learner's copies of a lab, of which the newest comes last, and counts."""
    *older, newest = copies
    if not older:
        why = "the only one"
    elif newest.record != older[-1].record:
        why = f"the newest by its own record, {newest.record}"
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest.changed_s))
        why = f"the newest by its time, {when}"
    student, lab = newest.student, newest.lab
    rows = [Row(student, lab, newest.file, GRADED, "; ".join([why, *newest.written.remarks]))]
    for copy in older:
        rows.append(
            Row(student, lab, copy.file, IGNORED, f"not the newest, which is {newest.file}")
        )
    return rows


def _owner(path: Path, submitted: Path, learners: Learners) -> str:
    """The learner whose file or folder it is; empty if nobody can tell."""
    top = submitted / path.relative_to(submitted).parts[0]
    name = whose(top.name)
    if not name and top.is_dir():
        name = top.name
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


def _copy(path: Path, student: str, file: str, labs: Labs) -> Copy:
    """A copy of the lab that its name names, or else of which it has the most answers.

    Raises:
        ValueError: It cannot be graded; the message says why.
    """
    if path.suffix.casefold() != ".ipynb":
        kind = path.suffix or "file without an ending"
        raise ValueError(f"a {kind} is no notebook: ask for the .ipynb file")
    notebook = learner_cells.read(path)
    named_lab = _named_lab(path, labs)
    slugs = [named_lab] if named_lab else list(labs)
    written = {slug: learner_cells.written(notebook, labs[slug]) for slug in slugs}
    lab = max(slugs, key=lambda slug: len(written[slug].answers))
    if not written[lab].answers:
        raise ValueError(NO_CELL)
    text_with_dates = path.stem
    stamp = path.with_name("timestamp.txt")
    if stamp.is_file():
        text_with_dates = stamp.read_text(errors="replace")
    record = max(DATE.findall(text_with_dates), default="")
    changed_s = int(path.stat().st_mtime)
    return Copy(student, lab, record, changed_s, file, notebook.prose, written[lab])


def _named_lab(path: Path, labs: Labs) -> str:
    """The lab that a file's name names; empty if none."""
    name = re.sub(r"\s", "_", path.stem.casefold())
    return next((slug for slug in labs if slug in name), "")
