"""Every hang pattern told twice, on gloo and where calls are only queued: docs/hangs-queued.md.

Written anew, in some five minutes, by `.venv/bin/python tests/helpers/hangs_side_by_side.py`.
"""

import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/helpers"), str(ROOT / "tests/hang")]

from hangs import CONTROLS, PATTERNS, QUEUES, SETUP, Hang, reports  # noqa: E402
from kernels import Kernel  # noqa: E402
from test_queued import OTHERS, on_a_gpu  # noqa: E402

from course_utils.hang.rules import _QUEUED  # noqa: E402

PAGE = ROOT / "docs/hangs-queued.md"
SHOWN = "a rank that never comes"
Told = dict[str, tuple[str | None, str]]  # by name of a pattern, its diagnosis and its report
HEAD = """\
# Hangs where calls are only queued

Under NCCL a collective returns as soon as it is queued, and a rank stands still in a later line. No
machine with several GPUs was there, so a process group of the tests queues on CPUs
(`tests/helpers/queues.py`), and every pattern of `tests/helpers/hangs.py` hangs on gloo and under
it. This page is written by `tests/helpers/hangs_side_by_side.py`; `tests/hang/test_queued.py` asks
of each report for the guilty rank, its line and the right diagnosis.

A launch that names gloo runs on CPUs. Before the lessons were made for both, 156 of their 176
launches did so, and in November 2026 128 of 187; [the course map](../notebooks/README.md) counts
those of today, and says why each chapter's do.
"""
LEGEND = """
*Same*: the two reports are equal, since the ranks stand in a barrier, which NCCL too lets nobody
leave before all have come, or in something of their own process. *Rows*: a rank "has queued" its
call and stands where it needs the result, and a sentence says so; the conclusion has the same
words. *Conclusion*: it is different, and stands below.
"""


def told(queued: bool) -> Told:
    """What is said of each pattern, in a kernel of its own."""
    hangs = [hang for hang in both() if not queued or hang.name not in OTHERS]
    cells = [SETUP, QUEUES] if queued else [SETUP]
    kernel = Kernel(is_warm=True)
    try:
        for cell in cells:
            assert not kernel.run(cell, 60).errors
        run = [on_a_gpu(hang) for hang in hangs] if queued else hangs
        names = [hang.name for hang in hangs]
        return dict(zip(names, reports(kernel, run), strict=True))
    finally:
        kernel.close()


def both() -> list[Hang]:
    """The patterns that can be told twice: their launch makes the group."""
    return [hang for hang in PATTERNS + CONTROLS if hang.backend]


def page(gloo: Told, queued: Told) -> str:
    """The page, of all reports."""
    kinds = {hang.name: _differs(hang.name, gloo, queued) for hang in both()}
    lines = [HEAD, "| pattern | on gloo | queued | what differs |", "| --- | --- | --- | --- |"]
    for name, kind in kinds.items():
        diagnosis = gloo[name][0] or "-"
        there = (queued[name][0] or "-") if name in queued else ""
        lines.append(f"| {name} | {diagnosis} | {there} | {kind} |")
    lines += [LEGEND, f"## For example: {SHOWN}", ""]
    lines += [*_block("on gloo", gloo[SHOWN][1]), *_block("queued", queued[SHOWN][1])]
    lines += ["## Where the conclusion is different", ""]
    for name, kind in kinds.items():
        if kind == "conclusion":
            lines += [f"### {name}", ""]
            lines += _block("on gloo", _conclusion(gloo[name][1]))
            lines += _block("queued", _conclusion(queued[name][1]))
    return "\n".join(lines).rstrip() + "\n"


def _differs(name: str, gloo: Told, queued: Told) -> str:
    if name not in queued:
        return OTHERS[name]
    if gloo[name] == queued[name]:
        return "same"
    on_gloo, there = _conclusion(gloo[name][1]), _conclusion(queued[name][1])
    return "rows" if on_gloo == there.replace(f" {_QUEUED}", "") else "conclusion"


def _conclusion(report: str) -> str:
    return report.rstrip().rpartition("\n\n")[2]


def _block(title: str, text: str) -> list[str]:
    rows = [f"    {line}".rstrip() for line in text.splitlines()]
    return [f"{title}:", "", *rows, ""]


if __name__ == "__main__":
    before = PAGE.read_text().splitlines() if PAGE.exists() else []
    PAGE.write_text(page(told(queued=False), told(queued=True)))
    print(*difflib.unified_diff(before, PAGE.read_text().splitlines(), lineterm=""), sep="\n")
