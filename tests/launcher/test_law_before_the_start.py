"""The law of launch, lines 1 and 10: what cannot work is refused before anything starts."""

import errno
import functools
import importlib
import itertools
import multiprocessing
import os
import resource
import sys
import tempfile
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

import course_utils
from course_utils import WorkerError, launch
from course_utils.devices import placement, prepare
from course_utils.launcher.rendezvous import Rendezvous

pytestmark = pytest.mark.usefixtures("nothing_left")


def rank_of() -> int:
    return dist.get_rank()


async def waits() -> int:
    return dist.get_rank()


class Waits:
    """An object that is called like a function."""

    async def __call__(self) -> int:
        return dist.get_rank()


@pytest.fixture
def nothing_starts(monkeypatch):
    """Makes a fork, a socket or a file of a launch an error of the test."""

    def started(*_: object, **__: object) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr(os, "fork", started)
    monkeypatch.setattr(Rendezvous, "open", started)


@pytest.mark.usefixtures("nothing_starts")
def test_law_1_a_kernel_with_cuda_in_use_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match=r"already uses CUDA.*Restart the kernel"):
        launch(rank_of)


@pytest.mark.usefixtures("nothing_starts")
def test_law_1_a_driver_started_by_somebody_else_is_noticed(monkeypatch):
    driver = SimpleNamespace(cuDeviceGetCount=lambda count: 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(prepare.ctypes, "CDLL", lambda *args, **options: driver)
    monkeypatch.setattr(prepare, "_torch_started_it", True)
    with pytest.raises(RuntimeError, match=r"already uses CUDA: .* started it\. Restart"):
        launch(rank_of)


def test_law_1_gpus_are_counted_without_a_context(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA was initialised"))
    assert placement.gpu_count() >= 0
    assert list(launch(rank_of, world_size=1, backend="gloo")) == [0]


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"world_size": 0}, ValueError, "world_size must be a whole number of at least 1, got 0"),
        ({"world_size": -1}, ValueError, "at least 1, got -1"),
        ({"world_size": 2.0}, ValueError, "world_size must be a whole number"),
        ({"world_size": True}, ValueError, "world_size must be a whole number"),
        ({"world_size": "2"}, ValueError, "got '2'"),
        ({"nodes": 0}, ValueError, "nodes must be a whole number of at least 1, got 0"),
        ({"world_size": 3, "nodes": 2}, ValueError, "make world_size a multiple of nodes"),
        ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0, got 0"),
        ({"timeout": -1}, ValueError, "above 0, got -1"),
        ({"timeout": float("nan")}, ValueError, "above 0, got nan"),
        ({"timeout": float("inf")}, ValueError, "above 0, got inf"),
        ({"timeout": True}, ValueError, "above 0, got True"),
        ({"timeout": "9"}, ValueError, "above 0, got '9'"),
        ({"live": "yes"}, ValueError, "live must be True or False, got 'yes'"),
        ({"trace": None}, ValueError, "trace must be True or False, got None"),
        ({"args": (1,)}, TypeError, "no option args: write launch(fn, 1, 2), not launch(fn, args="),
        ({"num_processes": 2}, TypeError, "no option num_processes: write world_size="),
        ({"nprocs": 2}, TypeError, "launch has no option nprocs: write world_size="),
        ({"colour": 2}, TypeError, "no option colour: its options are world_size, backend, "),
        ({"backend": "smoke"}, ValueError, "choose 'auto', 'gloo', 'nccl' or None"),
        ({"backend": "mpi"}, ValueError, "MPI is not built into torch's wheels"),
        ({"backend": ["gloo"]}, ValueError, "choose 'auto', 'gloo', 'nccl' or None"),
        ({"device": "cuda:1"}, ValueError, "launch gives each rank its own GPU"),
        ({"device": 0}, ValueError, "choose 'auto', 'cpu' or 'cuda'"),
        ({"backend": "nccl", "device": "cpu"}, ValueError, "with device='cpu' use backend='gloo'"),
        ({"backend": "nccl", "world_size": 999}, ValueError, "NCCL needs a GPU: 999 ranks, "),
    ],
)
def test_law_10_a_bad_option_is_refused_with_a_sentence(options, error, sentence):
    with pytest.raises(error) as caught:
        launch(rank_of, **options)
    assert sentence in str(caught.value)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ((3,), "launch needs a function, got int"),
        (("train.py",), "got a text: write launch(fn); a script is started by !torchrun"),
        ((waits,), "waits is an async function, so calling it runs nothing of it: write a plain"),
        ((Waits(),), "Waits is an async function"),
        ((functools.partial(waits),), "is an async function"),
        ((None,), "launch needs a function, got None: write launch(fn) or"),
        (
            (lambda rank, world_size: 0,),
            "A rank asks dist.get_rank() for rank and dist.get_world_size",
        ),
        ((lambda local_rank: 0,), "A rank asks os.environ['LOCAL_RANK'] for local_rank"),
        ((rank_of, 5), "rank_of() -> int does not fit the arguments given to launch"),
        ((rank_of, 5), "To run it on 5 ranks, write launch(rank_of, world_size=5)."),
        ((lambda x: x,), "does not fit the arguments given to launch (0 of them): missing"),
    ],
)
def test_law_10_what_cannot_be_called_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(TypeError) as caught:
        launch(*call)
    assert sentence in str(caught.value)


@pytest.mark.usefixtures("nothing_starts")
def test_law_10_a_system_without_fork_is_told_what_to_use(monkeypatch):
    """On Windows the import would end first, for want of a signal, and not say why."""
    monkeypatch.delattr(os, "fork")
    monkeypatch.delitem(vars(course_utils), "launch")
    with pytest.raises(RuntimeError, match="use Linux, macOS, or WSL on Windows"):
        _ = course_utils.launch


