"""How results travel: everything that pickles arrives as it was, large things by descriptor."""

import os
import sys
import weakref
from collections import OrderedDict, namedtuple

import numpy
import psutil
import pytest
import torch
import torch.distributed as dist
from census import FORKS
from forks import segments
from torch import nn

from course_utils import WorkerError, launch

pytestmark = pytest.mark.usefixtures("nothing_left")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
Pair = namedtuple("Pair", "left right")


def sent(make: object) -> object:
    """What arrives of what `make()` returns in a rank."""
    return launch(make, world_size=1)[0]


def test_a_result_that_cannot_be_pickled_names_the_rank_and_the_type():
    def work() -> object:
        return (lambda: 1) if dist.get_rank() == 1 else 1

    with pytest.raises(WorkerError, match=r"rank 1 failed: its result, a function, cannot be sent"):
        launch(work)


def test_a_part_that_cannot_be_pickled_is_told_of():
    with pytest.raises(WorkerError, match=r"a dict, cannot be sent back: .*generator"):
        sent(lambda: {"batches": (i for i in range(3))})


def nested(levels: int) -> list:
    inmost: list = []
    for _level in range(levels):
        inmost = [inmost]
    return inmost


def a_dead_proxy() -> dict:
    return {"model": weakref.proxy(nn.Linear(1, 1))}


def a_nested_tensor() -> list:
    return [torch.ones(2), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]


@pytest.mark.parametrize(
    ("make", "begins", "ends"),
    [
        (lambda: nested(300_000), "a list, cannot be sent back: RecursionError: ", ""),
        (a_dead_proxy, "a dict, cannot be sent back: ", "That is what stands at ['model'] in it."),
        (a_nested_tensor, "a list, cannot be sent back: ", "That is what stands at [1] in it."),
    ],
)
def test_whatever_cannot_be_sent_it_is_said_where_it_stands_and_what_to_do(make, begins, ends):
    with pytest.raises(WorkerError) as caught:
        sent(make)
    rows = str(caught.value).splitlines()
    assert rows[0].startswith(f"rank 0 failed: its result, {begins}")
    assert len(rows[0]) < 350
    advice = "Return tensors, numbers, strings, and lists or dicts of these."
    wanted = [ends, advice] if ends else [advice]
    assert [row.strip() for row in rows[1 : 1 + len(wanted)]] == wanted


def test_a_class_that_exists_only_in_the_rank_is_refused():
    def work() -> object:
        class Local:
            pass

        return Local()

    with pytest.raises(WorkerError, match="its result, a Local, cannot be sent back"):
        sent(work)


def test_a_module_that_exists_only_in_the_rank_is_refused():
    def work() -> object:
        import types

        module = sys.modules["only_here"] = types.ModuleType("only_here")
        exec("class Here: pass", module.__dict__)
        return module.Here()

    with pytest.raises(WorkerError, match=r"arrived but cannot be rebuilt: ModuleNotFoundError"):
        sent(work)


class Broken:
    """Pickles well and cannot be rebuilt."""

    def __reduce__(self) -> tuple:
        return int, ("not a number",)


def test_a_result_that_cannot_be_rebuilt_names_the_rank():
    with pytest.raises(WorkerError, match="rank 0 failed: its result arrived but cannot be rebuil"):
        sent(Broken)


def test_a_failure_does_not_hide_behind_a_result():
    def work() -> object:
        if dist.get_rank() == 0:
            return torch.ones(10**6)
        raise ValueError("boom")

    with pytest.raises(WorkerError, match="rank 1 failed: ValueError: boom"):
        launch(work)


ARRAYS = {
    "small": lambda: numpy.arange(3),
    "large": lambda: numpy.arange(100_000.0),
    "not contiguous": lambda: numpy.arange(100_000).reshape(100, 1000)[:, ::2],
    "Fortran": lambda: numpy.asfortranarray(numpy.arange(90_000).reshape(300, 300)),
    "words": lambda: numpy.array(["one", "three"]),
    "records": lambda: numpy.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    "objects": lambda: numpy.array([1, "two", None], dtype=object),
    "empty": lambda: numpy.zeros((0, 3)),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_every_kind_arrive_and_can_be_written_to(make):
    arrived, wanted = sent(make), make()
    assert arrived.dtype == wanted.dtype
    assert numpy.array_equal(arrived, wanted)
    assert arrived.flags.writeable


def test_nested_things_arrive():
    def work() -> dict:
        return {
            "pair": Pair(1, [2.5, None, "text"]),
            3: OrderedDict(z=torch.ones(2), a=numpy.ones(9000)),
            "set": {1, 2},
            "error": ValueError("as a value"),
            "large": [torch.full((50_000,), float(i)) for i in range(5)],
            "text": "x" * 300_000,
        }

    arrived = sent(work)
    assert arrived["pair"] == Pair(1, [2.5, None, "text"])
    assert list(arrived[3]) == ["z", "a"]
    assert arrived["set"] == {1, 2}
    assert repr(arrived["error"]) == "ValueError('as a value')"
    assert [tensor[-1].item() for tensor in arrived["large"]] == [0, 1, 2, 3, 4]
    assert arrived["text"] == "x" * 300_000


def test_one_tensor_in_two_places_stays_one():
    def work() -> list:
        tensor = torch.ones(20_000)
        return [tensor, tensor]

    first, second = sent(work)
    assert first is second


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 300, bias=False))
    made[2].weight = nn.Parameter(made[0].weight.t().contiguous())
    return made


