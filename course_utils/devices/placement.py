"""Which backend and device a rank gets, decided without a CUDA context."""

from dataclasses import dataclass

import torch.distributed as dist

from course_utils.devices.driver import usable_gpus
from course_utils.launcher import torch_private


@dataclass(frozen=True)
class Placement:
    """What the ranks of one launch get."""

    backend: str | None = "gloo"  # for `init_process_group`; None: the learner makes the group
    # By global rank "cpu" or "cuda:K", K among the GPUs that the rank sees. Empty: all on the CPU.
    devices: tuple[str, ...] = ()
    notice: str = ""  # one line that says what was chosen; empty if the caller chose all of it
    visible: tuple[str, ...] = ()  # by global rank CUDA_VISIBLE_DEVICES; empty if it stays as it is
    shares_by_nccl: bool = False  # several ranks use one GPU under NCCL

    @property
    def needs_cuda(self) -> bool:
        """Whether any rank computes on a GPU."""
        return any(device != "cpu" for device in self.devices)


CPU = Placement()


def gpu_count() -> int:
    """Count the GPUs that torch can use."""
    return len(usable_gpus().names)


def place(
    backend: str | None,
    device: str,
    world_size: int,
    nodes: int = 1,
    share_gpus: bool = False,
) -> Placement:
    """Choose the backend and the devices from the options of `launch`; ranks share this machine.

    By default ranks run on GPUs if there are at least two, and one for each rank. On a machine with
    one GPU they run on the CPU, one rank as well as two, so that their times can be compared.

    If there are several nodes, each sees only the GPUs of its ranks. So `cuda:{LOCAL_RANK}` is the
    rank's own GPU as on real nodes, for the learner and for torch, which uses it for NCCL.

    Raises:
        ValueError: The choice is unknown, or this machine or this torch cannot do it.
    """
    count = gpu_count() if device != "cpu" else 0
    _refuse(backend, device, world_size, count, share_gpus)
    has_nccl = dist.is_nccl_available()
    one_each = has_nccl and world_size <= count
    chosen_by_default = device == "auto" and backend in ("auto", None)
    if chosen_by_default:
        on_gpu = one_each and count > 1
    else:
        on_gpu = device == "cuda" or backend == "nccl"
    if on_gpu:
        visible_gpus = torch_private.find("torch.cuda:_parse_visible_devices")
        gpus = list(range(count)) if visible_gpus is None else visible_gpus()[:count]
        devices, visible = _share_out(gpus, world_size, nodes)
    else:
        devices, visible = ("cpu",) * world_size, ()
    if backend == "nccl" and world_size > count:
        notice = _notice_of_sharing(world_size, count)
        return Placement(backend, devices, notice, visible, shares_by_nccl=True)
    if backend != "auto":
        return Placement(backend, devices, "", visible)
    if on_gpu and one_each:  # under NCCL alone a collective on a CPU tensor would be an error
        return Placement("cpu:gloo,cuda:nccl", devices, "launch: NCCL, one GPU per rank", visible)
    if on_gpu:
        why = _counts(world_size, count) if has_nccl else "this torch has no NCCL"
        return Placement("gloo", devices, f"launch: gloo on shared GPUs ({why})", visible)
    return Placement("gloo", devices, _notice_of_cpu(device, world_size, count), visible)


def _notice_of_cpu(device: str, world_size: int, count: int) -> str:
    """Why the ranks run on the CPU, and what to type where there is a GPU."""
    if device == "cpu":
        return "launch: gloo on the CPU (device='cpu')"
    if not count:
        return f"launch: gloo on the CPU ({_no_gpu()})"
    if not dist.is_nccl_available():
        return "launch: gloo on the CPU (this torch has no NCCL; device='cuda' uses GPUs by gloo)"
    ways = "device='cuda' uses it"
    if world_size > 1:
        gpus = "it" if count == 1 else "them"
        ways = f"device='cuda' shares {gpus} by gloo, backend='nccl', share_gpus=True by NCCL"
    return f"launch: gloo on the CPU ({_counts(world_size, count)}; {ways})"


