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
from traitlets.config import Config

from course_tools import ROOT
from course_tools.learner import copies

# Where nobody can listen a kernel does not warn that somebody could.
ENCRYPTION = "auto" if zmq.has("curve") else "disabled"
_CELL_S = 300  # for one cell of a learner's
QUIET = Config(KernelManager={"transport_encryption": ENCRYPTION})


def overview(path: Path) -> str:
    """Runs a notebook and returns what its last cell, `progress()`, says.

    A kernel that does not start is started once more; after that it is told, and nothing raised.
    """
    problem = ""
    for _ in range(2):
        notebook = nbformat.read(path, as_version=4)
        try:
            _execute(notebook)
        except CellTimeoutError:
            return _said(notebook, f"a cell was not done after {_CELL_S} s")
        except (RuntimeError, OSError, zmq.ZMQError) as error:
            first_line, *_ = f"{type(error).__name__}: {error}".splitlines()
            problem = f"its kernel did not start, or died: {first_line}"
        else:
            return _said(notebook)
    return problem


def _execute(notebook: NotebookNode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=_CELL_S, allow_errors=True,
            resources={"metadata": {"path": folder}}, config=QUIET,
        )  # fmt: skip
        client.execute()


def _said(notebook: NotebookNode, problem: str = "") -> str:
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    errors = [f"{out.ename}: {out.evalue}" for out in outputs if out.output_type == "error"]
    texts = [
        out.data["text/plain"] for out in outputs if "data" in out and "text/plain" in out.data
    ]
    found = [text for text in texts if re.match(r"\d+ (of \d+ exercises pass|道练习)", text)]
    said = found[-1] if found else "no overview: its last cell should call progress"
    failed = [f"a cell failed: {error.splitlines()[0]}" for error in errors]
    return "\n".join(filter(None, [said, problem, *failed]))


def total(overviews: list[str]) -> str:
    """How many exercises of all these labs pass, counted by their signs."""
    passed = wanted = uncounted = 0
    for text in overviews:
        signs = [line[0] for line in text.splitlines() if line.startswith(("✓ ", "✗ ", "– "))]
        passed += signs.count("✓")
        wanted += len(signs)
        uncounted += not signs
    line = f"All {len(overviews)} labs: {passed} of {wanted} exercises pass"
    return f"{line}; {uncounted} of the labs could not be counted" if uncounted else line


def main(names: list[str], root: Path = ROOT) -> int:
    """Prints the overview of every lab, or of those named; returns the exit status."""
    folder = copies.home(root)
    own = [
        copies.newest(folder, name) for name in copies.originals(root) if name.startswith("lab_")
    ]
    labs = {lab.stem.removeprefix("lab_"): lab for lab in own if lab}
    chosen = [slug for slug in labs if slug.startswith(tuple(names) or ("",))]
    overviews = []
    for slug in chosen:
        overviews.append(overview(labs[slug]))
        print(f"\n{slug}: {overviews[-1]}", flush=True)
    if len(overviews) > 1:
        print(f"\n{total(overviews)}")
    if not labs:
        print(
            "no labs of your own yet: `make lab` or `ddp-course` copies them for you",
            file=sys.stderr,
        )
    elif not chosen:
        print("no such lab; there are: " + ", ".join(labs), file=sys.stderr)
    return int(not chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
