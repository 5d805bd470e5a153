"""Judges one submission after the other, each inside of a sandbox: the server behind `grade`.

It reads no submission itself: a forked process does, inside, so that nothing of one is left in the
memory that the next one is given. Jobs and verdicts are files, which are open before the door
closes. On stdin comes a line for each job (its file, the file for verdicts, a number of its own),
on stdout goes how it ended: "done", or "time", "memory" or "died" where it did not come to its end.

The process that judges is the first of its namespace, so no signal of an answer reaches it; the
answers' processes have neither the file for verdicts nor a way into its memory.
"""

import contextlib
import gc
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

from course_checks.outcome import CheckFailed, Outcome
from course_tools import ROOT
from course_tools.grading import answers_as_text, sandbox
from course_utils.devices.fork import import_what_ranks_need

# Without solutions.
COURSE = (
    "course_utils", "course_material", "course_checks", "course_cluster", "course_challenge",
    "course_tools", "notebooks", "ddp_course.py",
)  # fmt: skip
LOOK_S = 0.15
SHOWN = 20_000  # characters of a verdict


def serve(contained: bool) -> None:
    """Do what stdin asks for, one job after the other."""
    import_what_ranks_need()
    gc.collect()
    gc.freeze()
    python = {Path(p) for p in (sys.prefix, sys.base_prefix)}
    readable = [*python, *(ROOT / name for name in COURSE)]
    for line in sys.stdin:
        asked = json.loads(line)
        job = os.open(asked["job"], os.O_RDONLY)
        verdicts = os.open(asked["verdicts"], os.O_WRONLY | os.O_APPEND)
        own, limits = inside(job, verdicts, contained), sandbox.Limits(**asked["limits"])
        if contained:
            keeper = sandbox.fork_inside(own, readable, asked["slot"], limits)
        else:
            keeper = sandbox.bare(own, limits)
        ended = watched(keeper, verdicts, limits)
        os.close(job)
        os.close(verdicts)
        print(ended, flush=True)


def inside(job: int, verdicts: int, contained: bool) -> Callable[[], None]:
    """What is done in the sandbox: judge, and let nobody else have what it is done with."""

    def judging() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        for number in map(int, os.listdir("/dev/fd")):
            if number > 2 and number not in (job, verdicts):
                with contextlib.suppress(OSError):
                    os.close(number)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        text = bytearray()
        while part := os.read(job, 1 << 20):
            text += part
        os.close(job)
        open_ = [verdicts]
        os.register_at_fork(after_in_child=lambda: _child(open_))
        if contained:
            sandbox.LIBC.prctl(sandbox.SET_DUMPABLE, 0, 0, 0, 0)  # nobody looks into its memory
        cells = json.loads(text)
        del text

        def say(**what: Any) -> None:
            os.write(verdicts, json.dumps(what).encode() + b"\n")

        judge(cells, say, contained)

    return judging


def _child(verdicts: list[int]) -> None:
    """In a process that the judge has forked, and in those that this one forks."""
    while verdicts:
        os.close(verdicts.pop())
    if sys.platform == "linux":
        sandbox.LIBC.prctl(sandbox.SET_DUMPABLE, 1, 0, 0, 0)


def judge(cells: list[dict[str, Any]], say: Callable[..., Any], contained: bool = False) -> None:
    """Run a lab's cells with a learner's answers in them, and say what each check finds.

    Args:
        cells: Each with `name`, `text` and `kind`: "answer", with the names that it has to bind in
            `functions` and `values`; "check"; or "other".
        say: Called with `begins=name` before a cell, and with `check=name`, `passed` and `text`
            after one that is a check.
        contained: Whether all other processes and new files are the answers', to be done away with.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")  # where pickle looks for classes
    names = vars(main)
    answers_as_text.begin(names)
    shown: list[tuple[Any, Any]] = []
    answers_as_text.display = lambda value, **more: shown.append((value, more.get("metadata")))
    for cell in cells:
        say(begins=cell["name"])
        shown.clear()
        before, error = files(), ""
        try:
            run(cell, names)
        except CheckFailed:  # it has been shown
            pass
        except BaseException as wrong:
            error = f"{type(wrong).__name__}: {wrong}"
            say(failed=cell["name"], text=error[:SHOWN])
        if contained:
            clean_up(before if cell["kind"] == "check" else None)
        if cell["kind"] == "check":
            words = [str(value) for value, _ in shown if isinstance(value, Outcome)]
            passed = not error and any(about == answers_as_text.PROOF for _, about in shown)
            say(check=cell["name"], passed=passed, text="\n".join([*words, error])[:SHOWN].strip())


def run(cell: dict[str, Any], names: dict[str, Any]) -> None:
    """Run the teacher's cell, or keep the learner's as text."""
    if cell["kind"] == "answer":
        answers_as_text.answer(cell["name"], cell["text"], cell["functions"], cell["values"])
        return
    file, text = answers_as_text.file_of(cell["name"]), cell["text"]
    answers_as_text.remember_lines(file, text)
    exec(compile(text, file, "exec", dont_inherit=True), names)


def files() -> set[str]:
    """What lies in the folders that an answer can write into."""
    folders = [folder for folder in ("/tmp", "/dev/shm") if os.path.isdir(folder)]
    return {f"{folder}/{name}" for folder in folders for name in os.listdir(folder)}


def clean_up(before: set[str] | None) -> None:
    """End what is still running, and remove new files if it is known what was there before."""
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)  # as the first process of a namespace: all others in it
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    for path in files() - before if before is not None else ():
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.remove(path)


def watched(keeper: int, verdicts: int, limits: sandbox.Limits) -> str:
    """Wait for the end of a sandbox, or bring it about; returns how it ended."""
    base = sandbox.memory(os.getpid())
    size, since, ended = -1, time.monotonic(), ""
    while not (status := os.waitpid(keeper, os.WNOHANG))[0]:
        if (now := os.fstat(verdicts).st_size) != size:
            size, since = now, time.monotonic()
        if sandbox.used(keeper, base) > limits.all_bytes:
            ended = "memory"
        elif time.monotonic() - since > limits.cell_s:
            ended = "time"
        if ended:
            os.kill(keeper, signal.SIGKILL)
            os.waitpid(keeper, 0)
            return ended
        time.sleep(LOOK_S)
    return "died" if status[1] else "done"


if __name__ == "__main__":
    serve(contained="--bare" not in sys.argv)
    os._exit(0)  # what is frozen cannot be cleared away, and libraries would complain
