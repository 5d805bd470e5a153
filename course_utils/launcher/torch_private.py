"""Names of torch that are private, or that are replaced in a rank or in the kernel.

A later torch may rename any of them. So they are looked up here and nowhere else, `launch` works
without each (tests/launcher/test_torch_private.py takes them away in turn), and pyproject.toml
admits only those versions of torch that were tried.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class _Name(NamedTuple):
    purpose: str
    without: str  # what happens if torch does not have it


C10D = "torch.distributed.distributed_c10d"
_NO_RECORD = (
    "Nothing is recorded: trace=True is an error, and a hang is reported from stacks alone."
)
NAMES = {  # module:path
    # Launcher.
    "torch.distributed.rendezvous:_agent_store_serves": _Name(
        "Replaced, so that a MASTER_PORT that the learner chose works as under plain `python`.",
        "A group with a port of the learner's own waits for a server that nobody runs.",
    ),
    "torch.distributed.launcher.api:launch_agent": _Name(
        "Replaced in a rank, so that torch's own launcher is refused there.",
        "It isn't refused, and fails or hangs.",
    ),
    "torch._C:_error_if_any_worker_fails": _Name(
        "Says that a worker of a DataLoader was killed.",
        "The broken connection to that worker is shown instead.",
    ),
    # Record: what is seen at all.
    f"{C10D}:_register_pg_in_world": _Name(
        "Wrapped: here a process group that was made gets its hooks.", _NO_RECORD
    ),
    f"{C10D}:ProcessGroup.register_pre_hook": _Name(
        "The hook that sees a call before it is issued.", _NO_RECORD
    ),
    f"{C10D}:ProcessGroup.register_post_hook": _Name(
        "The hook that sees a call after it was issued.", _NO_RECORD
    ),
    "torch._C._distributed_c10d:HookOpName": _Name(
        "The numbers by which hooks call operations.", _NO_RECORD
    ),
    # Record: more of it.
    f"{C10D}:_process_group_name": _Name(
        "Wrapped: `new_group` asks for a name, also in ranks that are no members.",
        "The record has no calls of new_group.",
    ),
    f"{C10D}:ProcessGroup._get_backend": _Name(
        "Says whether a group's calls block or are queued.",
        "Calls of NCCL count as blocking, and every wait as one that may time out.",
    ),
    "torch._C._distributed_c10d:Backend.Options._timeout": _Name(
        "Says how long a group waits.", "Every wait counts as one that may time out."
    ),
    f"{C10D}:Work._source_rank": _Name(
        "Says who has sent to a receive from any rank.",
        "The sender stays unknown, and a trace cannot be replayed.",
    ),
    "torch._C:Future.wait": _Name(
        "Wrapped, to see waits for the future of a call.", "A trace has no such waits."
    ),
    "torch._C:Future.then": _Name(
        "Wrapped, to follow a future that is made from another.",
        "A trace has no waits for such futures.",
    ),
    "torch._C:_current_graph_task_id": _Name(
        "Says which backward pass has started a call, since DDP waits at its end.",
        "A trace has no waits of DDP.",
    ),
    "torch.autograd:Variable._execution_engine": _Name(
        "Calls back at the end of a backward pass.", "A trace has no waits of DDP."
    ),
    "torch.distributed:Reducer._check_reducer_finalized": _Name(
        "Says whether DDP has left gradients unreduced.",
        "Nobody is told of parameters that took no part in the loss.",
    ),
    "torch.distributed.c10d_logger:__file__": _Name(
        "Its frames lie between the learner's and those of torch.distributed.",
        "An asynchronous call may count as one that the caller waits for, and the other way round.",
    ),
    "torch.distributed.algorithms.join:__file__": _Name(
        "Its frames tell that DDP's join has made a call.",
        "Such a call counts as the learner's.",
    ),
    # Record: public, but wrapped.
    f"{C10D}:Work.wait": _Name(
        "Wrapped, to see who waits.", "A trace has no waits; every asynchronous call seems lost."
    ),
    f"{C10D}:Work.get_future": _Name(
        "Wrapped, to follow the future of a call, and called, to see when the call is complete.",
        "A trace has no waits for futures. An asynchronous call seems to end with the wait for it, "
        "and of a queued one the GPU's own times are unknown.",
    ),
    f"{C10D}:Store.get": _Name(
        "Wrapped, so that a stack shows a wait in the store.", "Such a wait looks like work."
    ),
    f"{C10D}:Store.wait": _Name("As Store.get.", "As without Store.get."),
    "torch.nn.parallel:DistributedDataParallel.__init__": _Name(
        "Wrapped, to follow a model from its beginning.",
        "Nobody is told of gradients that were not averaged.",
    ),
    # Dry runs.
    "torch.testing._internal.distributed.fake_pg:FakeStore": _Name(
        "The store of a group whose other ranks are pretended.", "dry_run refuses to run."
    ),
    "torch._C._distributed_c10d:FakeWork.wait": _Name(
        "Replaced by Work.wait, which the recorder sees.", "A dry run shows no waits."
    ),
    # Flight recorder.
    "torch._C._distributed_c10d:_dump_fr_trace": _Name(
        "Hands out what a rank's flight recorder has noted.",
        "explain_hangs knows messages alone.",
    ),
    f"{C10D}:_world": _Name(
        "Has all groups of a rank, with their names.", "explain_hangs knows of no group."
    ),
    f"{C10D}:_get_default_store": _Name(
        "The store in which the job has met: through it the dumps come together.",
        "explain_hangs says that it cannot.",
    ),
    # Devices.
    "torch._C:_cuda_getDeviceCount": _Name(
        "Wrapped, to note the line of the kernel that starts CUDA.",
        "The refusal names a cell, or nothing, instead of that line.",
    ),
    "torch._C:_cuda_init": _Name("As _cuda_getDeviceCount.", "As without _cuda_getDeviceCount."),
    "torch.distributed:Backend._ensure_backend_registered": _Name(
        "Called in the kernel, so that no rank looks for gloo among all installed packages.",
        "Every launch takes some milliseconds more.",
    ),
    "torch._dynamo.trace_rules:clear_lru_cache": _Name(
        "Called in the kernel, so that no rank copies these caches' pages to clear them.",
        "Every launch takes some milliseconds more.",
    ),
    "torch.cuda:_parse_visible_devices": _Name(
        "Says which GPUs CUDA_VISIBLE_DEVICES leaves, by number or by name.",
        "They are counted from 0, which is wrong for several nodes on some of a machine's GPUs.",
    ),
}


def find(name: str) -> Any:
    """What this torch has by a name of NAMES; None if it has no such thing."""
    owner, attribute = _owner_and_attribute(name)
    if owner is None:  # None has an `__init__`, too
        return None
    return getattr(owner, attribute, None)


def _owner_and_attribute(name: str) -> tuple[Any, str]:
    """The module or class that has a name of NAMES, None if torch lacks it; and the last part."""
    if name not in NAMES:
        raise KeyError(name)
    module, _, path = name.partition(":")
    *classes, attribute = path.split(".")
    try:
        owner = importlib.import_module(module)
        for name_of_class in classes:
            owner = getattr(owner, name_of_class)
    except (ImportError, AttributeError):
        return None, attribute
    return owner, attribute


def find_in(thing: Any, name: str) -> Any:
    """What an object has by the last part of a name of NAMES, such as a method; None if nothing.

    A subclass may have a method of its own.
    """
    if find(name) is None:
        return None
    return getattr(thing, name.rpartition(".")[2], None)


def wrap(name: str, make: Callable[[Any], Callable]) -> None:
    """Replace a function of torch by what `make` makes of it; do nothing if torch has none."""
    function = find(name)
    if function is None:
        return
    owner, attribute = _owner_and_attribute(name)
    setattr(owner, attribute, functools.wraps(function)(make(function)))
