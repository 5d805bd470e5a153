"""The checks that a lab makes, as its source says them, and what they say of an answer."""

import contextlib
import importlib
import importlib.util
import inspect
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

import course_utils
from course_checks.cases import CASES, Case
from course_checks.outcome import Outcome
from course_tools import ROOT
from course_tools.notebooks import build

Names = dict[str, Any]  # what cells have defined
Options = dict[str, Any]  # of a check, by the names of its arguments
RAN: dict[str, Names] = {}  # by lab, what its cells defined when they last ran
EXTRAS = {"10_keras": "keras"}  # what `make test` installs for a lab, and `make quick` does not


def _installed_labs() -> list[str]:
    """The labs whose packages are installed."""
    slugs = []
    folder = ROOT / "source/labs"
    paths = folder.glob("[0-9]*_*.py")
    for path in sorted(paths):
        slug = path.stem
        package = EXTRAS.get(slug, "torch")
        if importlib.util.find_spec(package):
            slugs.append(slug)
    return slugs


SLUGS = _installed_labs()
CHECK = importlib.import_module("course_checks.check")
_ARGUMENTS_OF_CHECK = inspect.signature(course_utils.check).parameters
SIZES = _ARGUMENTS_OF_CHECK["world_sizes"].default
HUNG = {"timeout": 1.0}  # long enough to hang; who only needs longer gets it
SLOW = (  # in its report
    "only needed longer",
    "perhaps nothing hangs",
    "No call is seen to lack",
    "outside of your code",
)


class Exercise(NamedTuple):
    """What a lab hands to check: the answer, and everything else."""

    fn: Callable
    options: Options


def sources(path: Path, cut: bool = False) -> list[str]:
    """The code cells of a lab."""
    target = build.Target(path, ROOT, cut)
    notebook = build.plan(target)
    code = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            code.append(cell.source)
    return code


def sizes(options: Options) -> list[int]:
    """The world sizes of a check, two ranks first, which show most mistakes, and one last."""
    wanted = options.get("world_sizes", SIZES)

    def alone_last(size: int) -> tuple[bool, int]:
        is_alone = size == 1
        return is_alone, size

    return sorted(wanted, key=alone_last)


def cheapest_first(options: Options) -> Iterator[Options]:
    """Parts of a check, whose wrong answers are wrong for all: the last case, then each size.

    A lab's own cases, easy before hard, take long; kinds of tensors all together take less than
    a launch. What one case does not call may be called in another, so nothing is required of it.
    """
    cases = options.get("cases", CASES)
    all_sizes = sizes(options)
    if len(cases) > 1 and not isinstance(cases[0], Case):
        first_size = all_sizes[:1]
        last_case = cases[-1:]
        last_alone = {"world_sizes": first_size, "cases": last_case, "require": ()}
        yield options | last_alone
    for size in all_sizes:
        one_size = {"world_sizes": (size,)}
        yield options | one_size


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


def hung_or_judged(fn: Callable, options: Options) -> Outcome:
    """What a check says of a wrong answer, with little time for those that hang."""
    hurried = options | HUNG
    outcome = check_here(fn, **hurried)
    needed_longer = any(words in outcome.message for words in SLOW)
    if needed_longer:
        patient = options | {"timeout": 5.0}
        return check_here(fn, **patient)
    return outcome


def run(source: str, name: str, names: Names) -> None:
    """Run a cell's text; tracebacks know it by this name, as if of a file."""
    size = len(source)
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (size, None, lines, name)
    code = compile(source, name, "exec")
    exec(code, names)
