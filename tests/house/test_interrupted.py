"""However a run of the tests ends, nothing of it is left: no kernel, no rank, no nursery."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for what is left in /proc"),
]
ROOT = Path(__file__).resolve().parents[2]
MARK = "INTERRUPTED_RUN"
# Each says by a file that it has come so far, and then stays. One file goes to one worker.
STAYS = """
import time
from pathlib import Path

def stay(name):
    Path(__file__).with_name(name).touch()
    time.sleep(600)
"""
WITH_RANKS = """
def test_ranks():
    from course_utils import launch
    launch(stay, "ranks", backend="gloo", timeout=600)
"""
WITH_A_KERNEL = """
def test_kernel():
    import conftest
    manager = conftest.kernel_manager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready()
    client.execute("import subprocess; subprocess.run(['sleep', '600'])")
    stay("kernel")
"""


class Run:
    """A run of pytest with two workers, one with ranks and one with a kernel."""

    def __init__(self, folder: Path) -> None:
        (folder / "test_ranks.py").write_text(STAYS + WITH_RANKS)
        (folder / "test_kernel.py").write_text(STAYS + WITH_A_KERNEL)
        self.mark, self.folder = uuid.uuid4().hex, folder
        tests = ROOT / "tests"
        paths = [ROOT, tests, tests / "helpers", ROOT / "tools"]
        environment = os.environ | {
            MARK: self.mark,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        }
        for name in ("COURSE_NURSERY", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            environment.pop(name, None)
        options = "-p conftest -n 2 --dist loadfile --max-worker-restart 0 -p no:cacheprovider"
        command = [sys.executable, "-m", "pytest", "--rootdir", folder, *options.split(), folder]
        self.log = (folder / "log").open("w+")
        self.pytest = subprocess.Popen(
            command, cwd=folder, env=environment, start_new_session=True,
            stdout=self.log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All that this run has started and that still runs."""
        marked = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    marked.append(process)
            except psutil.Error:  # it has just ended
                continue
        return marked

    def workers(self) -> list[psutil.Process]:
        """The workers of xdist, by the process that started them."""
        children = psutil.Process(self.pytest.pid).children()
        return [child for child in children if "warm_kernels" not in " ".join(child.cmdline())]

    def is_busy(self) -> bool:
        assert self.pytest.poll() is None, (self.folder / "log").read_text()
        return all((self.folder / name).exists() for name in ("ranks", "kernel"))

    def is_gone(self) -> bool:
        self.pytest.poll()
        return not self.processes()


@pytest.fixture
def run(tmp_path) -> Iterator[Run]:
    run = Run(tmp_path)
    try:
        wait_for(run.is_busy)
        yield run
    finally:
        for process in run.processes():
            process.kill()
        run.pytest.wait()
        run.log.close()


def wait_for(condition) -> None:
    """Wait for it; that no test may take for ever is the only limit (conftest.py)."""
    while not condition():
        time.sleep(0.05)


def test_ctrl_c_leaves_nothing(run):
    os.killpg(run.pytest.pid, signal.SIGINT)
    wait_for(run.is_gone)


def test_a_terminal_that_is_closed_leaves_nothing(run):
    os.killpg(run.pytest.pid, signal.SIGHUP)
    wait_for(run.is_gone)


def test_a_master_that_is_killed_leaves_nothing(run):
    run.pytest.kill()
    wait_for(run.is_gone)


def test_workers_that_are_killed_leave_nothing(run):
    assert len(run.processes()) > 5
    for worker in run.workers():
        worker.kill()
    wait_for(run.is_gone)
