"""What only a GPU can show; nothing here touches CUDA in the tests' own process.

Some of it runs by gloo on the CPU as well, so that what a test does has been seen to work.
"""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch
from course_utils.devices.placement import gpu_count

GPUS = gpu_count()
ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="no GPU on this machine"),
]
RAS_PORT = 28028  # where NCCL's service for reliability would listen
# How two ranks join, and where their tensors are.
BOTH = [
    pytest.param({"backend": "gloo", "device": "cpu"}, "cpu", id="gloo"),
    pytest.param(
        {"backend": "nccl", "share_gpus": GPUS < 2},
        "cuda",
        id="nccl",
        marks=[*ON_A_GPU, pytest.mark.nccl],
    ),
]


def on_a_gpu(test: Callable) -> Callable:
    """A test that is skipped where there is no GPU."""
    for mark in ON_A_GPU:
        test = mark(test)
    return test


def sum_of_ranks_on(device: str) -> tuple[str, float]:
    """Sum the ranks on a device; say which backend did it."""
    number = torch.tensor([float(dist.get_rank())], device=device)
    dist.all_reduce(number)
    return dist.get_backend(), number.item()


def fails_like_any_other() -> None:
    raise ValueError(f"seen {torch.ones(1, device='cuda').device}")


@on_a_gpu
def test_a_kernel_that_uses_cuda_is_refused_before_anything_starts():
    code = (
        "import torch; torch.ones(1, device='cuda')\n"
        "from course_utils import launch\n"
        "try: launch(print)\n"
        "except RuntimeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "this kernel already uses CUDA" in done.stdout
    assert "Restart the kernel" in done.stdout


@on_a_gpu
def test_nccl_without_enough_gpus_is_refused_with_the_counts():
    with pytest.raises(ValueError, match=rf"{GPUS + 1} ranks, {GPUS} GPU"):
        launch(print, world_size=GPUS + 1, backend="nccl")


@on_a_gpu
def test_an_error_on_a_gpu_names_rank_and_line():
    with pytest.raises(WorkerError, match=r"rank 0 failed: ValueError: seen cuda:0"):
        launch(fails_like_any_other, world_size=1, device="cuda")


@on_a_gpu
@pytest.mark.nccl
def test_auto_takes_nccl_with_one_gpu_per_rank_and_keeps_gloo_for_cpu_tensors():
    expected = GPUS * (GPUS - 1) / 2
    results = launch(sum_of_ranks_on, "cuda", world_size=GPUS, device="cuda")
    assert [value for _, value in results] == [expected] * GPUS
    assert launch(sum_of_ranks_on, "cpu", world_size=GPUS, device="cuda")[0][1] == expected


def sees_a_gpu() -> bool:
    return torch.cuda.is_available()


@on_a_gpu
@pytest.mark.skipif(GPUS != 1, reason="with several GPUs two ranks have one each")
def test_on_one_gpu_one_rank_and_two_run_on_the_same_kind_of_device():
    assert launch(sees_a_gpu, world_size=1) == [False]
    assert launch(sees_a_gpu, world_size=2) == [False, False]


@on_a_gpu
@pytest.mark.nccl
def test_two_ranks_share_one_gpu_through_nccl_on_request():
    ranks = GPUS + 1
    results = launch(sum_of_ranks_on, "cuda", world_size=ranks, backend="nccl", share_gpus=True)
    assert results == [("nccl", ranks * (ranks - 1) / 2)] * ranks


@on_a_gpu
@pytest.mark.nccl
def test_nccl_by_name_sums_on_every_gpu():
    results = launch(sum_of_ranks_on, "cuda", world_size=GPUS, backend="nccl")
    assert results == [("nccl", GPUS * (GPUS - 1) / 2)] * GPUS


@on_a_gpu
def test_two_ranks_share_one_gpu_through_gloo():
    results = launch(sum_of_ranks_on, "cuda", world_size=2, backend="gloo", device="cuda")
    assert results == [("gloo", 1.0)] * 2


@on_a_gpu
def test_more_ranks_than_gpus_compute_on_the_cpu_and_see_no_gpu():
    assert launch(torch.cuda.is_available, world_size=GPUS + 1) == [False] * (GPUS + 1)


@on_a_gpu
def test_cuda_results_arrive_as_cpu_tensors():
    (result,) = launch(lambda: {"t": torch.arange(3, device="cuda")}, world_size=1, device="cuda")
    assert result["t"].device.type == "cpu"
    assert result["t"].tolist() == [0, 1, 2]


@on_a_gpu
def test_data_parallel_runs_inside_a_worker_and_equals_the_module():
    def compare() -> bool:
        model = torch.nn.Linear(4, 2).cuda()
        batch = torch.randn(8, 4, device="cuda")
        return torch.allclose(torch.nn.DataParallel(model)(batch), model(batch))

    assert launch(compare, world_size=1, device="cuda") == [True]


@on_a_gpu
@pytest.mark.skipif(GPUS < 2, reason="nothing is scattered over fewer than two GPUs")
def test_data_parallel_uses_every_gpu_and_gathers_on_the_first():
    seen = []

    class Where(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            seen.append((batch.get_device(), len(batch)))
            return batch

    def step() -> tuple[list, int, int]:
        output = torch.nn.DataParallel(Where())(torch.ones(4 * GPUS, 1, device="cuda"))
        return sorted(seen), output.get_device(), len(output)

    (result,) = launch(step, world_size=1, device="cuda")
    assert result == ([(gpu, 4) for gpu in range(GPUS)], 0, 4 * GPUS)


def run_in_a_kernel(code: str) -> str:
    """What a process prints that runs this text as a kernel would."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


LAUNCHES = """
import torch
import torch.distributed as dist
from course_utils import launch

def step():
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    total = weight.grad.sum()
    dist.all_reduce(total)
    return total.item()

try:
    print(list(launch(step, backend="gloo", device={device!r})))
except RuntimeError as error:
    print(error)
"""


def test_a_kernel_that_has_done_nothing_launches_ranks_that_train():
    assert "[6.0, 6.0]" in run_in_a_kernel(LAUNCHES.format(device="cpu"))


@on_a_gpu
def test_a_kernel_that_has_only_started_the_driver_launches_ranks_on_the_cpu():
    starts = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"
    printed = run_in_a_kernel(starts + LAUNCHES.format(device="cpu"))
    assert "[6.0, 6.0]" in printed
    printed = run_in_a_kernel(starts + LAUNCHES.format(device="cuda"))
    assert "this kernel already uses CUDA" in printed


@on_a_gpu
def test_a_kernel_that_has_run_backward_is_refused_and_the_cause_is_named():
    backward = "import torch; torch.ones(1, requires_grad=True).sum().backward()"
    printed = run_in_a_kernel(backward + LAUNCHES.format(device="cpu"))
    assert "this kernel already ran backward() on a machine with a GPU" in printed
    assert "[6.0" not in printed


@pytest.mark.parametrize(("options", "device"), BOTH)
def test_of_two_ranks_one_raises_while_the_other_waits_for_it(options, device):
    def add_up() -> float:
        number = torch.ones(1, device=device)
        dist.all_reduce(number)
        number.item()  # both have met
        if dist.get_rank() == 1:
            raise ValueError("bad batch")
        dist.all_reduce(number)
        return number.item()

    with pytest.raises(WorkerError, match=r"rank 1 failed: ValueError: bad batch"):
        launch(add_up, timeout=40, **options)
    backend = options["backend"]
    assert launch(sum_of_ranks_on, device, timeout=40, **options) == [(backend, 1.0)] * 2


def somebody_listens_on(port: int) -> bool:
    """Whether a program of this machine listens on a port of it."""
    for host in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
            return True
    return False


def test_who_listens_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert somebody_listens_on(port)
    assert not somebody_listens_on(port)


@pytest.mark.parametrize(("options", "device"), BOTH)
def test_nccl_leaves_no_service_on_a_port_of_its_own(options, device):
    if somebody_listens_on(RAS_PORT):
        pytest.skip(f"another program listens on port {RAS_PORT}")

    def meet_and_look() -> bool:
        sum_of_ranks_on(device)  # NCCL starts its service when ranks first meet
        return somebody_listens_on(RAS_PORT)

    assert launch(meet_and_look, timeout=40, **options) == [False, False]
    assert not somebody_listens_on(RAS_PORT)


@on_a_gpu
def test_the_kernel_has_no_cuda_context_after_all_this():
    launch(sum_of_ranks_on, "cuda", world_size=1, device="cuda")
    assert not torch.cuda.is_initialized()
