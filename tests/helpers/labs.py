"""The labs as their sources say them: each check that a lab makes, and answers to try it on."""

import ast
import contextlib
import functools
import importlib.util
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch

import build
import course_utils
from course_checks.cases import CASES, Case
from course_checks.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
RAN: dict[str, dict[str, Any]] = {}  # by lab, what its cells defined when they last ran
EXTRAS = {"10_keras": "keras"}  # what `make test` installs for a lab, and `make quick` does not
SLUGS = [
    path.stem
    for path in sorted((ROOT / "source/labs").glob("[0-9]*_*.py"))
    if importlib.util.find_spec(EXTRAS.get(path.stem, "torch"))
]
CHECK = importlib.import_module("course_checks.check")
SIZES = inspect.signature(course_utils.check).parameters["world_sizes"].default
HUNG = {"timeout": 1.0}  # long enough to hang; who only needs longer gets it
PATIENT = {"timeout": 100.0}  # on a busy machine a right answer may take long
SLOW = (  # in its report
    "only needed longer", "perhaps nothing hangs", "No call is seen to lack",
    "outside of your code",
)  # fmt: skip


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
    names = RAN[slug] = {"__name__": "__main__"}
    for number, source in enumerate(sources(ROOT / f"source/labs/{slug}.py", cut)):
        run(source, f"<{slug} {number}{' cut' * cut}>", names)  # for tracebacks: unique
    return names


def sources(path: Path, cut: bool = False) -> list[str]:
    """The code cells of a lab."""
    cells = build.plan(build.Target(path, ROOT, cut)).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


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


def sizes(options: dict[str, Any]) -> list[int]:
    """The world sizes of a check, two ranks first, which show most mistakes, and one last."""
    return sorted(options.get("world_sizes", SIZES), key=lambda n: (n == 1, n))


def on_one_size(options: dict[str, Any], number: int) -> dict[str, Any]:
    """A check for the answer of this number: right ones take turns at the first two world sizes.

    Of a lab's own cases, easy before hard, they get the last two. The notebook's own answer runs on
    all sizes and cases, and in `make soak` each other one does.
    """
    here, cases = sizes(options)[:2], options.get("cases", CASES)
    few = {} if isinstance(cases[0], Case) else {"cases": cases[-2:]}
    return options | PATIENT | few | {"world_sizes": (here[number % len(here)],)}


def cheapest_first(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Parts of a check, whose wrong answers are wrong for all: the last case, then each size.

    A lab's own cases, easy before hard, take long; kinds of tensors all together take less than
    a launch. What one case does not call may be called in another, so nothing is required of it.
    """
    cases = options.get("cases", CASES)
    if len(cases) > 1 and not isinstance(cases[0], Case):
        few = {"world_sizes": sizes(options)[:1], "cases": cases[-1:]}
        yield options | few | {"require": ()}
    for size in sizes(options):
        yield options | {"world_sizes": (size,)}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """As ranks compute: where tensors are small, threads that wait for each other cost the most."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def judged_here(judging: Callable, *arguments: Any, **options: Any) -> list[Any]:
    """Instead of `launch`: our own answers harm no judge, so none needs a process of its own."""
    return [judging(*arguments)]


def check_here(fn: Callable, **options: Any) -> Outcome:
    """What a check says, judged in this process; the answer's ranks are real ones."""
    with mock.patch.object(CHECK, "launch", judged_here):
        return CHECK.check(fn, **options)


def hung_or_judged(fn: Callable, options: dict[str, Any]) -> Outcome:
    """What a check says of a wrong answer, with little time for those that hang."""
    outcome = check_here(fn, **options | HUNG)
    if any(said in outcome.message for said in SLOW):
        return check_here(fn, **options | {"timeout": 5.0})
    return outcome


def judged_alone(fn: Callable, options: dict[str, Any]) -> Outcome:
    """What a check says of a wrong answer, asked part by part until one rejects it."""
    for part in cheapest_first(options):
        outcome = hung_or_judged(fn, part)
        if outcome.state == "wrong":
            break
    return outcome


def run(source: str, name: str, names: dict[str, Any]) -> None:
    """Run a cell's text; tracebacks know it by this name, as if of a file."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)


def names(slug: str) -> list[str]:
    """A lab's exercises, read off its answers without running them, which may take Keras."""
    text = (ROOT / f"tests/labs/wrong/{slug}.py").read_text(encoding="utf-8")
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "RIGHT":
            return [key.value for key in line.value.keys]
    raise LookupError(f"{slug} has no RIGHT")
