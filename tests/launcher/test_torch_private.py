"""Private names of torch, each taken away: `launch` still works, fails, times out and cleans up."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

import course_checks
import course_testing
import course_utils
from course_checks import rules
from course_checks.cases import CASES
from course_utils import WorkerError, WorkerTimeout, dry_run, launch
from course_utils.devices import prepare
from course_utils.flight import live
from course_utils.hang import whereabouts
from course_utils.launcher import echoes, torch_private
from course_utils.launcher.torch_private import NAMES
from course_utils.record import cuda_times, frames, hooks
from course_utils.record.event import UNWAITED

pytestmark = pytest.mark.usefixtures("nothing_left")
NEEDED_BY_THE_RECORD = set(hooks._NEEDED)
_DDP = "torch.nn.parallel:DistributedDataParallel"
ONLY_OBJECTS_HAVE = {f"{_DDP}._comm_hooks", "torch.nn:Parameter._in_backward_optimizers"}
_BACKWARD = "torch.autograd.graph:_engine_run_backward"
KEPT = (  # what is looked up at an import: where, by which name of ours, and what is there without
    (frames, "_LOGGER", "torch.distributed.c10d_logger:__file__", None),
    (frames, "_JOIN", "torch.distributed.algorithms.join:__file__", None),
    (frames, "_RUNS_BACKWARD", _BACKWARD, ""),
    (echoes, "_BACKWARD", _BACKWARD, ""),
    (whereabouts, "_RUNS_BACKWARD", _BACKWARD, ""),
    (cuda_times, "_future_of", f"{torch_private.C10D}:Work.get_future", None),
)
CHECKS_USE = (
    f"{torch_private.C10D}:Store",
    "torch._C._distributed_c10d:Backend",
    "torch._C:PyTorchFileWriter",
    "torch._C:DisableTorchFunctionSubclass",
    f"{torch_private.C10D}:ProcessGroup.send",
    f"{torch_private.C10D}:ProcessGroup.recv",
    f"{torch_private.C10D}:ProcessGroup.recv_anysource",
    f"{torch_private.C10D}:Work.wait",
)


def _last_part(name: str) -> str:
    return re.split("[:.]", name)[-1]


@pytest.fixture
def without(monkeypatch):
    """Take names away, as if this torch did not have them: `find`, `find_in` and `wrap` see none.

    A name is taken away with its owner, as if torch had renamed the class or the module.
    """
    look_up = torch_private._owner_and_attribute
    prepare.import_what_ranks_need()  # what a look-up would import without a guard

    def take_away(*missing: str) -> None:
        for name in set(missing) - ONLY_OBJECTS_HAVE:
            assert torch_private.find(name) is not None
        for module, kept_in, name, instead in KEPT:
            if name in missing:
                monkeypatch.setattr(module, kept_in, instead)
        for name in ("_DDP_CALLS", "_WRAPPERS"):
            still_called = getattr(whereabouts, name) - {_last_part(taken) for taken in missing}
            monkeypatch.setattr(whereabouts, name, still_called)

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
    before = getattr(owner, attribute, None)
    without(name)
    assert torch_private.find(name) is None
    torch_private.wrap(name, lambda _function: pytest.fail("there is nothing to replace"))
    assert getattr(owner, attribute, None) == before


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
    # What can't be seen is no mistake of the learner's.
    assert rules.unwaited(results.trace) is None
    assert not any(event.flags & UNWAITED for event in results.trace)


@pytest.mark.parametrize("name", sorted(NEEDED_BY_THE_RECORD))
def test_a_trace_that_cannot_be_recorded_is_an_error_that_names_what_is_missing(name, without):
    without(name)
    with pytest.raises(WorkerError, match=f"this torch has no {name}"):
        launch(trains, backend="gloo", trace=True)


@pytest.mark.parametrize("trace", [False, True])
def test_a_method_of_works_may_really_be_missing(trace, monkeypatch):
    """Public ones, which code could also use by torch's own name."""
    monkeypatch.delattr(dist.Work, "get_future")
    monkeypatch.setattr(cuda_times, "_future_of", None)
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
    missing = []
    for name in NAMES:
        if name not in ONLY_OBJECTS_HAVE and torch_private.find(name) is None:
            missing.append(name)
    if torch.version.cuda is None:  # `make lab CPU=1`: a torch that was built without CUDA
        missing = [name for name in missing if not name.startswith("torch._C:_cuda_")]
    assert missing == []


def test_objects_of_this_torch_have_what_only_objects_have():
    def asks() -> list[bool]:
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        weight = torch.nn.Parameter(torch.ones(1))
        _apply_optimizer_in_backward(torch.optim.SGD, [weight], {"lr": 0.1})
        things = {"_in_backward_optimizers": weight, "_comm_hooks": model}
        values = []
        for name in ONLY_OBJECTS_HAVE:
            values.append(torch_private.find_in(things[_last_part(name)], name))
        return list(map(bool, values))

    assert launch(asks, backend="gloo", world_size=1)[0] == [True, True]


@pytest.mark.parametrize("name", torch_private.LOCALS)
def test_each_variable_of_torchs_functions_may_be_missing(name, monkeypatch):
    local = torch_private.local

    def what_is_left(frame: FrameType, asked: str) -> Any:
        return None if asked == name else local(frame, asked)

    monkeypatch.setattr(torch_private, "local", what_is_left)
    results = launch(trains, backend="gloo", trace=True)
    assert list(results) == [4.0, 4.0]
    assert {"all_reduce", "broadcast", "send"} <= {event.kind for event in results.trace}


