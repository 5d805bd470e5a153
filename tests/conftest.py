"""Fixtures for all tests, among them the census, and what may run beside what."""

import contextlib
import faulthandler
import gc
import itertools
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import circles
import mnist_files
import nbval.kernel
import psutil
import pytest
import spent
import warm_kernels
from _pytest.faulthandler import fault_handler_stderr_fd_key
from census import FORKS, beyond, census
from jupyter_client import KernelManager
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager

from course_utils.launcher import deadlines

os.environ["COURSE_LANG"] = "en"  # whatever this machine speaks, unless a test says otherwise
# What every Python does that is started from here, and this one does now.
STARTUP = Path(__file__).parent / "helpers" / "startup"
PATHS = filter(None, (str(STARTUP), os.environ.get("PYTHONPATH")))
os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
runpy.run_path(str(STARTUP / "sitecustomize.py"))

# No test and no cell takes so long on a quiet machine; on a slow one it may be as many times more.
TEST_S, CELL_S = 400, 300
# What takes longest comes first, so that no worker is left alone with it at the end.
FIRST = (
    "notebooks/09", "tests/lessons/", "tests/checks/test_grading",
    "lab ", "tests/launcher/test_faults", "tests/hang/", "tests/site/", "notebooks/", "solutions/",
    "tests/labs/test_challenge", "tests/checks/", "tests/root/", "tests/house/test_ddp_course",
    "tests/record/", "tests/launcher/", "tests/house/test_mutants",
)  # fmt: skip


class Parts(LoadScopeScheduling):
    """What is one part, and in which order the parts begin.

    A notebook stays in one kernel, the answers to a lab and the tests of a module in one process.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/site/"):  # it is built once
            return "tests/site/"
        lab = re.search(r"test_labs\.py::.*\[(\d\d)", nodeid)
        return f"lab {lab[1]}" if lab else nodeid.split("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=self._turn), last=False)
        super()._assign_work_unit(node)

    def _turn(self, part: str) -> int:
        return next((n for n, start in enumerate(FIRST) if part.startswith(start)), len(FIRST))


SOCKETS, KERNELS = tempfile.TemporaryDirectory(prefix="k"), itertools.count()


class Manager(KernelManager):
    """For nbval: its kernels are forked from one that is warm."""

    def start_kernel(self, **options: Any) -> None:
        with warm_kernels.warm():
            super().start_kernel(**options)
        spent.count(self.provisioner.pid)


def kernel_manager(**options: Any) -> KernelManager:
    """As nbval's, over files: ranks may take a port that was chosen before the kernel does."""
    return Manager(transport="ipc", ip=f"{SOCKETS.name}/{next(KERNELS)}", **options)


nbval.kernel.KernelManager = kernel_manager


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the CPU seconds of each test are written, if anywhere."""
    parser.addoption("--seconds", metavar="FILE", help="append the CPU seconds of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist share a folder and the process that forks kernels; they end with us."""
    if hasattr(config, "workerinput"):
        warm_kernels.die_with_parent()
    else:
        _have_temporary_files_removed(config)
    is_master = bool(config.getoption("numprocesses", None))
    if config.getoption("seconds"):
        config.pluginmanager.register(spent.Seconds(config.getoption("seconds"), is_master))
    if is_master:
        os.environ[warm_kernels.ADDRESS] = warm_kernels.NURSERY.open()


def _have_temporary_files_removed(config: pytest.Config) -> None:
    """At the end, remove what lessons, torchrun and killed kernels have left in TMPDIR.

    What pytest itself keeps there of its last three runs stays where it always is.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["TMPDIR"] = folder.name
    tempfile.tempdir = folder.name


def pytest_keyboard_interrupt() -> None:
    """Workers that do not end by the same Ctrl-C are killed sooner than xdist would."""
    NodeManager.EXIT_TIMEOUT = 1


@pytest.hookimpl(trylast=True)  # after xdist has ended its workers
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After Ctrl-C: end what is still there, and say so."""
    of_a_worker = hasattr(session.config, "workerinput")
    if exitstatus != pytest.ExitCode.INTERRUPTED or of_a_worker:
        return
    warm_kernels.NURSERY.close()
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line("\nStopped; nothing is left running.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Parts:
    """With `--dist loadscope`, what is one part and what may run beside it."""
    return Parts(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For `make test`, don't read files of which it runs nothing: each of its workers reads all."""
    leaves_outer_out = "not outer" in config.option.markexpr
    path = os.path.relpath(collection_path, config.rootpath)
    if leaves_outer_out and circles.is_wholly_outer(path):
        return True
    return None  # let others decide


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not ask for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-all`."""
    circles.mark(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs must not hang the build: pytest prints every thread's stack and ends."""
    slowness = deadlines.slowness(recent_s=20.0)
    item.config.option.nbval_cell_timeout = slowness * CELL_S
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(slowness * TEST_S, file=stderr, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """While hundreds of modules are imported, nothing is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there by now stays: no later collection of garbage need look at a million objects.

    Nor need each rank of a worker's copy an entry for each page of it.
    """
    gc.freeze()
    if hasattr(session.config, "workerinput"):
        warm_kernels.enlarge_pages()


@pytest.fixture
def threads_of_torch() -> float:
    """Starts them all, so that the census finds them there; a launch ends them."""
    import torch  # here: who only hands out tests to workers goes without

    return torch.ones(1_000_000).sin().sum().item()


@pytest.fixture
def nothing_left(
    threads_of_torch: float,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Fails a test after which more is held than before; yields its folder for temporary files."""
    folder = tmp_path_factory.mktemp("t")  # short, for the sockets in it
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    FORKS.forget()
    before = census(folder)
    yield folder
    deadline = deadlines.Deadline(60)  # threads and segments take a moment to vanish
    while (left := beyond(before, census(folder))) and not deadline.is_over():
        gc.collect()  # results that nobody holds any more still have their memory
        time.sleep(0.02)
    assert left == {}


@pytest.fixture(scope="session")
def nursery() -> warm_kernels.Nursery:
    """What forks programs, there before a test counts what it leaves."""
    warm_kernels.NURSERY.warm()
    return warm_kernels.NURSERY


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first failure the others get all the time that a busy machine needs to fail."""
    from course_utils.launcher import worker_group  # here, for it imports torch

    monkeypatch.setattr(worker_group, "_GRACE_S", 60.0)


@pytest.fixture
def script() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python on a text, as a process group of its own that does not outlive the test."""
    started = []

    def start(source: str, *command: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, sys.executable, "-u", "-c", textwrap.dedent(source)],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A root whose MNIST/raw holds the four real files."""
    mnist_files.unpack(tmp_path / "MNIST" / "raw")
    return tmp_path
