"""NCCL's own troubles, put plainly."""

import re

from course_utils.launcher.errors import WorkerError, WorkerTimeout

_MORE = "os.environ['NCCL_DEBUG'] = 'INFO' in a cell before the launch shows more"
# Where peer-to-peer is broken NCCL hangs, also where the driver calls it fine (NVIDIA/nccl#2079).
_SILENT = (
    "If this is the first launch on these GPUs, the path from GPU to GPU (peer-to-peer) may be "
    "broken on this machine. Run os.environ['NCCL_P2P_DISABLE'] = '1' in a cell and launch again: "
    f"it is slower, and works. If it hangs all the same, {_MORE}."
)

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


def explain(error: WorkerError, gpus: int) -> None:
    """Give the error the reason that NCCL's or CUDA's words have, if they are among its own.

    Where several `gpus` hang and nothing else is known to be the reason, say what NCCL's may be.
    """
    if isinstance(error, WorkerTimeout) and gpus > 1 and error.pattern in (None, "running"):
        error.parts.append(_SILENT)
    if error.rank is None:
        return
    words = error.failures[0].headline + error.output[error.rank]
    told = _MEANS.items() if re.search("nccl|cuda|device type", words, re.IGNORECASE) else ()
    if found := next((meaning for said, meaning in told if re.search(said, words)), ""):
        error.parts[1] = f"Likely reason: {found}."
