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
from course_tools import ROOT
from course_tools.child_process import in_child_process
from course_tools.quality import lab_checks
from course_tools.quality.mutations import Mutant, mutants
from course_utils import check

EQUIVALENT = ROOT / "tests/labs/equivalent.toml"
KILLED, SAME, SURVIVES, RAISED = "killed", "equivalent", "surviving", "raised"
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


def tried(path: Path, known: dict[str, dict[str, str]], choice: Choice) -> Iterator[Tried]:
    """Try the mutants of a lab: each in a fork of a process that ran the cells before its own."""
    slug = path.stem
    cells = lab_checks.sources(path)
    caught: dict[str, lab_checks.Exercise] = {}
    course_utils.launch(os.getpid, world_size=1)  # imports what each fork would import again
    with mock.patch.object(course_utils, "check", _catching(caught)):
        exercise_of = dict(in_child_process(lambda: _exercises(cells, caught, slug), timeout=600))
        names = lab_checks.RAN[slug] = {"__name__": "__main__"}
        by_cell = {number: mutants(cell) for number, cell in enumerate(cells)}
        wanted = {id(mutant) for mutant in _drawn(by_cell, exercise_of, choice)}
        for number, cell in enumerate(cells):
            for mutant in by_cell[number]:
                if id(mutant) not in wanted:
                    continue
                wanted.remove(id(mutant))
                exercise = exercise_of[number]
                if mutant.change in known.get(exercise, {}):
                    yield Tried(exercise, mutant.change, SAME)
                else:
                    changed_cells = [mutant.source, *cells[number + 1 :]]
                    fate, report = _fate(changed_cells, names, caught, slug)
                    yield Tried(exercise, mutant.change, fate, report)
            if not wanted:
                return
            with contextlib.redirect_stdout(io.StringIO()):
                lab_checks.run(cell, f"<{slug} {number}>", names)


def _catching(caught: dict[str, lab_checks.Exercise]) -> Callable:
    def catch(fn: Callable, **options: Any) -> None:
        caught[getattr(fn, "__name__", "answer")] = lab_checks.Exercise(fn, options)

    return catch


def _exercises(cells: list[str], caught: dict, slug: str) -> list[tuple[int, str]]:
    """By the number of each cell, the exercise that is checked there or next."""
    names = {"__name__": "__main__"}
    lab_checks.RAN[slug] = names
    exercises, unchecked = [], []
    for number, cell in enumerate(cells):
        unchecked.append(number)
        caught.clear()
        lab_checks.run(cell, f"<{slug} {number}>", names)
        if caught:
            exercise = next(iter(caught))
            for earlier in unchecked:
                exercises.append((earlier, exercise))
            unchecked = []
    return exercises


def _drawn(by_cell: dict[int, list[Mutant]], exercise: dict, choice: Choice) -> Iterator[Mutant]:
    """The mutants that are wanted, those of each exercise in the order of a draw."""
    by_name = defaultdict(list)
    for number, of_cell in by_cell.items():
        if of_cell and choice.only in ("", exercise[number]):
            by_name[exercise[number]] += of_cell
    for name, of_exercise in by_name.items():
        draw = random.Random(f"{choice.seed} {name}")
        count = min(choice.most, len(of_exercise))
        yield from draw.sample(of_exercise, count)


def _fate(cells: list[str], names: dict, caught: dict, slug: str) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            return in_child_process(lambda: _judged(cells, names, caught, slug, folder), MOST_S)
        except RuntimeError as error:  # it has ended the process, or hangs in it
            return KILLED, str(error)


def _judged(cells: list[str], names: dict, caught: dict, slug: str, folder: str) -> tuple[str, str]:
    """In a fork: the cells as far as the next check, and what that says."""
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    caught.clear()
    for number, cell in enumerate(cells):
        try:
            lab_checks.run(cell, f"<{slug} mutant {number}>", names)
        except Exception as error:
            return KILLED, f"{type(error).__name__}: {error}"
        if caught:
            break
    for exercise in caught.values():
        for options in lab_checks.cheapest_first(exercise.options):
            try:
                with mock.patch.object(course_utils, "check", check):
                    outcome = lab_checks.hung_or_judged(exercise.fn, options)
            except Exception as error:
                return RAISED, f"{type(error).__name__}: {error}"
            if not outcome:
                return KILLED, f"{outcome.where}: {outcome.message}"
    return SURVIVES, ""


def show(path: Path, choice: Choice, loud: bool) -> Counter[str]:
    """Try a lab's mutants and print its table; returns how many came to which end."""
    known = tomllib.loads(EQUIVALENT.read_text("utf-8")).get(path.stem, {})
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    print(f"\n{path.stem}", flush=True)
    for mutant in tried(path, known, choice):
        counts[mutant.exercise][mutant.fate] += 1
        if loud or mutant.fate in (SURVIVES, RAISED):
            print(_line_of(mutant), flush=True)
    for name in counts:
        print(_line(name, counts[name]))
    total = sum(counts.values(), Counter())
    print(_line("all", total), flush=True)
    return total


def _line_of(mutant: Tried) -> str:
    line = f"  {mutant.fate}: {mutant.exercise}: {mutant.change}"
    if mutant.report:
        start = " ".join(mutant.report.split())[:150]
        line += f"  [{start}]"
    return line


def _line(name: str, counts: Counter[str]) -> str:
    killed = counts[KILLED] + counts[RAISED]
    line = (
        f"  {name:26}{counts.total():5} made, {killed:4} killed, {counts[SAME]:3} equivalent, "
        f"{counts[SURVIVES]:3} surviving"
    )
    if counts[RAISED]:
        line += f", check raised for {counts[RAISED]}"
    return line


def stale(root: Path = ROOT) -> list[str]:
    """Entries of equivalent.toml that are no mutant of their lab any more."""
    entries = []
    for slug, exercises in tomllib.loads(EQUIVALENT.read_text("utf-8")).items():
        changes = set()
        for cell in lab_checks.sources(root / f"source/labs/{slug}.py"):
            changes.update(mutant.change for mutant in mutants(cell))
        for listed in exercises.values():
            for change in listed.keys() - changes:
                entries.append(f"{slug}: {change}")
    return entries


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="labs, such as 03; all if none")
    parser.add_argument("--only", default="", metavar="EXERCISE", help="such as gather")
    parser.add_argument("--most", type=int, default=1000, help="mutants of an exercise")
    parser.add_argument("--seed", type=int, default=0, help="draws them, where there are more")
    parser.add_argument("--workers", type=int, default=1, help="labs beside each other")
    parser.add_argument("--loud", action="store_true", help="say what killed each")
    args = parser.parse_args()
    beginnings = tuple(args.names) or ("",)
    slugs = [slug for slug in lab_checks.SLUGS if slug.startswith(beginnings)]
    paths = [ROOT / f"source/labs/{slug}.py" for slug in slugs]
    choice = Choice(args.only, args.most, args.seed)
    show_lab = partial(show, choice=choice, loud=args.loud)
    # A process for each lab: what one leaves in its process does not reach the next.
    with get_context("fork").Pool(args.workers, maxtasksperchild=1) as pool:
        total = sum(pool.imap(show_lab, paths, chunksize=1), Counter())
    print("\n" + _line("all labs", total))
    old = stale()
    for entry in old:
        print(f"no mutant any more: {entry}")
    sys.exit(bool(total[SURVIVES] or total[RAISED] or old or not paths))


if __name__ == "__main__":
    main()
