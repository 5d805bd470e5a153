"""Builds the notebooks from their sources, checks them, and takes edits made in JupyterLab back.

    python -m course_tools.notebooks.build                 build everything
    python -m course_tools.notebooks.build 03_name         build one chapter and its lab
    python -m course_tools.notebooks.build --check         what is not as its source says?
    python -m course_tools.notebooks.build --take 03_name  write an edited notebook back

A source is percent-format text. `source/lessons/NN_slug.py` becomes `notebooks/NN_slug.ipynb`;
`source/labs/NN_slug.py` becomes `exercises/NN_slug.ipynb`, where solutions are cut out, and
`solutions/NN_slug.ipynb`, where they stay between their markers. All three are executed, and so is
`exercises/challenge.ipynb`, of `source/challenge.py`, which nobody has solved.

In a lab's code cell a solution stands between nbgrader's own markers, each on a line of its own.
What follows the first marker tells what a learner sees instead:

    ### BEGIN SOLUTION                        raise NotImplementedError("about N lines")
    ### BEGIN SOLUTION # a nudge              the comment, then the same raise
    ### BEGIN SOLUTION answer = None          that code and nothing else
    ### END SOLUTION

Of a cell's metadata only KEPT is carried over, so a rebuild of unchanged cells with deterministic
outputs is byte for byte the same file. A cell's id is the hash of its text.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.kernels import QUIET
from course_tools.notebooks.cells import (
    ANSI,
    METADATA,
    BuildError,
    compose,
    differences,
    faults,
    read_percent,
    tidy,
    write_percent,
)

ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP  # of a terminal: Ctrl-C, or it is closed


class Target(NamedTuple):
    """One notebook to build: its source, its place, and whether solutions are cut out of it."""

    source: Path
    built: Path
    cut: bool

    def is_called(self, name: str) -> bool:
        """Whether its slug begins with these words: `00`, or all of `00_start_here`."""
        slug = self.built.stem
        return slug == name or slug.startswith(f"{name}_")


def targets(root: Path, names: Sequence[str] = ()) -> list[Target]:
    """Returns the notebooks of all sources, or of those named by slug (`00_start_here`, `00`)."""
    known = list(_all_targets(root))
    if not names:
        return known
    chosen = []
    for name in names:
        matches = [target for target in known if target.is_called(name)]
        if not matches:
            slugs = sorted({target.built.stem for target in known})
            there_are = ", ".join(slugs) or "none yet"
            raise BuildError(f"no source is called {name}; there are: {there_are}")
        chosen += matches
    return chosen


def _all_targets(root: Path) -> Iterator[Target]:
    """Yields what is built of every source."""
    notebooks = root / "notebooks"
    exercises = root / "exercises"
    solutions = root / "solutions"
    for source in _numbered_sources(root / "source/lessons"):
        name = f"{source.stem}.ipynb"
        yield Target(source, notebooks / name, cut=False)
    for source in _numbered_sources(root / "source/labs"):
        name = f"{source.stem}.ipynb"
        yield Target(source, exercises / name, cut=True)
        yield Target(source, solutions / name, cut=False)
    challenge = root / "source/challenge.py"
    if challenge.exists():
        yield Target(challenge, exercises / "challenge.ipynb", cut=False)


def _numbered_sources(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*_*.py"))


def plan(target: Target) -> NotebookNode:
    """Returns the notebook that the target's source describes, not yet executed."""
    text = target.source.read_text(encoding="utf-8")
    return read_percent(text, target.cut)


class Client(NotebookClient):
    """One whose kernel is killed at once when somebody interrupts it."""

    interrupted = False

    @contextlib.asynccontextmanager
    async def async_setup_kernel(self, **options: Any) -> AsyncIterator[None]:
        """As nbclient's, whose own handlers would leave an error that says nothing of a signal."""
        loop = asyncio.get_running_loop()
        execution = asyncio.current_task()

        def interrupt() -> None:
            self.interrupted = True
            self.shutdown_kernel = "immediate"
            execution.cancel()

        async with super().async_setup_kernel(**options):
            for number in ENDING:
                loop.add_signal_handler(number, interrupt)
            try:
                yield
            finally:
                loop.remove_signal_handler(signal.SIGHUP)  # nbclient removes the others


def execute(notebook: NotebookNode, folder: Path, timeout: int = 600) -> None:
    """Runs every cell in a fresh kernel whose working directory is `folder`.

    Raises:
        BuildError: A cell without the tag `raises-exception` failed, hung or killed the kernel.
        KeyboardInterrupt: Ctrl-C was pressed, or the terminal closed; the kernel is gone.
    """
    client = Client(
        notebook,
        kernel_name="python3",
        timeout=timeout,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
        config=QUIET,
    )
    environment = os.environ | {"COURSE_LANG": "en"}
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        if client.interrupted:  # which nbclient takes for a kernel that has died
            raise KeyboardInterrupt from None
        hint = "a cell failed (if it should, tag it raises-exception)"
        without_colours = ANSI.sub("", str(error))
        raise BuildError(f"{hint}\n{without_colours}") from None


