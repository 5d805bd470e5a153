"""One operation of one rank, as a recording holds it; and which operations meet.

Replay, checks, the report of a hang and the pictures all ask `meetings`: a rank's k-th collective
in a group meets the k-th of every other member, and the k-th send to a rank its k-th receive.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from course_utils.launcher.language import _, english
from course_utils.launcher.stacks import Frame

# Flags of an event, to be combined with `|`. They are plain integers, since a rank combines them at
# every call and writes them into a row of the record's memory. Recordings that are kept have them,
# so none changes its number.
#
# Of a call:
ASYNC = 1  # the caller got control back before the operation was complete
FORWARD = 2  # called by DDP's forward pass
EVALUATES = 4  # likewise, of a model in evaluation mode
BACKWARD = 8  # called by a backward pass
DDP_INIT = 16  # called by the constructor of DDP
MAY_TIME_OUT = 64  # the group's own timer may end the wait for it
USER_THREAD = 128  # called by a thread that the learner started
QUEUED = 256  # it returned as soon as it was queued on the GPU
JOINS = 512  # called at the end of DDP's join
SHARED = 1024  # a mistake: its results share memory
UNWAITED = 2048  # a mistake: nobody has waited for it
# Of a "return", which stands for the end of a rank's function:
UNFINISHED = 32  # a mistake: a backward pass left buckets of DDP that were never reduced
UNAVERAGED = 4096  # a mistake: a DDP model was trained on gradients that nobody averaged
UNHEARD = 8192  # a mistake: parameters were trained that DDP doesn't track
THREADS_LEFT = 16384  # threads that the function has started run on, and may call something


class Kind(NamedTuple):
    """One kind of operation: its names in torch, and what sets it apart."""

    hooks: str  # names in torch's `HookOpName`, by spaces, of its forms that take one tensor
    lists: str = ""  # likewise, of its forms that take a list with a tensor for each rank
    message: bool = False  # whether it has a peer instead of a group
    reduces: bool = False  # whether it takes a reduction operator
    parted: bool = False  # whether a rank hands in one part for each rank
    equal: bool = True  # whether every rank hands in the same number of bytes


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
COLLECTIVES = tuple(name for name, kind in KINDS.items() if not kind.message)


@dataclass(frozen=True, kw_only=True, repr=False)
class Event:
    """One operation of one rank, or one wait for such an operation."""

    rank: int  # global, as are peer, root and group
    index: int  # a rank's events are counted from 0, in the order in which it issued them
    # "send", "recv", "wait", or the name of a collective, such as "all_reduce". The record that
    # every launch keeps also has "new_group", and "return" for the return of the function.
    kind: str
    bytes: int  # what the rank hands in; or what it receives, where it hands in nothing
    start_s: float  # seconds from the launch to the call, on a clock that all ranks share
    # Of a blocking call, when it returned; of a `queued` one, when it was queued; of any other,
    # when it was complete. Where the launch failed before that, when the launch was stopped.
    end_s: float
    peer: int | None = None  # the other end of a send or recv, or of the one waited for
    tag: int | None = None  # of a send or recv
    dtype: str | None = None  # such as "float32"; None for a barrier and a wait
    shape: tuple[int, ...] = ()  # of the tensor; of the first one, where there are several
    layout: str = ""  # how non-contiguous tensors lie, where a backend overlooks it: see `layouts`
    op: str | None = None  # "sum", "max" and so on; None where torch does not say
    root: int | None = None  # where a broadcast, reduce, scatter or gather starts or ends
    group: tuple[int, ...] = ()  # the ranks of the process group, in its order
    group_name: str = ""  # the name that all members have for the group
    blocking: bool = False  # whether the caller waited at once, so that no wait follows
    of: int | None = None  # for a wait, the index of the operation waited for
    parts: tuple[int, ...] = ()  # bytes for each rank of the group, where each gets its own part
    # The learner's line in English, such as "cell [5], line 7, in train"; empty if there is none.
    place: str = ""
    code: str = ""  # the text of that line
    finished: bool = True  # False if it was not complete when the launch failed
    # Counted from 1: the rank's collectives in this group, its messages from or to this peer with
    # this tag, its calls of `new_group`, or its "return"; 0 where they were not counted.
    number: int = 0
    line: tuple[str, int, str] | None = None  # file, number and function, as in `frame`
    flags: int = 0  # what else is known, such as FORWARD: DDP called it
    # Of a "return", by DDP model: how many gradients were seen, and a checksum of its last weights.
    weights: tuple[tuple[int, int], ...] = ()
    # For what is `queued`: when its work began and was complete on the GPU, by CUDA's events, on
    # the clock of `start_s`; None where no events were recorded.
    began_s: float | None = None
    done_s: float | None = None

    @property
    def what(self) -> str:
        """Such as `send of 16 bytes to rank 1` or `all_reduce of 4096 bytes`."""
        if self.kind == "wait":
            return _("wait for event {of}", of=self.of)
        size = ""
        if self.kind != "barrier":
            size = _(" of {bytes} bytes", bytes=self.bytes)
        if self.kind in ("send", "recv"):
            return self._message_of(size)
        root = ""
        if self.root is not None:
            root = _(", root {root}", root=self.root)
        return f"{self.kind}{size}{root}"

    def _message_of(self, size: str) -> str:
        peer = _("any rank")
        if self.peer is not None:
            peer = _("rank {rank}", rank=self.peer)
        tag = ""
        if self.tag:
            tag = _(", tag {tag}", tag=self.tag)
        if self.kind == "send":
            return _("send{size} to {peer}{tag}", size=size, peer=peer, tag=tag)
        return _("recv{size} from {peer}{tag}", size=size, peer=peer, tag=tag)

    @property
    def queued(self) -> bool:
        """Whether it ended as soon as it was queued on the GPU, as NCCL's calls and waits do.

        `done_s` says when its work was complete, where that is known.
        """
        return bool(self.flags & QUEUED)

    @property
    def where(self) -> str:
        """Place and text of the learner's line, in the learner's language."""
        if not self.place:
            return _("outside of your code")
        return _("{place}: {code}", place=self._place_in_words(), code=self.code)

    @property
    def frame(self) -> Frame | None:
        """The learner's line; None if no code of the learner's led to this event."""
        if self.line is None:
            return None
        return Frame(*self.line)

    def _place_in_words(self) -> str:
        """In the learner's language; in English if only the kernel that recorded knows the cell."""
        frame = self.frame
        if frame is None:
            return self.place
        with english():
            is_known_here = frame.place == self.place
        return frame.place if is_known_here else self.place

    def __repr__(self) -> str:
        return _("rank {rank}: {call} at {line}", rank=self.rank, call=self.what, line=self.where)


