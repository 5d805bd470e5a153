"""Real Jupyter kernels for tests, driven by nbclient, and a census of what they hold."""

import asyncio
import contextlib
import mmap
import os
import sys
import tempfile
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil
import spent
import warm_kernels
from deadline import long_enough
from forks import LIMIT, pids, segments
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from course_utils.launcher.deadlines import Deadline

MARK = "LAUNCH_TEST_MARK"  # every process that these tests start has this in its environment
SESSION = uuid.uuid4().hex
NOTING = """
import mmap, os
with open(os.environ["FORKS"], "r+b") as file:  # every fork notes its number there: forks.py
    forks = mmap.mmap(file.fileno(), 0)
os.register_at_fork(after_in_child=lambda: forks.__setitem__(os.getpid(), 1))
"""
SETUP = """
import ctypes, itertools, os, resource, signal, socket, subprocess, sys, tempfile, threading, time
import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from course_utils import launch, report

def total():
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return tensor[0].item()

print("x" * 100_000)  # ipykernel starts threads for the first long output: not ours to count
"""


@dataclass
class Outcome:
    """What running a cell led to."""

    number: int  # N of `In [N]`
    value: str = ""  # the text of its last expression
    printed: str = ""
    errors: list[tuple[str, str]] = field(default_factory=list)  # name and message
    order: list[str] = field(default_factory=list)  # kinds of outputs, such as "stream", "error"


@dataclass
class Census:
    """What a kernel holds, seen from outside."""

    processes: set[int]
    descriptors: Counter[str]
    threads: int
    segments: set[str]
    files: set[str]

    def beyond(self, before: "Census") -> dict[str, object]:
        """What is there more than before; empty when nothing was left behind."""
        more = {
            "processes": self.processes - before.processes,
            "descriptors": dict(self.descriptors - before.descriptors),
            "threads": max(0, self.threads - before.threads),
            "shared memory": self.segments - before.segments,
            "temporary files": self.files - before.files,
        }
        return {name: what for name, what in more.items() if what}


