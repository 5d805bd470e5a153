"""A rank ends as a program does: what it leaves to its end is there, as under torchrun."""

import asyncio
import atexit
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import leavings
import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch
from course_utils.launcher import launch as launcher
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.listener import Listener
from course_utils.launcher.stop_button import Stopped

pytestmark = pytest.mark.usefixtures("nothing_left")
PROGRAM = Path(leavings.__file__)


def under_launch(folder: Path, *names: str) -> dict[str, str]:
    launch(leavings.leave, folder, names)
    return leavings.seen(folder)


WRITTEN = {
    "a_file_in_a_global": "global",
    "a_file_in_a_cycle": "cycle",
    "a_compressed_file": "compressed",
    "a_thread_that_saves": "thread",
    "a_pool_of_threads": "pool",
    "a_function_at_exit": "atexit",
    "a_finalizer": "finalizer",
    "a_handler_of_logging": "logged\n",
    "a_process_that_saves": "process",
    "a_queue_that_a_process_reads": "queue" * 50_000,
    "a_segment_that_nobody_unlinks": "removed",
}


@pytest.mark.parametrize(("kind", "content"), WRITTEN.items(), ids=WRITTEN)
def test_what_a_rank_leaves_to_its_end_is_there_when_launch_returns(tmp_path, kind, content):
    assert under_launch(tmp_path, kind) == {f"{kind}.0": content, f"{kind}.1": content}


@pytest.mark.parametrize("kind", ["a_daemon_thread_that_saves", "a_temporary_folder"])
def test_what_a_program_does_not_keep_is_gone(tmp_path, kind):
    assert under_launch(tmp_path, kind) == {}


def test_a_checkpoint_that_is_saved_aside_is_whole(tmp_path):
    found = under_launch(tmp_path, "a_checkpoint_saved_aside")
    assert found == {"checkpoint": "3 files with content, 3 files"}


@pytest.mark.skipif("a_log_for_tensorboard" not in leavings.KINDS, reason="no tensorboardX here")
def test_a_log_for_tensorboard_is_written(tmp_path):
    found = under_launch(tmp_path, "a_log_for_tensorboard")
    assert set(found.values()) == {"1 files with content, 1 files"}


class Lazy:
    """As a proxy of a web framework that has no request to stand for."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("working outside of application context")


def a_dead_proxy() -> object:
    return weakref.proxy(Lazy())


@pytest.mark.parametrize("make", [a_dead_proxy, Lazy])
def test_an_object_that_raises_when_looked_at_keeps_no_file_from_being_written(tmp_path, make):
    def work() -> None:
        leavings.KEPT.append(make())
        leavings.leave(tmp_path, ["a_file_in_a_global", "a_compressed_file"])

    results = launch(work, world_size=1)
    assert results.output == [""]
    written = {f"{kind}.0": WRITTEN[kind] for kind in ("a_file_in_a_global", "a_compressed_file")}
    assert leavings.seen(tmp_path) == written


def test_a_thread_that_does_not_end_is_told_and_the_results_are_there(capsys):
    def wait_for_ever() -> None:
        while True:
            time.sleep(0.05)

    def work() -> int:
        threading.Thread(target=wait_for_ever, name="saver").start()
        return 5

    assert list(launch(work, world_size=1, timeout=2.0)) == [5]
    place = f"test_a_rank_ends_as_a_program.py, line {wait_for_ever.__code__.co_firstlineno + 2}"
    told = capsys.readouterr().out
    assert "rank 0 was stopped, as it still waited for thread saver" in told
    assert f"at {place}, in wait_for_ever: time.sleep(0.05)." in told


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (kill_myself, "the process died of SIGKILL"),
        (functools.partial(os._exit, 3), "the process left with exit status 3"),
    ],
)
def test_a_rank_that_dies_while_it_ends_is_told_and_its_result_is_there(ends, how, capsys):
    def work() -> int:
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), dst=1)
        else:
            # By then rank 0 has joined as well; while it joins, it would miss a peer that dies.
            dist.recv(torch.ones(1), src=0)
            atexit.register(ends)
        return dist.get_rank()

    assert list(launch(work)) == [0, 1]
    told = capsys.readouterr().out
    assert f"rank 1 did not end as a program does: {how}. What it returned is safe." in told
    assert "rank 0" not in told


class Ends(Listener):
    """Makes a file once all ranks have returned, which is when they end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_poll(self, workers, final=False):
        if not final and all(worker.settled for worker in workers):
            self.path.touch()


