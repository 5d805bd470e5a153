"""Bytes and messages, counted per rank and per pair of ranks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_utils.collectives import ALGORITHMS
from course_utils.matching import match

if TYPE_CHECKING:
    from course_utils.trace import Trace


@dataclass(frozen=True)
class Traffic:
    """How much went from whom to whom.

    Attributes:
        bytes: `bytes[source][target]`.
        messages: `messages[source][target]`.
    """

    bytes: tuple[tuple[float, ...], ...]
    messages: tuple[tuple[int, ...], ...]

    @property
    def sent_bytes(self) -> tuple[float, ...]:
        """Per rank."""
        return tuple(map(sum, self.bytes))

    @property
    def received_bytes(self) -> tuple[float, ...]:
        """Per rank."""
        return tuple(map(sum, zip(*self.bytes, strict=True)))

    @property
    def sent_messages(self) -> tuple[int, ...]:
        """Per rank."""
        return tuple(map(sum, self.messages))

    @property
    def received_messages(self) -> tuple[int, ...]:
        """Per rank."""
        return tuple(map(sum, zip(*self.messages, strict=True)))


def count(trace: "Trace", algorithm: str) -> Traffic:
    """Count a trace's messages, those of its collectives as `algorithm` sends them.

    Raises:
        ValueError: The algorithm is unknown.
        ReplayError: A message or a collective has no partner.
    """
    refuse_unknown(algorithm)
    size = range(trace.world_size)
    amounts, counts = [[0.0 for _ in size] for _ in size], [[0 for _ in size] for _ in size]
    for message in match(trace, algorithm).messages:
        amounts[message.source][message.target] += message.bytes
        counts[message.source][message.target] += 1
    whole = tuple(tuple(int(b) if b == int(b) else b for b in row) for row in amounts)
    return Traffic(whole, tuple(map(tuple, counts)))


def refuse_unknown(algorithm: str) -> None:
    """Raise ValueError for an algorithm that has no formula here."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: choose 'ring', 'tree' or 'direct'")
