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
from traitlets.config import Config

from course_tools import ROOT
from course_tools.learner import copies

# Where nobody can listen a kernel does not warn that somebody could.
ENCRYPTION = "auto" if zmq.has("curve") else "disabled"
QUIET = Config(KernelManager={"transport_encryption": ENCRYPTION})


def overview(path: Path) -> str:
    """Runs a notebook and returns what its last cell, `progress()`, says."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=300, allow_errors=True,
            resources={"metadata": {"path": folder}}, config=QUIET,
        )  # fmt: skip
        client.execute()
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    errors = [f"{out.ename}: {out.evalue}" for out in outputs if out.output_type == "error"]
    texts = [
        out.data["text/plain"] for out in outputs if "data" in out and "text/plain" in out.data
    ]
    found = [text for text in texts if re.match(r"\d+ (of \d+ exercises pass|道练习)", text)]
    said = found[-1] if found else "no overview: its last cell should call progress"
    return "\n".join([said, *(f"a cell failed: {error.splitlines()[0]}" for error in errors)])


def main(names: list[str], root: Path = ROOT) -> int:
    """Prints the overview of every lab, or of those named; returns the exit status."""
    folder = copies.home(root)
    own = [
        copies.newest(folder, name) for name in copies.originals(root) if name.startswith("lab_")
    ]
    labs = {lab.stem.removeprefix("lab_"): lab for lab in own if lab}
    chosen = [slug for slug in labs if slug.startswith(tuple(names) or ("",))]
    for slug in chosen:
        print(f"\n{slug}: {overview(labs[slug])}", flush=True)
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
