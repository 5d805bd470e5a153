"""What only a GPU can show; nothing here touches CUDA in the tests' own process."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch
from course_utils.devices.placement import gpu_count

GPUS = gpu_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="no GPU on this machine"),
]


def sum_of_ranks_on(device: str) -> tuple[str, float]:
    """Sum the ranks on a device; say which backend did it."""
    number = torch.tensor([float(dist.get_rank())], device=device)
    dist.all_reduce(number)
    return dist.get_backend(), number.item()


def fails_like_any_other() -> None:
    raise ValueError(f"seen {torch.ones(1, device='cuda').device}")


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


def test_nccl_without_enough_gpus_is_refused_with_the_counts():
    with pytest.raises(ValueError, match=rf"{GPUS + 1} ranks, {GPUS} GPU"):
        launch(print, world_size=GPUS + 1, backend="nccl")


def test_an_error_on_a_gpu_names_rank_and_line():
    with pytest.raises(WorkerError, match=r"rank 0 failed: ValueError: seen cuda:0"):
        launch(fails_like_any_other, world_size=1, device="cuda")


@pytest.mark.nccl
def test_auto_takes_nccl_with_one_gpu_per_rank_and_keeps_gloo_for_cpu_tensors():
    expected = GPUS * (GPUS - 1) / 2
    results = launch(sum_of_ranks_on, "cuda", world_size=GPUS, device="cuda")
    assert [value for _, value in results] == [expected] * GPUS
    assert launch(sum_of_ranks_on, "cpu", world_size=GPUS, device="cuda")[0][1] == expected


def sees_a_gpu() -> bool:
    return torch.cuda.is_available()


@pytest.mark.skipif(GPUS != 1, reason="with several GPUs two ranks have one each")
def test_on_one_gpu_one_rank_and_two_run_on_the_same_kind_of_device():
    assert launch(sees_a_gpu, world_size=1) == [False]
    assert launch(sees_a_gpu, world_size=2) == [False, False]


@pytest.mark.nccl
def test_two_ranks_share_one_gpu_through_nccl_on_request():
    ranks = GPUS + 1
    results = launch(sum_of_ranks_on, "cuda", world_size=ranks, backend="nccl", share_gpus=True)
    assert results == [("nccl", ranks * (ranks - 1) / 2)] * ranks


@pytest.mark.nccl
def test_nccl_by_name_sums_on_every_gpu():
    results = launch(sum_of_ranks_on, "cuda", world_size=GPUS, backend="nccl")
    assert results == [("nccl", GPUS * (GPUS - 1) / 2)] * GPUS


def test_two_ranks_share_one_gpu_through_gloo():
    results = launch(sum_of_ranks_on, "cuda", world_size=2, backend="gloo", device="cuda")
    assert results == [("gloo", 1.0)] * 2


def test_more_ranks_than_gpus_compute_on_the_cpu_and_see_no_gpu():
    assert launch(torch.cuda.is_available, world_size=GPUS + 1) == [False] * (GPUS + 1)


def test_cuda_results_arrive_as_cpu_tensors():
    (result,) = launch(lambda: {"t": torch.arange(3, device="cuda")}, world_size=1, device="cuda")
    assert result["t"].device.type == "cpu"
    assert result["t"].tolist() == [0, 1, 2]


def test_data_parallel_runs_inside_a_worker_and_equals_the_module():
    def compare() -> bool:
        model = torch.nn.Linear(4, 2).cuda()
        batch = torch.randn(8, 4, device="cuda")
        return torch.allclose(torch.nn.DataParallel(model)(batch), model(batch))

    assert launch(compare, world_size=1, device="cuda") == [True]


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


def test_the_kernel_has_no_cuda_context_after_all_this():
    launch(sum_of_ranks_on, "cuda", world_size=1, device="cuda")
    assert not torch.cuda.is_initialized()
