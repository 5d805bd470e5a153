"""Judges one submission after the other, each inside of a sandbox: the server behind `grade`.

It reads no submission itself: a forked process does, inside, so that nothing of one is left in the
memory that the next one is given. Jobs and verdicts are files, which are open before the door
closes. On stdin comes a line for each job (its file, the file for verdicts, a number of its own),
on stdout goes how it ended: "done", or "time", "memory" or "died" where it did not come to its end.

The process that judges is the first of its namespace, so no signal of an answer reaches it; the
answers' processes have neither the file for verdicts nor a way into its memory.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from course_checks.outcome import CheckFailed, Outcome
from course_tools import PACKAGES, ROOT
from course_tools.grading import answers_as_text, sandbox
from course_utils.devices.prepare import import_what_ranks_need

# Without solutions.
COURSE = (
    "course_utils", "course_material", "course_checks", "course_cluster", "course_challenge",
    "course_lessons", "course_tools", "ddp_course.py",
)  # fmt: skip
# A wheel has them below course_tools, or below the environment, which answers can read.
WITHHELD = ROOT / "solutions", ROOT / "source"
LOOK_S = 0.15
SHOWN = 20_000  # characters of a verdict
WRITABLE = "/tmp", "/dev/shm"  # by an answer

Cell = dict[str, Any]
Say = Callable[..., None]


def serve(contained: bool) -> None:
    """Do what stdin asks for, one job after the other."""
    import_what_ranks_need()
    # Labs import these, and where packages are linked from elsewhere, no sandbox shows their files.
    for name in ("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    readable = [Path(sys.prefix), Path(sys.base_prefix), ROOT / "notebooks"]
    for name in COURSE:
        readable.append(PACKAGES / name)
    for line in sys.stdin:
        request = json.loads(line)
        job = os.open(request["job"], os.O_RDONLY)
        verdicts = os.open(request["verdicts"], os.O_WRONLY | os.O_APPEND)
        limits = sandbox.Limits(**request["limits"])
        judging = functools.partial(judge_inside, job, verdicts, contained)
        if contained:
            slot = request["slot"]
            keeper = sandbox.fork_inside(judging, readable, WITHHELD, limits, slot)
        else:
            keeper = sandbox.bare(judging, limits)
        end = watched(keeper, verdicts, limits)
        os.close(job)
        os.close(verdicts)
        print(end, flush=True)


def judge_inside(job: int, verdicts: int, contained: bool) -> None:
    """In the sandbox: judge, and let nobody else have what it is done with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(job) as file:
        cells = json.load(file)
    keep_only(verdicts)
    withhold_from_children(verdicts)
    if contained:
        sandbox.LIBC.prctl(sandbox.SET_DUMPABLE, 0, 0, 0, 0)  # nobody looks into its memory

    def say(**verdict: Any) -> None:
        line = json.dumps(verdict) + "\n"
        os.write(verdicts, line.encode())

    judge(cells, say, contained)


def keep_only(verdicts: int) -> None:
    """Close all other descriptors; the standard ones lead nowhere from now on."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, verdicts)
    os.closerange(verdicts + 1, os.sysconf("SC_OPEN_MAX"))


def withhold_from_children(verdicts: int) -> None:
    """Have each process that the judge forks, and those that it forks, close the verdicts' file."""
    still_open = [verdicts]  # in this process; a fork's copy of the list is emptied there

    def close() -> None:
        while still_open:
            os.close(still_open.pop())
        if sys.platform == "linux":
            sandbox.LIBC.prctl(sandbox.SET_DUMPABLE, 1, 0, 0, 0)

    os.register_at_fork(after_in_child=close)


def judge(cells: list[Cell], say: Say, contained: bool = False) -> None:
    """Run a lab's cells with a learner's answers in them, and say what each check finds.

    Args:
        cells: Each with `name`, `text` and `kind`: "answer", with the names that it has to bind in
            `functions` and `values`; "check"; or "other".
        say: Called with `begins=name` before a cell, and with `check=name`, `passed` and `text`
            after one that is a check.
        contained: Whether all other processes and new files are the answers', to be done away with.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main  # where pickle looks for classes
    names = vars(main)
    answers_as_text.begin(names)
    shown: list[Any] = []
    answers_as_text.display = lambda value, **options: shown.append(value)
    for cell in cells:
        name = cell["name"]
        say(begins=name)
        shown.clear()
        files_before = files()
        fault = run(cell, names)
        if contained:
            end_all_others()
        if cell["kind"] != "check":
            continue
        if contained:
            new_files = files() - files_before
            remove(new_files)
        text = _verdict(shown, fault)
        has_passed = fault is None
        say(check=name, passed=has_passed, text=text[:SHOWN])


def _verdict(shown: list[Any], fault: str | None) -> str:
    """What a learner is told of a check: what it has shown, and what went wrong."""
    words = []
    for value in shown:
        if isinstance(value, Outcome):
            words.append(str(value))
    if fault:
        words.append(fault)
    text = "\n".join(words)
    return text.strip()


def run(cell: Cell, names: dict[str, Any]) -> str | None:
    """Run the teacher's cell, or keep the learner's as text; returns what went wrong, if it did.

    A check's last statement requires that it has passed.
    """
    name = cell["name"]
    text = cell["text"]
    try:
        if cell["kind"] == "answer":
            answers_as_text.answer(name, text, cell["functions"], cell["values"])
        else:
            answers_as_text.remember_lines(name, text)
            code = answers_as_text.compiled(name, text)
            exec(code, names)
    except CheckFailed:  # it has been shown
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def files() -> set[Path]:
    """What lies in the folders that an answer can write into."""
    paths = set()
    for name in WRITABLE:
        folder = Path(name)
        paths.update(folder.glob("*"))
    return paths


def end_all_others() -> None:
    """End what is still running, as the first process of a namespace can."""
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def remove(paths: set[Path]) -> None:
    """Remove files and folders."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def watched(keeper: int, verdicts: int, limits: sandbox.Limits) -> str:
    """Wait for the end of a sandbox, or bring it about; returns how it ended."""
    memory = psutil.Process().memory_info()
    said_bytes = -1
    last_word = time.monotonic()
    end = ""
    while not end:
        pid, status = os.waitpid(keeper, os.WNOHANG)
        if pid and status:
            return "died"
        if pid:
            return "done"
        size = os.fstat(verdicts).st_size
        if size != said_bytes:
            said_bytes = size
            last_word = time.monotonic()
        used_bytes = sandbox.used(keeper, beyond=memory.rss)
        silent_s = time.monotonic() - last_word
        if used_bytes > limits.all_bytes:
            end = "memory"
        elif silent_s > limits.cell_s:
            end = "time"
        else:
            time.sleep(LOOK_S)
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    return end


if __name__ == "__main__":
    serve(contained="--bare" not in sys.argv)
    os._exit(0)  # what is frozen cannot be cleared away, and libraries would complain