@pytest.mark.usefixtures("nothing_starts")
def test_law_10_nccl_without_a_gpu_is_refused_with_the_counts(monkeypatch):
    monkeypatch.setattr(placement, "gpu_count", lambda: 1)
    with pytest.raises(ValueError, match="2 ranks, 1 GPU; use world_size=1, backend='gloo'"):
        launch(rank_of, backend="nccl")


def test_law_10_a_nested_launch_is_refused_inside_the_rank():
    with pytest.raises(WorkerError, match=r"RuntimeError: launch was called inside a worker\. A"):
        launch(lambda: launch(rank_of))


def test_law_10_a_launch_from_a_data_loader_of_a_rank_is_refused_too():
    class Nested(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> list[int]:
            return launch(rank_of)

    with pytest.raises(WorkerError, match="launch was called inside a worker"):
        launch(lambda: list(torch.utils.data.DataLoader(Nested(), num_workers=1)), world_size=1)


def test_law_10_what_python_cannot_inspect_is_tried():
    assert list(launch(max, 3, 4, world_size=2)) == [4, 4]


def test_the_choice_made_for_the_caller_is_said_once(capfd, monkeypatch):
    monkeypatch.setattr(prepare, "_notices_given", set())
    launch(rank_of, world_size=1)
    launch(rank_of, world_size=1)
    launch(rank_of, world_size=1, backend="gloo")
    assert capfd.readouterr().out.count("launch: ") == 1


@pytest.mark.usefixtures("nothing_starts")
def test_law_10_a_keyword_of_the_function_itself_is_told_how_to_hand_on():
    def train(lr: float) -> None: ...

    with pytest.raises(
        TypeError, match=r"no option lr: .* write launch\(lambda: fn\(lr=\.\.\.\)\)"
    ):
        launch(train, lr=0.1)


@pytest.mark.parametrize("timeout", [1e15, 10**400, np.float32(60), np.int64(60), Fraction(121, 2)])
def test_law_10_any_number_of_seconds_is_taken(timeout):
    assert list(launch(rank_of, world_size=np.int64(1), nodes=np.int8(1), timeout=timeout)) == [0]


STARTS = [
    (
        OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
        "needs the address 127.0.0.1",
    ),
    (FileNotFoundError(errno.ENOENT, "No usable temporary directory found"), "set TMPDIR to one"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "what the notebook holds in memory"),
    (OSError(errno.EMFILE, "Too many open files"), "raise the limits that `ulimit -n`"),
    (OSError(errno.ENOSPC, "No space left"), "No rank could be started: No space left."),
]


@pytest.mark.parametrize(("error", "sentence"), STARTS)
def test_what_keeps_ranks_from_starting_is_told_by_its_own_name(error, sentence, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Rendezvous, "open", fails)
    with pytest.raises(WorkerError) as caught:
        launch(rank_of)
    assert sentence in str(caught.value)
    assert ("ulimit" in str(caught.value)) == (error.errno == errno.EMFILE)


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_fork_that_fails_is_told_whichever_rank_it_was_to_be(started, monkeypatch):
    launch(rank_of)  # the first one in a kernel asks for its GPUs, in a process of its own
    fork, forked = os.fork, []

    def fork_some() -> int:
        if len(forked) == started:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", fork_some)
    with pytest.raises(WorkerError, match=f"rank {started} of 4 could not be started"):
        launch(rank_of, world_size=4)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("room", range(20))
def test_too_few_descriptors_are_refused_with_a_sentence(room):
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in used)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, room, None)), hard))
    try:
        with pytest.raises(RuntimeError, match="raise the limits that `ulimit -n`"):
            launch(rank_of, world_size=64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(launch(rank_of)) == [0, 1]


@pytest.mark.parametrize("name", ["accelerate's notebook_launcher", "another rank's launch"])
def test_law_10_a_rank_that_launches_ranks_is_refused_at_once(name, tmp_path):
    def by_torch() -> None:
        tempfile.tempdir = str(tmp_path)  # torch leaves a folder for logs that it never writes
        api = importlib.import_module("torch.distributed.launcher.api")
        config = api.LaunchConfig(1, 1, 2, rdzv_backend="static", rdzv_endpoint="127.0.0.1:29511")
        api.elastic_launch(config, dist.get_rank)()

    work = by_torch if name.startswith("accelerate") else lambda: launch(dist.get_rank)
    with pytest.raises(WorkerError, match="A rank cannot launch ranks"):
        launch(work, backend="gloo")


def test_a_launcher_of_torch_by_another_name_keeps_nobody_from_launching(monkeypatch):
    api = importlib.import_module("torch.distributed.launcher.api")
    monkeypatch.delattr(api, "launch_agent")
    assert list(launch(rank_of)) == [0, 1]


def test_law_10_a_process_that_a_rank_has_started_may_launch(tmp_path):
    """As chapter 09's hosts do, which are forks that have imported torch."""

    def writes() -> None:
        (tmp_path / "launched").touch()

    def launches() -> None:
        tempfile.tempdir = str(tmp_path)
        api = importlib.import_module("torch.distributed.launcher.api")
        meets = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
        config = api.LaunchConfig(1, 1, 1, start_method="fork", **meets)
        api.elastic_launch(config, writes)()

    def starts_a_process() -> int:
        process = multiprocessing.get_context("fork").Process(target=launches)
        process.start()
        process.join()
        return process.exitcode

    assert list(launch(starts_a_process, world_size=1, backend="gloo")) == [0]
    assert (tmp_path / "launched").exists()
