"""One thing that a rank did with the others, as it stands in a recording."""

from dataclasses import dataclass

# Flags of an event.
ASYNC, FORWARD, EVALUATES, BACKWARD, WRAPS, UNFINISHED, WAKES, ASIDE = (
    1 << bit for bit in range(8)
)


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
    # launch failed: when that launch was stopped.
    end_s: float
    peer: int | None = None  # at the other end of a send or recv, or of the one waited for
    tag: int | None = None  # of a send or recv
    dtype: str | None = None  # such as "float32"; None for a barrier and a wait
    shape: tuple[int, ...] = ()  # of the tensor, of the first one where there are several
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
