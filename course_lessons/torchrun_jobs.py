"""Jobs under `torchrun` for chapter 08: six failures on purpose, each in a folder of its own."""

import inspect
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from course_utils.launcher.deadlines import Deadline

_HEAD = """import faulthandler, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.elastic.multiprocessing.errors import record
"""
# Without destroy_process_group(), Python's end and gloo's threads can wait for each other until
# torchrun kills the rank (github.com/pytorch/pytorch/issues/190489). So a rank that fails leaves
# at once, as soon as it has said why.
_TAIL = """try:
    record({main})(sys.argv[1])
except Exception:
    sys.excepthook(*sys.exc_info())
    os._exit(1)
"""
_COMMAND = ["--standalone", "--nproc-per-node=2", "--log-dir=logs", "--redirects=3"]
_COMMAND += ["--monitor-interval=0.2", "train.py"]
_SPOILED = "spoiled checkpoint"  # the failure that is in a file, not in the script
_PY_SPY_S = 5.0  # then the signal is tried
_ANSWER_S = 1.0  # long enough for a process to write where it stands, on a quiet machine
_fork = multiprocessing.get_context("fork")


class Jobs:
    """A temporary folder of jobs, each of which is two ranks that run one script.

    Args:
        functions: What train.py consists of; the last one is called with the failure's name.

    Attributes:
        seen: By failure, the lines in which ranks 0 and 1 were, each time that we looked.
        steps: By failure, how many steps ranks 0 and 1 had printed by then, each time.
    """

    def __init__(self, functions: Sequence[Callable]) -> None:
        self._functions = functions
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.seen: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        self.steps: dict[str, list[list[int]]] = defaultdict(list)

    def folder_of(self, fault: str, variant: str = "") -> Path:
        """Return the folder of a job."""
        return Path(self._folder.name, f"{fault} {variant}".strip().replace(" ", "-"))

    def start(
        self, fault: str, variant: str = "", typed: bool = False, **settings: str
    ) -> BaseProcess:
        """Start train.py under torchrun on loopback.

        Args:
            fault: What goes wrong.
            variant: Tells jobs with the same failure apart.
            typed: Start a new Python, as a shell does, instead of forks that have torch already.
            settings: More variables of the environment.
        """
        loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
        quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        folder = self.folder_of(fault, variant)
        self._prepare(folder, fault)
        command = [*_COMMAND, fault]
        arguments = (folder, loopback | quiet | settings, command, typed)
        process = _fork.Process(target=_torchrun, args=arguments)
        process.start()
        return process

    def _prepare(self, folder: Path, fault: str) -> None:
        """Write the script and the checkpoint of both ranks."""
        folder.mkdir()
        (folder / "stacks").mkdir()
        sources = [inspect.getsource(function) for function in self._functions]
        tail = _TAIL.format(main=self._functions[-1].__name__)
        (folder / "train.py").write_text("\n\n".join([_HEAD, *sources, tail]))
        for rank in range(2):
            torch.save(torch.zeros(1), folder / f"checkpoint{rank}.pt")
        if fault == _SPOILED:
            file = folder / "checkpoint1.pt"
            os.truncate(file, file.stat().st_size // 2)

    def look(self, fault: str, process: BaseProcess) -> None:
        """Note three times where both ranks are, if both are at work for longer than a moment."""
        pids: list[str] = []
        while process.is_alive() and len(pids) < 2:
            time.sleep(0.1)
            pids = re.findall(r"is process (\d+)", "".join(self.logs(fault, "stdout.log")))
        for _ in range(3):
            time.sleep(0.7)
            places = [self._place_of(fault, rank, int(pid)) for rank, pid in enumerate(pids)]
            if not all(places) or "calls" in "".join(places):
                return  # a rank has ended, or is in the `finally`
            self.seen[fault].append(tuple(places))
            printed = self.logs(fault, "stdout.log")
            self.steps[fault].append([text.count("step") for text in printed])

    def _place_of(self, fault: str, rank: int, pid: int) -> str:
        """The line of train.py in which a process is: by py-spy, or else by the signal."""
        stack = _stack_by_py_spy(pid)
        if not stack:
            stack = _stack_by_signal(pid, self.folder_of(fault) / "stacks" / f"rank{rank}")
        lines = re.findall(r"train\.py(?::|\", line )(\d+)", stack)
        return self.code(fault, int(lines[0])) if lines else ""

    def finish(self, processes: Sequence[BaseProcess]) -> None:
        """Wait for jobs, and end those that go on for too long."""
        for process in processes:
            process.join(timeout=120)
            if process.is_alive():
                process.terminate()  # torchrun ends its ranks
                process.join(timeout=60)

    def logs(self, fault: str, name: str, variant: str = "") -> list[str]:
        """Return the texts of both ranks' files of this name, empty where there is none."""
        texts = []
        for rank in (0, 1):
            paths = self.folder_of(fault, variant).glob(f"logs/*/attempt_0/{rank}/{name}")
            texts.append("".join(path.read_text(errors="replace") for path in paths))
        return texts

    def code(self, fault: str, line: int) -> str:
        """Return a line of train.py, without its comment."""
        text = (self.folder_of(fault) / "train.py").read_text().splitlines()[line - 1]
        return text.partition("#")[0].strip()

    def cleanup(self) -> None:
        """Remove all folders."""
        self._folder.cleanup()


def _stack_by_py_spy(pid: int) -> str:
    """Return the stack of a process, empty where py-spy isn't installed or may not look."""
    spy = shutil.which("py-spy") or Path(sys.executable).with_name("py-spy")
    command = [spy, "dump", "--pid", str(pid)]
    plain = {**os.environ, "CLICOLOR_FORCE": "0", "NO_COLOR": "1"}  # a kernel wants colours
    streams: dict[str, Any] = {"capture_output": True, "text": True}
    try:
        return subprocess.run(command, env=plain, timeout=_PY_SPY_S, **streams).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _stack_by_signal(pid: int, file: Path) -> str:
    """Return what a process writes into this file on SIGUSR1, empty if it has ended."""
    bytes_before = file.stat().st_size
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return ""
    deadline = Deadline(_ANSWER_S)
    while file.stat().st_size == bytes_before and not deadline.is_over():
        time.sleep(0.05)
    time.sleep(0.1)  # it may write in several pieces
    answer = file.read_bytes()[bytes_before:].decode(errors="replace")
    return answer.rpartition("most recent")[2]


def _torchrun(folder: Path, settings: dict[str, str], command: list[str], typed: bool) -> None:
    """In a process of its own: what a shell does, then torchrun."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(settings)
    with open("torchrun.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if typed:
        python = [sys.executable, "-m", "torch.distributed.run"]
        os.execv(python[0], python + command)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, closefd=False) for n in (1, 2))
    sys.excepthook = sys.__excepthook__
    subprocess_handler.Popen = _Forked  # type: ignore[misc]
    torch.distributed.run.main(command)


class _Forked:
    """In place of a new Python for train.py: a fork of this one, which has imported torch."""

    def __init__(self, args: Sequence, env: dict, stdout: Any, stderr: Any, **_: Any) -> None:
        self._process = _fork.Process(target=_run_script, args=(args, env, stdout, stderr))
        self._process.start()
        self.pid, self.wait = self._process.pid, self._process.join

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; torchrun asks for it."""
        return self._process.exitcode


def _run_script(args: Sequence[str], env: dict[str, str], *streams: Any) -> None:
    """In a rank: what a new Python does with a script, and its two streams."""
    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
    os.environ.update(env)
    dist.set_debug_level_from_env()  # which a new Python does when it imports torch
    torch.set_num_threads(1)
    sys.argv = list(args[2:])  # behind "python -u"
    # torchrun's store must not be asked while the other rank is forked.
    Path("born" + env["RANK"]).touch()
    while not (Path("born0").exists() and Path("born1").exists()):
        time.sleep(0.01)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
