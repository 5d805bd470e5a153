"""NCCL's and CUDA's own words, as people have met them, and what a learner is told instead."""

import mmap
import os
import shutil
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch
from course_utils.devices import nccl
from course_utils.devices.placement import Placement
from course_utils.devices.prepare import DeviceSetup
from course_utils.launcher import echoes, errors
from course_utils.launcher.launch import launch as bare_launch
from course_utils.launcher.stacks import Frame

# What was said, as an exception's text or as a rank's output, by whom it was met, what it means.
SAID = [
    (  # torch 2.15, nccl2/WorkNCCL.cpp
        "DistBackendError: NCCL operation timed out",
        "a collective that not every rank came to ran into the group's own timeout. Give",
    ),
    (  # torch 2.15, nccl2/ProcessGroupNCCL.cpp
        "[rank0]: Watchdog caught collective operation timeout: NCCL operation timed out",
        "a collective that not every rank came to ran into the group's own timeout, and torch",
    ),
    (  # torch 2.15, nccl2/ProcessGroupNCCLUtils.cpp
        "RuntimeError: NCCL communicator was aborted after a previous error",
        "an earlier call of this group had failed",
    ),
    (  # torch 2.15, nccl2/WorkNCCL.cpp
        "DistBackendError: NCCL operation failed",
        "an earlier call of this group had failed",
    ),
    (  # NCCL 2.30.7, init.cc
        "DistBackendError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\n"
        "NCCL Last Error: Multiple Ranks are using the same GPU/Partition. Set "
        "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
        "two ranks use one GPU",
    ),
    (  # NCCL 2.30.7, init.cc
        "NCCL Last Error: Mismatched NCCL version detected : rank 0 version 23007 rank 1 version "
        "22907",
        "the ranks have loaded different versions of NCCL",
    ),
    (  # pytorch/ci-infra#490
        "[0] misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)",
        "/dev/shm is too small or full",
    ),
    (  # NCCL 2.30.7, shmutils.cc
        "[1] misc/shmutils.cc:90 NCCL WARN fallocate: Failed to extend /dev/shm/nccl-WU88OE to "
        "9637888 bytes, error: No space left on device (28) - retrying",
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
    nccl.explain(error)
    assert f"Likely reason: {meaning}" in str(error)
    assert str(error).count("Likely reason") == 1


def test_no_meaning_is_without_its_words():
    met = {next(words for words in nccl.MEANINGS if words in said) for said, _ in SAID}
    assert met == set(nccl.MEANINGS)


def test_where_the_place_tells_more_than_the_words_it_stays():
    words = "RuntimeError: Cannot re-initialize CUDA in forked subprocess."
    frames = [Frame("/lib/lightning/pytorch/strategies/launchers/multiprocessing.py", 3, "launch")]
    error = errors.worker_error([errors.Failure(0, 0.0, words, frames)], 1, [""])
    nccl.explain(error)
    assert "use Trainer(strategy='ddp')" in error.parts[1]


LIBRARIES = (
    "nvidia/nccl/lib/libnccl.so.2",
    "nvidia/cu13/lib/libcudart.so.13",
    "torch/lib/libc10_cuda.so",
    "torch/cuda/__init__.py",
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libtorch_cpu.so",
)


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_the_pinned_libraries_still_say_it_so():
    """Words of an older NCCL would stay green for ever, and no learner would be helped."""
    missing = {words.encode() for words in [*nccl.MEANINGS, *echoes.NCCLS_WORDS]}
    for name in LIBRARIES:
        library = Path(sysconfig.get_path("purelib"), name)
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
            missing = {words for words in missing if text.find(words) < 0}
    assert missing == set()


@pytest.mark.parametrize(
    "said",
    ["ValueError: the list ran out of memory", "OSError: No space left on device: shared memory"],
)
def test_words_that_are_not_about_gpus_are_left_alone(said):
    error = errors.worker_error([errors.Failure(0, time.monotonic(), said)], 2, ["", ""])
    before = str(error)
    nccl.explain(error)
    assert str(error) == before


def test_a_lost_peer_in_nccls_words_is_an_echo_and_not_the_cause():
    cause = errors.Failure(1, time.monotonic(), "ValueError: the cause")
    echo = errors.Failure(0, cause.when - 1, ECHO, echo="lost")
    assert errors.worker_error([echo, cause], 2, ["", ""]).rank == 1


def test_an_error_of_a_rank_is_explained_on_its_way_to_the_cell():
    def fails() -> None:
        raise RuntimeError("NCCL Last Error: Multiple Ranks are using the same GPU/Partition.")

    with pytest.raises(WorkerError, match=r"Likely reason: two ranks use one GPU\. Each rank's"):
        launch(fails, world_size=1)


@pytest.mark.parametrize(
    ("free", "disabled", "told"), [(2**26, "0", True), (2**26, "1", False), (2**30, "0", False)]
)
def test_little_shared_memory_is_told_before_nccl_needs_it(monkeypatch, free, disabled, told):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    monkeypatch.setenv("NCCL_SHM_DISABLE", disabled)
    assert ("/dev/shm has 64 MiB left" in nccl.small_shm()) is told


# The probe; gloo stands in for NCCL.


@pytest.fixture
def probes(nothing_left, monkeypatch):
    """The launches of a probe, as a list of their numbers of ranks; it does what `adds` does."""
    made: list[int] = []

    def counted(fn, world_size, **options):
        made.append(world_size)
        return bare_launch(fn, world_size=world_size, **options)

    monkeypatch.setattr(nccl, "launch", counted)
    monkeypatch.setattr(nccl, "_most_ranks", {})
    return made


def test_gpus_add_up_once_and_again_only_when_they_are_more(probes):
    for world_size in (2, 2, 3, 2):
        nccl.probe(world_size, "gloo", [])
    assert probes == [2, 3]


def test_gpus_add_up_again_once_nccl_is_told_something_else(probes):
    names = ["NCCL_P2P_DISABLE", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DIST_USE_NCCL2"]
    for name in [*names, "CUDA_VISIBLE_DEVICES", "OTHER"]:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(name, "1")
            nccl.probe(2, "gloo", [])
            nccl.probe(2, "gloo", [])
    assert probes == [2, 2, 2, 2, 2]


def test_ranks_that_share_a_gpu_are_asked_for_themselves(probes):
    nccl.probe(2, "gloo", [])
    nccl.probe(2, "gloo", [], shared=True)
    assert probes == [2, 2]


def test_ranks_that_cannot_share_a_gpu_are_told_of_gloo(probes, monkeypatch):
    monkeypatch.setattr(
        nccl, "_add_up", lambda: dist.barrier() if dist.get_rank() else time.sleep(9)
    )
    monkeypatch.setattr(nccl, "_PROBE_S", 1.0)
    with pytest.raises(RuntimeError, match=r"2 ranks could not add up.*device='cuda'\)"):
        nccl.probe(2, "gloo", [], shared=True)


def fails_in_nccl() -> None:
    raise RuntimeError("NCCL Last Error: no socket interface found")


def test_a_probe_that_fails_is_told_without_a_line_that_no_learner_wrote(probes, monkeypatch):
    monkeypatch.setattr(nccl, "_add_up", fails_in_nccl)
    nothing_of_yours = r"(?s)nothing of yours was started.*no socket"
    with pytest.raises(RuntimeError, match=nothing_of_yours) as caught:
        nccl.probe(2, "gloo", [DeviceSetup(Placement("gloo"))])
    assert "NCCL_SOCKET_IFNAME names an interface" in str(caught.value)
    assert "fails_in_nccl" not in str(caught.value)


def test_a_rank_that_shares_tells_nccl_so_unless_the_learner_has_said_otherwise(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NCCL_MAX_CTAS": "16"})
    nccl.share_one_gpu()
    assert os.environ == {"NCCL_MAX_CTAS": "16", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def test_gpus_that_never_add_up_are_told_what_to_try_and_are_asked_again(probes, monkeypatch):
    monkeypatch.setattr(
        nccl, "_add_up", lambda: dist.barrier() if dist.get_rank() else time.sleep(9)
    )
    monkeypatch.setattr(nccl, "_PROBE_S", 1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"NCCL_P2P_DISABLE'\] = '1' in a cell and launch"):
            nccl.probe(2, "gloo", [])
    assert probes == [2, 2]


@pytest.mark.parametrize(
    ("backend", "world_size", "asked"),
    [
        ("nccl", 2, [2]),
        ("cpu:gloo,cuda:nccl", 3, [3]),
        ("nccl", 1, []),
        ("gloo", 2, []),
        (None, 2, []),
    ],
)
def test_only_several_gpus_are_asked_and_before_anything_else_starts(
    monkeypatch, backend, world_size, asked
):
    made = []
    monkeypatch.setattr(nccl, "probe", lambda count, *rest: made.append(count))
    DeviceSetup(Placement(backend)).on_start(world_size)
    assert made == asked
