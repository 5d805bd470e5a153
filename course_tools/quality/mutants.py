"""Do the checks of the labs reject small mistakes in their solutions?

    python -m course_tools.quality.mutants                   every lab; takes long
    python -m course_tools.quality.mutants 03 --only gather  one exercise
    python -m course_tools.quality.mutants 03 --most 10      ten of each exercise, drawn by chance

A mutant that a check lets pass is a hole, which the lab's inputs or cases have to close; or it
does the same as the solution, and tests/labs/equivalent.toml says why. Ends with 1 if any is left.
"""

import argparse
import contextlib
import io
import os
import random
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import course_utils
from course_checks.outcome import Outcome
from course_tools import ROOT
from course_tools.child_process import in_child_process
from course_tools.quality import lab_checks
from course_tools.quality.mutations import Mutant, mutants
from course_utils import check

EQUIVALENT = ROOT / "tests/labs/equivalent.toml"
KILLED = "killed"
SAME = "equivalent"
SURVIVES = "surviving"
RAISED = "raised"
Cells = list[str]  # the texts of code cells
Exercises = dict[int, str]  # by the number of each cell, the name of its exercise
Mutants = dict[int, list[Mutant]]  # by the number of their cell
Reasons = dict[str, str]  # by a change, why it does no harm
Listed = dict[str, Reasons]  # by exercise
Fate = tuple[str, str]  # what became of a mutant, and what is reported of it
Counts = Counter[str]  # by fate, how many mutants
MOST_S = 180.0  # for one mutant; what is not done by then hangs where check has no say


class Tried(NamedTuple):
    """What became of one mutant of an exercise."""

    exercise: str
    change: str
    fate: str
    report: str = ""


class Choice(NamedTuple):
    """Which mutants are wanted."""

    only: str = ""
    most: int = 1000
    seed: int = 0


def tried(path: Path, known: Listed, choice: Choice) -> Iterator[Tried]:
    """Try the mutants of a lab: each in a fork of a process that ran the cells before its own."""
    lab = Lab(path)
    course_utils.launch(os.getpid, world_size=1)  # imports what each fork would import again
    with mock.patch.object(course_utils, "check", lab.catch):
        exercises = in_child_process(lab.exercises, timeout=600)
        exercise_of = dict(exercises)
        wanted = _wanted(lab.cells, exercise_of, choice)
        lab.begin()
        for number, cell in enumerate(lab.cells):
            next_number = number + 1
            following = lab.cells[next_number:]
            mutants_of_cell = wanted.pop(number, ())
            for mutant in mutants_of_cell:
                exercise = exercise_of[number]
                equivalent = known.get(exercise, {})
                yield _tried_mutant(mutant, exercise, equivalent, lab, following)
            if not wanted:
                return
            unread = io.StringIO()
            with contextlib.redirect_stdout(unread):
                lab.run(cell, number)


def _tried_mutant(
    mutant: Mutant, exercise: str, equivalent: Reasons, lab: "Lab", following: Cells
) -> Tried:
    """What becomes of one mutant, which stands before the cells that follow its own."""
    change = mutant.change
    if change in equivalent:
        return Tried(exercise, change, SAME)
    cells = [mutant.source, *following]
    fate, report = lab.fate(cells)
    return Tried(exercise, change, fate, report)