class Kernel:
    """One kernel of its own, with folders of its own.

    Args:
        wrap: a command that runs the kernel, such as `unshare --mount ...`.
        setup: the first cell.
        is_warm: whether it is forked from a process that has imported torch, which saves 3 s. What
            such a kernel has started is known by its session, and not by its environment.
    """

    def __init__(
        self, wrap: tuple[str, ...] = (), setup: str = SETUP, is_warm: bool = False
    ) -> None:
        self._open = contextlib.ExitStack()
        self.folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        # ipykernel and IPython keep state in the home folder; these tests leave it alone.
        folders = {name: str(self.folder / name) for name in ("TMPDIR", "IPYTHONDIR")}
        for folder in folders.values():
            Path(folder).mkdir()
        # No GPU: NCCL and CUDA have tests of their own, and the matrix is the same everywhere.
        own = {MARK: SESSION, "CUDA_VISIBLE_DEVICES": "", "FOLDER": str(self.folder), **folders}
        with (self.folder / "forks").open("w+b") as forks:
            forks.truncate(LIMIT)
            self._forks = mmap.mmap(forks.fileno(), LIMIT)
        own |= {"FORKS": str(self.folder / "forks")}
        own |= {"PREFIX": sys.prefix, "PROJECT": str(Path(__file__).parents[2])}
        self.book = nbformat.v4.new_notebook()
        self.client = NotebookClient(
            self.book,
            allow_errors=True,
            kernel_name="python3",
            shutdown_kernel="immediate",
            # Outputs come late on a busy machine: within the usual 4 s the last ones are lost.
            iopub_timeout=600,
        )
        self.client.create_kernel_manager()
        self.client.km.connection_file = str(self.folder / "connection.json")
        self.client.km.transport = "ipc"  # no ports, which another program could take meanwhile
        spec = self.client.km.kernel_spec
        spec.argv = [*wrap, *self.client.km.format_kernel_cmd()[:1], *spec.argv[1:]]
        log = self._open.enter_context((self.folder / "log").open("w"))
        started = self.client.setup_kernel(env={**os.environ, **own}, stdout=log, stderr=log)
        with warm_kernels.warm() if is_warm else contextlib.nullcontext():
            self._open.enter_context(started)
        self.pid: int = self.client.km.provisioner.pid
        if is_warm:
            spent.count(self.pid)
        if failed := self.run(NOTING + textwrap.dedent(setup), within=60).errors:
            raise RuntimeError(f"the first cell failed: {failed}")

    def run(self, code: str, within: float) -> Outcome:
        """Run a cell; `within` seconds later it counts as hung, which is an error of the test.

        On a slow machine it is so many times later.
        """
        cell = nbformat.v4.new_code_cell(textwrap.dedent(code).strip("\n"))
        self.book.cells.append(cell)
        self.client.timeout = long_enough(within)
        try:
            self.client.execute_cell(cell, len(self.book.cells) - 1)
        except DeadKernelError as error:
            cell.outputs.append(nbformat.v4.new_output("error", ename="DeadKernelError"))
            cell.outputs[-1].evalue = str(error)
        outcome = Outcome(cell.execution_count or 0)
        for output in cell.outputs:
            outcome.order.append(output.output_type)
            if output.output_type == "stream":
                outcome.printed += output.text
            elif output.output_type == "error":
                outcome.errors.append((output.ename, output.evalue))
            elif output.output_type == "execute_result":
                outcome.value = output.data["text/plain"]
        return outcome

    @contextlib.contextmanager
    def pressing_stop(self, *seconds: float) -> Iterator[None]:
        """Press JupyterLab's stop button, perhaps more than once: so long after two ranks start."""
        before = self.forked()

        def press() -> None:
            begun = time.monotonic()
            while len(self.forked() - before) < 2 and time.monotonic() < begun + 60:
                time.sleep(0.02)
            begun = time.monotonic()
            for delay in seconds:
                time.sleep(max(0, begun + delay - time.monotonic()))
                asyncio.run(self.client.km.interrupt_kernel())

        with ThreadPoolExecutor() as beside:
            pressing = beside.submit(press if seconds else int)
            yield
            pressing.result()

    def is_alive(self) -> bool:
        """Whether the kernel's process runs."""
        return psutil.pid_exists(self.pid) and psutil.Process(self.pid).status() != "zombie"

    def census(self) -> Census:
        """What this kernel holds now."""
        kernel = psutil.Process(self.pid)
        links = [_link(entry) for entry in Path(f"/proc/{self.pid}/fd").iterdir()]
        children = {child.pid for child in kernel.children(recursive=True)}  # zombies, too
        return Census(
            processes=alive(self.folder.name) | children | self.of_its_session(),
            descriptors=Counter(filter(None, links)),
            threads=kernel.num_threads(),
            segments=segments(pids(self._forks) | {self.pid}),
            # As the kernel sees it: it may have mounts of its own.
            files=set(os.listdir(f"/proc/{self.pid}/root{self.folder}/TMPDIR")),
        )

    def forked(self) -> set[int]:
        """Every process that this kernel or a fork of it has forked."""
        return pids(self._forks)

    def of_its_session(self) -> set[int]:
        """Forks that live and have made no session of their own, however far away they are."""
        found = set()
        for pid in self.forked():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == os.getsid(self.pid):
                    found.add(pid)
        return found

    def left_since(self, before: Census, seconds: float = 30.0) -> dict[str, object]:
        """What is left after so many seconds, which the system needs to bury the dead."""
        deadline = Deadline(seconds)
        while (left := self.census().beyond(before)) and not deadline.is_over():
            time.sleep(0.02)
        return left

    def close(self) -> None:
        """Shut the kernel down."""
        with contextlib.suppress(Exception):  # a kernel that was killed cannot be asked
            self._open.close()


def alive(word: str = "") -> set[int]:
    """Process ids of what these tests have started, however far from its kernel it is now.

    Args:
        word: what else stands in its environment, such as the name of its kernel's folder.
    """
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARK) == SESSION and word in "\n".join(environment.values()):
                found.add(process.pid)
    return found


def _link(entry: Path) -> str:
    """The kind of an open descriptor, without its number: `socket`, `pipe`, a path."""
    try:
        return os.readlink(entry).split(":")[0]
    except OSError:  # closed meanwhile
        return ""


@contextlib.contextmanager
def warm_kernel(setup: str) -> Iterator[Kernel]:
    """A kernel in which a cell has run that prepares others; it ends when the block does."""
    kernel = Kernel(is_warm=True)
    try:
        assert not kernel.run(setup, 60).errors
        yield kernel
    finally:
        kernel.close()
