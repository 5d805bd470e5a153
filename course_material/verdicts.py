"""What checks said of the answers in a learner's lab, kept beyond the kernel.

A verdict stands in the file of `scores`, by notebook and answer, with a digest of the answer's
cell. In a later kernel it counts as long as that cell is unchanged.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from course_material import scores

_LAB = re.compile(r"lab_\d\d_")  # how a learner's copy begins


def keep(answer: str, state: str) -> None:
    """Keep what a check said just now of an answer, such as "passed"."""
    lab = _lab()
    if not lab:
        return
    cell = _last_definition(answer, _cells_of_this_kernel())
    if cell:
        scores.update(lab, answer, {"state": state, "cell": _digest(cell)})


def kept(answer: str) -> str:
    """What a check said last of an answer whose cell is unchanged since; else nothing.

    The cell is the one that this kernel has run, or, if it has run none, the one in the saved
    notebook.
    """
    entry = scores.entry_of(_lab(), answer)
    if not entry:
        return ""
    cell = _last_definition(answer, _cells_of_this_kernel())
    if not cell:
        cell = _last_definition(answer, saved_cells())
    if not cell or _digest(cell) != entry.get("cell"):
        return ""
    return str(entry.get("state", ""))


def _lab() -> str | None:
    """The name of this kernel's notebook, if it is a lab."""
    name = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    return name if _LAB.match(name) else None


def _last_definition(answer: str, cells: Iterable[str]) -> str:
    """The last cell that defines an answer; empty if none does."""
    defines = re.compile(rf"^(async +)?(def|class) +{re.escape(answer)}\b", re.MULTILINE)
    last = ""
    for cell in cells:
        if defines.search(cell):
            last = cell
    return last


def _cells_of_this_kernel() -> list[str]:
    """The cells that it has run, as they were written."""
    ipython = sys.modules.get("IPython")
    if not hasattr(ipython, "get_ipython"):
        return []
    shell = ipython.get_ipython()
    if shell is None:
        return []
    return list(shell.history_manager.input_hist_raw)


def saved_cells() -> list[str]:
    """The cells of this kernel's notebook, as it was saved last."""
    cells = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        text = Path(os.environ["JPY_SESSION_NAME"]).read_text(encoding="utf-8")
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                cells.append("".join(cell["source"]))
    return cells


def _digest(cell: str) -> str:
    content = cell.strip().encode()
    return hashlib.sha256(content).hexdigest()[:16]
