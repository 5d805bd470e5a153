"""One thing that a rank did with the others, as it stands in a recording."""

from dataclasses import dataclass

# Flags of an event.
ASYNC, FORWARD, EVALUATES, BACKWARD, WRAPS, UNFINISHED = (1 << bit for bit in range(6))


@dataclass(frozen=True, kw_only=True, repr=False)
class Event:
    """One operation of one rank, or one wait for such an operation.

    Attributes:
        rank: Global rank.
        index: The rank's events are counted from 0, in the order in which it issued them.
        kind: "send", "recv", "wait", or the name of a collective, such as "all_reduce"; in what is
            noted of every launch also "new_group", and "return" when the function has returned.
        number: Counted from 1: the rank's collectives in this group, its messages from or to this
            peer with this tag, its calls of `new_group`; 0 where nobody has counted.
        bytes: Size of what the rank hands in; of what it is given, where it hands in nothing.
        start_s: Seconds from the launch to the call, on a clock that all ranks share.
        end_s: When it was complete: for a blocking call when it returned. Of what was not complete
            when a launch failed: when that launch was stopped.
        peer: Global rank at the other end of a send or recv, or of the one waited for.
        tag: Of a send or recv.
        dtype: Such as "float32"; None for a barrier and a wait.
        shape: Of the tensor, of the first one where there are several.
        op: "sum", "max" and so on; None where nothing is reduced, or torch does not say.
        root: Global rank that a broadcast, reduce, scatter or gather starts or ends at.
        group: Global ranks of the process group, in its order.
        group_name: What all members call the group.
        blocking: Whether the caller waited at once, so that no wait follows.
        of: The index of the operation that a wait waits for.
        parts: Bytes for each rank of the group, where one part is handed in for each.
        place: The learner's line, such as "cell [5], line 7, in train"; empty if there is none.
        code: The text of that line.
        finished: False for what was not complete when the launch failed.
        line: File, line number and function of the learner's line; None if there is none.
        flags: What more is known, such as FORWARD: DDP called it.
    """

    rank: int
    index: int
    kind: str
    bytes: int
    start_s: float
    end_s: float
    peer: int | None = None
    tag: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    op: str | None = None
    root: int | None = None
    group: tuple[int, ...] = ()
    group_name: str = ""
    blocking: bool = False
    of: int | None = None
    parts: tuple[int, ...] = ()
    place: str = ""
    code: str = ""
    finished: bool = True
    number: int = 0
    line: tuple[str, int, str] | None = None
    flags: int = 0

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
