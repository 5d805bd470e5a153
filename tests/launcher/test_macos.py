"""What macOS lacks is taken away: ranks run, fail, time out and leave nothing all the same."""

import errno
import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from deadline import hung

from course_utils import WorkerError, launch
from course_utils.launcher import descendants, shutdown
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.stack_writer import frames_of_threads

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def less(nothing_left, monkeypatch):
    """No waitid, pidfd_open, memfd_create or /proc, and small datagrams."""
    pair, exists, listdir = socket.socketpair, os.path.exists, os.listdir

    def small(*kind) -> tuple[socket.socket, ...]:
        ends = pair(*kind)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        return ends

    def without_proc(path=".") -> list[str]:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return listdir(path)

    with monkeypatch.context() as patch:
        for name in ("waitid", "pidfd_open", "memfd_create"):
            patch.delattr(os, name, raising=False)
        patch.setattr(socket, "socketpair", small)
        patch.setattr(os.path, "exists", lambda path: "/proc" not in str(path) and exists(path))
        patch.setattr(os, "listdir", without_proc)
        yield


def test_where_a_container_forbids_to_watch_a_process_ranks_run_and_fail_all_the_same(monkeypatch):
    def forbidden(pid: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden, raising=False)
    assert list(launch(dist.get_rank, backend="gloo")) == [0, 1]
    with pytest.raises(WorkerError, match="status 3"):
        launch(lambda: os._exit(3), backend="gloo")


@pytest.mark.parametrize("size", [10, 3_000, 300_000])
def test_results_of_any_size_come_back(size):
    results = launch(lambda: (torch.arange(size), "x" * size), world_size=3, backend="gloo")
    for numbers, text in results:
        assert (len(numbers), numbers[-1], len(text)) == (size, size - 1, size)


def test_a_group_of_the_learner_meets():
    def work() -> int:
        dist.init_process_group("gloo")
        return dist.get_rank()

    assert list(launch(work, backend=None)) == [0, 1]


@pytest.mark.parametrize("end", [lambda: 1 / 0, lambda: os._exit(3), lambda: os.abort()])
def test_a_rank_that_fails_is_reported_and_its_peers_are_stopped(end):
    with pytest.raises(WorkerError, match=r"rank 1 failed: .*(ZeroDivision|status 3|SIGABRT)"):
        launch(lambda: end() if dist.get_rank() else dist.barrier(), backend="gloo")


def test_a_failure_told_at_length_arrives():
    def work() -> None:
        raise ValueError("long " * 500)

    with pytest.raises(WorkerError, match="long long"):
        launch(work, world_size=1, backend="gloo")


def test_a_rank_that_hangs_is_told_and_stopped():
    def work() -> None:
        dist.get_rank() or dist.barrier()

    told = hung(lambda seconds: launch(work, backend="gloo", timeout=seconds), 1)
    assert "rank 0: waiting in barrier" in str(told)


def outermost_functions() -> set[str]:
    """In which function each thread of this process began that runs Python."""
    names = set()
    for frame in sys._current_frames().values():
        while frame.f_back:
            frame = frame.f_back
        names.add(frame.f_code.co_name)
    return names


def test_who_watches_a_ranks_parent_is_taken_for_no_thread_of_the_learners(monkeypatch):
    """Else no hang would ever be proven, and each rank would be waited for when it ends."""
    monkeypatch.setattr(descendants, "sys", SimpleNamespace(platform="darwin"))

    def work() -> tuple[bool, int, bool, bool]:
        deadline = Deadline(5.0)
        watches = False
        while not watches and not deadline.is_over():  # its thread may not have begun to run
            watches = "_watch_parent" in outermost_functions()
        waits = shutdown._has_something_to_wait_for()
        return watches, threading.active_count(), bool(frames_of_threads()), waits

    assert list(launch(work, backend="gloo")) == [(True, 1, False, False)] * 2
