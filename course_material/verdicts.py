"""What checks said of the answers in a learner's lab, kept beyond the kernel.

A verdict stands in the file of `scores`, by notebook and answer, with a digest of the answer's
cell. It counts as long as that cell is unchanged, in this kernel and in a later one.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from course_material import scores

CHANGED = "changed"  # instead of what a check said of an answer that has been edited since
_LAB = re.compile(r"lab_\d\d_")  # how a learner's copy begins


def keep(answer: str, state: str) -> None:
    """Keep what a check said just now of an answer, such as "passed"."""
    lab = _lab()
    if not lab:
        return
    cells = _definitions(answer, _cells_of_this_kernel())
    if cells:
        verdict = {"state": state, "cell": _digest(cells[-1]), "when_s": time.time()}
        scores.update(lab, answer, verdict)


def kept(answer: str) -> str:
    """What a check said last of an answer: CHANGED if its cell is not what it was; else nothing.

    The cell is the last that this kernel has run. It must still be in the notebook, if that was
    saved after the check or if this kernel has run no such cell.
    """
    verdict = scores.entry_of(_lab(), answer)
    run = _definitions(answer, _cells_of_this_kernel())
    saved = _definitions(answer, saved_cells())
    if not verdict or not (run or saved):
        return ""
    judged = verdict.get("cell")
    if run and _digest(run[-1]) != judged:
        return CHANGED
    is_saved_since = _saved_s() > verdict.get("when_s", 0.0)
    is_in_notebook = judged in map(_digest, saved)
    if saved and (is_saved_since or not run) and not is_in_notebook:
        return CHANGED
    return str(verdict.get("state", ""))


def passed_in(lab: Path, scores_file: Path) -> set[str]:
    """The answers whose check passed, and whose cells are in a saved lab as they were then.

    What was judged in an older copy of the lab counts, too.
    """
    digests = {_digest(cell) for cell in code_cells(lab)}
    name = _LAB.match(lab.name)
    passed = set()
    for place, answers in scores.entries(scores_file).items():
        if name is None or not place.startswith(name[0]):
            continue
        for answer, verdict in answers.items():
            if verdict.get("state") == "passed" and verdict.get("cell") in digests:
                passed.add(answer)
    return passed


def _lab() -> str | None:
    """The name of this kernel's notebook, if it is a lab."""
    name = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    return name if _LAB.match(name) else None


def _definitions(answer: str, cells: Iterable[str]) -> list[str]:
    """The cells that define an answer."""
    defines = re.compile(rf"^(async +)?(def|class) +{re.escape(answer)}\b", re.MULTILINE)
    return [cell for cell in cells if defines.search(cell)]


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
    name = os.environ.get("JPY_SESSION_NAME")
    return code_cells(Path(name)) if name else []


def code_cells(notebook: Path) -> list[str]:
    """The texts of a saved notebook's code cells; none if it can't be read."""
    cells = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        text = notebook.read_text(encoding="utf-8")
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                cells.append("".join(cell["source"]))
    return cells


def _saved_s() -> float:
    """When this kernel's notebook was saved last, as `time.time` counts."""
    with contextlib.suppress(OSError, KeyError):
        return Path(os.environ["JPY_SESSION_NAME"]).stat().st_mtime
    return 0.0


def _digest(cell: str) -> str:
    content = cell.strip().encode()
    return hashlib.sha256(content).hexdigest()[:16]
