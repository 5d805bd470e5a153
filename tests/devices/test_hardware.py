"""What the machine has, and what a rank gets; GPUs are faked, so these run anywhere."""

import ctypes
import dataclasses
import math
import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from warm_kernels import NURSERY

from course_utils.devices import driver, prepare
from course_utils.devices import hardware as hw
from course_utils.devices.hardware import hardware
from course_utils.devices.placement import Placement, gpu_count, place
from course_utils.devices.prepare import cuda_in_use


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that makes this machine have a number of GPUs, and NCCL or not."""

    def fake(count: int, nccl: bool = True) -> None:
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(driver, "_driver_answer", lambda visible: (["H100"] * count, 13000, ""))
        monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)

    return fake


@pytest.fixture
def libcuda(monkeypatch):
    """Return a function that makes libcuda answer a status code, or be absent for None."""

    def fake(code: int | None) -> None:
        class Library:
            def __init__(self, name: str, mode: int) -> None:
                if code is None:
                    raise OSError(name)

            def cuDeviceGetCount(self, count: object) -> int:
                return code

        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(ctypes, "CDLL", Library)

    return fake


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mpi", "auto", 2), "MPI is not built into.*choose 'auto', 'gloo', 'nccl' or None"),
        (("ring", "auto", 2), "backend='ring': choose"),
        (("auto", "tpu", 2), "device='tpu': choose 'auto', 'cpu' or 'cuda'"),
        (("auto", "cuda:1", 2), "each rank its own GPU"),
        (("nccl", "auto", 4), "4 ranks, 2 GPUs; use world_size=2 or fewer, backend='gloo', or sha"),
        (("gloo", "cuda", 4, 1, True), "share_gpus=True is for backend='nccl': gloo shares GPUs"),
        (("nccl", "cpu", 2), "NCCL moves GPU tensors only.*backend='gloo'"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_with_what_to_do(gpus, arguments, message):
    gpus(2)
    with pytest.raises(ValueError, match=message):
        place(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nccl", "auto", 2), r"2 ranks, 0 GPUs \(no GPU here\); use backend='gloo'"),
        (("nccl", "auto", 2, 1, True), r"NCCL needs a GPU: 2 ranks, 0 GPUs \(no GPU here\)"),
        (("gloo", "cuda", 2), r"needs a GPU \(no GPU here\); use device='cpu'"),
        (("auto", "cuda", 2), r"needs a GPU \(no GPU here\); use device='cpu'"),
        ((None, "cuda", 1), r"needs a GPU \(no GPU here\); use device='cpu'"),
    ],
)
def test_gpu_work_without_a_gpu_is_refused(gpus, arguments, message):
    gpus(0)
    with pytest.raises(ValueError, match=message):
        place(*arguments)


def test_nccl_that_is_not_compiled_in_is_refused(gpus):
    gpus(4, nccl=False)
    with pytest.raises(ValueError, match="built without NCCL; use backend='gloo'"):
        place("nccl", "auto", 2)


# Choices

NO_NCCL = "launch: gloo on the CPU (this torch has no NCCL; device='cuda' uses GPUs by gloo)"


def test_auto_gives_each_rank_its_own_gpu_when_there_are_enough(gpus):
    gpus(4)
    chosen = place("auto", "auto", 3)
    assert chosen.backend == "cpu:gloo,cuda:nccl"
    assert chosen.devices == ("cuda:0", "cuda:1", "cuda:2")
    assert chosen.notice == "launch: NCCL, one GPU per rank"


@pytest.mark.parametrize(
    ("count", "nccl", "device", "notice"),
    [
        (0, True, "auto", "launch: gloo on the CPU (no GPU here)"),
        (
            1,
            True,
            "auto",
            "launch: gloo on the CPU (2 ranks, 1 GPU; device='cuda' shares it by gloo, "
            "backend='nccl', share_gpus=True by NCCL)",
        ),
        (4, True, "cpu", "launch: gloo on the CPU (device='cpu')"),
        (4, False, "auto", NO_NCCL),
    ],
)
def test_auto_says_why_it_is_gloo_on_the_cpu(gpus, count, nccl, device, notice):
    gpus(count, nccl)
    assert place("auto", device, 2) == Placement("gloo", ("cpu", "cpu"), notice)


@pytest.mark.parametrize("backend", ["auto", None])
def test_on_one_gpu_one_rank_and_two_run_on_the_same_kind_of_device(gpus, backend):
    gpus(1)
    assert place(backend, "auto", 1).devices == ("cpu",)
    assert place(backend, "auto", 2).devices == ("cpu", "cpu")
    assert place(backend, "cuda", 1).devices == ("cuda:0",)
    assert place(backend, "cuda", 2).devices == ("cuda:0", "cuda:0")


def test_one_rank_on_one_gpu_is_told_how_to_use_it(gpus):
    gpus(1)
    notice = place("auto", "auto", 1).notice
    assert notice == "launch: gloo on the CPU (1 rank, 1 GPU; device='cuda' uses it)"


def test_nccl_shares_a_gpu_only_on_request_and_says_what_that_is(gpus):
    gpus(1)
    chosen = place("nccl", "auto", 2, share_gpus=True)
    assert (chosen.backend, chosen.devices) == ("nccl", ("cuda:0", "cuda:0"))
    assert chosen.shares_by_nccl
    assert "2 ranks, 1 GPU: sharing a GPU is experimental in NCCL" in chosen.notice


def test_nccl_with_a_gpu_for_each_rank_shares_none(gpus):
    gpus(2)
    chosen = place("nccl", "auto", 2, share_gpus=True)
    assert (chosen.shares_by_nccl, chosen.notice) == (False, "")


def test_auto_with_too_few_gpus_shares_them_when_cuda_is_asked_for(gpus):
    gpus(2)
    chosen = place("auto", "cuda", 3)
    assert (chosen.backend, chosen.devices) == ("gloo", ("cuda:0", "cuda:1", "cuda:0"))
    assert chosen.notice == "launch: gloo on shared GPUs (3 ranks, 2 GPUs)"


@pytest.mark.parametrize(
    ("backend", "device", "devices"),
    [
        ("gloo", "auto", ("cpu", "cpu")),
        ("gloo", "cuda", ("cuda:0", "cuda:1")),
        ("nccl", "auto", ("cuda:0", "cuda:1")),
        (None, "auto", ("cuda:0", "cuda:1")),
        (None, "cpu", ("cpu", "cpu")),
    ],
)
def test_a_choice_of_the_caller_is_kept_without_a_notice(gpus, backend, device, devices):
    gpus(2)
    assert place(backend, device, 2) == Placement(backend, devices, "")


def test_gloo_ranks_share_one_gpu_on_request(gpus):
    gpus(1)
    assert place("gloo", "cuda", 3).devices == ("cuda:0",) * 3


@pytest.mark.parametrize("visible", ["", "3,1,0,2,5,4,7,6", "GPU-c,GPU-a,GPU-b,GPU-d"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize(("world_size", "count"), [(4, 4), (4, 8), (8, 8)])
@pytest.mark.parametrize("backend", ["nccl", "auto", None])
def test_ranks_get_gpus_of_their_own_the_ones_that_torch_takes_for_nccl(
    gpus, monkeypatch, backend, count, world_size, nodes, visible
):
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    world_size, count = min(world_size, len(names)), min(count, len(names))
    gpus(count)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    chosen = place(backend, "auto", world_size, nodes)
    taken = []
    for rank, device in enumerate(chosen.devices):
        seen = chosen.visible[rank].split(",") if chosen.visible else names[:count]
        monkeypatch.setenv("LOCAL_RANK", str(rank % (world_size // nodes)))
        monkeypatch.setattr(torch.cuda, "device_count", lambda seen=seen: len(seen))
        # Without the `device_id` that `launch` gives, as under TORCH_DISTRIBUTED_DEBUG=DETAIL.
        options = SimpleNamespace(enable_reconfigure=False, process_group=None)
        assert str(c10d._nccl2_device(options)) == device
        taken.append(seen[int(device.removeprefix("cuda:"))])
    assert taken == names[:world_size]


def test_ranks_that_share_gpus_see_those_of_their_node(gpus):
    gpus(2)
    chosen = place("gloo", "cuda", 4, nodes=2)
    assert chosen.devices == ("cuda:0", "cuda:1") * 2
    assert chosen.visible == ("0,1",) * 4
    assert place("gloo", "cuda", 2, nodes=2).visible == ("0", "1")


# CUDA in the kernel


def test_an_initialised_torch_is_reported(monkeypatch, gpus):
    gpus(1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "already uses CUDA" in cuda_in_use()
    assert "Restart the kernel" in cuda_in_use()


def test_a_driver_started_behind_torchs_back_is_reported(libcuda):
    libcuda(0)
    assert "started it. Restart the kernel" in cuda_in_use()


def test_a_driver_started_behind_torchs_back_does_not_keep_ranks_from_the_cpu(libcuda, monkeypatch):
    libcuda(0)
    monkeypatch.setattr(prepare, "_torch_started_it", False)
    assert cuda_in_use(needs_cuda=False) is None
    monkeypatch.setattr(prepare, "_torch_started_it", True)
    assert "started it. Restart the kernel" in cuda_in_use(needs_cuda=False)


@pytest.mark.parametrize("code", [3, 100, None])
def test_a_driver_that_is_idle_or_absent_is_fine(libcuda, gpus, code):
    libcuda(code)
    gpus(1)
    assert cuda_in_use() is None


@pytest.mark.skipif(sys.platform != "linux", reason="thread names are read from Linux's /proc")
@pytest.mark.parametrize(("count", "reported"), [(1, True), (0, False)])
def test_an_autograd_thread_is_reported_where_there_is_a_gpu(gpus, count, reported):
    gpus(count)
    named, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=_named_thread, args=(named, done))
    thread.start()
    assert named.wait(5)
    found = cuda_in_use()
    done.set()
    thread.join()
    assert ("backward()" in (found or "")) is reported


def _named_thread(named: threading.Event, done: threading.Event) -> None:
    ctypes.CDLL(None).prctl(15, b"pt_autograd_0", 0, 0, 0)  # PR_SET_NAME
    named.set()
    done.wait(10)


def test_a_torch_without_cuda_has_no_gpu_to_share_and_none_in_use(monkeypatch, gpus):
    gpus(4)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_count() == 0
    assert cuda_in_use() is None


@pytest.mark.slow
def test_reading_the_hardware_leaves_cuda_untouched():
    code = (
        "import torch\nfrom course_utils import hardware\n"
        "from course_utils.devices.prepare import cuda_in_use\n"
        "from course_utils.devices.placement import place\n"
        "hardware(); place('auto', 'auto', 2); assert cuda_in_use() is None\n"
        "assert not torch.cuda.is_initialized()"
    )
    assert NURSERY.run(code) == ""


# The machine


@pytest.mark.parametrize(
    ("cpu", "memory", "limits"),
    [
        ("max 100000", "max", (math.inf, math.inf)),
        ("150000 100000", "1000", (1.5, 1000)),
        ("400000 100000", "max", (4, math.inf)),
    ],
)
def test_what_a_container_leaves_is_read(tmp_path, cpu, memory, limits):
    (tmp_path / "cpu.max").write_text(cpu + "\n")
    (tmp_path / "memory.max").write_text(memory + "\n")
    assert hw._container_limits(tmp_path) == limits


def test_a_machine_without_control_groups_has_no_limits(tmp_path):
    assert hw._container_limits(tmp_path) == (math.inf, math.inf)


@pytest.mark.parametrize(("quota", "cores"), [(0.2, 1), (1.5, 1), (math.inf, 8)])
def test_a_quota_cuts_the_cores_but_leaves_one(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setattr(hw, "_container_limits", lambda: (quota, 2**30))
    assert hardware().cores == cores
    assert hardware().memory_bytes <= 2**30


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"cores": 2}, "2 cores: 2 ranks run at the same time; more ranks take turns"),
        ({"cores": 1}, "1 core: ranks take turns; results are right, but nothing gets faster"),
        ({"gpus": ()}, "no GPU: launch uses gloo on the CPU"),
        ({"gpus": ("H200",)}, "1 GPU (H200): launch uses gloo on the CPU, and the GPU where"),
        ({"gpus": ("A100 MIG 1g.5gb",)}, "1 slice of a GPU (A100 MIG 1g.5gb), more of which no"),
        ({"gpus": (), "refusal": "too old"}, "a GPU that CUDA cannot use (too old): launch uses"),
        ({"memory_bytes": 24 * 2**30, "shm_bytes": None}, "24 GiB of memory\n"),
        ({"shm_bytes": 2**26}, "/dev/shm 64 MiB: enough for launch, too small for DataLoader"),
    ],
)
def test_the_hardware_is_told_in_plain_words(change, line):
    machine = dataclasses.replace(hardware(), **{"nccl": True, **change})
    assert line in str(machine)
    assert repr(machine) == str(machine)


def test_this_machine_is_read():
    machine = hardware()
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**28
    assert machine.gloo
    assert len(machine.gpus) == gpu_count()
    assert f"torch {torch.__version__.split('+')[0]} with gloo" in str(machine)
