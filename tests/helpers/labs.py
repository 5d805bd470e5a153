"""The labs as their sources say them: each check that a lab makes, and answers to try it on."""

import importlib.util
import inspect
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import build
import course_utils
from course_utils.checks.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
RAN: dict[str, dict[str, Any]] = {}  # by lab, what its cells defined when they last ran
EXTRAS = {"10_keras": "keras"}  # what `make test` installs for a lab, and `make quick` does not
SLUGS = [
    path.stem
    for path in sorted((ROOT / "source/labs").glob("[0-9]*_*.py"))
    if importlib.util.find_spec(EXTRAS.get(path.stem, "torch"))
]
SIZES = inspect.signature(course_utils.check).parameters["world_sizes"].default
HUNG = {"timeout": 1.0}  # long enough to hang; who only needs longer gets it
PATIENT = {"timeout": 100.0}  # on a busy machine a right answer may take long
SLOW = ("only needed longer", "perhaps nothing hangs")  # what a report says of such a one


class Exercise(NamedTuple):
    """What a lab hands to check: the answer, and everything else."""

    fn: Callable
    options: dict[str, Any]


def exercises(slug: str, monkeypatch: Any, cut: bool = False) -> dict[str, Exercise]:
    """Run a lab's cells, as a solution or as an exercise, and catch its checks by their names."""
    caught: dict[str, Exercise] = {}

    def catch(fn: Callable, **options: Any) -> None:
        caught[fn.__name__] = Exercise(fn, options)

    monkeypatch.setattr(course_utils, "check", catch)
    _run_cells(slug, cut)
    monkeypatch.undo()
    return caught


def cells(slug: str) -> SimpleNamespace:
    """What a lab's cells define, for wrong answers that need it; nothing is checked."""
    with mock.patch.object(course_utils, "check"):
        return SimpleNamespace(**_run_cells(slug, cut=False))


def _run_cells(slug: str, cut: bool) -> dict[str, Any]:
    plan = build.plan(build.Target(ROOT / f"source/labs/{slug}.py", ROOT, cut))
    names = RAN[slug] = {"__name__": "__main__"}
    for number, cell in enumerate(cell for cell in plan.cells if cell.cell_type == "code"):
        _run(cell.source, f"<{slug} {number}{' cut' * cut}>", names)  # for tracebacks: unique
    return names


def answers(slug: str) -> dict[str, Any]:
    """What tests/labs/wrong/SLUG.py says: by exercise, WRONG has many functions, RIGHT has one."""
    path = ROOT / f"tests/labs/wrong/{slug}.py"
    names: dict[str, Any] = {"__name__": path.stem}
    _run(path.read_text(encoding="utf-8"), str(path), names)
    return names


def one_size_at_a_time(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The options of a check for each of its world sizes: two ranks show most mistakes."""
    for size in sorted(options.get("world_sizes", SIZES), key=lambda size: (size == 1, size)):
        yield options | {"world_sizes": (size,)}


def hung_or_judged(fn: Callable, options: dict[str, Any]) -> Outcome:
    """What a check says of a wrong answer, with little time for those that hang."""
    outcome = course_utils.check(fn, **options | HUNG)
    if any(said in outcome.message for said in SLOW):
        return course_utils.check(fn, **options | {"timeout": 5.0})
    return outcome


def _run(source: str, name: str, names: dict[str, Any]) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)


def wrong_answers() -> Iterator[tuple[str, str, Callable]]:
    """Lab, exercise and answer, of all that must be rejected."""
    for slug in SLUGS:
        for exercise, functions in answers(slug)["WRONG"].items():
            for fn in functions:
                yield slug, exercise, fn
