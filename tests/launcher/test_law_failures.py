"""The law of launch, lines 4 and 5: one rank fails, and the error shows the cause."""

import ctypes
import faulthandler
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from deadline import within
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.launcher import errors
from course_utils.launcher.worker import WorkerMain
from course_utils.launcher.worker_group import _GRACE_S
from course_utils.launcher.worker_handle import WorkerHandle

pytestmark = pytest.mark.usefixtures("nothing_left")


def boom() -> None:
    raise ValueError("boom")


def kill(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def failing(how: Callable[[], object], rank: int, backend: str | None = "gloo", n: int = 3):
    """Launches ranks of which one fails while the others depend on it; returns the error."""

    def work() -> None:
        if backend is None:
            dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == rank:
            how()
        while True:
            dist.all_reduce(torch.ones(10))

    with pytest.raises(WorkerError) as caught:
        launch(work, world_size=n, backend=backend)
    return caught.value


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_law_4_the_others_are_stopped_within_two_seconds(rank):
    with within(60):
        error = failing(boom, rank)
    assert str(error).startswith(f"rank {rank} failed: ValueError: boom")


def test_law_4_others_that_compute_are_stopped_as_well():
    def work() -> None:
        if dist.get_rank() == 2:
            boom()
        while True:
            sum(range(10**8)) if dist.get_rank() else time.sleep(10_000)

    refused = pytest.raises(WorkerError, match=r"(?s)rank 2 failed.*Ranks 0 and 1 were stopped\.$")
    with within(60), refused:
        launch(work, world_size=3)


@pytest.mark.parametrize("backend", ["gloo", None])
@pytest.mark.parametrize("how", [kill, lambda: os._exit(3)])
def test_law_4_the_dead_rank_is_blamed_and_not_its_peers(how, backend):
    for turn in range(3):
        error = failing(how, turn, backend)
        assert (error.rank, error.failures[0].is_echo) == (turn, False)
        assert all(failure.is_echo for failure in error.failures[1:])


WAITS = {
    "recv": lambda: dist.recv(torch.ones(1), src=0),
    "send": lambda: [dist.send(torch.ones(10**6), 0) for _ in range(100)],
    "wait": lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "objects": lambda: dist.all_gather_object([None] * 3, 1),
    "store": lambda: dist.distributed_c10d._get_default_store().get("never"),
    "sub-group": lambda: dist.new_group([1, 2]) and dist.new_group([0, 1, 2]),
    "DDP": lambda: DistributedDataParallel(nn.Linear(2, 2)),
    "monitored_barrier": lambda: dist.monitored_barrier(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_law_4_no_complaint_about_a_lost_peer_is_taken_for_the_cause(wait):
    def work() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            time.sleep(0.1)
            kill()
        wait()

    with pytest.raises(WorkerError) as caught:
        launch(work, world_size=3, backend=None)
    assert caught.value.rank == 0
    assert str(caught.value).startswith("rank 0 failed: the process died of SIGKILL")


def test_law_4_the_first_of_two_failures_is_the_cause(no_hurry, monkeypatch):
    (reading, writing), stay = os.pipe(), WorkerMain._park_until_killed

    def work() -> None:
        if dist.get_rank() == 0:
            os.read(reading, 1)
            raise KeyError("consequence")
        boom()

    def note_and_stay(worker: WorkerMain, unreported: BaseException | None) -> None:
        os.write(writing, b".")
        stay(worker, unreported)

    monkeypatch.setattr(WorkerMain, "_park_until_killed", note_and_stay)
    with open(reading), open(writing, "w"), pytest.raises(WorkerError) as caught:
        launch(work)
    assert [failure.headline for failure in caught.value.failures] == [
        "ValueError: boom",
        "KeyError: 'consequence'",
    ]


def test_law_4_ranks_that_fail_alike_are_named_together(no_hurry):
    with pytest.raises(WorkerError) as caught:
        launch(boom, world_size=3)
    assert str(caught.value).startswith("ranks 0, 1 and 2 failed: ValueError: boom")
    assert "stopped" not in str(caught.value)


def test_law_4_a_rank_that_fails_to_the_end_does_not_hide_another():
    """One rank is done long before another fails."""

    def work() -> int:
        if dist.get_rank() == 1:
            time.sleep(_GRACE_S + 0.2)
            boom()
        return 7

    with pytest.raises(WorkerError, match="rank 1 failed: ValueError: boom"):
        launch(work)


def test_law_4_the_error_shows_the_lines_that_led_there():
    with pytest.raises(WorkerError) as caught:
        launch(lambda: boom(), world_size=1)
    place = f"{os.path.basename(__file__)}, line {boom.__code__.co_firstlineno + 1}, in boom"
    assert place in str(caught.value)
    assert "--> " in str(caught.value)


def test_law_4_a_peer_that_leaves_the_group_too_early_is_explained():
    def work() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            return dist.destroy_process_group()
        dist.all_reduce(torch.ones(2))

    with pytest.raises(WorkerError, match=r"Likely reason: another rank left the group"):
        launch(work)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGTERM"])
def test_law_5_a_rank_that_dies_by_a_signal_is_reported_by_its_name(number):
    error = failing(lambda: kill(signal.Signals[number]), rank=1)
    assert str(error).startswith(f"rank 1 failed: the process died of {number}\n")
    assert "\n\nLikely reason: " in str(error)


def test_law_5_a_signal_without_a_name_is_reported_by_its_number():
    error = failing(lambda: kill(signal.SIGRTMIN + 3), rank=1)
    assert f"the process died of signal {signal.SIGRTMIN + 3}" in str(error)


def test_law_5_a_crash_in_compiled_code_shows_the_line_that_called_it():
    def crash() -> None:
        ctypes.string_at(0)

    error = failing(crash, rank=0)
    assert "the process died of SIGSEGV" in str(error)
    assert "ctypes.string_at(0)" in str(error)


def test_a_crash_shows_its_line_where_the_rank_enables_faulthandler_as_well():
    def crash() -> None:
        faulthandler.enable()
        ctypes.string_at(0)

    error = failing(crash, rank=0)
    assert "ctypes.string_at(0)" in str(error)
    assert "Fatal Python error" not in error.output[0]


def test_the_line_of_a_crash_is_pointed_at_only_where_it_is_shown():
    def crash() -> None:
        faulthandler.enable(open(os.devnull, "w"))  # noqa: SIM115, it stays open
        ctypes.string_at(0)

    reason = failing(crash, rank=0).parts[1]
    assert reason == "Likely reason: compiled code touched memory that is not its own."


def test_law_5_collectives_that_do_not_match_name_what_differs():
    def work() -> None:
        dist.all_reduce(torch.ones(1 + 1000 * dist.get_rank()))

    with pytest.raises(WorkerError, match="SIGABRT") as caught:
        launch(work)
    if not isinstance(caught.value, WorkerTimeout):
        assert "rank 1: all_reduce, float32 of shape (1001,)" in str(caught.value)


@pytest.mark.parametrize("status", [0, 3])
def test_law_5_a_rank_that_leaves_by_os_exit_is_reported_with_its_status(status):
    error = failing(lambda: os._exit(status), rank=2)
    assert f"rank 2 failed: the process left with exit status {status} before" in str(error)
    assert "let the function return instead" in str(error)


@pytest.mark.parametrize(("code", "shown"), [(3, "3"), ("no data", "'no data'")])
def test_law_5_sys_exit_is_reported_as_such(code, shown):
    error = failing(lambda: sys.exit(code), rank=0)
    assert str(error).startswith(f"rank 0 failed: sys.exit({shown}) was called")


@pytest.mark.parametrize("code", [None, 0])
def test_a_script_that_ends_by_sys_exit_has_done_what_it_should(code):
    assert launch(lambda: sys.exit(code)) == [None, None]


def test_law_5_a_rank_killed_while_it_starts_is_reported():
    def killed_at_once() -> None:
        if os.environ["RANK"] == "1":
            kill()
        dist.init_process_group("gloo")

    with pytest.raises(WorkerError, match="rank 1 failed: the process died of SIGKILL"):
        launch(killed_at_once, world_size=3, backend=None)


def test_law_5_a_rank_that_dies_after_its_result_does_no_harm(monkeypatch):
    stay = WorkerMain._park_until_killed

    def work() -> int:
        dist.barrier()  # both have joined: a rank that is just connecting would fail
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError):  # when the other is gone
                dist.recv(torch.ones(1), 1)
        return dist.get_rank()

    def kill_or_stay(worker: WorkerMain, unreported: BaseException | None) -> None:
        if dist.get_rank():
            kill()
        stay(worker, unreported)

    monkeypatch.setattr(WorkerMain, "_park_until_killed", kill_or_stay)
    assert list(launch(work)) == [0, 1]


def test_law_5_an_error_that_cannot_be_printed_is_still_told():
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def shy() -> None:
        raise Shy

    with pytest.raises(WorkerError, match=r"Shy: .its message cannot be printed"):
        launch(shy)


def test_law_5_an_error_whose_words_end_the_program_is_told_as_well():
    class Quits(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt("from __str__")

    def quits() -> None:
        raise Quits

    with pytest.raises(WorkerError, match=r"KeyboardInterrupt|Quits") as caught:
        launch(quits, world_size=1)
    assert "in quits" in str(caught.value)


def test_law_5_what_is_raised_while_a_failure_is_told_is_a_failure(monkeypatch):
    """As by torch, wherever a rank is when it hears that a DataLoader's worker is dead."""
    tell = errors.from_exception

    def interrupted(rank: int, error: BaseException, *notes: str) -> errors.Failure:
        if isinstance(error, ConnectionResetError):
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        return tell(rank, error, *notes)

    def work() -> None:
        raise ConnectionResetError("by peer")

    monkeypatch.setattr(errors, "from_exception", interrupted)
    with pytest.raises(WorkerError, match="DataLoader worker is killed") as caught:
        launch(work, world_size=1)
    assert "in work" in str(caught.value)


def its_worker_is_killed(folder: Path) -> None:
    # Torch makes temporary files to see whether it still can, and its own handler for SIGCHLD may
    # interrupt it amid that: then one stays, as it does without launch.
    tempfile.tempdir = str(folder)
    loader = iter(DataLoader(range(100), num_workers=2))
    next(loader)
    os.kill(loader._workers[0].pid, signal.SIGKILL)
    list(loader)


def told_of_a_killed_worker(times: int, folder: Path) -> set[str]:
    seen = set()
    for _ in range(times):
        with pytest.raises(WorkerError) as caught:
            launch(its_worker_is_killed, folder, world_size=1)
        seen.add(re.sub(r"\(pid.*?\)", "", str(caught.value).splitlines()[0]))
    return seen


def is_named(headline: str) -> bool:
    return headline.startswith("rank 0 failed: RuntimeError: DataLoader worker ")


def test_law_5_a_killed_worker_of_a_data_loader_is_told_as_such(tmp_path):
    assert all(map(is_named, told_of_a_killed_worker(5, tmp_path)))


@pytest.mark.soak
def test_law_5_a_killed_worker_is_told_as_such_a_hundred_times(tmp_path):
    assert all(map(is_named, told_of_a_killed_worker(100, tmp_path)))


def test_a_second_init_process_group_is_told_what_to_leave_out():
    with pytest.raises(WorkerError, match=r"leave init_process_group.. out.* backend=None"):
        launch(lambda: dist.init_process_group("gloo"), world_size=1, backend="gloo")


def test_law_5_a_rank_of_whose_end_the_kernel_hears_nothing_has_not_left_with_status_0():
    """As in a kernel that ignores SIGCHLD."""
    worker = WorkerHandle(0)
    worker.open()
    gone = subprocess.Popen(["true"])
    worker.pid = gone.pid
    gone.wait()
    worker.read()
    worker.close()
    assert "the process is gone, and how it ended is not known" in worker.failure.headline
