"""Where a rank is: its stack, read from outside, told in cells and lines of the learner's own code.

A thread of every worker writes it (`asking`), or `faulthandler` does, which can do so while Python
cannot run a line: inside a loop in C, and at a crash. What they write is read here.
"""

import linecache
import os
import re
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_RAISED = r'^{} (.*) "(.+)", line (\d+) in (.+)$'  # by `asking`
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")  # what is not ASCII
THREAD = "Thread (most recent call first):"  # above the stack of another thread, by `asking`
_COMPILED = re.compile(r"Current thread's C stack trace \(")  # below all others, from 3.14 on
# A stack has been written: to the rank's own frames, or to the hundredth, where the writer stops.
WRITTEN = re.compile(r" in _(run_function|park_until_killed)\n|(  File .+\n){100}")
_PYTHONS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES = *_PYTHONS, *site.getsitepackages(), site.getusersitepackages(), "<frozen"
# What torch writes itself: without a file, and for torch.compile in files of a folder.
_GENERATED = re.compile(r"/torchinductor_[^/]*/|^<eval_with_key>")
# Packages of another environment, or of this one under another name.
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_COURSE = tuple(  # with a slash: `course_utils_lab/` beside them is a learner's
    f"{Path(__file__).parents[2] / name}{os.sep}"
    for name in (
        "course_utils",
        "course_material",
        "course_checks",
        "course_cluster",
        "course_challenge",
        "course_tools",
    )
)


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    name: str

    @property
    def is_learners(self) -> bool:
        """Whether this line stands in a cell or file of the learner, not in a library."""
        if self.file.startswith((*_LIBRARIES, *_COURSE)):
            return False
        generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        if generated and self.file.startswith(generated):
            return False
        if any(folder in self.file for folder in _INSTALLED):
            return False
        return not _GENERATED.search(self.file)

    @property
    def place(self) -> str:
        """Such as `cell [5], line 7, in train`; a file by its name alone, without its folder."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        cells = getattr(getattr(shell, "compile", None), "_filename_map", {})  # by file name
        where = f"cell [{cells[self.file]}]" if self.file in cells else Path(self.file).name
        name = "" if self.name == "<module>" else f", in {self.name}"
        return f"{where}, line {self.line}{name}"

    @property
    def code(self) -> str:
        """The text of the line, without its indentation."""
        return linecache.getline(self.file, self.line).strip()

    def excerpt(self) -> str:
        """The line among its neighbours, an arrow before it."""
        around = range(self.line - 2, self.line + 2)
        lines = ((n, linecache.getline(self.file, n).rstrip()) for n in around)
        mark = {self.line: "-->"}
        return "\n".join(f"    {mark.get(n, '   ')} {n:3d} | {text}" for n, text in lines if text)


class Stack(list[Frame]):
    """Frames, outermost first."""

    # What the thread says of an exception that it handles, and the learner's line that raised it.
    handles: tuple[str, Frame] | None = None
    # The same of an exception that has ended another thread.
    ended: tuple[str, Frame] | None = None
    # Those of the rank's other threads that stand in torch.distributed.
    threads: tuple[list[Frame], ...] = ()


def from_dump(text: str) -> Stack:
    """The frames of the stack that a rank wrote, outermost first.

    Where it wrote several, that of the thread that crashed, else the last, the main thread's.
    A forked worker stands on the stack of the cell that launched it; that part is left out.
    """
    frames = Stack()
    text = _ESCAPED.sub(lambda found: chr(int(found[found.lastindex], 16)), text)
    text = _COMPILED.split(text)[0]
    stack = text.partition("Current thread ")[2] or text.split("(most recent call first)")[-1]
    for file, line, name in _DUMPED.findall(stack.partition("\n\n")[0]):
        frames.append(Frame(file, int(line), name))
        if file.startswith(_COURSE) and name in ("_run_function", "_park_until_killed"):
            break
    frames.reverse()
    frames.threads = tuple(map(_of_thread, text.split(THREAD)[1:]))
    frames.handles = _raised("Handles", stack)
    frames.ended = _raised("Ended", stack)
    return frames


def _raised(what: str, text: str) -> tuple[str, Frame] | None:
    found = re.search(_RAISED.format(what), text, re.MULTILINE)
    if found is None:
        return None
    words, file, line, name = found.groups()
    return words, Frame(file, int(line), name)


def _of_thread(text: str) -> list[Frame]:
    rows = _DUMPED.findall(text.partition("(most recent call first)")[0])
    frames = [Frame(file, int(line), name) for file, line, name in rows]
    return frames[::-1]


def learners_line(frames: list[Frame]) -> Frame | None:
    """The innermost frame that the learner wrote."""
    return next((frame for frame in reversed(frames) if frame.is_learners), None)
