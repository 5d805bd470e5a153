"""A recording run again on a virtual clock: discrete events, in a fixed order, in plain floats."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from course_utils.network.network import Network
from course_utils.network.schedule import End, ReplayError, Schedule, Step
from course_utils.record.event import Event


class Interval(NamedTuple):
    """What a rank, or one of its ports, does for a while.

    Attributes:
        rank: Global rank.
        start_us, end_us: Virtual microseconds since the start of all ranks.
        what: "compute" or "wait" (the rank itself); "send" or "receive" (its outgoing or incoming
            port is busy); "collective" (from the call to its end on this rank).
        event: The event behind it; None for what a rank computes before it begins.
        peer, bytes: The other rank of a message and its size, else None and 0.
    """

    rank: int
    start_us: float
    end_us: float
    what: str
    event: Event | None
    peer: int | None = None
    bytes: float = 0


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
        return f"Replay({len(self.finish_us)} ranks, {max(self.finish_us):.6g} µs)"


# Microseconds that a rank computes before an event; where that is None, before it begins.
Think = Callable[[int, Event | None], float]
# What a rank does, or its part in a collective: yields until when it waits, or for which end.
Process = Iterator[float | End]
_ARRIVE, _RESUME = range(2)  # at one moment, arrivals come first


class Simulation:
    """A schedule on its way through a network; `think` tells what ranks compute before events."""

    def __init__(self, schedule: Schedule, network: Network, think: Think) -> None:
        self.network, self.think, self.messages = network, think, schedule.messages
        self.programs, self.tasks = schedule.programs, schedule.tasks
        size = len(self.programs)
        self.links = [[network.link(a, b, size) for b in range(size)] for a in range(size)]
        self.slow = [network.slow_ranks.get(rank, 1.0) for rank in range(size)]
        self.out_free, self.in_free = [0.0] * size, [0.0] * size
        self.now, self.finish = 0.0, [0.0] * size
        self.held: dict[int, Event | None] = {}  # by rank what its program is at, until its end
        self.ended: dict[End, float] = {}
        self.waiters: dict[End, list[tuple[int, int, Process]]] = defaultdict(list)
        self.moments: list[tuple] = []
        self.intervals: list[Interval] = []

    def run(self) -> Replay:
        """Run all programs to their ends; raises ReplayError where a rank waits for ever."""
        for rank, steps in enumerate(self.programs):
            self._go_on(-1, rank, self._program(rank, steps))
        while self.moments:
            self.now, kind, order, rank, what = heapq.heappop(self.moments)
            (self._arrive if kind == _ARRIVE else self._go_on)(order, rank, what)
        for event in self.held.values():
            raise ReplayError(f"{event!r}: it waits for ever.")
        return Replay(tuple(self.finish), tuple(self.intervals), self.network)

    def _program(self, rank: int, steps: Sequence[Step]) -> Process:
        """What a rank does itself."""
        left, think, slow = 0.0, self.think, self.slow[rank]
        for code, what, event in steps:
            if code == "send":
                left = self._send(what)
            elif code == "start":
                call, own = self.tasks[what]
                self._go_on(call.index, rank, self._task(("done", what), call, own))
            elif code == "wait" or (what := think(rank, event) * slow):
                begun, self.held[rank] = self.now, event
                yield what if code == "wait" else begun + what
                if self.now > begun:
                    self.intervals.append(Interval(rank, begun, self.now, code, event))
        self.held.pop(rank, None)
        self.finish[rank] = max(self.finish[rank], self.now, left)

    def _task(self, end: End, call: Event, steps: Sequence[Step]) -> Process:
        """A rank's part in a collective, beside its program."""
        called, left = self.now, 0.0
        for code, what, _ in steps:
            if code == "send":
                left = self._send(what)
            else:
                yield what
        done = max(self.now, left)
        self.intervals.append(Interval(call.rank, called, done, "collective", call))
        self.finish[call.rank] = max(self.finish[call.rank], done)
        self._tell(end, done)

    def _go_on(self, order: int, rank: int, process: Process) -> None:
        """Let a process run until it waits for a later moment, or nobody knows when."""
        for until in process:
            if isinstance(until, tuple):
                if (moment := self.ended.get(until)) is None:
                    self.waiters[until].append((order, rank, process))
                    return
                until = moment
            if until > self.now:
                heapq.heappush(self.moments, (until, _RESUME, order, rank, process))
                return

    def _send(self, number: int) -> float:
        """Let a message leave as soon as it can; returns when its last byte has left."""
        sent, taken, size, order = self.messages[number]
        source, target = sent.rank, taken.rank
        (alpha, beta), start = self.links[source][target], max(self.now, self.out_free[source])
        end = start + size * beta
        self.out_free[source] = self.ended["left", number] = end
        self.intervals.append(Interval(source, start, end, "send", sent, target, size))
        heapq.heappush(self.moments, (start + alpha, _ARRIVE, order, target, number))
        return end

    def _arrive(self, _order: tuple[int, int], target: int, number: int) -> None:
        sent, taken, size, _ = self.messages[number]
        start = max(self.now, self.in_free[target])
        end = start + size * self.links[sent.rank][target][1]
        self.in_free[target] = end
        self.intervals.append(Interval(target, start, end, "receive", taken, sent.rank, size))
        self._tell(("arrived", number), end)

    def _tell(self, end: End, moment: float) -> None:
        self.ended[end] = moment
        for waiter in self.waiters.pop(end, ()):
            heapq.heappush(self.moments, (moment, _RESUME, *waiter))