def press_stop(presses: int, once_it_exists: Path) -> None:
    while not once_it_exists.exists():
        time.sleep(0.01)
    for _ in range(presses):
        os.kill(os.getppid(), signal.SIGINT)


@pytest.mark.parametrize("presses", [1, 2])
def test_a_stop_while_ranks_end_ends_the_cell_and_loses_no_result(presses, tmp_path):
    go_on = tmp_path / "go on"

    def press_and_stay() -> None:
        press_stop(presses, go_on)
        time.sleep(600)

    def work() -> int:
        if dist.get_rank() == 0:
            threading.Thread(target=press_and_stay, name="presses").start()
        return dist.get_rank()

    with pytest.raises(Stopped) as caught:
        launcher.launch(work, listeners=[Ends(go_on)])
    results = caught.value.results
    assert list(results) == [0, 1]
    # Of rank 1, which has nothing to wait for, nothing is said.
    [sentence] = results.unfinished
    named = "After its function was over, rank 0 was stopped, as it still waited for thread presses"
    assert sentence.startswith(named)
    first, second = caught.value._render_traceback_()
    assert first.startswith("Stopped; nothing is left running. All ranks had returned: sys.last_va")
    assert second == sentence


def test_what_a_rank_saves_within_a_second_of_a_press_is_saved(tmp_path):
    go_on, saved = tmp_path / "go on", tmp_path / "saved"

    def press_and_save() -> None:
        press_stop(1, go_on)
        saved.write_text("step 7")

    with pytest.raises(Stopped) as caught:
        launcher.launch(
            lambda: threading.Thread(target=press_and_save).start(),
            world_size=1,
            listeners=[Ends(go_on)],
        )
    assert list(caught.value.results) == [None]
    assert saved.read_text() == "step 7"
    assert caught.value.unfinished == []


def forks(in_child: Callable[[], object]) -> Callable[[], object]:
    """A function that forks; its child is done before the rank itself returns."""

    def work() -> object:
        pid = os.fork()
        if pid == 0:
            return in_child()
        _pid, status = os.waitpid(pid, 0)
        return "of the rank", os.waitstatus_to_exitcode(status)

    return work


def fails_in_the_child() -> None:
    raise ValueError("only the child")


@pytest.mark.parametrize(
    ("in_child", "status", "told"),
    [
        (lambda: "of the child", 0, "A process that rank 0 has forked returned from the function"),
        (fails_in_the_child, 1, "A process that rank 0 has forked failed: ValueError: only the ch"),
        (lambda: sys.exit(3), 3, ""),
        (lambda: sys.exit("no data"), 1, "no data"),
        (lambda: sys.exit(), 0, ""),
    ],
)
def test_a_process_that_a_rank_forks_returns_nothing_for_it(in_child, status, told):
    results = launch(forks(in_child), world_size=1)
    assert list(results) == [("of the rank", status)]
    assert results.output[0].startswith(told)
    assert bool(results.output[0]) == bool(told)


def test_a_launch_from_a_thread_of_an_executor_ends_without_a_word(capsys):
    results = asyncio.run(asyncio.to_thread(launch, dist.get_rank))
    assert list(results) == [0, 1]
    assert "cannot join" not in capsys.readouterr().out
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.submit(launch, a_pool_in_a_rank).result()) == [7, 7]