@dataclass(frozen=True)
class Log:
    """What one rank has called, in order; `complete` unless its first calls were overwritten."""

    events: tuple[Event, ...]
    complete: bool


# Of each key, `form` says which of the three it is.


class MessageKey(NamedTuple):
    """Sends and receives with equal keys are matched with each other."""

    form: str  # "message"
    sender: int | None  # global ranks, as in `Event`; None if any rank may send
    receiver: int
    tag: int | None
    group_name: str
    group: tuple[int, ...]


class CollectiveKey(NamedTuple):
    """Collectives with equal keys, so of the same group, are matched with each other."""

    form: str  # "collective"
    group_name: str
    group: tuple[int, ...]


class NewGroupKey(NamedTuple):
    """All calls of `new_group` are counted together: every rank makes every group."""

    form: str = "new_group"


Key = MessageKey | CollectiveKey | NewGroupKey


class Meeting(NamedTuple):
    """One message or one collective, with the calls of those ranks that have reached it."""

    key: Key  # see `key_of`
    number: int  # 1-based position among the calls with the same key
    # Global ranks. Of a message: its sender (None if any rank may send) and its receiver. Of a
    # collective: the group, in its order.
    members: tuple[int | None, ...]
    calls: dict[int, Event]  # by rank

    @property
    def missing(self) -> list[int | None]:
        """The members that have not reached it, in the group's order."""
        return [member for member in self.members if member not in self.calls]


def key_of(event: Event) -> Key | None:
    """The key under which a call is counted; None for a wait or a return: these have no partner."""
    kind = event.kind
    if kind in ("wait", "return"):
        return None
    if kind == "new_group":
        return NewGroupKey()
    if kind == "send":
        sender, receiver = event.rank, event.peer
    elif kind == "recv":
        sender, receiver = event.peer, event.rank
    else:
        return CollectiveKey("collective", event.group_name, event.group)
    return MessageKey("message", sender, receiver, event.tag, event.group_name, event.group)


def meetings(events: Iterable[Event], world_size: int) -> list[Meeting]:
    """Match the calls of all ranks; grouped by key, each group in order, keys by their first call.

    Args:
        events: Of all ranks, each rank's in its order. An event that has a number keeps it, since
            the first ones may be overwritten; the others are counted here.
        world_size: How many ranks there are: all of them take part in making a group.
    """
    # By key: by rank, how many calls there were; and by number, the meeting. A key holds a whole
    # group and is costly to hash, so it is looked up once for an event (100,000 messages: 0.3 s).
    calls_by_key = defaultdict(lambda: ({}, {}))
    for event in events:
        key = key_of(event)
        if key is None:
            continue
        counts, matched = calls_by_key[key]
        number = event.number or counts.get(event.rank, 0) + 1
        counts[event.rank] = number
        meeting = matched.get(number)
        if meeting is None:
            meeting = Meeting(key, number, _members(key, event, world_size), {})
            matched[number] = meeting
        meeting.calls[event.rank] = event
    ordered = []
    for _counts, matched in calls_by_key.values():
        ordered += [matched[number] for number in sorted(matched)]
    return ordered


def _members(key: Key, event: Event, world_size: int) -> tuple[int | None, ...]:
    """Who takes part in the meeting of this event; see `Meeting.members`."""
    if isinstance(key, MessageKey):
        return key.sender, key.receiver
    if isinstance(key, CollectiveKey):
        return key.group
    return tuple(range(world_size))