class Lab:
    """A lab whose cells run one after the other; what they hand to `check` is only caught."""

    def __init__(self, path: Path) -> None:
        self.slug = path.stem
        self.cells = lab_checks.sources(path)
        self.names: lab_checks.Names = {}
        self.caught: dict[str, lab_checks.Exercise] = {}

    def catch(self, fn: Callable, **options: Any) -> None:
        """Stands in for `check`."""
        name = getattr(fn, "__name__", "answer")
        self.caught[name] = lab_checks.Exercise(fn, options)

    def begin(self) -> None:
        """Forgets what the cells have defined."""
        self.names = {"__name__": "__main__"}
        lab_checks.RAN[self.slug] = self.names

    def run(self, cell: str, label: object) -> None:
        """Runs a cell, which tracebacks call so."""
        file = f"<{self.slug} {label}>"
        lab_checks.run(cell, file, self.names)

    def exercises(self) -> list[tuple[int, str]]:
        """By the number of each cell, the exercise that is checked there or next."""
        self.begin()
        exercises = []
        unchecked = []
        for number, cell in enumerate(self.cells):
            unchecked.append(number)
            self.caught.clear()
            self.run(cell, number)
            if not self.caught:
                continue
            exercise, *_ = self.caught
            for earlier in unchecked:
                exercises.append((earlier, exercise))
            unchecked = []
        return exercises

    def fate(self, cells: Cells) -> Fate:
        """What becomes of these cells in a fork, and what is reported of it."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            judge = partial(self._judged, cells, folder)
            try:
                return in_child_process(judge, MOST_S)
            except RuntimeError as error:  # it has ended the process, or hangs in it
                reason = str(error)
                return KILLED, reason

    def _judged(self, cells: Cells, folder: str) -> Fate:
        """In a fork: runs the cells as far as the next check; returns what becomes of them."""
        os.chdir(folder)
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = folder
        try:
            self._run_to_next_check(cells)
        except Exception as error:
            return KILLED, _raised(error)
        for exercise in self.caught.values():
            fate = _judged_exercise(exercise)
            if fate is not None:
                return fate
        return SURVIVES, ""

    def _run_to_next_check(self, cells: Cells) -> None:
        self.caught.clear()
        for number, cell in enumerate(cells):
            label = f"mutant {number}"
            self.run(cell, label)
            if self.caught:
                return


def _judged_exercise(exercise: lab_checks.Exercise) -> Fate | None:
    """What the check makes of an answer; None if it lets the answer pass."""
    parts_of_check = lab_checks.cheapest_first(exercise.options)
    for options in parts_of_check:
        try:
            outcome = _outcome(exercise.fn, options)
        except Exception as error:
            return RAISED, _raised(error)
        if not outcome:
            report = f"{outcome.where}: {outcome.message}"
            return KILLED, report
    return None


def _outcome(fn: Callable, options: lab_checks.Options) -> Outcome:
    """What the real check says of an answer."""
    with mock.patch.object(course_utils, "check", check):
        return lab_checks.hung_or_judged(fn, options)


def _raised(error: Exception) -> str:
    kind = type(error).__name__
    return f"{kind}: {error}"


def _wanted(cells: Cells, exercise_of: Exercises, choice: Choice) -> Mutants:
    """The mutants that are wanted, in the order of their cells; cells without any are left out."""
    by_cell = {}
    for number, cell in enumerate(cells):
        by_cell[number] = mutants(cell)
    drawn = _drawn(by_cell, exercise_of, choice)
    ids_of_drawn = set(map(id, drawn))
    wanted = {}
    for number, of_cell in by_cell.items():
        wanted_of_cell = []
        for mutant in of_cell:
            if id(mutant) in ids_of_drawn:
                wanted_of_cell.append(mutant)
        if wanted_of_cell:
            wanted[number] = wanted_of_cell
    return wanted


def _drawn(by_cell: Mutants, exercise_of: Exercises, choice: Choice) -> Iterator[Mutant]:
    """The mutants that are wanted, those of each exercise in the order of a draw."""
    by_exercise = defaultdict(list)
    for number, of_cell in by_cell.items():
        if not of_cell:
            continue
        exercise = exercise_of[number]
        is_wanted = choice.only in ("", exercise)
        if is_wanted:
            by_exercise[exercise] += of_cell
    for exercise, of_exercise in by_exercise.items():
        seed = f"{choice.seed} {exercise}"
        draw = random.Random(seed)
        there_are = len(of_exercise)
        count = min(choice.most, there_are)
        yield from draw.sample(of_exercise, count)


def show(path: Path, choice: Choice, loud: bool) -> Counts:
    """Try a lab's mutants and print its table; returns how many came to which end."""
    lab = path.stem
    of_all_labs = _equivalent()
    known = of_all_labs.get(lab, {})
    counts: dict[str, Counts] = defaultdict(Counter)
    print(f"\n{lab}", flush=True)
    for mutant in tried(path, known, choice):
        of_exercise = counts[mutant.exercise]
        of_exercise[mutant.fate] += 1
        is_hole = mutant.fate in (SURVIVES, RAISED)
        if loud or is_hole:
            line = _line_of(mutant)
            print(line, flush=True)
    total = Counter()
    for name, of_exercise in counts.items():
        line = _line(name, of_exercise)
        print(line)
        total += of_exercise
    line = _line("all", total)
    print(line, flush=True)
    return total


