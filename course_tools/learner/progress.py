"""Which exercises pass? Runs a learner's labs in my/ as they were last saved, and changes none.

python -m course_tools.learner.progress       all labs
python -m course_tools.learner.progress 02    one
"""

import re
import sys
import tempfile
from pathlib import Path

import nbformat
import zmq
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.kernels import QUIET
from course_tools.learner import copies

_CELL_S = 300  # for one cell of a learner's
_OVERVIEW = re.compile(r"\d+ (of \d+ exercises pass|道练习)")  # as it begins, in either language


def overview(path: Path) -> str:
    """Runs a notebook and returns what its last cell, `progress()`, says.

    A kernel that does not start is started once more. If that fails as well, the text says so, and
    nothing is raised.
    """
    problem = ""
    for _ in range(2):
        notebook = nbformat.read(path, as_version=4)
        try:
            _execute(notebook)
        except CellTimeoutError:
            return _report(notebook, f"a cell was not done after {_CELL_S} s")
        except (RuntimeError, OSError, zmq.ZMQError) as error:
            kind = type(error).__name__
            reason = first_line(f"{kind}: {error}")
            problem = f"its kernel did not start, or died: {reason}"
        else:
            return _report(notebook)
    return problem


def first_line(text: str) -> str:
    """What a text says before its first line end."""
    line, *_ = text.splitlines()
    return line


def _execute(notebook: NotebookNode) -> None:
    """Runs all cells in a new kernel, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=_CELL_S, allow_errors=True,
            resources={"metadata": {"path": folder}}, config=QUIET,
        )  # fmt: skip
        client.execute()


def _report(notebook: NotebookNode, problem: str = "") -> str:
    """The overview that a notebook has printed, with what went wrong below it."""
    overview_text = "no overview: its last cell should call progress"
    failures = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        for output in outputs:
            if output.output_type == "error":
                reason = first_line(f"{output.ename}: {output.evalue}")
                failures.append(f"a cell failed: {reason}")
            data = output.get("data", {})
            text = data.get("text/plain", "")
            if _OVERVIEW.match(text):
                overview_text = text
    lines = [overview_text, problem, *failures]
    return "\n".join(filter(None, lines))


def total(overviews: list[str]) -> str:
    """How many exercises of all these labs pass, counted by their signs."""
    passed = 0
    wanted = 0
    uncounted = 0
    for text in overviews:
        signs = _signs(text)
        passed += signs.count("✓")
        wanted += len(signs)
        if not signs:
            uncounted += 1
    summary = f"All {len(overviews)} labs: {passed} of {wanted} exercises pass"
    if uncounted:
        summary += f"; {uncounted} of the labs could not be counted"
    return summary


def _signs(overview_text: str) -> list[str]:
    """The sign of each exercise in an overview."""
    signs = []
    for line in overview_text.splitlines():
        if line.startswith(("✓ ", "✗ ", "– ")):
            sign = line[0]
            signs.append(sign)
    return signs


def main(names: list[str], root: Path = ROOT) -> int:
    """Prints the overview of every lab, or of those named; returns the exit status."""
    folder = copies.home(root)
    labs = copies.labs_in(root, folder)
    if not labs:
        advice = "no labs of your own yet: `make lab` or `ddp-course` copies them for you"
        print(advice, file=sys.stderr)
        return 1
    beginnings = tuple(names) or ("",)
    chosen = [slug for slug in labs if slug.startswith(beginnings)]
    if not chosen:
        known = ", ".join(labs)
        print(f"no such lab; there are: {known}", file=sys.stderr)
        return 1
    overviews = []
    for slug in chosen:
        text = overview(labs[slug])
        overviews.append(text)
        print(f"\n{slug}: {text}", flush=True)
    if len(overviews) > 1:
        summary = total(overviews)
        print(f"\n{summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
