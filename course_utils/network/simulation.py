"""A recording run again on a virtual clock: discrete events, in a fixed order, in plain floats."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
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
_ARRIVE, _RESUME = range(2)  # at one moment, arrivals come first


@dataclass(eq=False, slots=True)
class _Runner:
    """A rank's program, or its part in a collective, on its way through its steps."""

    rank: int
    end: End
    steps: Sequence[Step]
    event: Event | None = None  # of a collective; a program has none
    at: int = 0
    now: float = 0.0
    called: float = 0.0  # a collective may be called before it can begin
    left: float = 0.0  # when the last byte that it has sent left


class Simulation:
    """A schedule on its way through a network; `think` tells what ranks compute before events."""

    def __init__(self, schedule: Schedule, network: Network, think: Think) -> None:
        self.think, self.network, self.messages = think, network, schedule.messages
        own, tasks = enumerate(schedule.programs), enumerate(schedule.tasks)
        self.programs = [_Runner(rank, ("program", rank), steps) for rank, steps in own]
        self.tasks = [_Runner(call.rank, ("done", n), steps, call) for n, (call, steps) in tasks]
        size = len(self.programs)
        self.links = [[network.link(a, b, size) for b in range(size)] for a in range(size)]
        self.slow = [network.slow_ranks.get(rank, 1.0) for rank in range(size)]
        self.out_free, self.in_free = [0.0] * size, [0.0] * size
        self.ended: dict[End, float] = {}
        self.waiters: dict[End, list[_Runner]] = defaultdict(list)
        self.moments: list[tuple] = []
        self.intervals: list[Interval] = []

    def run(self) -> Replay:
        """Run all programs to their ends; raises ReplayError where a rank waits for ever."""
        for program in self.programs:
            self._advance(program)
        while self.moments:
            now, kind, _, _, which = heapq.heappop(self.moments)
            (self._arrive if kind == _ARRIVE else self._resume)(now, which)
        finish = [0.0] * len(self.programs)
        for runner in (*self.programs, *self.tasks):
            if runner.end not in self.ended:
                raise ReplayError(f"{runner.steps[runner.at - 1][2]!r}: it waits for ever.")
            finish[runner.rank] = max(finish[runner.rank], self.ended[runner.end])
        return Replay(tuple(finish), tuple(self.intervals), self.network)

    def _advance(self, runner: _Runner) -> None:
        """Take steps until one ends at a later moment, or nobody knows when."""
        while runner.at < len(runner.steps):
            code, what, _ = runner.steps[runner.at]
            runner.at, until = runner.at + 1, runner.now
            if code == "compute":
                until += self.think(runner.rank, what) * self.slow[runner.rank]
            elif code == "send":
                self._send(runner, what)
            elif code == "start":
                task = self.tasks[what]
                task.now = task.called = runner.now
                self._advance(task)
            elif what in self.ended:
                until = self.ended[what]
            else:
                self.waiters[what].append(runner)
                return
            if until > runner.now:
                self._later(until, runner)
                return
        done, call = max(runner.now, runner.left), runner.event
        if call is not None:
            self.intervals.append(Interval(call.rank, runner.called, done, "collective", call))
        self._tell(runner.end, done)

    def _later(self, moment: float, runner: _Runner) -> None:
        order = runner.event.index if runner.event else -1  # programs first
        heapq.heappush(self.moments, (moment, _RESUME, order, runner.rank, runner))

    def _resume(self, now: float, runner: _Runner) -> None:
        if runner.event is None:
            code, _, event = runner.steps[runner.at - 1]
            self.intervals.append(Interval(runner.rank, runner.now, now, code, event))
        runner.now = now
        self._advance(runner)

    def _send(self, runner: _Runner, number: int) -> None:
        sent, taken, size, order = self.messages[number]
        source, target = sent.rank, taken.rank
        (alpha, beta), start = self.links[source][target], max(runner.now, self.out_free[source])
        end = start + size * beta
        self.out_free[source] = self.ended["left", number] = runner.left = end
        self.intervals.append(Interval(source, start, end, "send", sent, target, size))
        heapq.heappush(self.moments, (start + alpha, _ARRIVE, order, target, number))

    def _arrive(self, now: float, number: int) -> None:
        sent, taken, size, _ = self.messages[number]
        source, target = sent.rank, taken.rank
        start = max(now, self.in_free[target])
        end = start + size * self.links[source][target][1]
        self.in_free[target] = end
        self.intervals.append(Interval(target, start, end, "receive", taken, source, size))
        self._tell(("arrived", number), end)

    def _tell(self, end: End, moment: float) -> None:
        self.ended[end] = moment
        for runner in self.waiters.pop(end, ()):
            self._later(moment, runner)
