"""How tensors travel: every dtype and layout arrives, without its storage or its graph."""

import multiprocessing
import os
import resource
import sys
import threading
from collections import namedtuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from course_utils import WorkerError, launch
from course_utils.launcher import launch as launcher
from course_utils.launcher import transport
from course_utils.launcher.listener import Listener

pytestmark = pytest.mark.usefixtures("nothing_left")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
Pair = namedtuple("Pair", "left right")


def sent(make: object) -> object:
    """What arrives of what `make()` returns in a rank."""
    return launch(make, world_size=1)[0]


@linux
def test_a_result_for_which_the_kernel_may_open_no_more_files_is_told_by_that_name():
    may_return = multiprocessing.get_context("fork").Event()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    class NoMoreFiles(Listener):
        def on_poll(self, workers, final: bool = False) -> None:
            if final:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            elif not may_return.is_set():
                lowest_free = os.dup(0)
                os.close(lowest_free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
                may_return.set()

    def work() -> torch.Tensor:
        may_return.wait()
        return torch.ones(100_000)

    with pytest.raises(WorkerError, match=r"cannot be rebuilt: OSError: .*Too many open files"):
        launcher.launch(work, world_size=1, listeners=[NoMoreFiles()])


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64,
    torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives(dtype):
    def work() -> torch.Tensor:
        return torch.arange(20_000).remainder(2).to(dtype)

    arrived, wanted = sent(work), work()
    assert arrived.dtype == dtype
    assert torch.equal(arrived.view(torch.uint8), wanted.view(torch.uint8))
    small = sent(lambda: work()[:3])
    assert torch.equal(small.view(torch.uint8), wanted[:3].view(torch.uint8))


def grid() -> torch.Tensor:
    return torch.arange(40_000.0).reshape(200, 200)


TENSORS = {
    "empty": lambda: torch.empty(0),
    "empty with a shape": lambda: torch.empty(3, 0, 2, dtype=torch.int32),
    "without a dimension": lambda: torch.tensor(3.5),
    "one element of a row": lambda: torch.zeros(1, 2)[:, 0],
    "one element with strides for many": lambda: torch.arange(8.0).as_strided((1, 1), (7, 3), 5),
    "one element, expanded": lambda: torch.ones(()).expand(1, 1),
    "without a dimension, of a column": lambda: torch.arange(6.0).reshape(2, 3)[1, 2],
    "empty, of a column": lambda: torch.zeros(3, 2)[3:, 0],
    "expanded to nothing": lambda: torch.ones(1).expand(0),
    "with a stride of zero": lambda: torch.arange(3.0).expand(4, 3),
    "transposed": lambda: grid().t(),
    "strided": lambda: grid()[::2, ::3],
    "expanded": lambda: torch.ones(1).expand(50_000),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative view": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "channels last": lambda: torch.arange(48.0).reshape(1, 3, 4, 4).to(
        memory_format=torch.channels_last
    ),
    "sparse": lambda: torch.eye(5).to_sparse(),
    "compressed": lambda: torch.eye(5).to_sparse_csr(),
}  # fmt: skip


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_tensors_of_every_kind_arrive(make):
    arrived, wanted = sent(make), make()
    assert arrived.shape == wanted.shape
    assert arrived.layout == wanted.layout
    assert torch.equal(arrived.to_dense(), wanted.to_dense())


def test_what_arrives_is_contiguous_and_can_be_written_to():
    small, large = sent(lambda: (torch.ones(4, 2).t(), grid().t()))
    for tensor in (small, large):
        assert tensor.is_contiguous()
        tensor += 1
    assert small.sum() == 16
    assert torch.equal(large, grid().t() + 1)


def test_a_graph_stays_behind():
    def work() -> tuple:
        leaf = torch.ones(3, requires_grad=True)
        return leaf, leaf * 2, nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1), False)

    leaf, result, parameter, frozen = sent(work)
    assert (leaf.requires_grad, result.requires_grad, result.grad_fn) == (True, False, None)
    assert (type(parameter), parameter.requires_grad) == (nn.Parameter, True)
    assert (type(frozen), frozen.requires_grad) == (nn.Parameter, False)


@linux
@pytest.mark.parametrize(("count", "files"), [(10, 0), (100_000, 1)])
def test_a_view_leaves_the_storage_behind_it(count, files, monkeypatch):
    sizes = []
    receive = transport.receive_buffer
    monkeypatch.setattr(
        transport,
        "receive_buffer",
        lambda file: sizes.append(os.fstat(file).st_size) or receive(file),
    )
    arrived = sent(lambda: torch.zeros(50_000_000)[:count])
    assert sizes == [4 * count] * files
    assert arrived.untyped_storage().nbytes() == 4 * count


def test_the_result_of_a_functional_collective_arrives_when_it_is_complete():
    def work() -> dict[str, torch.Tensor]:
        large = torch.full((4_000_000,), dist.get_rank() + 1.0)
        return {"sum": functional.all_reduce(large, "sum", dist.group.WORLD)}

    for result in launch(work):
        assert type(result["sum"]) is torch.Tensor
        assert torch.all(result["sum"] == 3)


def test_a_tensor_of_which_ranks_hold_parts_is_named_with_its_place():
    def work() -> dict[str, object]:
        mesh = init_device_mesh("cpu", (2,))
        return {"step": 1, "model": {"weight": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}}

    with pytest.raises(WorkerError, match=r"has a DTensor at \['model'\]\['weight'\], of which"):
        launch(work)


def test_what_cannot_travel_is_named_with_its_place():
    with pytest.raises(WorkerError, match=r"what stands at \['log'\]\[1\] in it"):
        launch(lambda: {"loss": 1.0, "log": ["a", threading.Lock()]})
