"""A recording run again on a virtual clock: discrete events, in a fixed order, in plain floats."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_utils.network.matching import (
    COMPUTE,
    DONE,
    SEND,
    SENT,
    START,
    TAKEN,
    ReplayError,
    Schedule,
    Step,
)
from course_utils.network.replay import Interval, Replay

if TYPE_CHECKING:
    from course_utils.network.network import Network
    from course_utils.record.event import Event


# Microseconds that a rank computes before an event; where that is None, before its end.
Think = Callable[[int, "Event | None"], float]

_ARRIVE, _RESUME = range(2)  # at one moment, arrivals come first


def simulate(schedule: Schedule, network: "Network", think: Think | None) -> Replay:
    """Run a schedule on a network; `think`, where given, tells what ranks compute before events.

    Raises:
        ReplayError: A rank waits for ever.
    """
    return _Simulation(schedule, network, think).run()


@dataclass(eq=False, slots=True)
class _Runner:
    """A rank's program, or its part in a collective, on its way through its steps."""

    rank: int
    number: int  # of the task; -1 for a program
    steps: Sequence[Step]
    event: "Event | None" = None
    at: int = 0
    now: float = 0.0
    called: float = 0.0  # a collective may be called before it can begin
    left: float = 0.0  # when the last byte that it has sent left
    done: float | None = None
    waiters: list["_Runner"] = field(default_factory=list)  # for its end
    next: "_Runner | None" = None  # the group's next collective, already called


class _Simulation:
    def __init__(self, schedule: Schedule, network: "Network", think: Think | None) -> None:
        self.schedule, self.network, self.think = schedule, network, think
        size = len(schedule.programs)
        self.programs = [_Runner(rank, -1, steps) for rank, steps in enumerate(schedule.programs)]
        self.tasks = [
            _Runner(task.event.rank, number, task.steps, task.event)
            for number, task in enumerate(schedule.tasks)
        ]
        self.links = [[network.link(a, b, size) for b in range(size)] for a in range(size)]
        self.out_free, self.in_free = [0.0] * size, [0.0] * size
        self.left: list[float | None] = [None] * len(schedule.messages)
        self.arrived: list[float | None] = [None] * len(schedule.messages)
        self.waiting: dict[int, _Runner] = {}  # by the message that it waits for
        self.last: dict[tuple[int, str], _Runner] = {}  # collective of a rank in a group
        self.moments: list[tuple] = []
        self.intervals: list[Interval] = []
        self.do = {
            COMPUTE: self._compute if think else lambda runner, event: runner.now,
            SEND: self._send,
            SENT: lambda runner, message: self.left[message],
            TAKEN: self._take,
            START: self._start,
            DONE: self._join,
        }

    def run(self) -> Replay:
        for program in self.programs:
            self._advance(program)
        while self.moments:
            now, kind, _, _, which = heapq.heappop(self.moments)
            if kind == _ARRIVE:
                self._arrive(now, which)
            else:
                self._resume(now, which)
        for program in self.programs:
            if program.done is None:
                raise ReplayError(f"{program.steps[program.at - 1][2]!r}: it waits for ever.")
        ends = [(runner.rank, runner.done) for runner in (*self.programs, *self.tasks)]
        finish = [max(end for rank, end in ends if rank == own.rank) for own in self.programs]
        return Replay(tuple(finish), tuple(self.intervals), self.network)

    def _advance(self, runner: _Runner) -> None:
        """Take steps until one ends at a later moment, or nobody knows when."""
        while runner.at < len(runner.steps):
            code, what, _ = runner.steps[runner.at]
            runner.at += 1
            until = self.do[code](runner, what)
            if until is None:
                return
            if until > runner.now:
                self._later(until, runner)
                return
        self._end(runner)

    def _later(self, moment: float, runner: _Runner) -> None:
        order = runner.event.index if runner.number >= 0 else -1
        heapq.heappush(self.moments, (moment, _RESUME, order, runner.rank, runner))

    def _resume(self, now: float, runner: _Runner) -> None:
        if runner.number < 0:
            code, _, event = runner.steps[runner.at - 1]
            what = "compute" if code == COMPUTE else "wait"
            self.intervals.append(Interval(runner.rank, runner.now, now, what, event))
        runner.now = now
        self._advance(runner)

    def _compute(self, runner: _Runner, event: "Event | None") -> float:
        return runner.now + self.think(runner.rank, event)

    def _send(self, runner: _Runner, number: int) -> float:
        message = self.schedule.messages[number]
        source, target, size, order = message[:4]
        link = self.links[source][target]
        start = max(runner.now, self.out_free[source])
        end = start + link.transfer_us(size)
        self.out_free[source] = self.left[number] = runner.left = end
        self.intervals.append(Interval(source, start, end, "send", message.sent, target, size))
        heapq.heappush(self.moments, (start + link.alpha, _ARRIVE, order, target, number))
        return runner.now

    def _arrive(self, now: float, number: int) -> None:
        message = self.schedule.messages[number]
        source, target, size, _ = message[:4]
        start = max(now, self.in_free[target])
        end = start + self.links[source][target].transfer_us(size)
        self.in_free[target] = self.arrived[number] = end
        self.intervals.append(Interval(target, start, end, "receive", message.taken, source, size))
        if number in self.waiting:
            self._later(end, self.waiting.pop(number))

    def _take(self, runner: _Runner, number: int) -> float | None:
        if self.arrived[number] is None:
            self.waiting[number] = runner
        return self.arrived[number]

    def _start(self, runner: _Runner, number: int) -> float:
        """Begin a collective, after the one that this rank has called before in the group."""
        task = self.tasks[number]
        task.now = task.called = runner.now
        before = self.last.get((task.rank, task.event.group_name))
        self.last[task.rank, task.event.group_name] = task
        if before is None or (before.done is not None and before.done <= runner.now):
            self._advance(task)
        elif before.done is None:
            before.next = task
        else:
            self._later(before.done, task)
        return runner.now

    def _join(self, runner: _Runner, number: int) -> float | None:
        task = self.tasks[number]
        if task.done is None:
            task.waiters.append(runner)
        return task.done

    def _end(self, runner: _Runner) -> None:
        runner.done = max(runner.now, runner.left)
        if runner.number >= 0:
            what = Interval(runner.rank, runner.called, runner.done, "collective", runner.event)
            self.intervals.append(what)
        for other in runner.waiters:
            self._later(runner.done, other)
        if runner.next:
            self._later(runner.done, runner.next)
