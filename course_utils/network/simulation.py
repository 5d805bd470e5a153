"""A recording run again on a virtual clock: discrete events, in a fixed order, in plain floats."""

import contextlib
import gc
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from course_utils.network.network import Network
from course_utils.network.replay import Interval, Replay
from course_utils.network.schedule import (
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
from course_utils.record.event import Event

# Microseconds that a rank computes before an event; where that is None, before its end.
Think = Callable[[int, Event | None], float]

_ARRIVE, _RESUME = range(2)  # at one moment, arrivals come first


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


def simulate(schedule: Schedule, network: Network, think: Think | None) -> Replay:
    """Run a schedule on a network; `think`, where given, tells what ranks compute before events.

    Raises:
        ReplayError: A rank waits for ever.
    """
    return _Simulation(schedule, network, think).run()


@dataclass(eq=False, slots=True)
class _Runner:
    """A rank's program, or its part in a collective, on its way through its steps."""

    rank: int
    steps: Sequence[Step]
    event: Event | None = None  # of a collective; a program has none
    order: int = -1  # among what goes on at one moment: programs first
    at: int = 0
    now: float = 0.0
    called: float = 0.0  # a collective may be called before it can begin
    left: float = 0.0  # when the last byte that it has sent left
    done: float | None = None
    waiters: list["_Runner"] = field(default_factory=list)  # for its end
    next: "_Runner | None" = None  # the group's next collective, already called


class _Simulation:
    def __init__(self, schedule: Schedule, network: Network, think: Think | None) -> None:
        self.think, self.network, size = think, network, len(schedule.programs)
        self.programs = [
            _Runner(rank, steps if think else [step for step in steps if step[0] != COMPUTE])
            for rank, steps in enumerate(schedule.programs)
        ]
        self.tasks = [
            _Runner(event.rank, steps, event, event.index) for event, steps in schedule.tasks
        ]
        self.links = [[network.link(a, b, size) for b in range(size)] for a in range(size)]
        self.messages = schedule.messages
        self.out_free, self.in_free = [0.0] * size, [0.0] * size
        self.left: list[float | None] = [None] * len(schedule.messages)
        self.arrived: list[float | None] = [None] * len(schedule.messages)
        self.waiting: dict[int, _Runner] = {}  # by the message that it waits for
        self.last: dict[tuple, _Runner] = {}  # collective of a rank in a group
        self.moments: list[tuple] = []
        self.intervals: list[Interval] = []
        self.do = {
            COMPUTE: lambda runner, event: runner.now + self.think(runner.rank, event),
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
        finish = []
        for program in self.programs:
            if program.done is None:
                raise ReplayError(f"{program.steps[program.at - 1][2]!r}: it waits for ever.")
            finish.append(program.done)
        for task in self.tasks:
            finish[task.rank] = max(finish[task.rank], task.done)
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
        heapq.heappush(self.moments, (moment, _RESUME, runner.order, runner.rank, runner))

    def _resume(self, now: float, runner: _Runner) -> None:
        if runner.event is None:
            code, _, event = runner.steps[runner.at - 1]
            what = "compute" if code == COMPUTE else "wait"
            self.intervals.append(Interval(runner.rank, runner.now, now, what, event))
        runner.now = now
        self._advance(runner)

    def _send(self, runner: _Runner, number: int) -> float:
        source, target, size, order, sent, _ = self.messages[number]
        link, start = self.links[source][target], max(runner.now, self.out_free[source])
        end = start + link.transfer_us(size)
        self.out_free[source] = self.left[number] = runner.left = end
        self.intervals.append(Interval(source, start, end, "send", sent, target, size))
        heapq.heappush(self.moments, (start + link.alpha, _ARRIVE, order, target, number))
        return runner.now

    def _arrive(self, now: float, number: int) -> None:
        source, target, size, _, _, taken = self.messages[number]
        start = max(now, self.in_free[target])
        end = start + self.links[source][target].transfer_us(size)
        self.in_free[target] = self.arrived[number] = end
        self.intervals.append(Interval(target, start, end, "receive", taken, source, size))
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
        key = task.rank, task.event.group_name, task.event.group
        before, self.last[key] = self.last.get(key), task
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
        if runner.event is not None:
            what = Interval(runner.rank, runner.called, runner.done, "collective", runner.event)
            self.intervals.append(what)
        for other in runner.waiters:
            self._later(runner.done, other)
        if runner.next:
            self._later(runner.done, runner.next)
