"""The labs as their sources say them: each check that a lab makes, and answers to try it on."""

import ast
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import course_utils
from course_checks.cases import CASES, Case
from course_checks.outcome import Outcome
from course_tools import ROOT
from course_tools.quality.lab_checks import (  # noqa: F401 - tests take some of these from here
    CHECK,
    HUNG,
    RAN,
    SIZES,
    SLUGS,
    Exercise,
    cheapest_first,
    check_here,
    hung_or_judged,
    one_thread,
    run,
    sizes,
    sources,
)

PATIENT = {"timeout": 100.0}  # on a busy machine a right answer may take long
SHOWS = "print", "tried"  # what a cell calls to show something, and nothing later needs
SOLVED: dict[str, dict[str, Any]] = {}  # by lab, what its cells defined when they ran as a solution


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
    """What a lab's cells define, for wrong answers that need it; nothing is checked.

    They run only if they have not yet run as a solution.
    """
    if slug not in SOLVED:
        with mock.patch.object(course_utils, "check"):
            _run_cells(slug, cut=False)
    return SimpleNamespace(**SOLVED[slug])


def _run_cells(slug: str, cut: bool) -> None:
    names = RAN[slug] = {"__name__": "__main__"}
    for number, source in enumerate(sources(ROOT / f"source/labs/{slug}.py", cut)):
        name = f"<{slug} {number}{' cut' * cut}>"  # for tracebacks: unique
        run(_without_shows(source), name, names)
    if not cut:
        SOLVED[slug] = names


def _without_shows(source: str) -> str:
    """A cell without what only shows something, which nbval runs; all other lines stay in place."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if is_call and ast.unparse(node.value.func) in SHOWS:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def defined(lesson: Path, wanted: Iterable[str]) -> dict[str, Any]:
    """What the cells of a lesson define that hold one of these texts; nothing is checked."""
    names = {"__name__": "__main__"}
    for number, source in enumerate(sources(lesson)):
        if any(text in source for text in wanted):
            lines = [line for line in source.splitlines() if not line.startswith("check(")]
            run("\n".join(lines), f"<{lesson.stem} {number}>", names)
    return names


@functools.cache
def answers(slug: str) -> dict[str, Any]:
    """What tests/labs/wrong/SLUG.py says: by exercise, WRONG has functions, RIGHT one or some.

    STOPS has the names of those that crash or hang, and of exercises whose answers are tried alone.
    """
    path = ROOT / f"tests/labs/wrong/{slug}.py"
    names: dict[str, Any] = {"__name__": path.stem}
    run(path.read_text(encoding="utf-8"), str(path), names)
    return names


def right(slug: str, name: str) -> list[Callable]:
    """Right answers to an exercise, besides the lab's own."""
    found = answers(slug)["RIGHT"][name]
    return found if isinstance(found, list) else [found]


def on_one_size(options: dict[str, Any], number: int) -> dict[str, Any]:
    """A check for the answer of this number: right ones take turns at the first two world sizes.

    Of a lab's own cases, easy before hard, they get the last two. The notebook's own answer runs on
    all sizes and cases, and in `make soak` each other one does.
    """
    here, cases = sizes(options)[:2], options.get("cases", CASES)
    few = {} if isinstance(cases[0], Case) else {"cases": cases[-2:]}
    return options | PATIENT | few | {"world_sizes": (here[number % len(here)],)}


def judged_alone(fn: Callable, options: dict[str, Any]) -> Outcome:
    """What a check says of a wrong answer, asked part by part until one rejects it."""
    for part in cheapest_first(options):
        outcome = hung_or_judged(fn, part)
        if outcome.state == "wrong":
            break
    return outcome


def names(slug: str) -> list[str]:
    """A lab's exercises, read off its answers without running them, which may take Keras."""
    text = (ROOT / f"tests/labs/wrong/{slug}.py").read_text(encoding="utf-8")
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "RIGHT":
            return [key.value for key in line.value.keys]
    raise LookupError(f"{slug} has no RIGHT")


def definitions(slug: str, **known: Any) -> dict[str, Any]:
    """What a lesson imports and defines, by name, added to what is known; nothing is launched."""
    kinds = ast.Import, ast.ImportFrom, ast.FunctionDef
    for source in sources(ROOT / f"source/lessons/{slug}.py"):
        for node in ast.parse(source).body:
            if isinstance(node, kinds):
                exec(ast.unparse(node), known)
    return known
