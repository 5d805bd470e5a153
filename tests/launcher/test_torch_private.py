"""Private names of torch, each taken away: `launch` still works, fails, times out and cleans up."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import course_utils
from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.devices import prepare
from course_utils.launcher import torch_private
from course_utils.launcher.torch_private import NAMES
from course_utils.record import frames, hooks

pytestmark = pytest.mark.usefixtures("nothing_left")
NEEDED_BY_THE_RECORD = set(hooks._NEEDED)


@pytest.fixture
def without(monkeypatch):
    """Take names away, as if this torch did not have them."""
    find = torch_private.find
    prepare.import_what_ranks_need()  # what `find` would import without a guard

    def take_away(*missing: str) -> None:
        assert {find(name) is None for name in missing} == {False}
        for name, kept_in in (("c10d_logger", "_LOGGER"), ("join", "_JOIN")):
            if any(name in taken for taken in missing):
                monkeypatch.setattr(frames, kept_in, None)  # looked up at the import
        monkeypatch.setattr(
            torch_private, "find", lambda name: None if name in missing else find(name)
        )

    return take_away


def trains() -> float:
    """Uses what the names are for: DDP, a group, a wait, a receive from any rank, a loader."""
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    dist.new_group([0])
    total = torch.ones(1)
    dist.all_reduce(total, async_op=True).wait()
    dist.all_reduce(total, async_op=True).get_future().wait()
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
