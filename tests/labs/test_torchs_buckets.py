"""Lab 05 asks for the buckets that PyTorch's DDP really fills after its first step."""

import labs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch

LIMITS_BYTES = 1, 25, 100, 143, 144, 168, 300, 568
SIZES_BYTES = [24, 120, 24, 120, 40, 40, 200]


class InAnyOrder(nn.Module):
    """Gradients arrive in the order of the numbers that forward is given."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(size // 8).double() for size in SIZES_BYTES])

    def forward(self, order):
        total = torch.zeros(()).double()
        for number in reversed(order):
            total = torch.tanh(total + self.parts[number].sum())
        return total


def buckets_of_ddp(orders, limit_bytes):
    network, seen = InAnyOrder(), []
    model = DistributedDataParallel(network, bucket_cap_mb=limit_bytes / 2**20)
    number_of = {parameter: number for number, parameter in enumerate(network.parts)}

    def note(_, bucket):
        seen.append([number_of[parameter] for parameter in bucket.parameters()])
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(first_value)

    model.register_comm_hook(None, note)
    for _ in range(2):
        seen.clear()
        model(orders[dist.get_rank()]).backward()
    return seen


def first_value(done):
    return done.value()[0]


@pytest.fixture(scope="module")
def lab():
    return labs.cells("05_ddp_from_scratch")


@pytest.mark.slow
@pytest.mark.parametrize("limit_bytes", LIMITS_BYTES)
def test_lab_05_fills_buckets_as_pytorchs_ddp_does_after_its_first_step(lab, limit_bytes):
    orders = [[4, 2, 3, 1, 0, 6, 5], [6, 0, 5, 1, 2, 3, 4]]
    given = [torch.tensor(order) for order in orders]
    sizes, limits = [SIZES_BYTES] * 2, [limit_bytes] * 2
    wanted = lab.agreed_buckets_spec(given, sizes, limits)
    assert list(launch(buckets_of_ddp, orders, limit_bytes, backend="gloo")) == wanted