def build(target: Target, root: Path) -> None:
    """Executes one notebook and writes it, or raises BuildError and leaves the old one alone."""
    notebook = plan(target)
    if target.built.exists():
        built_before = nbformat.read(target.built, as_version=4)
        _refuse_to_replace(built_before, notebook)
    folder = target.built.parent
    folder.mkdir(parents=True, exist_ok=True)
    execute(notebook, folder)
    notebook = tidy(notebook)
    problems = dict.fromkeys(faults(notebook, root))  # each once
    if problems:
        lines = "\n".join(problems)
        raise BuildError(lines)
    text = nbformat.writes(notebook)
    target.built.write_text(text + "\n", encoding="utf-8")


def _refuse_to_replace(built: NotebookNode, planned: NotebookNode) -> None:
    """Raises BuildError if a person wrote in a notebook what its source does not say.

    A cell's id is the hash of the text that was built, so an edited cell no longer has its own.
    """
    written = compose(built.cells)
    edits = list(differences(planned, written))
    if not edits:
        return
    pairs = zip(built.cells, written.cells, strict=True)
    for number, (cell, anew) in enumerate(pairs):
        if cell.id != anew.id:
            edited = f"cell {number} was edited by hand, and a build would replace it"
            raise BuildError(f"{edited}: take it into the source (--take), or move the file away")


def check(root: Path, names: Sequence[str] = ()) -> list[str]:
    """Returns a line for everything about the built notebooks that is not as the sources say."""
    problems = []
    wanted = targets(root, names)
    for target in wanted:
        place = target.built.relative_to(root)
        for problem in _drift(target, root):
            problems.append(f"{place}: {problem}")
    if not names:
        built_of_sources = {target.built for target in wanted}
        problems += _orphans(root, built_of_sources)
    return problems


def _drift(target: Target, root: Path) -> list[str]:
    """What is not as the source says about one notebook, each problem once."""
    if not target.built.exists():
        return ["missing"]
    planned = plan(target)
    built = nbformat.read(target.built, as_version=4)
    problems = list(differences(planned, built))
    problems += faults(built, root)
    if problems:
        return list(dict.fromkeys(problems))
    built.metadata |= METADATA  # JupyterLab adds to these two when a notebook is opened
    tidied = tidy(built)
    if nbformat.writes(built) != nbformat.writes(tidied):
        return ["was saved by an editor (timings, widget state, metadata)"]
    return []


def _orphans(root: Path, wanted: set[Path]) -> list[str]:
    """Notebooks that no source wants."""
    built: set[Path] = set()
    for name in ("notebooks", "exercises", "solutions"):
        folder = root / name
        built.update(folder.glob("*.ipynb"))
    problems = []
    for path in sorted(built - wanted):
        place = path.relative_to(root)
        problems.append(f"{place}: orphaned, it has no source")
    return problems


def take(target: Target) -> bool:
    """Writes an edited notebook back into its source; returns whether that changed anything."""
    built = nbformat.read(target.built, as_version=4)
    edited = compose(built.cells)
    planned = plan(target)
    edits = list(differences(planned, edited))
    if not edits:
        return False
    text = write_percent(edited)
    target.source.write_text(text, encoding="utf-8")
    return True


def report(problems: list[str]) -> int:
    """Prints what `check` found and what to do about it; returns the exit status."""
    if not problems:
        print("every notebook is what its source says")
        return 0
    print("\n".join(problems))
    print("\nedited a source?     make notebooks only=NAME")
    take = ".venv/bin/python -m course_tools.notebooks.build --take NAME"
    print(f"edited a notebook?   {take}, then as above")
    print("orphaned?            delete the notebook, or give it its source back")
    return 1


def run(args: argparse.Namespace, root: Path) -> int:
    """Does what the command line asks and returns its exit status."""
    if args.check:
        problems = check(root, args.names)
        return report(problems)
    if args.take and not args.names:
        raise BuildError("--take needs the name of a chapter, such as 00_start_here")
    for target in targets(root, args.names):
        built = target.built.relative_to(root)
        source = target.source.relative_to(root)
        try:
            if not args.take:
                print(f"{source} -> {built}", flush=True)
                build(target, root)
            elif not target.cut:
                outcome = "says already"
                if take(target):
                    outcome = "taken from"
                print(f"{source}: {outcome} {built}")
        except BuildError as error:
            raise BuildError(f"{built}: {error}") from None
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="chapters, such as 00_start_here; all if none")
    parser.add_argument("--check", action="store_true", help="report drift, change nothing")
    parser.add_argument("--take", action="store_true", help="write an edited notebook back")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    args = parser.parse_args(argv)
    root = args.root.resolve()
    try:
        return run(args, root)
    except BuildError as error:
        print(f"build failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: what was being built is as it was, and nothing is left running")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
