"""Who is to blame: words such as "Connection reset by peer" make no echo, their place does."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from course_utils import WorkerError, launch
from course_utils.launcher import echoes, errors
from course_utils.launcher.errors import Failure

pytestmark = pytest.mark.usefixtures("nothing_left")
GLOO = "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:561] "


class OfALibrary(RuntimeError):
    """As libraries have them."""


def raised(error: BaseException, inside: str = "") -> BaseException:
    """The error as it is caught; raised in a file of torch, if that is said."""
    namespace = {"error": error}
    file = os.path.join(os.path.dirname(torch.__file__), inside) if inside else __file__
    code = compile("def collective():\n    raise error", file, "exec")
    exec(code, namespace)
    try:
        namespace["collective"]()
    except BaseException as caught:
        return caught


class Clips(Dataset):
    """Fails in a DataLoader's worker."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise self.error


class Backward(torch.autograd.Function):
    """Fails in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("service: Connection refused")


def in_a_loader(error: BaseException) -> None:
    list(DataLoader(Clips(error), num_workers=1))


def in_a_thread(error: BaseException) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(raises, error).result()


def raises(error: BaseException) -> None:
    raise error


def from_another(error: BaseException) -> None:
    raise RuntimeError("no data: Connection closed by peer") from error


def in_a_model() -> None:
    class Model(nn.Linear):
        def forward(self, x):
            raise RuntimeError("server: Connection reset by peer")

    DistributedDataParallel(Model(1, 1), init_sync=False)(torch.ones(1))


def in_backward() -> None:
    Backward.apply(torch.ones(1, requires_grad=True)).sum().backward()


def by_the_system() -> None:
    socket.create_connection(("127.0.0.1", 1), timeout=5)


def raising(error: BaseException) -> Callable[[], None]:
    return lambda: raises(error)


TWENTY: list[tuple[Callable[[], None], str]] = [
    (raising(RuntimeError("database: Connection refused")), "database: Connection refused"),
    (raising(RuntimeError("Connection reset by peer")), "RuntimeError: Connection reset by peer"),
    (raising(RuntimeError("Connection closed by peer")), "RuntimeError: Connection closed by peer"),
    (raising(RuntimeError("ffmpeg: clip.mp4: Broken pipe")), "ffmpeg: clip.mp4: Broken pipe"),
    (raising(RuntimeError("disk: Read error")), "RuntimeError: disk: Read error"),
    (raising(RuntimeError("disk: Write error")), "RuntimeError: disk: Write error"),
    (raising(RuntimeError("proxy: Connect timeout")), "RuntimeError: proxy: Connect timeout"),
    (raising(RuntimeError("Socket closed")), "RuntimeError: Socket closed"),
    (raising(RuntimeError("tool: remote process exited")), "tool: remote process exited"),
    (raising(RuntimeError("Timed out waiting for a lock")), "Timed out waiting for a lock"),
    (raising(OfALibrary("Connection refused")), "OfALibrary: Connection refused"),
    (raising(ConnectionResetError(104, "Connection reset by peer")), "ConnectionResetError"),
    (raising(BrokenPipeError(32, "Broken pipe")), "BrokenPipeError: [Errno 32] Broken pipe"),
    (by_the_system, "ConnectionRefusedError: [Errno 111] Connection refused"),
    (raising(dist.DistNetworkError("mine: Connection reset by peer")), "mine: Connection reset"),
    (lambda: in_a_loader(RuntimeError("clip: Connection reset by peer")), "clip: Connection reset"),
    (lambda: in_a_thread(RuntimeError("in vain: Broken pipe")), "RuntimeError: in vain: Broken"),
    (lambda: from_another(OSError("Connection refused")), "no data: Connection closed by peer"),
    (in_a_model, "RuntimeError: server: Connection reset by peer"),
    (in_backward, "RuntimeError: service: Connection refused"),
]
NAMES = [words for _, words in TWENTY]
# Seconds from the failure to the echo of a peer, which a busy kernel may hear of in any order.
ORDERS = {"before": -1.0, "at once": 0.0, "after": 1.0}


def failed(rank: int, fails: Callable[[], None], when: float = 0.0) -> Failure:
    try:
        fails()
    except BaseException as error:
        failure = errors.from_exception(rank, error)
    failure.when = when
    return failure


def echo(rank: int, when: float) -> Failure:
    error = raised(RuntimeError(f"{GLOO}Connection closed by peer"), "distributed/c10d.py")
    return failed(rank, raising(error), when)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("fails", "words"), TWENTY[:14] + TWENTY[16:18])
def test_the_words_of_twenty_exceptions_make_no_echo_in_any_order(fails, words, order):
    cause, later = failed(1, fails), failed(0, raising(ValueError("later")), 2.0)
    error = errors.worker_error([echo(2, ORDERS[order]), cause, later], 4, [""] * 4)
    assert error.failures[0] is cause
    head, *rest = str(error).split("\n\n")
    assert head.startswith("rank 1 failed: ")
    assert words in head
    assert rest[-1] == "Rank 0 failed as well: ValueError: later\nRanks 2 and 3 were stopped."


@pytest.mark.parametrize(("fails", "words"), TWENTY, ids=NAMES)
def test_a_rank_that_fails_with_such_words_after_its_peers_noticed_is_to_blame(
    fails, words, no_hurry
):
    def work() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            try:
                fails()
            finally:
                dist.destroy_process_group()  # the others notice first
                time.sleep(0.2)
        dist.barrier()

    with pytest.raises(WorkerError) as caught:
        launch(work, world_size=2, backend="gloo")
    assert caught.value.rank == 1
    assert words in caught.value.parts[0]
    assert caught.value.parts[-1] == "Rank 0 was stopped."


@pytest.mark.parametrize(("fails", "words"), TWENTY[:14] + TWENTY[16:18])
def test_a_rank_alone_keeps_its_words_and_nobody_else_is_suspected(fails, words):
    error = errors.worker_error([failed(0, fails)], 1, [""])
    assert words in str(error)
    assert "rank left the group" not in str(error)


TORCHS = [
    (RuntimeError(f"{GLOO}Connection closed by peer [127.0.0.1]:34"), ""),
    (RuntimeError(f"{GLOO}Read error [127.0.0.1]:3: reset"), "distributed/c10d.py"),
    (RuntimeError("Connection reset by peer"), "nn/parallel/distributed.py"),
    (dist.DistNetworkError("Connection was likely closed"), "distributed/c10d.py"),
    (RuntimeError("Rank 1 successfully reached monitoredBarrier: Connection closed by peer"), ""),
    (RuntimeError(f"Got the following error when running the callback: A: {GLOO}Broken pipe"), ""),
]


@pytest.mark.parametrize(("error", "inside"), TORCHS)
def test_torchs_own_complaint_is_an_echo_in_one_wording(error, inside):
    failure = errors.from_exception(0, raised(error, inside))
    assert (failure.echo, failure.headline) == (
        echoes.LOST,
        "RuntimeError: Connection closed by peer",
    )


NCCLS = [
    (dist.DistBackendError("NCCL operation timed out"), echoes.WAITED),
    (RuntimeError("NCCL operation timed out"), echoes.WAITED),
    (RuntimeError("NCCL communicator was aborted after a previous error"), echoes.ABORTED),
    (dist.DistBackendError("NCCL operation failed"), echoes.ABORTED),
]


@pytest.mark.parametrize(("error", "kind"), NCCLS)
def test_nccls_complaint_is_an_echo_that_keeps_its_words(error, kind):
    failure = errors.from_exception(0, raised(error, "distributed/distributed_c10d.py"))
    assert failure.echo == kind
    assert str(error) in failure.headline
    assert errors.from_exception(0, raised(RuntimeError(str(error)))).echo == ""


def test_a_timer_of_nccl_comes_before_the_groups_that_were_given_up_because_of_it():
    inside = "distributed/distributed_c10d.py"
    timer, given_up = (raised(error, inside) for error in (NCCLS[0][0], NCCLS[2][0]))
    failures = [failed(0, raising(given_up), 1.0), failed(1, raising(timer), 2.0)]
    assert errors.worker_error(failures, 2, ["", ""]).rank == 1


def test_what_is_raised_because_of_an_echo_is_an_echo_that_keeps_its_words():
    lost = raised(RuntimeError(f"{GLOO}Broken pipe"))
    failure = failed(0, lambda: from_another(lost))
    assert failure.is_echo
    assert failure.headline == "RuntimeError: no data: Connection closed by peer"
    assert failure.details == ["caused by RuntimeError: Broken pipe, test_echoes.py, line 2, "
                               "in collective"]  # fmt: skip


def test_an_echo_in_the_clean_up_of_a_failure_counts_before_the_echoes_of_others():
    def cleans_up() -> None:
        try:
            raise ValueError("boom")
        finally:
            raise raised(RuntimeError(f"{GLOO}Connection closed by peer"))

    first, own = echo(0, 1.0), failed(1, cleans_up, 2.0)
    error = errors.worker_error([first, own], 2, ["", ""])
    assert error.rank == 1
    assert "while handling ValueError: boom" in str(error)
    assert "Likely reason" not in str(error)


WAYS = ["from it", "from None", "sys.exit", "a second failure"]


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_was_killed_is_to_blame_however_its_peer_puts_it(way, no_hurry):
    def work() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        except RuntimeError as error:
            complains(error, way)
        raise TypeError("nothing was reduced")

    with pytest.raises(WorkerError, match="rank 1 failed: the process died of SIGKILL"):
        launch(work)


def complains(error: Exception, way: str) -> None:
    if way == "from it":
        raise ValueError("epoch 0 failed") from error
    if way == "from None":
        raise OSError("the cluster is gone") from None
    if way == "sys.exit":
        sys.exit(1)


def test_a_death_that_is_heard_late_is_to_blame():
    died, before = errors.from_exit(1, -9, ""), failed(0, raising(TypeError("no tensor")), -1.0)
    error = errors.worker_error([before, died], 2, ["", ""])
    assert error.rank == 1
    assert error.parts[-1] == "Rank 0 failed as well: TypeError: no tensor"


def test_of_a_checkpoint_that_fails_on_one_rank_that_rank_is_named(tmp_path, no_hurry):
    def work() -> None:
        state = {"step": 3}
        if dist.get_rank() == 1:
            state["logger"] = threading.Lock()
        dcp.save(state, checkpoint_id=tmp_path)

    with pytest.raises(WorkerError) as caught:
        launch(work)
    headline, *story = caught.value.parts[0].splitlines()
    assert headline == "rank 1 failed: TypeError: cannot pickle '_thread.lock' object"
    assert "dcp.save(state" in "".join(story)
    assert len(story) < 8
    assert caught.value.parts[-1] == "Rank 0 was stopped."


def test_a_timer_of_the_group_is_told_as_that_with_where_the_other_rank_was():
    def work() -> None:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(1), group=group)

    with pytest.raises(WorkerError) as caught:
        launch(work)
    assert "the group's own timeout ran out" in caught.value.parts[1]
    assert "Rank 1 was meanwhile at test_echoes.py" in str(caught.value)
    assert "time.sleep(60)" in str(caught.value)
    assert "left the group" not in str(caught.value)


def test_a_monitored_barrier_that_one_misses_is_no_rank_that_left():
    def work() -> None:
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.monitored_barrier(timeout=timedelta(seconds=1))

    with pytest.raises(WorkerError, match="Rank 1 failed to pass monitoredBarrier") as caught:
        launch(work)
    assert "the group's own timeout ran out" in str(caught.value)
    assert "left the group" not in str(caught.value)
