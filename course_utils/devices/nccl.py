"""Trouble with NCCL: found before it costs an hour, and its words put plainly."""

import os
import re
import shutil

import torch
import torch.distributed as dist

from course_utils.launcher.errors import WorkerError, WorkerTimeout, likely_reason
from course_utils.launcher.language import N_, _, sentences
from course_utils.launcher.launch import launch
from course_utils.launcher.listener import Listener

_PROBE_S = 60.0  # eight GPUs need some ten seconds to find each other
_SHM_BYTES = 1 << 27  # a container's default of 64 MiB is too little (NVIDIA/nccl#342)
# All that NCCL and torch's process group for it read from the environment.
_PREFIXES = ("NCCL_", "TORCH_NCCL_")
_NAMES = ("CUDA_VISIBLE_DEVICES", "TORCH_DIST_USE_NCCL2")
# By settings, how many ranks have added up a number in this kernel.
_most_ranks: dict[frozenset, int] = {}
_SHM_IS_FULL = N_(
    "/dev/shm is too small or full. Start the container with --shm-size=1g or --ipc=host, or have "
    "NCCL do without, which is slower: os.environ['NCCL_SHM_DISABLE'] = '1'"
)
_GIVEN_UP = N_(
    "an earlier call of this group had failed, or this one, on this rank or elsewhere, and NCCL "
    "gave the group up. The first error, in the output of the ranks, tells why"
)
_FORKED = "initialize CUDA in forked subprocess"
# What words of NCCL, torch or CUDA mean, the special before the general. They are the very words of
# the pinned libraries: tests/devices/test_nccl.py looks each of them up there, so that it turns red
# when a newer NCCL says it differently.
MEANINGS = {
    "Multiple Ranks are using the same GPU/Partition": N_(
        "two ranks use one GPU. Each rank's own is "
        "torch.device('cuda', int(os.environ['LOCAL_RANK'])). To share one on purpose use "
        "launch(..., backend='gloo', device='cuda') or launch(..., backend='nccl', share_gpus=True)"
    ),
    "shared memory segment": _SHM_IS_FULL,
    "fallocate: Failed to extend": _SHM_IS_FULL,
    "Watchdog caught collective operation timeout": N_(
        "a collective that not every rank came to ran into the group's own timeout, and torch then "
        "ends the process. Give init_process_group() a longer timeout than launch, which says who "
        "is missing"
    ),
    "NCCL operation timed out": N_(
        "a collective that not every rank came to ran into the group's own timeout. Give "
        "init_process_group() a longer timeout than launch, which says who is missing"
    ),
    "NCCL communicator was aborted after a previous error": _GIVEN_UP,
    "NCCL operation failed": _GIVEN_UP,
    "no socket interface found": N_("NCCL_SOCKET_IFNAME names an interface that is not here"),
    "Mismatched NCCL version detected": N_(
        "the ranks have loaded different versions of NCCL: look at LD_LIBRARY_PATH and LD_PRELOAD"
    ),
    "out of memory": N_(
        "the GPU's memory is full: use a smaller batch or model, and look at "
        "nvidia-smi for other processes on it"
    ),
    "device-side assert": N_(
        "an index is out of range, such as a label beyond the classes. The same "
        "code on the CPU (device='cpu') names the line"
    ),
    _FORKED: N_(
        "a process that this rank forked, such as a DataLoader's worker, uses CUDA: move "
        "tensors to the GPU in the rank itself"
    ),
    "No backend type associated with device type ": N_(
        "NCCL moves GPU tensors only: move the "
        "tensor to the GPU, or leave backend= out, and gloo moves those of the CPU"
    ),
    "no kernel image is available": N_("this torch was not built for a GPU of this kind"),
    "unhandled cuda error": N_(
        "a call of CUDA failed inside NCCL; os.environ['NCCL_DEBUG'] = 'INFO' in a cell before "
        "the launch shows more"
    ),
    "unhandled system error": N_(
        "the system refused NCCL a socket or memory; os.environ['NCCL_DEBUG'] = 'INFO' in a cell "
        "before the launch shows more"
    ),
}


