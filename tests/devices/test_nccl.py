"""NCCL's and CUDA's own words, as people have met them, and what a learner is told instead."""

import re
import time

import pytest

from course_utils import WorkerError, WorkerTimeout, launch, notebook
from course_utils.devices import nccl
from course_utils.devices.fork import ReadyToFork
from course_utils.devices.placement import Placement
from course_utils.launcher import errors

# What was said, as an exception's text or as a rank's output, by whom it was met, what it means.
SAID = [
    (  # verl-project/verl#161
        "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
        "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        "two ranks use one GPU",
    ),
    (  # pytorch/ci-infra#490
        "[0] misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)",
        "/dev/shm is too small or full",
    ),
    (  # NVIDIA/nccl#290
        "[1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "/dev/shm is too small or full",
    ),
    (  # NVIDIA/Megatron-LM#1207
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
        "ran for 600013 milliseconds before timing out.",
        "a collective that not every rank came to",
    ),
    (  # NVIDIA/nccl#1410
        "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 1 'invalid argument'",
        "a call of CUDA failed inside NCCL; os.environ['NCCL_DEBUG'] = 'INFO'",
    ),
    (  # NVIDIA/nccl#697
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:957, "
        "unhandled system error, NCCL version 21.0.3\n"
        "ncclSystemError: System call (socket, malloc, munmap, etc) failed.",
        "the system refused NCCL a socket or memory",
    ),
    (  # EasonXiao-888/MambaTree#14
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1201, "
        "internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\n"
        "Last error:\nBootstrap : no socket interface found",
        "NCCL_SOCKET_IFNAME names an interface",
    ),
    (  # unslothai/unsloth-zoo#129
        "RuntimeError: No backend type associated with device type cpu",
        "NCCL moves GPU tensors only",
    ),
    (  # torch's own words, in c10/cuda/CUDACachingAllocator.cpp
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "the GPU's memory is full",
    ),
    (  # torch's own words, in torch/cuda/__init__.py
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
        "a process that this rank forked",
    ),
    # CUDA's words for cudaErrorAssert and cudaErrorNoKernelImageForDevice, before which torch says
    # what they are.
    ("AcceleratorError: CUDA error: device-side assert triggered", "an index is out of range"),
    (
        "AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "this torch was not built for a GPU of this kind",
    ),
]
# Said by a rank whose peer had failed.
ECHO = (  # NVIDIA/nccl#2076
    "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    "remote process exited or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 172....<33759> failed : "
    "Connection reset by peer"
)


@pytest.mark.parametrize(("said", "meaning"), SAID)
@pytest.mark.parametrize("printed", [False, True])
def test_what_nccl_says_is_put_plainly(said, meaning, printed):
    headline = "the process died of SIGABRT" if printed else said
    failure = errors.Failure(1, time.monotonic(), headline)
    error = errors.worker_error([failure], 2, ["", said if printed else ""])
    nccl.explain(error, 0)
    assert f"Likely reason: {meaning}" in str(error)
    assert str(error).count("Likely reason") == 1


def test_no_meaning_is_without_its_words():
    met = {next(m for word, m in nccl._MEANS.items() if re.search(word, said)) for said, _ in SAID}
    assert met == set(nccl._MEANS.values())


@pytest.mark.parametrize(
    "said",
    ["ValueError: the list ran out of memory", "OSError: No space left on device: shared memory"],
)
def test_words_that_are_not_about_gpus_are_left_alone(said):
    error = errors.worker_error([errors.Failure(0, time.monotonic(), said)], 2, ["", ""])
    before = str(error)
    nccl.explain(error, 0)
    assert str(error) == before


def test_a_lost_peer_in_nccls_words_is_an_echo_and_not_the_cause():
    cause = errors.Failure(1, time.monotonic(), "ValueError: the cause")
    echo = errors.Failure(0, cause.when - 1, ECHO)
    assert errors.worker_error([echo, cause], 2, ["", ""]).rank == 1


def test_an_error_of_a_rank_is_explained_on_its_way_to_the_cell():
    def fails() -> None:
        raise RuntimeError(SAID[0][0])

    with pytest.raises(WorkerError, match=r"Likely reason: two ranks use one GPU\. Each rank's"):
        launch(fails, world_size=1)


@pytest.mark.parametrize(
    ("backend", "gpus", "pattern", "told"),
    [
        ("nccl", 2, None, True),
        ("cpu:gloo,cuda:nccl", 3, "running", True),
        ("nccl", 2, "order", False),
        ("nccl", 1, None, False),
        ("gloo", 2, None, False),
        (None, 2, None, False),
    ],
)
def test_gpus_that_hang_for_no_reason_that_is_known_are_told_what_to_try(
    backend, gpus, pattern, told
):
    error = errors.worker_timeout({0: [], 1: []}, [""] * 2, 2.5, 0.0)
    error.pattern = pattern
    placement = Placement(backend, tuple(f"cuda:{rank}" for rank in range(gpus)))
    ReadyToFork(placement).explain({}, error)
    assert ("NCCL_P2P_DISABLE'] = '1' in a cell and launch again" in str(error)) is told


def test_what_nccls_silence_may_mean_stands_below_the_report_of_the_hang(monkeypatch):
    on_gpus = Placement("gloo", ("cpu", "cpu"))
    monkeypatch.setattr(notebook, "place", lambda *choice: on_gpus)
    monkeypatch.setattr(nccl, "explain", lambda error, gpus: error.parts.append("NCCL's"))
    with pytest.raises(WorkerTimeout) as caught:
        launch(time.sleep, 9, timeout=0.5)
    assert [caught.value.pattern, caught.value.parts[-1]] == ["running", "NCCL's"]
