"""A network one can describe in a line: what a message costs, and which parts of it are slow.

A message of m bytes takes alpha + m * beta: the latency alpha until its first byte arrives, and m
times the time per byte, for which its sender's outgoing and then its receiver's incoming port are
busy. A port carries one message after the other, in the order in which they come; both ports of a
rank work at the same time (full duplex). A message leaves as soon as its sender's port is free,
whether or not anybody waits for it. Between the ports nothing is shared. Source: R. Hockney, The
communication challenge for MPP, Parallel Computing 20, 1994.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from course_utils.launcher.language import _
from course_utils.network.collectives import refuse_unknown


@dataclass(frozen=True)
class Network:
    """A modelled network.

    Attributes:
        latency_us: Microseconds from one rank to another (alpha).
        gbit_s: What a port carries in each direction, in 10^9 bits per second (8 / beta).
        nodes: The ranks are laid out as so many equal nodes.
        between: (latency_us, gbit_s) of links from node to node; the first two hold inside a node.
        slow_links: By (source, target): how many times slower than others.
        slow_ranks: By rank: how many times slower it computes.
        algorithm: How collectives are carried out: "ring", "tree" or "direct" (`collectives.py`).

    Raises:
        ValueError: What cannot be a network.
    """

    latency_us: float
    gbit_s: float
    nodes: int = 1
    between: tuple[float, float] | None = None
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        refuse_unknown(self.algorithm)
        if not isinstance(self.nodes, int) or self.nodes < 1:
            raise ValueError(
                _("nodes must be a whole number of at least 1, got {nodes!r}", nodes=self.nodes)
            )
        has_several_nodes = self.nodes > 1
        has_links_between = self.between is not None
        if has_several_nodes != has_links_between:
            raise ValueError(_("nodes=2 or more and between=(latency_us, gbit_s) go together"))
        _refuse_negative("latency_us", self.latency_us)
        _refuse_not_positive("gbit_s", self.gbit_s)
        if self.between is not None:
            latency_us, gbit_s = self.between
            _refuse_negative(_("the latency between nodes"), latency_us)
            _refuse_not_positive(_("the bandwidth between nodes"), gbit_s)
        for link, factor in self.slow_links.items():
            _refuse_not_positive(_("the factor of slow link {link}", link=link), factor)
        for rank, factor in self.slow_ranks.items():
            _refuse_not_positive(_("the factor of slow rank {rank}", rank=rank), factor)

    def link(self, source: int, target: int, world_size: int) -> tuple[float, float]:
        """Microseconds until a message's first byte arrives, and those that each byte takes."""
        latency_us = self.latency_us
        gbit_s = self.gbit_s
        if self.between is not None:
            ranks_per_node = world_size // self.nodes
            source_node = source // ranks_per_node
            target_node = target // ranks_per_node
            if source_node != target_node:
                latency_us, gbit_s = self.between
        bits_per_us = gbit_s * 1000
        us_per_byte = 8 / bits_per_us
        factor = self.slow_links.get((source, target), 1.0)
        return latency_us * factor, us_per_byte * factor

    def refuse_misfit(self, world_size: int) -> None:
        """Raise ValueError unless this is a network for so many ranks."""
        if world_size % self.nodes:
            raise ValueError(
                _(
                    "{world_size} ranks cannot be laid out as {nodes} equal nodes",
                    world_size=world_size,
                    nodes=self.nodes,
                )
            )
        slow = list(self.slow_ranks)
        for source, target in self.slow_links:
            slow += [source, target]
        for rank in slow:
            if rank not in range(world_size):
                raise ValueError(
                    _(
                        "there is no rank {rank!r} among the {world_size} recorded ones",
                        rank=rank,
                        world_size=world_size,
                    )
                )


def _refuse_negative(name: str, value: float) -> None:
    if not _is_finite(value) or value < 0:
        raise ValueError(
            _(
                "{name} must be a finite number of at least 0, got {value!r}",
                name=name,
                value=value,
            )
        )


def _refuse_not_positive(name: str, value: float) -> None:
    if not _is_finite(value) or value <= 0:
        raise ValueError(
            _("{name} must be a finite number above 0, got {value!r}", name=name, value=value)
        )


def _is_finite(value: float) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