def explain(error: WorkerError) -> None:
    """Give an error its likely reason, if NCCL's or CUDA's words are in it or in the output."""
    if error.rank is None:
        return
    headline = error.failures[0].headline
    words = headline + error.output[error.rank]
    if not re.search("nccl|cuda|device type", words, re.IGNORECASE):
        return
    for known, meaning in MEANINGS.items():
        if known == _FORKED and _FORKED in headline and error.parts[1]:
            continue  # the reason is there already, and the failure's place tells more than words
        if known in words:
            error.parts[1] = likely_reason(_(meaning))
            return


def small_shm() -> str:
    """Say that shared memory is too small for NCCL, or nothing."""
    if not os.path.isdir("/dev/shm") or os.environ.get("NCCL_SHM_DISABLE") == "1":
        return ""
    free = shutil.disk_usage("/dev/shm").free
    if free >= _SHM_BYTES:
        return ""
    return _(
        "launch: /dev/shm has {free_mib:.0f} MiB left, and NCCL takes some 10 MB of it for each "
        "connection. If it fails, start the container with --shm-size=1g or --ipc=host.",
        free_mib=free / 2**20,
    )


def share_one_gpu() -> None:
    """In a rank, before it joins: let NCCL accept that several ranks use one GPU.

    NCCL's kernels wait for each other, so those of all ranks must fit on the GPU at once: each rank
    gets few blocks (CTAs). What the learner has set stays.
    """
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    os.environ.setdefault("NCCL_MAX_CTAS", "4")


def probe(world_size: int, backend: str, listeners: list[Listener], shared: bool = False) -> None:
    """Have the GPUs add up one number, unless they have done so in this kernel.

    They do so again once NCCL has other settings, or other GPUs are visible. If peer-to-peer is
    broken this hangs, even if the driver calls it fine (NVIDIA/nccl#2079); better here than
    somewhere in a learner's training.

    Args:
        world_size: How many ranks.
        backend: As the launch will have it.
        listeners: Those of the launch that give each rank its device.
        shared: Whether several ranks use one GPU.

    Raises:
        RuntimeError: They could not; the message says what to try.
    """
    if world_size == 1:
        return
    settings = _settings(shared)
    if world_size <= _most_ranks.get(settings, 0):
        return
    options = {"world_size": world_size, "backend": backend, "listeners": listeners}
    try:
        launch(_add_up, timeout=_PROBE_S, **options)
    except WorkerTimeout:
        failed = _(
            "{world_size} ranks could not add up one number by NCCL within {seconds:g} seconds; "
            "nothing of yours was started.",
            world_size=world_size,
            seconds=_PROBE_S,
        )
        raise RuntimeError(sentences(failed, _way_on(shared))) from None
    except WorkerError as error:
        headline, likely = error.failures[0].headline, error.parts[1]
        failed = _(
            "{world_size} ranks could not add up one number by NCCL; nothing of yours was started.",
            world_size=world_size,
        )
        raise RuntimeError(f"{failed}\n{headline}\n{likely}".rstrip()) from None
    _most_ranks[settings] = world_size


def _settings(shared: bool) -> frozenset:
    """All that a success depends on: NCCL's settings in the environment, and the visible GPUs."""
    settings = {("shared", str(shared))}
    for name, value in os.environ.items():
        if name.startswith(_PREFIXES) or name in _NAMES:
            settings.add((name, value))
    return frozenset(settings)


def _way_on(shared: bool) -> str:
    """What to try when the GPUs have not added up a number in time."""
    if shared:
        return _(
            "Sharing a GPU is experimental in NCCL. Use launch(..., device='cuda'): then ranks "
            "share the GPU through gloo."
        )
    return _(
        "Most often the path from GPU to GPU (peer-to-peer) is broken on such a machine. Run "
        "os.environ['NCCL_P2P_DISABLE'] = '1' in a cell and launch again: it is slower, and works. "
        "If it hangs all the same, os.environ['NCCL_DEBUG'] = 'INFO' in a cell before the launch "
        "shows more."
    )


def _add_up() -> float:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    number = torch.ones(1, device=device)
    dist.all_reduce(number)
    return number.item()
