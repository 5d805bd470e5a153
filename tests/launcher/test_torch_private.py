"""Private names of torch, each taken away: `launch` still works, fails, times out and cleans up."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import course_utils
from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.devices import prepare
from course_utils.launcher import torch_private
from course_utils.launcher.torch_private import NAMES
from course_utils.record import cuda_times, frames, hooks

pytestmark = pytest.mark.usefixtures("nothing_left")
NEEDED_BY_THE_RECORD = set(hooks._NEEDED)


@pytest.fixture
def without(monkeypatch):
    """Take names away, as if this torch did not have them: `find`, `find_in` and `wrap` see none.

    A name is taken away with its owner, as if torch had renamed the class or the module.
    """
    look_up = torch_private._owner_and_attribute
    prepare.import_what_ranks_need()  # what a look-up would import without a guard

    def take_away(*missing: str) -> None:
        assert [name for name in missing if torch_private.find(name) is None] == []
        for name, kept_in in (("c10d_logger", "_LOGGER"), ("join", "_JOIN")):
            if any(name in taken for taken in missing):
                monkeypatch.setattr(frames, kept_in, None)  # looked up at the import

        def look_up_what_is_left(name: str) -> tuple[Any, str]:
            owner, attribute = look_up(name)
            if name in missing:
                owner = None
            return owner, attribute

        monkeypatch.setattr(torch_private, "_owner_and_attribute", look_up_what_is_left)

    return take_away


def trains() -> float:
    """Uses what the names are for: DDP, a group, a wait, a receive from any rank, a loader."""
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    dist.new_group([0])
    total = torch.ones(1)
    dist.all_reduce(total, async_op=True).wait()
    if hasattr(dist.Work, "get_future"):
        dist.all_reduce(total, async_op=True).get_future().wait()
    else:
        dist.all_reduce(total)
    if dist.get_rank() == 0:
        dist.send(total, 1)
    else:
        dist.recv(total)
    return total.item()


def fails() -> None:
    if dist.get_rank() == 1:
        raise ValueError("no")
    dist.barrier()


def hangs() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.recv(torch.ones(1), 0)


def all_is_well() -> None:
    assert list(launch(trains, backend="gloo")) == [4.0, 4.0]
    with pytest.raises(WorkerError, match="rank 1 failed: ValueError: no"):
        launch(fails, backend="gloo")
    with pytest.raises(WorkerTimeout, match="rank 0"):
        launch(hangs, backend="gloo", timeout=1.0)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_taken_away_is_neither_found_nor_wrapped(name, without):
    owner, attribute = torch_private._owner_and_attribute(name)
    before = getattr(owner, attribute)
    without(name)
    assert torch_private.find(name) is None
    torch_private.wrap(name, lambda _function: pytest.fail("there is nothing to replace"))
    assert getattr(owner, attribute) == before


@pytest.mark.parametrize("name", NAMES)
def test_each_name_may_be_missing_in_a_launch(name, without):
    without(name)
    all_is_well()


def test_all_names_may_be_missing_at_once(without):
    without(*NAMES)
    all_is_well()


@pytest.mark.parametrize("name", sorted(set(NAMES) - NEEDED_BY_THE_RECORD))
def test_each_name_may_be_missing_in_a_trace(name, without):
    without(name)
    results = launch(trains, backend="gloo", trace=True)
    assert list(results) == [4.0, 4.0]
    assert {"all_reduce", "broadcast", "send"} <= {event.kind for event in results.trace}


@pytest.mark.parametrize("name", sorted(NEEDED_BY_THE_RECORD))
def test_a_trace_that_cannot_be_recorded_is_an_error_that_names_what_is_missing(name, without):
    without(name)
    with pytest.raises(WorkerError, match=f"this torch has no {name}"):
        launch(trains, backend="gloo", trace=True)


@pytest.mark.parametrize("trace", [False, True])
def test_a_method_of_works_may_really_be_missing(trace, monkeypatch):
    """Public ones, which code could also use by torch's own name."""
    monkeypatch.delattr(dist.Work, "get_future")
    monkeypatch.setattr(cuda_times, "_future_of", None)  # looked up at the import
    results = launch(trains, backend="gloo", trace=trace)
    assert list(results) == [4.0, 4.0]


def test_a_learners_port_works_where_torch_lets_us_say_so_and_launch_does_without(without):
    def group_of_two() -> int:
        dist.init_process_group("gloo")
        return dist.get_world_size()

    without("torch.distributed.rendezvous:_agent_store_serves")
    assert list(launch(group_of_two, backend=None)) == [2, 2]


def test_this_torch_has_every_name():
    prepare.import_what_ranks_need()
    missing = [name for name in NAMES if torch_private.find(name) is None]
    if torch.version.cuda is None:  # `make lab CPU=1`: a torch that was built without CUDA
        missing = [name for name in missing if not name.startswith("torch._C:_cuda_")]
    assert missing == []


def test_private_names_of_torch_are_looked_up_in_one_module():
    private = {name.rpartition(":")[2].rpartition(".")[2] for name in NAMES}
    private = {name for name in private if re.match("_[a-z]|Hook", name)}
    assert len(private) > 10
    asked = re.compile(rf"(?<!:)(?<!\w)\.({'|'.join(private)})\b")
    found = {}
    for path in Path(course_utils.__file__).parent.rglob("*.py"):
        code = re.sub(r'"[^"\n]*"', '""', path.read_text(encoding="utf-8"))
        if path.name != "torch_private.py" and asked.search(code):
            found[path.name] = asked.findall(code)
    assert found == {}
