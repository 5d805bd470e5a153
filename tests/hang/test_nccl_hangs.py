"""Hang patterns of chapter 08 on GPUs, by NCCL; elsewhere the same cells by a group that queues.

Two ranks share a GPU where there is one; a pattern of more ranks wants a GPU for each. `make gpu`
runs some of them, `pytest -m "gpu and soak" tests/hang` all.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import kernels
import pytest
import torch
from hangs import QUEUES, SETUP, Hang
from test_hangs import judge
from test_queued import QUEUED_HANGS

from course_utils.devices.placement import gpu_count

CELL = "<a learner's cell>"
# What every machine can show within the time of `make gpu`: two ranks, and no doubt that it hangs.
SOME = (
    "a barrier on one rank only",
    "an uneven number of batches",
    "an uneven number of batches under DDP",
    "an evaluation on one rank, at the end",
    "an exception after which a rank works on",
)
# NCCL may let these pass: what is sent is small enough to lie in a buffer until somebody reads it,
# and nothing compares roots or shapes.
MAY_PASS = (
    "two ranks that send first",
    "two ranks that receive first",
    "a ring in which everybody sends first",
    "roots that differ",
    "shapes that differ",
    "shapes that differ in two lines",
    # A fork, in which no tensor may be made on a GPU.
    "a DataLoader that stands still on one rank",
)
BY_NAME = {hang.name: hang for hang in QUEUED_HANGS}
OTHERS = [name for name in BY_NAME if name not in SOME + MAY_PASS]


@dataclass(frozen=True)
class Ranks:
    """Where the ranks of a pattern are, and how they join.

    Attributes:
        device: Where all tensors are made.
        options: Of `launch`.
        joins: What a rank does first, where launch joins no group.
        timeout_s: Until then every rank has come to where it hangs.
    """

    device: str
    options: dict
    joins: str = ""
    timeout_s: float = 6.0


BY_NCCL = Ranks("cuda", {"backend": "nccl", "share_gpus": True}, timeout_s=15.0)
QUEUEING = Ranks("cpu", {"backend": None}, "dist.init_process_group('queues'); ")


def cell(hang: Hang, ranks: Ranks) -> str:
    """What the learner defines. Its first line holds all, so that numbers of lines stay."""
    head = f"{ranks.joins}torch.set_default_device('{ranks.device}'); r = dist.get_rank(); "
    head += "x, batch = torch.ones(3), torch.ones(4, 3)\n"
    body = head + textwrap.dedent(hang.body).strip("\n") + "\nx.sum().item()"
    return f"def work():\n{textwrap.indent(body, '    ')}"


def report(hang: Hang, ranks: Ranks) -> tuple[str | None, str]:
    """The pattern and the text of what a launch says of this hang."""
    names: dict = {"__name__": "__main__"}
    for text in (kernels.SETUP.replace('print("x" * 100_000)', ""), SETUP):
        exec(text, names)
    exec(compile(cell(hang, ranks), CELL, "exec"), names)
    try:
        results = names["launch"](
            names["work"], world_size=hang.world_size, timeout=ranks.timeout_s, **ranks.options
        )
    except names["WorkerTimeout"] as error:
        return error.pattern, str(error).replace(CELL, "cell [N]")
    pytest.fail(f"nothing hung: {results}")


@pytest.fixture
def queueing() -> Iterator[None]:
    """A process group that queues, in this process and its ranks."""
    item = torch.Tensor.item
    exec(QUEUES, {})
    yield
    torch.Tensor.item = item


def by_nccl(name: str) -> None:
    """Runs a pattern on GPUs and judges its report."""
    hang = BY_NAME[name]
    if hang.world_size > max(2, gpu_count()):
        pytest.skip(f"{hang.world_size} ranks want as many GPUs")
    judge(hang, *report(hang, BY_NCCL))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_the_cells_for_gpus_hang_and_are_told_where_calls_queue(queueing, name):
    judge(BY_NAME[name], *report(BY_NAME[name], QUEUEING))


@pytest.mark.gpu
@pytest.mark.nccl
@pytest.mark.skipif(not gpu_count(), reason="no GPU on this machine")
@pytest.mark.parametrize("name", SOME)
def test_a_hang_under_nccl_is_told(name):
    by_nccl(name)


@pytest.mark.soak
@pytest.mark.gpu
@pytest.mark.nccl
@pytest.mark.skipif(not gpu_count(), reason="no GPU on this machine")
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_hang_under_nccl_is_told(name):
    by_nccl(name)


def test_every_pattern_is_run_or_may_pass():
    assert BY_NAME.keys() >= {*SOME, *MAY_PASS}
    assert {BY_NAME[name].world_size for name in SOME} == {2}
