"""Where a rank is: its stack, read from outside, in cells and lines of the learner's own code.

A thread of every worker writes it (`stack_writer`), or `faulthandler` does, which can do so while
Python can't run a line: inside a loop in C, and at a crash. What they write is read here.
"""

import linecache
import os
import re
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from course_utils.launcher.language import _

# In these methods of `WorkerMain` begins what a rank runs of the learner's: the function, what it
# says of an exception, and what it has left to the end. Below lies the cell that launched it.
RUN_FUNCTION = "_run_function"
ENTRY_POINTS = RUN_FUNCTION, "_report_failure", "_park_until_killed"
# What `_run_function` calls once the rank has joined the others: the learner's function, and what
# hands over its result.
CALLED_AFTER_JOINING = "_call_function", "_flush", "_send"
STACK = "Stack (most recent call first):"  # above the main thread's stack
THREAD = "Thread (most recent call first):"  # above another thread's, if `stack_writer` writes
HAS_THREADS = "Other threads run as well."  # which the learner's function has started
# How `stack_writer` begins a line about an exception: one that the main thread handles, and one
# that has ended a different thread.
HANDLES, THREAD_ENDED_BY = "Handles", "Ended"
_TITLE_END = "(most recent call first)"
_ROW = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_RAISED = r'^{} (.*) "(.+)", line (\d+) in (.+)$'  # with HANDLES or THREAD_ENDED_BY
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")  # what is not ASCII
_COMPILED = re.compile(r"Current thread's C stack trace \(")  # below all others, from 3.14 on
MAX_FRAMES = 100  # of a stack, the innermost: faulthandler writes as many
# A stack is complete down to the rank's entry point, or to the last frame that is written.
WRITTEN = re.compile(rf" in ({'|'.join(ENTRY_POINTS)})\n|(  File .+\n){{{MAX_FRAMES}}}")
_PYTHONS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES = *_PYTHONS, *site.getsitepackages(), site.getusersitepackages(), "<frozen"
# What torch writes itself: without a file, and for torch.compile in files of a folder.
_GENERATED = re.compile(r"/torchinductor_[^/]*/|^<eval_with_key>")
# Packages of a different environment, or of this one under a different name.
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_PACKAGES = (
    "course_utils",
    "course_material",
    "course_checks",
    "course_cluster",
    "course_challenge",
    "course_testing",
    "course_tools",
)
# With a slash at the end: `course_utils_lab/` next to them is a learner's.
_ROOT = Path(__file__).parents[2]
_COURSE = tuple(f"{_ROOT / package}{os.sep}" for package in _PACKAGES)


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
        if self.name == "<module>":
            return self.file_and_line
        return _("{file_and_line}, in {name}", file_and_line=self.file_and_line, name=self.name)

    @property
    def file_and_line(self) -> str:
        """Such as `cell [5], line 7`."""
        file = Path(self.file).name
        cells = _cell_numbers()
        if self.file in cells:
            file = _("cell [{number}]", number=cells[self.file])
        return _("{file}, line {line}", file=file, line=self.line)

    @property
    def place_and_code(self) -> str:
        """Such as `cell [5], line 7, in train: loss.backward()`."""
        return _("{place}: {code}", place=self.place, code=self.code)

    @property
    def code(self) -> str:
        """The text of the line, without its indentation."""
        return linecache.getline(self.file, self.line).strip()

    def excerpt(self) -> str:
        """The line among its neighbours, an arrow before it."""
        rows = []
        for number in range(self.line - 2, self.line + 2):
            text = linecache.getline(self.file, number).rstrip()
            if not text:
                continue
            arrow = "   "
            if number == self.line:
                arrow = "-->"
            row = f"    {arrow} {number:3d} | {text}"
            rows.append(row)
        return "\n".join(rows)


def _cell_numbers() -> dict[str, int]:
    """By file name, in which cell of the notebook it was typed; empty outside of IPython."""
    ipython = sys.modules.get("IPython")
    if not hasattr(ipython, "get_ipython"):
        return {}
    shell = ipython.get_ipython()
    compiler = getattr(shell, "compile", None)
    return getattr(compiler, "_filename_map", {})


class Stack(list[Frame]):
    """Frames, outermost first.

    Attributes:
        handles: What the exception says that the main thread handles, and the learner's line that
            raised it.
        thread_ended_by: The same of an exception that has ended a different thread.
        threads: The frames of the rank's other threads that stand in torch.distributed.
        has_threads: Whether any thread runs that the learner's function has started.
    """

    handles: tuple[str, Frame] | None = None
    thread_ended_by: tuple[str, Frame] | None = None
    threads: tuple[list[Frame], ...] = ()
    has_threads: bool = False


def from_dump(text: str) -> Stack:
    """What a rank wrote: the frames of one stack, outermost first, and more about its threads.

    A forked worker stands on the stack of the cell that launched it; that part is left out.
    """
    text = _ESCAPED.sub(_unescaped, text)
    text = _COMPILED.split(text)[0]
    section = _main_section(text)
    rows = section.partition("\n\n")[0]
    frames = Stack()
    for frame in _frames(rows):
        frames.append(frame)
        if frame.file.startswith(_COURSE) and frame.name in ENTRY_POINTS:
            break
    frames.reverse()
    frames.threads = _other_threads(text)
    frames.has_threads = HAS_THREADS in text
    frames.handles = _raised(HANDLES, section)
    frames.thread_ended_by = _raised(THREAD_ENDED_BY, section)
    return frames


def _main_section(text: str) -> str:
    """Of several stacks that of the thread that crashed, else the last, the main thread's.

    Its rows come first. Lines about exceptions may follow them.
    """
    of_crashed = text.partition("Current thread ")[2]
    return of_crashed or text.rpartition(_TITLE_END)[2]


def _other_threads(text: str) -> tuple[list[Frame], ...]:
    threads = []
    _, *parts = text.split(THREAD)
    for part in parts:
        rows = part.partition(_TITLE_END)[0]
        frames = _frames(rows)
        frames.reverse()
        threads.append(frames)
    return tuple(threads)


def _unescaped(match: re.Match[str]) -> str:
    hexadecimal = match[match.lastindex]
    return chr(int(hexadecimal, 16))


def _frames(text: str) -> list[Frame]:
    """The frames in the order in which they stand there, innermost first."""
    frames = []
    for file, line, name in _ROW.findall(text):
        frame = Frame(file, int(line), name)
        frames.append(frame)
    return frames


def _raised(verb: str, text: str) -> tuple[str, Frame] | None:
    pattern = _RAISED.format(verb)
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        return None
    words, file, line, name = match.groups()
    frame = Frame(file, int(line), name)
    return words, frame


def learners_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame that the learner wrote."""
    for frame in reversed(frames):
        if frame.is_learners:
            return frame
    return None
