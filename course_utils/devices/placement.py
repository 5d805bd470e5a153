"""Which backend and device a rank gets, decided without a CUDA context."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_utils.devices.driver import usable_gpus


@dataclass(frozen=True)
class Placement:
    """What the ranks of one launch get."""

    backend: str | None = "gloo"  # for `init_process_group`; None: the learner makes the group
    # By global rank "cpu" or "cuda:K", of the GPUs that the rank sees; empty for the CPU alone.
    devices: tuple[str, ...] = ()
    notice: str = ""  # one line that says what "auto" chose; empty when the caller chose
    visible: tuple[str, ...] = ()  # likewise CUDA_VISIBLE_DEVICES; empty where it stays as it is


CPU = Placement()


def gpu_count() -> int:
    """Count the GPUs that torch can use."""
    return len(usable_gpus().names)


def place(backend: str | None, device: str, world_size: int, nodes: int = 1) -> Placement:
    """Choose the backend and the devices from the options of `launch`; ranks share this machine.

    Each of several nodes sees the GPUs of its own ranks alone. So `cuda:{LOCAL_RANK}` is the
    rank's own as on real nodes, for the learner and for torch, which takes it for NCCL.

    Raises:
        ValueError: The choice is unknown, or this machine or this torch cannot do it.
    """
    count = gpu_count() if device != "cpu" else 0
    _refuse(backend, device, world_size, count)
    enough = world_size <= count and dist.is_nccl_available()
    on_gpu = device == "cuda" or backend == "nccl" or (backend in ("auto", None) and enough)
    devices, visible = ("cpu",) * world_size, ()
    if on_gpu:
        mine = torch.cuda._parse_visible_devices()[:count]
        devices, visible = _share_out(mine, world_size, nodes)
    if backend != "auto":
        return Placement(backend, devices, "", visible)
    if enough:  # under NCCL alone a collective on a CPU tensor would be an error
        return Placement("cpu:gloo,cuda:nccl", devices, "launch: NCCL, one GPU per rank", visible)
    why = "this torch has no NCCL" if world_size <= count else _counts(world_size, count)
    if not count:
        why = "device='cpu'" if device == "cpu" else _no_gpu()
    where = "shared GPUs" if on_gpu else "the CPU"
    return Placement("gloo", devices, f"launch: gloo on {where} ({why})", visible)


def _no_gpu() -> str:
    refusal = usable_gpus().refusal
    return f"CUDA cannot use the GPU: {refusal}" if refusal else "no GPU here"


def _share_out(
    gpus: list[int] | list[str], world_size: int, nodes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Each rank's device, and what its node sees of these GPUs, by number or by name."""
    each = world_size // nodes
    own = [gpus[rank % len(gpus)] for rank in range(world_size)]
    seen = [list(dict.fromkeys(own[rank // each * each :][:each])) for rank in range(world_size)]
    if nodes == 1:  # this machine as it is, GPUs that no rank gets included
        return tuple(f"cuda:{gpus.index(gpu)}" for gpu in own), ()
    devices = (f"cuda:{mine.index(gpu)}" for gpu, mine in zip(own, seen, strict=True))
    return tuple(devices), tuple(",".join(map(str, mine)) for mine in seen)


def _refuse(backend: str | None, device: str, world_size: int, gpus: int) -> None:
    if backend not in ("auto", "gloo", "nccl", None):
        hint = " (MPI is not built into torch's wheels)" if backend == "mpi" else ""
        raise ValueError(f"backend={backend!r}{hint}: choose 'auto', 'gloo', 'nccl' or None")
    if device not in ("auto", "cpu", "cuda"):
        hint = " (launch gives each rank its own GPU)" if str(device)[:5] == "cuda:" else ""
        raise ValueError(f"device={device!r}{hint}: choose 'auto', 'cpu' or 'cuda'")
    if device == "cuda" and not gpus:
        raise ValueError(f"device='cuda' needs a GPU ({_no_gpu()}); use device='cpu'")
    if backend != "nccl":
        return
    if not dist.is_nccl_available():
        raise ValueError("backend='nccl': this torch was built without NCCL; use backend='gloo'")
    if device == "cpu":
        raise ValueError("NCCL moves GPU tensors only: with device='cpu' use backend='gloo'")
    if world_size > gpus:
        fewer = f"world_size={gpus} or fewer, or " if gpus else ""
        why = f"{_counts(world_size, gpus)}{'' if gpus else f' ({_no_gpu()})'}"
        raise ValueError(f"NCCL needs one GPU per rank: {why}; use {fewer}backend='gloo'")


def _counts(ranks: int, gpus: int) -> str:
    return f"{ranks} rank{'s' * (ranks != 1)}, {gpus} GPU{'s' * (gpus != 1)}"
