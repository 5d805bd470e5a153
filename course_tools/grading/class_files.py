"""What a teacher writes for `make grade`: class.txt, the list of names, and marks.csv.

class.txt has a learner on each line. Behind a comma may stand what a platform calls them:

    ada, Ada Lovelace

marks.csv has marks that a person gives, which count instead of what a check gave:

    learner,lab,exercise,points,reason
    ada,03,conclusion,5,no second size
    bob,02,rank_of,1,regraded: right for any number of nodes

Nothing here is ever written into either file.
"""

import csv
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from course_tools.notebooks.cells import BuildError

COLUMNS = {"learner", "lab", "exercise", "points", "reason"}
Possible = Mapping[str, Mapping[str, float]]


class Mark(NamedTuple):
    """A line of marks.csv."""

    student: str
    lab: str  # its slug
    exercise: str
    points: float
    reason: str


def text_of(path: Path) -> str:
    """The text of a file that a spreadsheet may have written.

    Raises:
        BuildError: Nobody can tell which letters its bytes are.
        OSError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        lines_above = error.object.count(b"\n", 0, error.start)
        place = _line_of(path, lines_above + 1)
        advice = "save it as UTF-8 (a spreadsheet calls that CSV UTF-8)"
        raise BuildError(f"{place} is not UTF-8: {advice}") from None


def _line_of(path: Path, number: int) -> str:
    """How a teacher is told where something is wrong."""
    return f"line {number} of {path.name}"


def same(name: str) -> str:
    """What names are compared by: small letters, composed, one blank between words."""
    small = name.casefold()
    composed = unicodedata.normalize("NFC", small)
    words = composed.split()
    return " ".join(words)


def is_folder_name(name: str) -> bool:
    """Whether a folder can have that name, and lies where one thinks."""
    if name.strip(" .") == "":
        return False
    return not re.search(r"[/\\\x00-\x1f]", name)


class Learners:
    """Everybody who is in class.txt or has a folder, by every name that they are known by."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def add(self, name: str) -> str:
        """The learner whom a folder belongs to, who is new if nobody is called that."""
        key = same(name)
        return self.names.setdefault(key, name)

    def known(self, name: str) -> str | None:
        """The learner of that name, if there is one."""
        key = same(name)
        return self.names.get(key)

    def call(self, name: str, folder: str) -> None:
        """Let the learner who has this folder be known by a name, too."""
        key = same(name)
        self.names[key] = folder

    def all(self) -> list[str]:
        """Each learner once, by the name that class.txt or else the folder has."""
        folders = set(self.names.values())
        return sorted(folders)


def read_class(path: Path) -> Learners:
    """The list of names; without that file, nobody.

    Raises:
        BuildError: A line cannot be understood, or the file names nobody.
    """
    learners = Learners()
    if not path.exists():
        return learners
    lines = text_of(path).splitlines()
    for number, line in enumerate(lines, 1):
        parts = re.split(r"[,;\t]", line)
        stripped = map(str.strip, parts)
        names = list(filter(None, stripped))
        try:
            for name in names:
                _add_name(learners, name, folder=names[0])
        except ValueError as error:
            place = _line_of(path, number)
            raise BuildError(f"{place}: {error}") from None
    if not learners.names:
        raise BuildError(f"{path.name} names nobody: write a learner on each line, or remove it")
    return learners


def _add_name(learners: Learners, name: str, folder: str) -> None:
    """Let the learner who has this folder be known by a name; ValueError says why it cannot be."""
    if not is_folder_name(name):
        raise ValueError(f"no folder can be called {name!r}")
    known = learners.known(name)
    if known not in (None, folder):
        raise ValueError(f"{name} is {known} already")
    first, *last = name.split()
    canvas_name = "".join(last) + first  # such as lovelaceada
    learners.call(name, folder)
    learners.call(canvas_name, folder)


def read_marks(path: Path, learners: Learners, possible: Possible) -> list[Mark]:
    """The marks that a person gives; without that file, none.

    Args:
        path: The table, with commas or semicolons between its columns.
        learners: Everybody who may be named.
        possible: By lab and exercise, the most points; a conclusion is an exercise here.

    Raises:
        BuildError: A line cannot be understood; none of them counts then.
    """
    if not path.exists():
        return []
    table = _table(path)
    columns = set(table.fieldnames or ())
    if not columns >= COLUMNS:
        wanted = ", ".join(sorted(COLUMNS))
        raise BuildError(f"{path.name} needs the columns {wanted}")
    marks = {}  # by learner, lab and exercise
    for line in table:
        if not any(line.values()):
            continue
        try:
            mark = _mark(line, learners, possible)
            marked = (mark.student, mark.lab, mark.exercise)
            if marked in marks:
                raise ValueError("that mark was given above")
        except ValueError as error:
            place = _line_of(path, table.line_num)
            raise BuildError(f"{place}: {error}") from None
        marks[marked] = mark
    return list(marks.values())


def _table(path: Path) -> csv.DictReader:
    """The lines of a table, whose first line says what separates its columns."""
    text = text_of(path)
    lines = text.splitlines(keepends=True)
    separator = ","
    if lines and ";" in lines[0]:
        separator = ";"
    return csv.DictReader(lines, delimiter=separator, restval="")


def _mark(line: Mapping[str, str], learners: Learners, possible: Possible) -> Mark:
    """The mark of a line; ValueError says what is wrong with it."""
    name = line["learner"]
    student = learners.known(name)
    if student is None:
        raise ValueError(f"nobody is called {name!r}")
    name_of_lab = line["lab"]
    slugs = called(name_of_lab, possible)
    if len(slugs) != 1:
        raise ValueError(f"there is no lab {name_of_lab!r}")
    lab = slugs[0]
    exercise = line["exercise"]
    exercise = exercise.strip()
    points_of = possible[lab]
    if exercise not in points_of:
        exercises = ", ".join(points_of)
        raise ValueError(f"{lab} has no {exercise!r}; it has {exercises}")
    most = points_of[exercise]
    number = line["points"]
    number = number.replace(",", ".")
    points = float(number)
    if not 0 <= points <= most:
        raise ValueError(f"{exercise} is worth 0 to {most:g}, not {points:g}")
    reason = line["reason"]
    return Mark(student, lab, exercise, points, reason)


def called(name: str, slugs: Iterable[str]) -> list[str]:
    """The labs of a name or number, such as 3, "lab 03" or 03_collective_primitives."""
    without_word = name.casefold().removeprefix("lab")
    beginning = without_word.strip(" _")
    if beginning.isdigit():
        beginning = f"{beginning:0>2}_"
    return [slug for slug in slugs if slug.startswith(beginning)]
