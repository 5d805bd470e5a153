"""NCCL's own troubles: looked for before they cost an hour, and its words put plainly."""

import os
import re
import shutil

import torch
import torch.distributed as dist

from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.launch import launch
from course_utils.launcher.listener import Listener

_PROBE_S = 60.0  # eight GPUs need some ten seconds to find each other
_SHM = 1 << 27  # bytes; a container's default of 64 MiB is too little (NVIDIA/nccl#342)
_MORE = "os.environ['NCCL_DEBUG'] = 'INFO' in a cell before the launch shows more"
_probed = 1  # so many GPUs have added up a number in this kernel

# What an error or a rank's output says, as a pattern, the special before the general, and what it
# means. tests/devices/test_nccl.py has a real message for each, with its source.
_MEANS = {
    r"Duplicate GPU detected": "two ranks use one GPU. Each rank's own is "
    "torch.device('cuda', int(os.environ['LOCAL_RANK'])); to share one on purpose use "
    "launch(..., backend='gloo', device='cuda')",
    r"shared memory segment|/dev/shm/nccl|posix_fallocate": "/dev/shm is too small or full. Start "
    "the container with --shm-size=1g or --ipc=host, or have NCCL do without, which is slower: "
    "os.environ['NCCL_SHM_DISABLE'] = '1'",
    r"Watchdog caught collective operation timeout": "a collective that not every rank came to ran "
    "into the group's own timeout, and torch then ends the process. Give init_process_group() a "
    "longer timeout than launch, which says who is missing",
    r"no socket interface found": "NCCL_SOCKET_IFNAME names an interface that is not here",
    r"out of memory": "the GPU's memory is full: use a smaller batch or model, and look at "
    "nvidia-smi for other processes on it",
    r"device-side assert": "an index is out of range, such as a label beyond the classes. The same "
    "code on the CPU (device='cpu') names the line",
    r"initialize CUDA in forked subprocess": "a process that this rank forked, such as a "
    "DataLoader's worker, uses CUDA: move tensors to the GPU in the rank itself",
    r"No backend type associated with device type cpu": "NCCL moves GPU tensors only: move the "
    "tensor to the GPU, or leave backend= out, and gloo moves those of the CPU",
    r"no kernel image is available": "this torch was not built for a GPU of this kind",
    r"unhandled cuda error": f"a call of CUDA failed inside NCCL; {_MORE}",
    r"unhandled system error": f"the system refused NCCL a socket or memory; {_MORE}",
}


def explain(error: WorkerError) -> None:
    """Give the error the reason that NCCL's or CUDA's words have, if they are among its own."""
    if error.rank is None:
        return
    words = error.failures[0].headline + error.output[error.rank]
    told = _MEANS.items() if re.search("nccl|cuda|device type", words, re.IGNORECASE) else ()
    if found := next((meaning for said, meaning in told if re.search(said, words)), ""):
        error.parts[1] = f"Likely reason: {found}."


def small_shm() -> str:
    """A line about shared memory that is too small for NCCL, where it is."""
    if not os.path.isdir("/dev/shm") or os.environ.get("NCCL_SHM_DISABLE") == "1":
        return ""
    if (free := shutil.disk_usage("/dev/shm").free) >= _SHM:
        return ""
    return f"""launch: /dev/shm has {free / 2**20:.0f} MiB left, and NCCL takes some 10 MB of it \
for each connection. If it fails, start the container with --shm-size=1g or --ipc=host."""


def probe(world_size: int, backend: str, listeners: list[Listener]) -> None:
    """Have the GPUs add up one number, unless as many have done so in this kernel.

    Where peer-to-peer is broken this hangs, also where the driver calls it fine
    (NVIDIA/nccl#2079); better here than somewhere in a learner's training.

    Raises:
        RuntimeError: They were not done in time; the message says what to try.
    """
    global _probed
    if world_size <= _probed:
        return
    how = {"world_size": world_size, "backend": backend, "listeners": listeners}
    try:
        launch(_add_up, timeout=_PROBE_S, **how)
    except WorkerTimeout:
        raise RuntimeError(
            f"{world_size} GPUs could not add up one number within {_PROBE_S:g} seconds; nothing "
            "of yours was started. Most often the path from GPU to GPU (peer-to-peer) is broken on "
            "such a machine. Run os.environ['NCCL_P2P_DISABLE'] = '1' in a cell and launch again: "
            f"it is slower, and works. If it hangs all the same, {_MORE}."
        ) from None
    _probed = world_size


def _add_up() -> float:
    one = torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(one)
    return one.item()
