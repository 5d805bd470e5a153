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
    said: str = ""


class Choice(NamedTuple):
    """Which mutants are wanted."""

    only: str = ""
    most: int = 1000
    seed: int = 0


def tried(path: Path, known: dict[str, dict[str, str]], choice: Choice) -> Iterator[Tried]:
    """Try the mutants of a lab: each in a fork of a process that ran the cells before its own."""
    cells, caught = lab_checks.sources(path), {}
    course_utils.launch(os.getpid, world_size=1)  # imports what each fork would import again
    with mock.patch.object(course_utils, "check", _catching(caught)):
        exercise = dict(in_child_process(lambda: _exercises(cells, caught, path.stem), timeout=600))
        names = lab_checks.RAN[path.stem] = {"__name__": "__main__"}
        made = {n: mutants(cell) for n, cell in enumerate(cells)}
        wanted = {id(one) for one in _drawn(made, exercise, choice)}
        for number, cell in enumerate(cells):
            for one in (one for one in made[number] if id(one) in wanted):
                wanted.remove(id(one))
                same = one.change in known.get(exercise[number], {})
                rest = [one.source, *cells[number + 1 :]]
                fate = (SAME, "") if same else _fate(rest, names, caught, path.stem)
                yield Tried(exercise[number], one.change, *fate)
            if not wanted:
                return
            with contextlib.redirect_stdout(io.StringIO()):
                lab_checks.run(cell, f"<{path.stem} {number}>", names)


def _catching(caught: dict[str, lab_checks.Exercise]) -> Callable:
    def catch(fn: Callable, **options: Any) -> None:
        caught[getattr(fn, "__name__", "answer")] = lab_checks.Exercise(fn, options)

    return catch


def _exercises(cells: list[str], caught: dict, slug: str) -> list[tuple[int, str]]:
    """By the number of each cell, the exercise that is checked there or next."""
    names, found, open_ = {"__name__": "__main__"}, [], []
    lab_checks.RAN[slug] = names
    for number, cell in enumerate(cells):
        open_.append(number)
        caught.clear()
        lab_checks.run(cell, f"<{slug} {number}>", names)
        if caught:
            found += [(own, next(iter(caught))) for own in open_]
            open_ = []
    return found


def _drawn(made: dict[int, list[Mutant]], exercise: dict, choice: Choice) -> Iterator[Mutant]:
    by_name = defaultdict(list)
    for number, found in made.items():
        if found and choice.only in ("", exercise[number]):
            by_name[exercise[number]] += found
    for name, found in by_name.items():
        draw = random.Random(f"{choice.seed} {name}")
        yield from draw.sample(found, min(choice.most, len(found)))


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
    for one in tried(path, known, choice):
        counts[one.exercise][one.fate] += 1
        if loud or one.fate in (SURVIVES, RAISED):
            said = f"  [{' '.join(one.said.split())[:150]}]" if one.said else ""
            print(f"  {one.fate}: {one.exercise}: {one.change}{said}", flush=True)
    for name in counts:
        print(_line(name, counts[name]))
    total = sum(counts.values(), Counter())
    print(_line("all", total), flush=True)
    return total


def _line(name: str, counts: Counter[str]) -> str:
    killed = f"{counts[KILLED] + counts[RAISED]:4} killed"
    raised = f", check raised for {counts[RAISED]}" if counts[RAISED] else ""
    ends = f"{counts.total():5} made, {killed}, {counts[SAME]:3} equivalent"
    return f"  {name:26}{ends}, {counts[SURVIVES]:3} surviving{raised}"


def stale(root: Path = ROOT) -> list[str]:
    """Entries of equivalent.toml that are no mutant of their lab any more."""
    found = []
    for slug, exercises in tomllib.loads(EQUIVALENT.read_text("utf-8")).items():
        cells = lab_checks.sources(root / f"source/labs/{slug}.py")
        changes = {one.change for cell in cells for one in mutants(cell)}
        found += [f"{slug}: {one}" for own in exercises.values() for one in own.keys() - changes]
    return found


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
    slugs = [slug for slug in lab_checks.SLUGS if slug.startswith(tuple(args.names) or "")]
    paths = [ROOT / f"source/labs/{slug}.py" for slug in slugs]
    shown = partial(show, choice=Choice(args.only, args.most, args.seed), loud=args.loud)
    # A process for each lab: what one leaves in its process does not reach the next.
    with get_context("fork").Pool(args.workers, maxtasksperchild=1) as pool:
        total = sum(pool.imap(shown, paths, chunksize=1), Counter())
    old = stale()
    print("\n" + _line("all labs", total), *(f"no mutant any more: {one}" for one in old), sep="\n")
    sys.exit(bool(total[SURVIVES] or total[RAISED] or old or not paths))


if __name__ == "__main__":
    main()
