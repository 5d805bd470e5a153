"""What a recording tells, counted or run again: traffic, finishing times, intervals."""

from dataclasses import dataclass, field
from typing import NamedTuple

from course_utils.network.network import Network
from course_utils.record.event import Event


class Interval(NamedTuple):
    """What a rank, or one of its ports, does for a while.

    Attributes:
        rank: Global rank.
        start_us: Virtual microseconds since the start of all ranks.
        end_us: Likewise.
        what: "compute" or "wait" (the rank itself); "send" or "receive" (its outgoing or incoming
            port is busy); "collective" (from the call to its end on this rank).
        event: The event behind it; None for what a rank computes after its last event.
        peer: The other rank of a message, else None.
        bytes: Of a message, else 0.
    """

    rank: int
    start_us: float
    end_us: float
    what: str
    event: Event | None
    peer: int | None = None
    bytes: float = 0

    @property
    def label(self) -> str:
        """Such as `send 1024 bytes to rank 1` or `wait in all_reduce of 4096 bytes`."""
        if self.peer is not None:
            to = "to" if self.what == "send" else "from"
            return f"{self.what} {self.bytes:g} bytes {to} rank {self.peer}"
        if self.event is None or self.what == "compute":
            return self.what
        return self.event.what if self.what == "collective" else f"wait in {self.event.what}"

    @property
    def line(self) -> str:
        """The learner's line behind it, empty where there is none."""
        return f"{self.event.place}: {self.event.code}" if self.event and self.event.place else ""


@dataclass(frozen=True, repr=False)
class Replay:
    """What a recording would have taken.

    Attributes:
        finish_us: For each rank the virtual microseconds until it and all that it sent was done.
        intervals: What every rank and its ports did when, in the order in which it ended or began.
        network: What it ran on.
    """

    finish_us: tuple[float, ...]
    intervals: tuple[Interval, ...]
    network: Network = field(compare=False)

    def __repr__(self) -> str:
        return f"Replay({len(self.finish_us)} ranks, {max(self.finish_us):.6g} us)"


@dataclass(frozen=True)
class Traffic:
    """How much went from whom to whom.

    Attributes:
        bytes: `bytes[source][target]`.
        messages: `messages[source][target]`.
        sent_bytes, received_bytes, sent_messages, received_messages: Per rank, as tuples.
    """

    bytes: tuple[tuple[float, ...], ...]
    messages: tuple[tuple[int, ...], ...]

    sent_bytes = property(lambda self: tuple(map(sum, self.bytes)))
    sent_messages = property(lambda self: tuple(map(sum, self.messages)))
    received_bytes = property(lambda self: tuple(map(sum, zip(*self.bytes, strict=True))))
    received_messages = property(lambda self: tuple(map(sum, zip(*self.messages, strict=True))))
