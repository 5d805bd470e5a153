"""The calls that a record knows, one row each; `network/collectives.py` has their messages."""

from typing import NamedTuple


class Kind(NamedTuple):
    """What torch calls it, and how it is."""

    hooks: str  # names in torch's `HookOpName` of its forms that take a tensor
    lists: str = ""  # names of its forms that take a list with a tensor for each rank
    message: bool = False  # whether it has one other end, a peer, and not a group
    reduces: bool = False  # whether it has an operator
    parted: bool = False  # whether a rank hands in one part for each rank
    equal: bool = True  # whether every rank hands in equally much


KINDS = {
    "send": Kind("SEND", message=True),
    "recv": Kind("RECV", message=True),
    "broadcast": Kind("BROADCAST"),
    "all_reduce": Kind("ALLREDUCE ALLREDUCE_COALESCED", reduces=True),
    "reduce": Kind("REDUCE", reduces=True),
    "all_gather": Kind(
        "ALLGATHER ALLGATHER_BASE ALLGATHER_COALESCED ALLGATHER_INTO_TENSOR_COALESCED"
    ),
    "reduce_scatter": Kind(
        "REDUCE_SCATTER_BASE REDUCE_SCATTER_TENSOR_COALESCED", "REDUCE_SCATTER",
        reduces=True, parted=True,
    ),
    "all_to_all": Kind("ALLTOALL_BASE", "ALLTOALL", parted=True, equal=False),
    "barrier": Kind("BARRIER"),
    "scatter": Kind("", "SCATTER", parted=True, equal=False),
    "gather": Kind("GATHER"),
}  # fmt: skip
COLLECTIVES = tuple(kind for kind, row in KINDS.items() if not row.message)