def _notice_of_sharing(world_size: int, count: int) -> str:
    choice = f"launch: NCCL, {_counts(world_size, count)}"
    return f"{choice}: sharing a GPU is experimental in NCCL, for about two ranks, and may hang"


def _no_gpu() -> str:
    refusal = usable_gpus().refusal
    return f"CUDA cannot use the GPU: {refusal}" if refusal else "no GPU here"


def _share_out(
    gpus: list[int] | list[str], world_size: int, nodes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Each rank's device, and the CUDA_VISIBLE_DEVICES of its node.

    Args:
        gpus: Numbers or names of all GPUs.
        world_size: How many ranks there are.
        nodes: How many nodes; one sees this machine as it is, with GPUs that no rank gets.
    """
    gpu_of_rank = [gpus[rank % len(gpus)] for rank in range(world_size)]
    if nodes == 1:
        return tuple(f"cuda:{gpus.index(gpu)}" for gpu in gpu_of_rank), ()
    ranks_per_node = world_size // nodes
    devices, visible = [], []
    for rank, gpu in enumerate(gpu_of_rank):
        first_rank = rank - rank % ranks_per_node
        gpus_of_ranks = gpu_of_rank[first_rank : first_rank + ranks_per_node]
        gpus_of_node = list(dict.fromkeys(gpus_of_ranks))  # each once, in their order
        devices.append(f"cuda:{gpus_of_node.index(gpu)}")
        visible.append(",".join(map(str, gpus_of_node)))
    return tuple(devices), tuple(visible)


def _refuse(backend: str | None, device: str, world_size: int, gpus: int, share_gpus: bool) -> None:
    if backend not in ("auto", "gloo", "nccl", None):
        hint = " (MPI is not built into torch's wheels)" if backend == "mpi" else ""
        raise ValueError(f"backend={backend!r}{hint}: choose 'auto', 'gloo', 'nccl' or None")
    if device not in ("auto", "cpu", "cuda"):
        hint = " (launch gives each rank its own GPU)" if str(device)[:5] == "cuda:" else ""
        raise ValueError(f"device={device!r}{hint}: choose 'auto', 'cpu' or 'cuda'")
    if share_gpus and backend != "nccl":
        alternative = "gloo shares GPUs with device='cuda' alone"
        raise ValueError(f"share_gpus=True is for backend='nccl': {alternative}")
    if device == "cuda" and not gpus:
        raise ValueError(f"device='cuda' needs a GPU ({_no_gpu()}); use device='cpu'")
    if backend == "nccl":
        _refuse_nccl(device, world_size, gpus, share_gpus)


def _refuse_nccl(device: str, world_size: int, gpus: int, share_gpus: bool) -> None:
    if not dist.is_nccl_available():
        raise ValueError("backend='nccl': this torch was built without NCCL; use backend='gloo'")
    if device == "cpu":
        raise ValueError("NCCL moves GPU tensors only: with device='cpu' use backend='gloo'")
    counts = _counts(world_size, gpus)
    if not gpus:
        raise ValueError(f"NCCL needs a GPU: {counts} ({_no_gpu()}); use backend='gloo'")
    if world_size > gpus and not share_gpus:
        fewer = "world_size=1" if gpus == 1 else f"world_size={gpus} or fewer"
        ways = f"{fewer}, backend='gloo', or share_gpus=True, which is experimental in NCCL"
        raise ValueError(f"NCCL takes one GPU per rank: {counts}; use {ways}")


def _counts(ranks: int, gpus: int) -> str:
    ranks_word = "rank" if ranks == 1 else "ranks"
    gpus_word = "GPU" if gpus == 1 else "GPUs"
    return f"{ranks} {ranks_word}, {gpus} {gpus_word}"
