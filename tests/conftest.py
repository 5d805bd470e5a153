"""A census around a test: whatever it started, opened or changed is gone when it is over."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mnist_files
import psutil
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling


class Parts(LoadScopeScheduling):
    """Side by side, a notebook stays in one kernel, and the answers to a lab in one process."""

    def _split_scope(self, nodeid: str) -> str:
        lab = re.search(r"test_labs\.py::.*\[(\d\d)", nodeid)
        return f"lab {lab[1]}" if lab else nodeid.split("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Parts:
    """With `--dist loadscope`, what is one part and what may run beside it."""
    return Parts(config, log)


@pytest.fixture(scope="session")
def threads_of_torch() -> int:
    """Starts them all, so that the census finds them there; and ranks are forked beside them."""
    return int((torch.ones(1500, 1500) @ torch.ones(1500, 1500))[0, 0])


@pytest.fixture
def nothing_left(
    threads_of_torch: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Fails a test after which more is held than before; yields its folder for temporary files."""
    folder = tmp_path_factory.mktemp("t")  # short, for the sockets in it
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = census(folder)
    yield folder
    end = time.monotonic() + 6  # threads and segments take a moment to vanish
    while (left := beyond(before, census(folder))) and time.monotonic() < end:
        gc.collect()  # results that nobody holds any more still have their memory
        time.sleep(0.02)
    assert left == {}


def census(folder: Path) -> dict[str, Counter[str]]:
    """What this process holds; on macOS what can be seen there."""
    process = psutil.Process()
    found = {
        "processes": Counter(map(str, family(process))),
        "threads": Counter([t.name for t in threading.enumerate()]),
        "temporary files": Counter(os.listdir(folder)),
        "environment": Counter(f"{k}={v}" for k, v in os.environ.items() if k[:7] != "PYTEST_"),
        "signal handlers": Counter(f"{s} {signal.getsignal(s)}" for s in signal.valid_signals()),
    }
    if (maps := Path("/proc/self/maps")).exists():
        found |= {
            "native threads": Counter(filter(None, map(thread, Path("/proc/self/task").iterdir()))),
            "descriptors": Counter(filter(None, map(link, Path("/proc/self/fd").iterdir()))),
            "shared memory": Counter(os.listdir("/dev/shm")),
            "mapped files": Counter(re.findall(r" (/memfd:.*|/dev/shm/.*)", maps.read_text())),
        }
    return found


def thread(entry: Path) -> str:
    """The name of a native thread; a failure says with it whose thread is left."""
    try:
        name = (entry / "comm").read_text().strip()
        return name.removeprefix("jemalloc_bg_thd")  # pyarrow's, which starts when it likes
    except OSError:  # it has just ended
        return ""


def beyond(
    before: dict[str, Counter[str]], after: dict[str, Counter[str]]
) -> dict[str, dict[str, int]]:
    """What is there now and was not before, or the other way round for the environment."""
    more = {name: dict(after[name] - before[name]) for name in after}
    more["no longer in the environment"] = dict(before["environment"] - after["environment"])
    return {name: what for name, what in more.items() if what}


def family(process: psutil.Process) -> set[psutil.Process]:
    """All descendants, the orphans included: what was forked keeps its ancestor's command line."""
    found, line = set(process.children(recursive=True)), process.cmdline()
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if other.cmdline() == line and other.create_time() > process.create_time():
                found.add(other)
    return found


def link(entry: Path) -> str:
    """The kind of an open descriptor, without its number: `socket`, `pipe`, a path."""
    try:
        return os.readlink(entry).split(":[")[0]
    except OSError:  # the one with which this folder is read
        return ""


def alive(numbers: set[int]) -> set[int]:
    """Those that run; the dead wait for whoever adopted them."""
    dead = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    running = {p.pid for p in psutil.process_iter(["status"]) if p.info["status"] not in dead}
    return numbers & running


def gone_within(numbers: set[int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while alive(numbers) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(numbers)


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
