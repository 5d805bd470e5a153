"""Names of torch that are private, or that are replaced in a rank or in the kernel.

A later torch may rename any of them. So they are looked up here and nowhere else, `launch` and
`check` work without each (tests/launcher/test_torch_private.py takes them away in turn), and
pyproject.toml admits only those versions of torch that were tried.
"""

import functools
import importlib
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class _Name(NamedTuple):
    purpose: str
    without: str  # what happens if torch does not have it


C10D = "torch.distributed.distributed_c10d"
_NO_RECORD = (
    "Nothing is recorded: trace=True is an error, a check fails with the name of what is missing, "
    "and a hang is reported from stacks alone."
)
_NOT_TOLD = "Nobody is told of a call that isn't waited for."
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
    # Read off stacks by name, as `name_in_stacks` says it.
    "torch.autograd.graph:_engine_run_backward": _Name(
        "Its frame tells that DDP's reducer has made a call, or that a rank waits for that.",
        "Such calls count as the learner's, and such a wait as work. An error in it that only says "
        "that a peer is gone may count as a cause.",
    ),
    "torch.nn.parallel:DistributedDataParallel._distributed_broadcast_coalesced": _Name(
        "Its frame tells that DDP does nothing but hand out buffers.",
        "A rank that stands there may also seem to compute.",
    ),
    "torch.nn.parallel:DistributedDataParallel._pre_forward": _Name(
        "Its frame tells that DDP waits before a forward pass.",
        "As without _distributed_broadcast_coalesced.",
    ),
    "torch.distributed.utils:_sync_params_and_buffers": _Name(
        "Its frame tells that DDP does nothing but hand out weights.",
        "As without _distributed_broadcast_coalesced.",
    ),
    "torch.distributed.utils:_verify_param_shape_across_processes": _Name(
        "Its frame tells that DDP does nothing but compare shapes.",
        "As without _distributed_broadcast_coalesced.",
    ),
    "torch.nn:Module._call_impl": _Name(
        "Its frame only passes a call on.", "It is named as what a rank waits in."
    ),
    "torch.nn:Module._wrapped_call_impl": _Name("As _call_impl.", "As without _call_impl."),
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
        "Wrapped, to see waits for the future of a call.",
        "A trace has no such waits, and a check asks for no wait.",
    ),
    "torch._C:Future.then": _Name(
        "Wrapped, to follow a future that is made from another.",
        "A trace has no waits for such futures, and a check asks for no wait.",
    ),
    "torch._C:_current_graph_task_id": _Name(
        "Says which backward pass has started a call, since DDP waits at its end.",
        "A trace has no waits of DDP, and a check asks for no wait.",
    ),
    "torch.autograd:Variable._execution_engine": _Name(
        "Calls back at the end of a backward pass.",
        "A trace has no waits of DDP, and a check asks for no wait.",
    ),
    "torch.distributed:Reducer._check_reducer_finalized": _Name(
        "Says whether DDP has left gradients unreduced.",
        "Nobody is told of parameters that took no part in the loss.",
    ),
    "torch.nn.parallel:DistributedDataParallel._comm_hooks": _Name(
        "Says whether the learner decides what DDP averages.",
        "A model with such a hook may be said to differ between ranks.",
    ),
    "torch.nn:Parameter._in_backward_optimizers": _Name(
        "Says whether a parameter is changed within the backward pass.",
        "Such a model may be said to differ between ranks.",
    ),
    "torch:Tensor._version": _Name(
        "Says whether parameters have changed since they were looked at.",
        "Nobody is told of gradients that were not averaged, or not heard of.",
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
        "Wrapped, to see who waits.",
        f"A trace has no waits, and a check asks for none. {_NOT_TOLD} "
        "What an answer receives may arrive before its wait.",
    ),
    f"{C10D}:Work.get_future": _Name(
        "Wrapped, to follow the future of a call, and called, to see when the call is complete.",
        "A trace has no waits for futures, and a check asks for no wait. An asynchronous call "
        "seems to end with the wait for it, "
        f"and of a queued one the GPU's own times are unknown. {_NOT_TOLD}",
    ),
    f"{C10D}:Work.is_completed": _Name(
        "Wrapped, to see who asks whether a call is complete.",
        _NOT_TOLD,
    ),
    f"{C10D}:Work.synchronize": _Name("Wrapped, to see who waits.", _NOT_TOLD),
    f"{C10D}:Work.block_current_stream": _Name("As synchronize.", "As without synchronize."),
    f"{C10D}:Work.result": _Name("As synchronize.", "As without synchronize."),
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
    # Checks: what an answer does besides its calls.
    f"{C10D}:Store": _Name(
        "Its methods are wrapped in a rank that runs an answer.",
        "An answer may use a store to get round the exercise.",
    ),
    "torch._C._distributed_c10d:Backend": _Name(
        "As Store.", "An answer may call a backend to get round the exercise."
    ),
    "torch._C:PyTorchFileWriter": _Name(
        "Wrapped: C++ opens files for it, of which Python reports nothing.",
        "An answer may hand tensors on by torch.save.",
    ),
    "torch._C:DisableTorchFunctionSubclass": _Name(
        "Keeps a tensor's class from answering while its numbers are read.",
        "A class of the answer's own may hand in other numbers than it holds.",
    ),
    f"{C10D}:ProcessGroup.send": _Name(
        "Wrapped, so that a tensor which is changed before the wait for it is noticed.",
        "An answer that does so may pass by chance.",
    ),
    f"{C10D}:ProcessGroup.recv": _Name(
        "Wrapped, so that nothing arrives before the wait for it.",
        "An answer that reads it too early may pass by chance.",
    ),
    f"{C10D}:ProcessGroup.recv_anysource": _Name("As recv.", "As without recv."),
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
# Arguments and variables of torch's functions, as they are called in these functions' frames.
LOCALS = {
    "timeout": _Name(
        "Of the caller of _process_group_name: how long a new group waits.",
        "Every wait for a new group counts as one that may time out.",
    ),
    "tag": _Name("A message's tag.", "All messages of two ranks count as of one kind."),
    "input_split_sizes": _Name(
        "How an all_to_all_single parts its tensor.", "It counts as parted evenly."
    ),
    "op": _Name("How a call reduces.", "Ranks that reduce differently aren't noticed."),
    "reduceOp": _Name("As op, of a functional collective.", "As without op."),
    "self": _Name(
        "The model in whose forward pass DDP has made a call.",
        "An evaluation counts as a step of training.",
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

    A subclass may have a method of its own, and some attributes only objects have.
    """
    owner, attribute = _owner_and_attribute(name)
    if owner is None:
        return None
    return getattr(thing, attribute, None)


def name_in_stacks(name: str) -> str:
    """What frames of a function of NAMES are called; if torch has none, "", as no frame is."""
    function = find(name)
    return "" if function is None else function.__name__


def local(frame: FrameType, name: str) -> Any:
    """What a function of torch has in a variable of LOCALS; None if it has no such variable."""
    if name not in LOCALS:
        raise KeyError(name)
    return frame.f_locals.get(name)


def hook(
    group: Any, number: int, before: Callable | None = None, after: Callable | None = None
) -> None:
    """Have a process group call functions around each of its calls; do nothing if torch can't.

    They run amid code that torch.compile may be compiling: it would compile them as well and warn
    about it, if it weren't told to leave them.

    Args:
        group: The process group.
        number: Under which the functions are registered. Lower ones run first.
        before: Is called with what torch says of a call before it is issued.
        after: The same once it is issued.
    """
    import torch  # here: pictures on the site's pages read this module, and have no torch

    register_before = find_in(group, f"{C10D}:ProcessGroup.register_pre_hook")
    if before is not None and register_before is not None:
        register_before(number, torch.compiler.disable(before))
    register_after = find_in(group, f"{C10D}:ProcessGroup.register_post_hook")
    if after is not None and register_after is not None:
        register_after(number, torch.compiler.disable(after))


def wrap(name: str, make: Callable[[Any], Callable]) -> None:
    """Replace a function of torch by what `make` makes of it; do nothing if torch has none."""
    function = find(name)
    if function is None:
        return
    owner, attribute = _owner_and_attribute(name)
    setattr(owner, attribute, functools.wraps(function)(make(function)))