def test_a_model_arrives_as_itself_and_as_its_state():
    whole, state = sent(lambda: (model(), model().state_dict()))
    for arrived in (whole.state_dict(), state):
        assert list(arrived) == list(model().state_dict())
        for name, tensor in model().state_dict().items():
            assert torch.equal(arrived[name], tensor)
    whole(torch.ones(2, 300)).sum().backward()
    model().load_state_dict(state)


def test_a_tied_parameter_stays_tied():
    def work() -> nn.Module:
        made = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
        made[1].weight = made[0].weight
        return made

    arrived = sent(work)
    assert arrived[0].weight is arrived[1].weight


def test_results_come_in_rank_order():
    results = launch(lambda: torch.full((20_000,), float(dist.get_rank())), world_size=4)
    assert [tensor[0].item() for tensor in results] == [0, 1, 2, 3]
    assert isinstance(results, list)


@linux
def test_results_hold_memory_but_no_descriptor_and_no_segment():
    before, had = psutil.Process().num_fds(), segments({os.getpid()})
    results = launch(lambda: [torch.ones(100_000) for _ in range(20)])
    assert psutil.Process().num_fds() == before
    assert not segments(FORKS.pids() | {os.getpid()}) - had
    assert sum(len(tensor) for tensors in results for tensor in tensors) == 4_000_000


SMALL = """
import ctypes, os, sys, torch
from course_utils import launch

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18  # mounts of its own, which none sees
libc = ctypes.CDLL(None)
failed = libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
if failed or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=8m"):
    print("may not mount")
else:
    room = os.statvfs("/dev/shm")
    assert room.f_blocks * room.f_frsize == 8 << 20
    results = launch(lambda: torch.ones(8 << 20))
    print([(len(r), r[-1].item(), r[:: 1 << 17].sum().item()) for r in results])
"""


@pytest.mark.slow
@linux
@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_32_mb_per_rank_arrive_where_shared_memory_has_8(nursery):
    told = nursery.run(SMALL)
    if "may not mount" in told:
        pytest.skip("this container may not mount")
    assert told.endswith("[(8388608, 1.0, 64.0), (8388608, 1.0, 64.0)]\n")


class NeedsALicence:
    """Ends the program that would rebuild it."""

    def __init__(self, ends_by: BaseException) -> None:
        self.ends_by = ends_by

    def __setstate__(self, state: dict) -> None:
        raise state["ends_by"]


@pytest.mark.parametrize("ends_by", [SystemExit("no licence"), KeyboardInterrupt("no licence")])
def test_an_object_that_would_end_the_kernel_only_cannot_be_rebuilt(ends_by):
    told = f"rank 0 failed: its result arrived but cannot be rebuilt: {type(ends_by).__name__}"
    with pytest.raises(WorkerError, match=f"{told}: no licence"):
        sent(lambda: NeedsALicence(ends_by))


def test_a_result_without_room_in_memory_is_an_error():
    def work() -> torch.Tensor:
        import resource

        tensor = torch.ones(10**6)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
        return tensor

    with pytest.raises(WorkerError, match="rank 0 failed: "):
        sent(work)


class HasAValue:
    """Cannot travel, and has an attribute that the recorded result of a rank has as well."""

    value = 3

    def __reduce__(self) -> str:
        raise TypeError("stays here")


@pytest.mark.parametrize("trace", [False, True])
def test_what_cannot_travel_is_named_by_its_own_type(trace: bool) -> None:
    with pytest.raises(WorkerError, match="its result, a HasAValue, cannot be sent back"):
        launch(HasAValue, world_size=1, trace=trace)