@pytest.mark.parametrize("missing", [*((name,) for name in CHECKS_USE), CHECKS_USE], ids=str)
def test_a_check_judges_without_what_it_uses(missing, without):
    answers = pytest.importorskip("answers", reason="a hand-out has no answers to judge")
    labs = pytest.importorskip("labs", reason="nor their judge")

    def exchanged(tensor: torch.Tensor) -> torch.Tensor:
        if dist.get_world_size() == 1:
            return tensor
        other = torch.empty_like(tensor)
        messages = [dist.isend(tensor, 1 - dist.get_rank())]
        messages.append(dist.irecv(other, 1 - dist.get_rank()))
        for message in messages:
            message.wait()
        return tensor + other

    without(*missing)
    options = {"spec": answers.spec, "inputs": answers.inputs, "world_sizes": (1, 2)}
    options["cases"] = CASES[:2]
    assert labs.check_here(exchanged, **options)
    assert not labs.check_here(lambda tensor: tensor, **options)


def test_a_dry_run_without_a_fake_store_is_refused_before_anything_starts(without):
    without("torch.testing._internal.distributed.fake_pg:FakeStore")
    with pytest.raises(RuntimeError, match="this torch has no fake process group"):
        dry_run(trains, world_size=2)


def test_a_dry_run_without_a_fake_wait_shows_no_wait_and_calls_the_same(without):
    without("torch._C._distributed_c10d:FakeWork.wait")
    run = dry_run(works_asynchronously, world_size=2)
    assert [event.kind for event in run.events if event.rank == 0] == ["all_reduce"]


def works_asynchronously() -> None:
    dist.all_reduce(torch.ones(1), async_op=True).wait()


def dumps() -> tuple[list[str], dict]:
    live.watch_groups()
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    left = live.dump()
    return [entry["profiling_name"] for entry in left["entries"]], left["pg_config"]


def test_a_dump_without_torchs_recorder_has_messages_alone(without):
    without("torch._C._distributed_c10d:_dump_fr_trace")
    names, groups = launch(dumps, backend="gloo")[0]
    assert names == ["gloo:send 0->1"]
    assert list(groups) == ["0"]


def test_a_dump_without_torchs_table_knows_of_no_group(without):
    without(f"{torch_private.C10D}:_world")
    _names, groups = launch(dumps, backend="gloo")[0]
    assert groups == {}


def test_without_the_jobs_store_it_is_said_what_is_missing(without):
    name = f"{torch_private.C10D}:_get_default_store"
    without(name)
    with pytest.raises(RuntimeError, match=f"this torch has no {name}"):
        live._store_of_its_own()


def test_groups_without_hooks_are_watched_without_messages(without):
    without(f"{torch_private.C10D}:ProcessGroup.register_pre_hook")
    names, _groups = launch(dumps, backend="gloo")[0]
    assert not any("send" in name for name in names)


# Private names that are not torch's, with the reason.
NOT_TORCHS = {
    "_DummyThread _Unpickler _actual_context _afterfork_registry _children _clear _config "
    "_current_exceptions _current_frames _data _default_context _exit _exit_function _fd "
    "_filename_map _finalizer_registry _fork_intent _getframe _handlerList _is_gil_enabled "
    "_kernels _ncallbacks _pid _registered_with_atexit _registry _resource_tracker "
    "_run_after_forkers _run_exitfuncs _send _stop _thread _threading_atexits "
    "_threads_queues": "CPython's",
    "_replace": "a public method of named tuples",
    "_code _fixtureinfo _pytest": "pytest's, in our plugin of it",
    "_input_request _instances _render_traceback_ _repr_mimebundle_": "IPython's, in a notebook",
    "_order_of_blame": "our own: a function of a class that sorts its objects",
}


def private_names_in(tree: ast.AST) -> Iterator[str]:
    """Names with an underscore that a module asks of others, but for what it asks of itself."""
    for node in ast.walk(tree):
        parts: list[str] = []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            parts = [node.attr]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts += alias.name.split(".")
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if not node.module.startswith("course_"):
                parts += [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ASK_BY_NAME:
            parts = [str(ast.literal_eval(a)) for a in node.args if isinstance(a, ast.Constant)]
        for part in parts:
            if re.match("_[^_]", part):
                yield part


ASK_BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "operator.attrgetter"}


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._cuda_init()",
        "work._source_rank()",
        "getattr(model, '_comm_hooks', None)",
        "from torch.utils._pytree import tree_leaves",
        "from torch.distributed.distributed_c10d import _world",
        "import torch._dynamo",
    ],
)
def test_a_private_name_is_noticed(line):
    assert list(private_names_in(ast.parse(line))) != []


def test_private_names_of_torch_are_looked_up_in_one_module():
    allowed = set(" ".join(NOT_TORCHS).split())
    asked = set()
    elsewhere = {}
    for package in (course_utils, course_checks, course_testing):
        for path in Path(package.__file__).parent.rglob("*.py"):
            names = set(private_names_in(ast.parse(path.read_text(encoding="utf-8"))))
            asked |= names
            if names - allowed:
                elsewhere[path.name] = names - allowed
    assert elsewhere == {}
    assert allowed - asked == set()  # nothing is allowed that nobody asks for
