"""One thing that a rank did with the others, as it stands in a recording; and who meets whom.

Replay, checks, the report of a hang and the pictures all ask `meetings`: the k-th call that a rank
makes of something meets everybody else's k-th.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[object, ...]
# Flags of an event.
ASYNC, FORWARD, EVALUATES, BACKWARD, WRAPS, UNFINISHED, WAKES, ASIDE, QUEUED, JOINS = (
    1 << bit for bit in range(10)
)
# Mistakes, of a call (its results share one memory; nobody has waited for it), and of a "return".
SHARED, UNWAITED, UNAVERAGED = (1 << bit for bit in range(10, 13))


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


@dataclass(frozen=True, kw_only=True, repr=False)
class Event:
    """One operation of one rank, or one wait for such an operation."""

    rank: int  # global, as are peer, root and group
    index: int  # a rank's events are counted from 0, in the order in which it issued them
    # "send", "recv", "wait", or the name of a collective, such as "all_reduce"; in what is noted of
    # every launch also "new_group", and "return" when the function has returned.
    kind: str
    bytes: int  # what the rank hands in; what it is given, where it hands in nothing
    start_s: float  # seconds from the launch to the call, on a clock that all ranks share
    # When it was complete: for a blocking call when it returned. Of what was not complete when a
    # launch failed: when that launch was stopped. Of what is `queued`: when it was queued.
    end_s: float
    peer: int | None = None  # at the other end of a send or recv, or of the one waited for
    tag: int | None = None  # of a send or recv
    dtype: str | None = None  # such as "float32"; None for a barrier and a wait
    shape: tuple[int, ...] = ()  # of the tensor, of the first one where there are several
    # Of tensors that are not contiguous, as far as a backend takes them for contiguous ones.
    layout: str = ""
    op: str | None = None  # "sum", "max" and so on; None where torch does not say
    root: int | None = None  # where a broadcast, reduce, scatter or gather starts or ends
    group: tuple[int, ...] = ()  # the ranks of the process group, in its order
    group_name: str = ""  # what all members call the group
    blocking: bool = False  # whether the caller waited at once, so that no wait follows
    of: int | None = None  # the index of the operation that a wait waits for
    parts: tuple[int, ...] = ()  # bytes for each rank of the group, where one part is for each
    place: str = ""  # the learner's line, such as "cell [5], line 7, in train"; empty if none
    code: str = ""  # the text of that line
    finished: bool = True  # False for what was not complete when the launch failed
    # Counted from 1: the rank's collectives in this group, its messages from or to this peer with
    # this tag, its calls of `new_group`; 0 where nobody has counted.
    number: int = 0
    line: tuple[str, int, str] | None = None  # file, number and function of the learner's line
    flags: int = 0  # what more is known, such as FORWARD: DDP called it
    # When the work of what is `queued` began and was complete on the GPU, as CUDA's events tell,
    # on the clock of `start_s`; None where nobody has seen that.
    began_s: float | None = None
    done_s: float | None = None

    @property
    def what(self) -> str:
        """Such as `send of 16 bytes to rank 1` or `all_reduce of 4096 bytes`."""
        size = "" if self.kind == "barrier" else f" of {self.bytes} bytes"
        if self.kind == "wait":
            return f"wait for event {self.of}"
        if self.kind in ("send", "recv"):
            peer = "any rank" if self.peer is None else f"rank {self.peer}"
            tag = f", tag {self.tag}" if self.tag else ""
            return f"{self.kind}{size} {'to' if self.kind == 'send' else 'from'} {peer}{tag}"
        root = "" if self.root is None else f", root {self.root}"
        return f"{self.kind}{size}{root}"

    @property
    def queued(self) -> bool:
        """Whether it ends, as a call of NCCL, when it is queued on the GPU; a wait for it as well.

        When its work was complete, `done_s` says, where it is known.
        """
        return bool(self.flags & QUEUED)

    @property
    def where(self) -> str:
        """Place and text of the learner's line."""
        return f"{self.place}: {self.code}" if self.place else "outside of your code"

    def __repr__(self) -> str:
        return f"rank {self.rank}: {self.what} at {self.where}"


@dataclass(frozen=True)
class Log:
    """What one rank has called, in order; `complete` unless its first calls are forgotten."""

    events: tuple[Event, ...]
    complete: bool


class Meeting(NamedTuple):
    """One message or one collective, as far as its ranks have come to it."""

    key: Key  # what its calls are counted by, see `key_of`
    number: int  # the how-manieth of its key it is, from 1
    # Global ranks that it takes: of a message its sender, or None if that may be any rank, and its
    # receiver; else the group in its order.
    members: tuple[int | None, ...]
    calls: dict[int, Event]  # by rank, those that have come to it

    @property
    def missing(self) -> list[int | None]:
        """The members that have not come to it, in the group's order."""
        return [member for member in self.members if member not in self.calls]


def key_of(event: Event) -> Key | None:
    """What a rank counts a call by; None for what meets nobody, a wait or the end."""
    kind = event.kind
    if kind in ("wait", "return"):
        return None
    if kind == "new_group":
        return ("new_group",)
    if kind == "send":
        return "message", event.rank, event.peer, event.tag, event.group_name, event.group
    if kind == "recv":
        return "message", event.peer, event.rank, event.tag, event.group_name, event.group
    return "collective", event.group_name, event.group


def meetings(events: Iterable[Event], world_size: int) -> list[Meeting]:
    """Let all calls meet; in each key they are in order, and keys come as they were first called.

    Args:
        events: Of all ranks, each rank's in its order. An event that knows its number is taken at
            its word, since the first ones may be forgotten; the others are counted here.
        world_size: How many ranks there are: all of them meet to make a group.
    """
    found: dict[Key, tuple[dict[int, int], dict[int, Meeting]]] = {}
    everyone = tuple(range(world_size))
    for event in events:
        if (key := key_of(event)) is None:
            continue
        counts, own = found.get(key) or found.setdefault(key, ({}, {}))
        number = counts[event.rank] = event.number or counts.get(event.rank, 0) + 1
        if (one := own.get(number)) is None:
            members = everyone if key[0] == "new_group" else event.group
            members = key[1:3] if key[0] == "message" else members
            one = own[number] = Meeting(key, number, members, {})
        one.calls[event.rank] = event
    return [own[number] for _, own in found.values() for number in sorted(own)]
