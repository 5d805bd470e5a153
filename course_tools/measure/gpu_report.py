"""Proves the course on this machine's GPUs, and writes down what is seen: `make gpu`.

One GPU is enough. It takes eight minutes at most. What is seen stands on the page and in
gpu-report.md at once, line by line, so nothing is lost if the machine is. The report is made to be
attached to an issue: it has hardware, versions and results, and neither a host's nor a user's name.
"""

import getpass
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from course_tools import ROOT
from course_tools.measure import gpu_items
from course_tools.measure.bounded_process import BoundedProcess
from course_utils.devices.driver import usable_gpus

REPORT = "gpu-report.md"
WHOLE_S = 480
WORKS = "works"
FAILS = "does NOT work"
LEFT_OUT = "left out"
# Each item has a process of its own, and would wait for NCCL's probe once more.
WITHOUT_NCCL = f'It needs two ranks by NCCL, see "{gpu_items.TWO_RANKS}" above.'
MISSING = """\
`make gpu` wants one NVIDIA GPU that CUDA can use (nvidia-smi shows it), and this torch with CUDA.
It would show: two ranks by NCCL on it, a hang under NCCL and its report, a recording with CUDA's
events, train_ddp.py, what every chapter runs in ranks, FSDP2 too, chapters 00, 04 and 14, and the
tests marked gpu: hangs of chapter 08, a rank that raises, what a kernel may do before a launch."""


def main(folder: Path = ROOT, whole_s: float = WHOLE_S) -> int:
    """Writes the report and returns 0 where all works; without a GPU says what is missing."""
    gpus = usable_gpus()
    if not gpus.names:
        print(f"No GPU to report on: {gpus.refusal or 'there is none here'}.\n{MISSING}")
        return 0
    begun = time.monotonic()
    became = {}
    with (folder / REPORT).open("w", encoding="utf-8", buffering=1) as report:

        def write(line: str) -> None:
            line = nameless(line)
            print(line, flush=True)
            report.write(f"{line}\n")

        write("# The course on this machine's GPUs")
        for name, item in gpu_items.items().items():
            passed_s = time.monotonic() - begun
            left_s = whole_s - passed_s
            write(f"\n## {name}\n")
            if item.needs_nccl and became.get(gpu_items.TWO_RANKS) == FAILS:
                write(WITHOUT_NCCL)
                outcome = LEFT_OUT
            else:
                outcome = look(name, item.limit_s, left_s, write)
            became[name] = outcome
            passed_s = time.monotonic() - begun
            write(f"\n**{outcome}**, {passed_s:.0f} s since the start")
        write(f"\n## In short\n\n{sentence(became)}")
    print(f"{REPORT} is written.")
    return int(FAILS in became.values())


def look(name: str, limit_s: float, left_s: float, write: Callable[[str], None]) -> str:
    """Runs one item in a process of its own and writes each of its lines as it comes."""
    if left_s <= 0:
        write("The time is over.")
        return LEFT_OUT
    seconds = min(limit_s, left_s)
    with BoundedProcess(program(name), seconds, ROOT, environment()) as process:
        for line in process.lines():
            write(f"    {line}")
    if process.was_stopped and left_s < limit_s:
        write("    stopped: the time of the whole report is over")
        return LEFT_OUT
    if process.was_stopped:
        write(f"    stopped: it was not done within {limit_s:.0f} s")
        return FAILS
    by_status = {0: WORKS, 3: LEFT_OUT}
    return by_status.get(process.status, FAILS)


def program(name: str) -> list[str]:
    """Returns the command that runs an item."""
    return [sys.executable, "-u", "-m", "course_tools.measure.gpu_items", name]


def environment() -> dict[str, str]:
    """Returns what an item's process is given: the course, in English."""
    path_here = os.environ.get("PYTHONPATH", "")
    path = f"{ROOT}{os.pathsep}{path_here}"
    return os.environ | {"PYTHONPATH": path, "COURSE_LANG": "en"}


def sentence(became: dict[str, str]) -> str:
    """Returns what works here and what does not, in a sentence each."""

    def of(outcome: str) -> str:
        names = [name for name, fate in became.items() if fate == outcome]
        return ", ".join(names) or "nothing"

    works = of(WORKS)
    fails = of(FAILS)
    left_out = of(LEFT_OUT)
    return f"What works here: {works}. What does not: {fails}. Left out: {left_out}."


def nameless(text: str) -> str:
    """A text in which this host, its user and their folders have no name.

    A user's name may be a word, such as root: it is one only before `@` and in a path.
    """
    text = re.sub(rf"(?<!\w){re.escape(str(ROOT))}(?!\w)", "COURSE", text)
    home = _home()
    if home:
        text = re.sub(rf"(?<!\w){re.escape(home)}(?!\w)", "HOME", text)
    text = re.sub(rf"(?<!\w){re.escape(socket.gethostname())}(?!\w)", "HOST", text)
    user = _user()
    if user:
        escaped = re.escape(user)
        text = re.sub(rf"(?<!\w){escaped}(?=@)|(?<=/){escaped}(?!\w)", "USER", text)
    return text


def _user() -> str:
    """The name of this user; empty where the system has none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the first one before Python 3.13
        return ""


def _home() -> str:
    """The user's folder, unless it is unknown or the root of all folders, which tells nothing."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return ""
    return "" if home == "/" else home


if __name__ == "__main__":
    sys.exit(main())
