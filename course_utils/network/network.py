"""A network one can describe in a line: what a message costs, and which parts of it are slow.

A message of m bytes takes alpha + m * beta: the latency alpha until its first byte arrives, and m
times the time per byte, for which its sender's outgoing and then its receiver's incoming port are
busy. A port carries one message after the other, in the order in which they come; both ports of a
rank work at the same time (full duplex). A message leaves as soon as its sender's port is free,
whether or not anybody waits for it. Between the ports nothing is shared. Source: R. Hockney, The
communication challenge for MPP, Parallel Computing 20, 1994.
"""

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from course_utils.network.collectives import refuse_unknown
from course_utils.network.replay import Replay
from course_utils.network.simulation import Think, simulate

if TYPE_CHECKING:
    from course_utils.network.trace import Trace
    from course_utils.record.event import Event

Compute = str | Callable[["Event"], float] | Sequence[float]


class Link(NamedTuple):
    """From one rank to another."""

    latency_us: float
    gbit_s: float
    factor: float = 1.0  # so many times slower in both

    @property
    def alpha(self) -> float:
        """Microseconds until the first byte arrives."""
        return self.latency_us * self.factor

    def transfer_us(self, size: float) -> float:
        """Microseconds that `size` bytes keep a port busy; 1 Gbit/s is 125 bytes in one of them."""
        return size * 8 / (self.gbit_s * 1000) * self.factor


@dataclass(frozen=True)
class Network:
    """A modelled network.

    Attributes:
        latency_us: Microseconds from one rank to another (alpha).
        gbit_s: What a port carries in each direction, in 10^9 bits per second (8 / beta).
        nodes: The ranks are laid out as so many equal nodes.
        between: (latency_us, gbit_s) of links from node to node; the first two hold inside a node.
        slow_links: By (source, target): how many times slower than others, or a Network whose
            latency and bandwidth the link has.
        slow_ranks: By rank: how many times slower it computes.
        algorithm: How collectives are carried out: "ring", "tree" or "direct" (`collectives.py`).

    Raises:
        ValueError: What cannot be a network.
    """

    latency_us: float
    gbit_s: float
    nodes: int = 1
    between: tuple[float, float] | None = None
    slow_links: "Mapping[tuple[int, int], float | Network]" = field(default_factory=dict)
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        refuse_unknown(self.algorithm)
        if not isinstance(self.nodes, int) or self.nodes < 1:
            raise ValueError(f"nodes must be a whole number of at least 1, got {self.nodes!r}")
        if (self.between is None) != (self.nodes == 1):
            raise ValueError("nodes=2 or more and between=(latency_us, gbit_s) go together")
        latency_us, gbit_s = self.between or (0.0, 1.0)
        _refuse("latency_us", self.latency_us, least=0.0)
        _refuse("gbit_s", self.gbit_s)
        _refuse("the latency between nodes", latency_us, least=0.0)
        _refuse("the bandwidth between nodes", gbit_s)
        for link, factor in self.slow_links.items():
            if not isinstance(factor, Network):
                _refuse(f"the factor of slow link {link}", factor)
        for rank, factor in self.slow_ranks.items():
            _refuse(f"the factor of slow rank {rank}", factor)

    def link(self, source: int, target: int, world_size: int) -> Link:
        """What a message from one rank to another meets."""
        slow = self.slow_links.get((source, target), 1.0)
        if isinstance(slow, Network):
            return Link(slow.latency_us, slow.gbit_s)
        per_node = world_size // self.nodes
        if self.between is not None and source // per_node != target // per_node:
            return Link(*self.between, slow)
        return Link(self.latency_us, self.gbit_s, slow)

    def replay(self, trace: "Trace", compute: Compute = "zero") -> Replay:
        """Run a recording again on this network, on a virtual clock.

        Args:
            trace: What `launch(..., trace=True)` recorded.
            compute: What the ranks compute between their events: "zero"; "measured", the CPU
                seconds of the recording, which differ from run to run; one number per rank,
                microseconds before its first event; or a function that tells for each event how
                many microseconds its rank computes before it.

        Returns:
            Each rank's virtual finishing time, and what it did when. The same recording, network
            and compute give the same numbers, to the last digit, in every run.

        Raises:
            ReplayError: The launch failed; or a message or a collective has no partner: says which.
            ValueError: This network or this compute does not fit the recording.
        """
        self._refuse_misfit(trace.world_size)
        think, slow = _compute_us(trace, compute), self.slow_ranks
        slowed = slow and think and (lambda rank, event: think(rank, event) * slow.get(rank, 1.0))
        with without_gc():
            return simulate(trace.schedule(self.algorithm), self, slowed or think)

    def _refuse_misfit(self, world_size: int) -> None:
        if world_size % self.nodes:
            raise ValueError(f"{world_size} ranks cannot be laid out as {self.nodes} equal nodes")
        named = [*self.slow_ranks, *(rank for link in self.slow_links for rank in link)]
        for rank in named:
            if rank not in range(world_size):
                raise ValueError(f"there is no rank {rank!r} among the {world_size} recorded ones")


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Where many objects are made and no garbage, looking for it would take half of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _compute_us(trace: "Trace", compute: Compute) -> Think | None:
    """Microseconds that a rank computes before an event, or, where that is None, at its end."""
    if callable(compute):
        return lambda rank, event: _checked(compute(event)) if event else 0.0
    if compute == "zero":
        return None
    if compute == "measured":
        return lambda rank, event: 1e6 * (event.cpu_s if event else trace.ended[rank][1])
    if isinstance(compute, str) or len(compute) != trace.world_size:
        raise ValueError(
            f"compute={compute!r}: choose 'zero', 'measured', one number of microseconds for each "
            f"of the {trace.world_size} ranks, or a function of an event"
        )
    begins = [_checked(us) for us in compute]
    quiet = set(range(trace.world_size)) - {event.rank for event in trace.events}
    return lambda rank, event: (
        begins[rank] if (event.index == 0 if event else rank in quiet) else 0.0
    )


def _checked(us: float) -> float:
    if not math.isfinite(us) or us < 0:
        raise ValueError(f"compute gave {us!r}: microseconds must be finite and at least 0")
    return us


def _refuse(name: str, value: float, least: float | None = None) -> None:
    """Raise ValueError unless a number is above 0, or at least `least`."""
    good = isinstance(value, (int, float)) and math.isfinite(value)
    if not good or (value <= 0 if least is None else value < least):
        wanted = "above 0" if least is None else f"of at least {least:g}"
        raise ValueError(f"{name} must be a finite number {wanted}, got {value!r}")
