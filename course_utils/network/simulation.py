"""A recording run again on a virtual clock: discrete events, in a fixed order, in plain floats."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from course_utils.launcher.language import _
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


# Microseconds that a rank computes before an event; with None, before its first event.
Think = Callable[[int, Event | None], float]
# What a rank does, or its part in a collective: yields until when it waits, or for which end.
Process = Iterator[float | End]
# Who waits: the order of its call, its rank, and what goes on then.
Waiter = tuple[Any, int, Process]
_ARRIVE, _RESUME = range(2)  # at one moment, arrivals come first


class Simulation:
    """A schedule on its way through a network; `think` tells what ranks compute before events.

    Attributes:
        now: Virtual microseconds since the start of all ranks.
        finish: By rank, until when it and all that it sent was done.
        links: `links[source][target]` is (microseconds to the first byte, microseconds per byte).
        out_free, in_free: By rank, from when on its outgoing and incoming port is free.
        at: By rank, the event at which its program waits or computes; nothing when it has ended.
        ended: When what one can wait for was over.
        waiters: Who waits for an end that has not come.
        moments: What will happen, as a heap: (moment, _ARRIVE or _RESUME, order, rank, what).
        intervals: What every rank and its ports did when.
    """

    def __init__(self, schedule: Schedule, network: Network, think: Think) -> None:
        self.network = network
        self.think = think
        self.messages = schedule.messages
        self.tasks = schedule.tasks
        self.programs = schedule.programs
        world_size = len(self.programs)
        self.links = _links(network, world_size)
        slow_ranks = network.slow_ranks
        self.slow = [slow_ranks.get(rank, 1.0) for rank in range(world_size)]
        self.out_free = [0.0] * world_size
        self.in_free = [0.0] * world_size
        self.finish = [0.0] * world_size
        self.now = 0.0
        self.at: dict[int, Event | None] = {}
        self.ended: dict[End, float] = {}
        self.waiters: dict[End, list[Waiter]] = defaultdict(list)
        self.moments: list[tuple] = []
        self.intervals: list[Interval] = []

    def run(self) -> Replay:
        """Run all programs to their ends; raises ReplayError where a rank waits for ever."""
        for rank, steps in enumerate(self.programs):
            self._go_on(-1, rank, self._program(rank, steps))
        while self.moments:
            self.now, kind, order, rank, subject = heapq.heappop(self.moments)
            if kind == _ARRIVE:
                self._arrive(rank, subject)
            else:
                self._go_on(order, rank, subject)
        if self.at:
            event = next(iter(self.at.values()))
            raise ReplayError(_("{event!r}: it waits for ever.", event=event))
        finish_us = tuple(self.finish)
        intervals = tuple(self.intervals)
        return Replay(finish_us, intervals, self.network)

    def _program(self, rank: int, steps: Sequence[Step]) -> Process:
        """What a rank does itself."""
        left = 0.0  # when the last byte of what it sent has left
        for code, subject, event in steps:
            if code == "send":
                left = self._send(subject)
                continue
            if code == "start":
                call, task_steps = self.tasks[subject]
                end = ("done", subject)
                self._go_on(call.index, rank, self._task(end, call, task_steps))
                continue
            begun = self.now
            if code == "wait":
                until = subject
            else:
                computes_us = self.think(rank, event) * self.slow[rank]
                if not computes_us:
                    continue
                until = begun + computes_us
            self.at[rank] = event
            yield until
            if self.now > begun:
                interval = Interval(rank, begun, self.now, code, event)
                self.intervals.append(interval)
        self.at.pop(rank, None)
        self.finish[rank] = max(self.finish[rank], self.now, left)

    def _task(self, end: End, call: Event, steps: Sequence[Step]) -> Process:
        """A rank's part in a collective, which goes on beside its program."""
        called = self.now
        left = 0.0
        for code, subject, _event in steps:
            if code == "send":
                left = self._send(subject)
            else:
                yield subject
        done = max(self.now, left)
        rank = call.rank
        interval = Interval(rank, called, done, "collective", call)
        self.intervals.append(interval)
        self.finish[rank] = max(self.finish[rank], done)
        self._note_end(end, done)

    def _go_on(self, order: Any, rank: int, process: Process) -> None:
        """Let a process run until it waits for a later moment, or nobody knows when."""
        for until in process:
            moment = until
            if isinstance(until, tuple):  # an end, not a moment
                moment = self.ended.get(until)
                if moment is None:
                    self.waiters[until].append((order, rank, process))
                    return
            if moment > self.now:
                heapq.heappush(self.moments, (moment, _RESUME, order, rank, process))
                return

    def _send(self, number: int) -> float:
        """Let a message leave as soon as it can; returns when its last byte has left."""
        sent, taken, size, order = self.messages[number]
        source = sent.rank
        target = taken.rank
        first_byte_us, us_per_byte = self.links[source][target]
        start = max(self.now, self.out_free[source])
        end = start + size * us_per_byte
        self.out_free[source] = end
        self.ended["left", number] = end
        interval = Interval(source, start, end, "send", sent, target, size)
        self.intervals.append(interval)
        arrives_at = start + first_byte_us
        arrival = (arrives_at, _ARRIVE, order, target, number)
        heapq.heappush(self.moments, arrival)
        return end

    def _arrive(self, target: int, number: int) -> None:
        """The first byte of a message has come to its receiver's port."""
        sent, taken, size, _ = self.messages[number]
        source = sent.rank
        _, us_per_byte = self.links[source][target]
        start = max(self.now, self.in_free[target])
        end = start + size * us_per_byte
        self.in_free[target] = end
        interval = Interval(target, start, end, "receive", taken, source, size)
        self.intervals.append(interval)
        self._note_end(("arrived", number), end)

    def _note_end(self, end: End, moment: float) -> None:
        self.ended[end] = moment
        for waiter in self.waiters.pop(end, ()):
            heapq.heappush(self.moments, (moment, _RESUME, *waiter))


def _links(network: Network, world_size: int) -> list[list[tuple[float, float]]]:
    """`links[source][target]`, as `Simulation` has them."""
    ranks = range(world_size)
    links = []
    for source in ranks:
        from_source = [network.link(source, target, world_size) for target in ranks]
        links.append(from_source)
    return links