def a_pool_in_a_rank() -> int:
    return ThreadPoolExecutor(1).submit(int, 7).result()


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_what_ranks_put_into_a_queue_of_the_notebook_arrives(size):
    queue = multiprocessing.get_context("fork").Queue()
    try:
        launch(lambda: queue.put("x" * size), world_size=3)
        assert [len(queue.get(timeout=60)) for _ in range(3)] == [size] * 3
    finally:
        queue.close()
        queue.join_thread()


def test_a_thread_that_reads_a_queue_of_the_notebook_gets_all_of_it():
    queue = multiprocessing.get_context("fork").Queue()

    def read_slowly() -> None:
        while queue.get() is not None:
            time.sleep(0.1)

    def work() -> None:
        for number in range(8):
            queue.put(number)
        queue.put(None)
        threading.Thread(target=read_slowly).start()

    try:
        assert launch(work, world_size=1, timeout=5.0).unfinished == []
        assert queue.empty()
    finally:
        queue.close()
        queue.join_thread()


def test_a_rank_that_fails_ends_as_a_program_as_well(tmp_path):
    def work() -> None:
        leavings.leave(tmp_path, WRITTEN.keys() - {"a_thread_that_saves"})
        raise ValueError("at the end")

    with pytest.raises(WorkerError, match="rank 0 failed: ValueError: at the end"):
        launch(work, world_size=1)
    wanted = {f"{kind}.0": content for kind, content in WRITTEN.items()}
    del wanted["a_thread_that_saves.0"]
    # On a busy machine the rank is killed before its end, and then Python's tracker removes a
    # segment of it a moment after the rank is gone.
    deadline = Deadline(30)
    while leavings.seen(tmp_path) != wanted and not deadline.is_over():
        time.sleep(0.02)
    assert leavings.seen(tmp_path) == wanted


def test_a_rank_that_is_stopped_because_another_failed_receives_sigterm_first(tmp_path):
    saved = tmp_path / "saved"

    def work() -> None:
        if dist.get_rank() == 0:
            signal.signal(signal.SIGTERM, lambda *_: (saved.write_text("step 7"), sys.exit(1)))
            dist.barrier()
            time.sleep(600)
        dist.barrier()
        raise ValueError("the cause")

    with pytest.raises(WorkerError, match="rank 1 failed: ValueError: the cause"):
        launch(work)
    assert saved.read_text() == "step 7"


def test_a_rank_does_not_end_what_is_the_kernels(tmp_path):
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        context = multiprocessing.get_context("fork")
        loader = context.Process(target=time.sleep, args=(600,), daemon=True)
        loader.start()
        launch(int)
        assert loader.is_alive()
        assert Path(folder).exists()
        loader.kill()
        loader.join()
        loader.close()


def test_a_segment_of_the_kernel_stays_when_a_rank_that_has_opened_it_ends():
    segment = SharedMemory(create=True, size=8)
    try:
        launch(lambda: SharedMemory(name=segment.name).close(), world_size=1)
        SharedMemory(name=segment.name).close()
    finally:
        segment.unlink()
        segment.close()
        resource_tracker._resource_tracker._stop()


@pytest.mark.slow
def test_under_launch_and_under_torchrun_the_same_is_left(tmp_path):
    here, there = tmp_path / "launch", tmp_path / "torchrun"
    here.mkdir()
    there.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    # Beside a sleeping daemon thread Python writes no open file at its end, and of a file in a
    # cycle not always what stands in its buffer: launch writes more.
    names = leavings.KINDS.keys() - {"a_daemon_thread_that_saves", "a_file_in_a_cycle"}
    if sys.version_info >= (3, 14):  # nor the last block of a compressed file
        names.remove("a_compressed_file")
    command = [*torchrun, "--nproc-per-node=2", str(PROGRAM), str(there), *names]
    found = {**os.environ, "TMPDIR": str(tmp_path)}  # torchrun leaves a folder there
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=found)
    assert under_launch(here, *names) == leavings.seen(there)
