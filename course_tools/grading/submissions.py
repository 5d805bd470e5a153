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
GRADED = "graded"
IGNORED = "ignored"
NOT_GRADED = "NOT GRADED"
MISSING = "missing"
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
    if match is None:
        return None
    return match["who"]


def unpack_all(submitted: Path) -> dict[Path, str]:
    """Unpack a class's zips into submitted/, others beside themselves; what became of each."""
    done: dict[Path, str] = {}
    for pattern in ("*.zip", "**/*.zip"):  # that of a class may hold others
        for path in sorted(submitted.glob(pattern)):
            if path in done:
                continue
            into = path.with_suffix("")
            is_on_top = path.parent == submitted
            if is_on_top and not whose(path.stem):
                into = submitted
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
    copies = defaultdict(list)  # by learner and lab
    for path in sorted(submitted.rglob("*")):
        student = _owner(path, submitted, learners)
        if path.is_dir() and not path.is_symlink():
            continue
        file = path.relative_to(submitted).as_posix()
        why_ignored = became_of_zips.get(path) or _why_ignored(file, student)
        if why_ignored:
            row = Row(student, "", file, IGNORED, why_ignored)
            rows.append(row)
            continue
        try:
            copy = _copy(path, student, file, labs)
        except ValueError as error:
            became = IGNORED
            lab = _named_lab(path, labs)
            if lab:
                became = NOT_GRADED
            row = Row(student, lab, file, became, str(error))
            rows.append(row)
        else:
            copies[student, copy.lab].append(copy)
    newest = []
    for of_lab in copies.values():
        of_lab.sort()
        rows += _rows_of_copies(of_lab)
        newest.append(of_lab[-1])
    return sorted(rows), newest


def _why_ignored(file: str, student: str) -> str:
    """Why nobody looks into a file; empty if it may be a learner's copy of a lab."""
    if not student:
        return "nobody's: put it into submitted/NAME/"
    _folder, _slash, name = file.rpartition("/")
    if name.startswith(("chapter_", "lesson_", "challenge")):
        return "the course's own"
    if "/." in f"/{file}":
        return "hidden"
    return ""


def _rows_of_copies(copies: list[Copy]) -> list[Row]:
    """Rows of a learner's copies of a lab, of which the newest comes last, and counts."""
    *older, newest = copies
    if not older:
        why = "the only one"
    elif newest.record != older[-1].record:
        why = f"the newest by its own record, {newest.record}"
    else:
        changed = time.localtime(newest.changed_s)
        when = time.strftime("%Y-%m-%d %H:%M", changed)
        why = f"the newest by its time, {when}"
    reasons = [why, *newest.written.remarks]
    rows = [_row(newest, GRADED, "; ".join(reasons))]
    why_ignored = f"not the newest, which is {newest.file}"
    for copy in older:
        row = _row(copy, IGNORED, why_ignored)
        rows.append(row)
    return rows


def _row(copy: Copy, became: str, why: str) -> Row:
    """What is told of a copy."""
    return Row(copy.student, copy.lab, copy.file, became, why)


def _owner(path: Path, submitted: Path, learners: Learners) -> str:
    """The learner whose file or folder it is; empty if nobody can tell."""
    first_part, *_below = path.relative_to(submitted).parts
    name = whose(first_part)
    if not name and Path(submitted, first_part).is_dir():
        name = first_part
    if not name:
        return ""
    return learners.add(name)


def missing(rows: Iterable[Row], learners: Learners, labs: Iterable[str]) -> list[Row]:
    """A row for everybody of whom there is nothing of a lab."""
    handed_in = {(row.student, row.lab) for row in rows}
    missing_rows = []
    for student in learners.all():
        for lab in labs:
            if (student, lab) in handed_in:
                continue
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
    slugs = list(labs)
    named_lab = _named_lab(path, labs)
    if named_lab:
        slugs = [named_lab]
    written = {}
    answers = {}  # how many
    for slug in slugs:
        written_for_lab = learner_cells.written(notebook, labs[slug])
        written[slug] = written_for_lab
        answers[slug] = len(written_for_lab.answers)
    lab = max(slugs, key=answers.get)
    if not answers[lab]:
        raise ValueError(NO_CELL)
    record = _record(path)
    changed_s = int(path.stat().st_mtime)
    return Copy(student, lab, record, changed_s, file, notebook.prose, written[lab])


def _record(path: Path) -> str:
    """The last date that nbgrader noted beside a notebook, or else that is in its name."""
    text_with_dates = path.stem
    stamp = path.with_name("timestamp.txt")
    if stamp.is_file():
        text_with_dates = stamp.read_text(errors="replace")
    dates = DATE.findall(text_with_dates)
    return max(dates, default="")


def _named_lab(path: Path, labs: Labs) -> str:
    """The lab that a file's name names; empty if none."""
    small = path.stem.casefold()
    name = re.sub(r"\s", "_", small)
    for slug in labs:
        if slug in name:
            return slug
    return ""
