"""The law of launch, line 9: after a launch there is nothing more than before."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import get_temp_dir
from pathlib import Path

import leavings
import psutil
import pytest
import torch
import torch.distributed as dist
from census import gone_within
from torch.utils.data import DataLoader

from course_utils import WorkerError, WorkerTimeout, launch

pytestmark = pytest.mark.usefixtures("nothing_left")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
KEPT = []


@pytest.mark.parametrize("how", [KeyboardInterrupt, WorkerTimeout, WorkerError, None])
def test_law_9_however_a_rank_with_a_data_loader_ends_nothing_is_left(how):
    def work() -> None:
        for batch, _ in enumerate(DataLoader(range(10**4), num_workers=2)):
            if batch == 10 and how is WorkerError:
                raise ValueError
            if batch == 10 and how is KeyboardInterrupt and dist.get_rank() == 0:
                os.kill(os.getppid(), signal.SIGINT)
            if batch == 10 and how is None:
                return

    with pytest.raises(how) if how else contextlib.nullcontext():
        launch(work, timeout=0.7 if how is WorkerTimeout else 60)


def test_law_9_a_rank_that_starts_processes_takes_them_along():
    def work() -> list[int]:
        batches = iter(DataLoader(range(1000), num_workers=2))
        program = subprocess.Popen(["sleep", "100"])
        return [worker.pid for worker in batches._workers] + [program.pid]

    for children in launch(work):
        assert len(children) == 3
        assert gone_within(set(children), 60)


@linux
def test_law_9_a_segment_whose_maker_was_stopped_too_early_is_removed():
    def work() -> None:
        reading, writing = os.pipe()
        if os.fork() == 0:
            Path(f"/dev/shm/torch_{os.getpid()}_1_1").touch()  # as torch does, just before a signal
            os.write(writing, b".")
            time.sleep(10_000)
        os.read(reading, 1)
        raise ValueError

    with pytest.raises(WorkerError):
        launch(work)


def leave_a_segment() -> None:
    """As a worker of a DataLoader that is stopped just after it has made one."""
    Path(f"/dev/shm/torch_{os.getpid()}_1_1").touch()
    time.sleep(600)


@linux
def test_law_9_a_segment_is_removed_also_if_the_rank_died_by_itself():
    def work() -> None:
        worker = multiprocessing.get_context("fork").Process(target=leave_a_segment)
        worker.start()
        while not Path(f"/dev/shm/torch_{worker.pid}_1_1").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerError, match="SIGKILL"):
        launch(work)


def return_at_once() -> None: ...


def raise_an_error() -> None:
    raise ValueError


def sleep_too_long() -> None:
    time.sleep(600)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@linux
@pytest.mark.parametrize("end", [return_at_once, raise_an_error, sleep_too_long, die])
def test_law_9_semaphores_and_segments_are_removed_however_a_rank_ends(end):
    reading, writing = os.pipe()

    def work() -> None:
        lock = multiprocessing.get_context("spawn").Lock()
        segment = SharedMemory(create=True, size=8)
        names = f"sem.{lock._semlock.name[1:]} {segment.name} "
        os.write(writing, names.encode())
        KEPT.extend([lock, segment])
        end()

    with open(reading, "rb") as names:
        with open(writing, "wb"), contextlib.suppress(WorkerError):
            launch(work, timeout=4.0 if end is sleep_too_long else 60.0)
        left = {Path("/dev/shm", name.decode()) for name in names.read().split()}
    while any(path.exists() for path in left):  # its tracker needs a moment after a kill
        time.sleep(0.05)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_law_9_the_temporary_folder_of_a_killed_process_is_removed(method):
    def work() -> None:
        context = multiprocessing.get_context(method)
        hears, says = context.Pipe(duplex=False)
        target = leavings.holds_a_temporary_folder
        context.Process(target=target, args=(says,), daemon=True).start()
        assert os.path.isdir(hears.recv())
        raise ValueError("while a worker has a folder")

    with pytest.raises(WorkerError, match="while a worker has a folder"):
        launch(work, world_size=1)


def test_a_process_that_a_helper_thread_starts_outlives_that_thread():
    def work() -> int:
        process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
        reading, writing = os.pipe()
        process._target = lambda code: os.read(reading, 1) and sys.exit(code)
        thread = threading.Thread(target=process.start)
        thread.start()
        thread.join()
        os.write(writing, b".")
        process.join()
        return process.exitcode

    assert list(launch(work)) == [7, 7]


def test_law_9_a_rank_may_use_segments_files_and_sockets():
    def work() -> int:
        kept = [torch.ones(10).share_memory_(), socket.socket(), dist.new_group([0, 1])]
        return len(kept)

    assert list(launch(work)) == [3, 3]


def test_law_9_a_success_a_failure_and_a_timeout_leave_nothing():
    """What they leave is counted by the fixture after this test."""
    large = launch(lambda: [torch.ones(100_000), torch.ones(5), "x" * 100_000])
    assert large[0][0][-1] == 1
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        launch(lambda: 1 / 0)
    with pytest.raises(WorkerTimeout):
        launch(time.sleep, 100, timeout=0.2)


def test_law_9_a_rank_cannot_change_the_kernel():
    here = os.getcwd()

    def work() -> None:
        os.environ["CHANGED"] = "1"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.chdir("/")
        torch.manual_seed(5)
        torch.set_default_dtype(torch.float64)

    state = torch.get_rng_state()
    launch(work)
    assert os.getcwd() == here
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)


def test_law_9_an_error_that_is_kept_holds_nothing():
    """As `sys.last_value` does in a notebook."""
    descriptors = psutil.Process().num_fds()
    with pytest.raises(WorkerError) as kept:
        launch(lambda: 1 / 0)
    assert psutil.Process().num_fds() == descriptors
    assert kept.value.rank == 0


def test_law_9_a_temporary_folder_is_there_for_who_has_imported_its_maker_before():
    def work() -> bool:
        return os.path.isdir(get_temp_dir())

    assert launch(work, world_size=2) == [True, True]