def _equivalent() -> dict[str, Listed]:
    """By lab and exercise, the changes that do no harm, each with the reason."""
    text = EQUIVALENT.read_text("utf-8")
    return tomllib.loads(text)


def _line_of(mutant: Tried) -> str:
    line = f"  {mutant.fate}: {mutant.exercise}: {mutant.change}"
    if mutant.report:
        words = mutant.report.split()
        report = " ".join(words)
        beginning = report[:150]
        line += f"  [{beginning}]"
    return line


def _line(name: str, counts: Counts) -> str:
    total = counts.total()
    raised = counts[RAISED]
    killed = counts[KILLED] + raised
    equivalent = counts[SAME]
    surviving = counts[SURVIVES]
    line = f"  {name:26}{total:5} made"
    line += f", {killed:4} killed"
    line += f", {equivalent:3} equivalent"
    line += f", {surviving:3} surviving"
    if raised:
        line += f", check raised for {raised}"
    return line


def stale(root: Path = ROOT) -> list[str]:
    """Entries of equivalent.toml that are no mutant of their lab any more."""
    entries = []
    of_all_labs = _equivalent()
    for slug, exercises in of_all_labs.items():
        lab = root / f"source/labs/{slug}.py"
        changes = _changes_of(lab)
        for listed in exercises.values():
            gone = listed.keys() - changes
            for change in gone:
                entry = f"{slug}: {change}"
                entries.append(entry)
    return entries


def _changes_of(lab: Path) -> set[str]:
    """By what each mutant of a lab is known."""
    changes = set()
    cells = lab_checks.sources(lab)
    for cell in cells:
        for mutant in mutants(cell):
            changes.add(mutant.change)
    return changes


def main() -> None:
    """Run the command line."""
    first_line, *_ = __doc__.splitlines()
    parser = argparse.ArgumentParser(description=first_line)
    parser.add_argument("names", nargs="*", help="labs, such as 03; all if none")
    parser.add_argument("--only", default="", metavar="EXERCISE", help="such as gather")
    parser.add_argument("--most", type=int, default=1000, help="mutants of an exercise")
    parser.add_argument("--seed", type=int, default=0, help="draws them, where there are more")
    parser.add_argument("--workers", type=int, default=1, help="labs beside each other")
    parser.add_argument("--loud", action="store_true", help="say what killed each")
    args = parser.parse_args()
    paths = _labs(args.names)
    choice = Choice(args.only, args.most, args.seed)
    show_lab = partial(show, choice=choice, loud=args.loud)
    # A process for each lab: what one leaves in its process does not reach the next.
    total = Counter()
    processes = get_context("fork")
    with processes.Pool(args.workers, maxtasksperchild=1) as pool:
        for counts in pool.imap(show_lab, paths, chunksize=1):
            total += counts
    line = _line("all labs", total)
    print(f"\n{line}")
    old = stale()
    for entry in old:
        print(f"no mutant any more: {entry}")
    surviving = total[SURVIVES]
    raised = total[RAISED]
    holes = surviving + raised
    is_in_order = paths and not holes and not old
    if not is_in_order:
        sys.exit(1)


def _labs(names: list[str]) -> list[Path]:
    """The sources of the labs that begin so; of all if no name is given."""
    beginnings = tuple(names)
    paths = []
    for slug in lab_checks.SLUGS:
        if not names or slug.startswith(beginnings):
            path = ROOT / f"source/labs/{slug}.py"
            paths.append(path)
    return paths


if __name__ == "__main__":
    main()
