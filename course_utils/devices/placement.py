"""Which backend and device a rank gets, decided without a CUDA context."""

from dataclasses import dataclass

import torch.distributed as dist

from course_utils.devices.driver import usable_gpus
from course_utils.launcher import torch_private
from course_utils.launcher.language import _, ngettext


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
    count = 0
    if device != "cpu":
        count = gpu_count()
    _refuse(backend, device, world_size, count, share_gpus)
    has_nccl = dist.is_nccl_available()
    one_each = has_nccl and world_size <= count
    chosen_by_default = device == "auto" and backend in ("auto", None)
    if chosen_by_default:
        on_gpu = one_each and count > 1
    else:
        on_gpu = device == "cuda" or backend == "nccl"
    if on_gpu:
        devices, visible = _share_out(_visible_gpus(count), world_size, nodes)
    else:
        devices, visible = ("cpu",) * world_size, ()
    if backend == "nccl" and world_size > count:
        notice = _notice_of_sharing(world_size, count)
        return Placement(backend, devices, notice, visible, shares_by_nccl=True)
    if backend != "auto":
        return Placement(backend, devices, "", visible)
    if not on_gpu:
        notice = _notice_of_cpu(device, world_size, count)
        return Placement("gloo", devices, notice, visible)
    if one_each:  # under NCCL alone a collective on a CPU tensor would be an error
        notice = _("launch: NCCL, one GPU per rank")
        return Placement("cpu:gloo,cuda:nccl", devices, notice, visible)
    why = _("this torch has no NCCL")
    if has_nccl:
        why = _counts(world_size, count)
    notice = _("launch: gloo on shared GPUs ({why})", why=why)
    return Placement("gloo", devices, notice, visible)


def _visible_gpus(count: int) -> list[int] | list[str]:
    """Numbers or names of the first `count` GPUs that this process may use."""
    visible_gpus = torch_private.find("torch.cuda:_parse_visible_devices")
    if visible_gpus is None:
        return list(range(count))
    return visible_gpus()[:count]


def _notice_of_cpu(device: str, world_size: int, count: int) -> str:
    """Why the ranks run on the CPU, and what to type where there is a GPU."""
    if device == "cpu":
        return _("launch: gloo on the CPU ({why})", why="device='cpu'")
    if not count:
        return _("launch: gloo on the CPU ({why})", why=_no_gpu())
    if not dist.is_nccl_available():
        return _(
            "launch: gloo on the CPU (this torch has no NCCL; device='cuda' uses GPUs by gloo)"
        )
    counts = _counts(world_size, count)
    if world_size == 1:
        return _("launch: gloo on the CPU ({counts}; device='cuda' uses it)", counts=counts)
    return ngettext(
        "launch: gloo on the CPU ({counts}; device='cuda' shares it by gloo, backend='nccl', "
        "share_gpus=True by NCCL)",
        "launch: gloo on the CPU ({counts}; device='cuda' shares them by gloo, backend='nccl', "
        "share_gpus=True by NCCL)",
        count,
        counts=counts,
    )


def _notice_of_sharing(world_size: int, count: int) -> str:
    return _(
        "launch: NCCL, {counts}: sharing a GPU is experimental in NCCL, for about two ranks, and "
        "may hang",
        counts=_counts(world_size, count),
    )


def _no_gpu() -> str:
    refusal = usable_gpus().refusal
    if refusal:
        return _("CUDA cannot use the GPU: {refusal}", refusal=refusal)
    return _("no GPU here")


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
    if backend == "mpi":
        raise ValueError(
            _(
                "backend='mpi' (MPI is not built into torch's wheels): choose 'auto', 'gloo', "
                "'nccl' or None"
            )
        )
    if backend not in ("auto", "gloo", "nccl", None):
        raise ValueError(
            _("backend={backend!r}: choose 'auto', 'gloo', 'nccl' or None", backend=backend)
        )
    if str(device).startswith("cuda:"):
        raise ValueError(
            _(
                "device={device!r} (launch gives each rank its own GPU): choose 'auto', 'cpu' or "
                "'cuda'",
                device=device,
            )
        )
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(_("device={device!r}: choose 'auto', 'cpu' or 'cuda'", device=device))
    if share_gpus and backend != "nccl":
        raise ValueError(
            _("share_gpus=True is for backend='nccl': gloo shares GPUs with device='cuda' alone")
        )
    if device == "cuda" and not gpus:
        raise ValueError(
            _("device='cuda' needs a GPU ({no_gpu}); use device='cpu'", no_gpu=_no_gpu())
        )
    if backend == "nccl":
        _refuse_nccl(device, world_size, gpus, share_gpus)


def _refuse_nccl(device: str, world_size: int, gpus: int, share_gpus: bool) -> None:
    if not dist.is_nccl_available():
        raise ValueError(_("backend='nccl': this torch was built without NCCL; use backend='gloo'"))
    if device == "cpu":
        raise ValueError(_("NCCL moves GPU tensors only: with device='cpu' use backend='gloo'"))
    counts = _counts(world_size, gpus)
    if not gpus:
        raise ValueError(
            _(
                "NCCL needs a GPU: {counts} ({no_gpu}); use backend='gloo'",
                counts=counts,
                no_gpu=_no_gpu(),
            )
        )
    if world_size > gpus and not share_gpus:
        fewer = "world_size=1" if gpus == 1 else _("world_size={gpus} or fewer", gpus=gpus)
        raise ValueError(
            _(
                "NCCL takes one GPU per rank: {counts}; use {fewer}, backend='gloo', or "
                "share_gpus=True, which is experimental in NCCL",
                counts=counts,
                fewer=fewer,
            )
        )


def _counts(ranks: int, gpus: int) -> str:
    ranks_counted = ngettext("{count} rank", "{count} ranks", ranks, count=ranks)
    gpus_counted = ngettext("{count} GPU", "{count} GPUs", gpus, count=gpus)
    return _("{ranks}, {gpus}", ranks=ranks_counted, gpus=gpus_counted)
