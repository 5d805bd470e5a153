"""However a run of the tests ends, nothing of it is left: no kernel, no rank, no nursery."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client import BlockingKernelClient

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


LESSON = """
# %%
import time
from pathlib import Path

from course_utils import launch


def stay():
    Path("ranks").touch()
    time.sleep(600)


launch(stay, backend="gloo", timeout=600)
"""


class Program:
    """A program in a session of its own, as a terminal gives it, and all that it starts."""

    def __init__(self, folder: Path, *command: Any, **variables: str) -> None:
        self.mark, self.folder = uuid.uuid4().hex, folder
        environment = os.environ | {MARK: self.mark} | variables
        for name in ("COURSE_NURSERY", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
            environment.pop(name, None)
        with (folder / "log").open("w") as log:
            self.first = subprocess.Popen(
                [sys.executable, *map(str, command)], cwd=folder, env=environment,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def has_made(self, *names: str) -> bool:
        assert self.first.poll() is None, self.said()
        return all((self.folder / name).exists() for name in names)

    def signal(self, number: int) -> None:
        os.killpg(self.first.pid, number)

    def processes(self) -> list[psutil.Process]:
        """All that this program has started and that still runs."""
        marked = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    marked.append(process)
            except psutil.Error:  # it has just ended
                continue
        return marked

    def is_gone(self) -> bool:
        self.first.poll()
        return not self.processes()

    def end(self) -> None:
        for process in self.processes():
            process.kill()
        self.first.wait()


@pytest.fixture
def program(tmp_path) -> Iterator[Callable[..., Program]]:
    started = []

    def start(*command: Any, **variables: str) -> Program:
        started.append(Program(tmp_path, *command, **variables))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture
def run(tmp_path, program) -> Program:
    """A run of pytest with two workers, one with ranks and one with a kernel."""
    (tmp_path / "test_ranks.py").write_text(STAYS + WITH_RANKS)
    (tmp_path / "test_kernel.py").write_text(STAYS + WITH_A_KERNEL)
    paths = [ROOT, ROOT / "tests", ROOT / "tests/helpers"]
    options = "-p conftest -n 2 --dist loadfile --max-worker-restart 0 -p no:cacheprovider"
    command = ["-m", "pytest", "--rootdir", tmp_path, *options.split(), tmp_path]
    run = program(*command, PYTHONPATH=os.pathsep.join(map(str, paths)))
    wait_for(lambda: run.has_made("ranks", "kernel"))
    return run


def workers(run: Program) -> list[psutil.Process]:
    """The workers of xdist, by the process that started them."""
    children = psutil.Process(run.first.pid).children()
    return [child for child in children if "warm_kernels" not in " ".join(child.cmdline())]


def wait_for(condition) -> None:
    """Wait for it; that no test may take for ever is the only limit (conftest.py)."""
    while not condition():
        time.sleep(0.05)


def test_ctrl_c_leaves_nothing(run):
    run.signal(signal.SIGINT)
    wait_for(run.is_gone)
    assert "Stopped; nothing is left running." in run.said()


def test_a_terminal_that_is_closed_leaves_nothing(run):
    run.signal(signal.SIGHUP)
    wait_for(run.is_gone)


def test_a_master_that_is_killed_leaves_nothing(run):
    run.first.kill()
    wait_for(run.is_gone)


def test_workers_that_are_killed_leave_nothing(run):
    assert len(run.processes()) > 5
    for worker in workers(run):
        worker.kill()
    wait_for(run.is_gone)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_build_of_notebooks_that_is_ended_leaves_nothing(number, tmp_path, program):
    for folder in ("source/lessons", "source/labs", "notebooks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "source/lessons/00_waits.py").write_text(LESSON)
    build = program("-m", "course_tools.notebooks.build", "--root", tmp_path, PYTHONPATH=str(ROOT))
    wait_for(lambda: build.has_made("notebooks/ranks"))
    build.signal(number)
    wait_for(build.is_gone)
    assert not (tmp_path / "notebooks/00_waits.ipynb").exists()
    says_so = "stopped: what was being built is as it was, and nothing is left" in build.said()
    assert says_so or number == signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_make_lab_that_is_ended_leaves_nothing(number, tmp_path, program):
    runtime = tmp_path / "runtime"
    lab = program(
        "-m", "course_tools.learner.workspace", "--lab", "--no-browser", "--ServerApp.port=0",
        "--IdentityProvider.token=t",
        COURSE_MY=str(tmp_path / "my"), JUPYTER_RUNTIME_DIR=str(runtime),
    )  # fmt: skip
    wait_for(lambda: lab.has_made() and "is running at" in lab.said())
    server = re.search(r"http://127.0.0.1:\d+/", lab.said())[0]
    wait_for(lambda: answers(server))  # it says where it is before it listens there
    start_ranks(server, runtime)
    wait_for(lambda: lab.has_made("my/ranks"))
    lab.signal(number)
    wait_for(lab.is_gone)
    if number != signal.SIGKILL:
        assert "its kernels with it: nothing is left running" in lab.said()
        assert list(runtime.glob("*.json")) == []


def answers(server: str) -> bool:
    try:
        urllib.request.urlopen(f"{server}api?token=t").close()
    except urllib.error.URLError:
        return False
    return True


def is_ready(client: BlockingKernelClient) -> bool:
    try:
        client.wait_for_ready()
    except RuntimeError:  # on a busy machine a kernel that starts may miss a heartbeat
        return False
    return True


def start_ranks(server: str, runtime: Path) -> None:
    """In a kernel of this server."""
    asked = urllib.request.Request(f"{server}api/kernels?token=t", data=b"{}", method="POST")
    with urllib.request.urlopen(asked) as answer:
        kernel = json.load(answer)["id"]
    client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel}.json"))
    client.load_connection_file()
    client.start_channels()
    wait_for(lambda: is_ready(client))
    client.execute(LESSON.replace('Path("ranks")', f'Path(r"{runtime.parent}/my/ranks")'))
    client.stop_channels()
