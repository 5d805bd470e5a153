"""What the ranks of one launch sent, received and waited for."""

import gc
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.launcher.language import _
from course_utils.network.collectives import refuse_unknown
from course_utils.network.network import Network
from course_utils.network.schedule import ReplayError, Schedule
from course_utils.network.simulation import Replay, Simulation, Think
from course_utils.record.event import Event

Compute = Callable[[Event], float] | Sequence[float]


@dataclass(frozen=True)
class Traffic:
    """How much went from whom to whom.

    Attributes:
        bytes, messages: `bytes[source][target]`, and likewise how many messages.
    """

    bytes: tuple[tuple[float, ...], ...]
    messages: tuple[tuple[int, ...], ...]

    @property
    def sent_bytes(self) -> tuple[float, ...]:
        """Bytes that each rank sent."""
        return tuple(map(sum, self.bytes))

    @property
    def sent_messages(self) -> tuple[int, ...]:
        """How many messages each rank sent."""
        return tuple(map(sum, self.messages))

    @property
    def received_bytes(self) -> tuple[float, ...]:
        """Bytes that each rank received."""
        columns = zip(*self.bytes, strict=True)
        return tuple(map(sum, columns))

    @property
    def received_messages(self) -> tuple[int, ...]:
        """How many messages each rank received."""
        columns = zip(*self.messages, strict=True)
        return tuple(map(sum, columns))


@dataclass(frozen=True, repr=False)
class Trace:
    """Every event of every rank, rank by rank; iterating gives `Event`s.

    Attributes:
        events: All events, by rank and then in the order in which the rank issued them.
        ended_s: By rank, seconds from the launch until its function returned or was stopped.
        failed: Whether the launch failed, so that the recording ends before its time.
    """

    events: tuple[Event, ...]
    ended_s: tuple[float, ...]
    failed: bool = False

    def __reduce__(self) -> tuple:  # without its schedules
        return Trace, (self.events, self.ended_s, self.failed)

    @property
    def world_size(self) -> int:
        """How many ranks were recorded."""
        return len(self.ended_s)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"Trace({self.world_size} ranks, {len(self)} events)"

    def of_rank(self, rank: int) -> list[Event]:
        """One rank's events, in the order in which it issued them."""
        return [event for event in self.events if event.rank == rank]

    def schedule(self, algorithm: str) -> Schedule:
        """Who meets whom, found once for all networks: see `schedule.py`."""
        schedules = vars(self).setdefault("_schedules", {})
        if algorithm in schedules:
            return schedules[algorithm]
        refuse_unknown(algorithm)
        if self.failed:
            raise ReplayError(
                _(
                    "this recording is of a launch that failed, so it cannot be replayed or "
                    "counted: plot_timeline(error.trace) shows how far each rank came."
                )
            )
        schedule = Schedule(self.events, self.world_size, algorithm)
        schedules[algorithm] = schedule
        return schedule

    def traffic(self, algorithm: str = "ring") -> Traffic:
        """Count bytes and messages per rank and per pair of ranks.

        Sends count as they are; a collective counts as the messages that `algorithm` ("ring",
        "tree" or "direct", see `collectives.py`) would send.

        Raises:
            ValueError: The algorithm is unknown.
            ReplayError: The ranks disagree about a collective, or a message has no partner.
        """
        ranks = range(self.world_size)
        amounts = [[0.0] * self.world_size for _source in ranks]
        counts = [[0] * self.world_size for _source in ranks]
        schedule = self.schedule(algorithm)
        for sent, taken, carried, _order in schedule.messages:
            amounts[sent.rank][taken.rank] += carried
            counts[sent.rank][taken.rank] += 1
        plain_amounts = []
        for row in amounts:
            plain_row = map(_plain, row)
            plain_amounts.append(tuple(plain_row))
        frozen_counts = map(tuple, counts)
        return Traffic(tuple(plain_amounts), tuple(frozen_counts))

    def replay(self, network: Network, compute: Compute | None = None) -> Replay:
        """Run the recording again on a modelled network, on a virtual clock.

        Args:
            network: What it runs on.
            compute: Microseconds that ranks compute: none; one number per rank, before it begins;
                or a function that tells of each event how many come before it.

        Returns:
            When each rank is done, and what it did when: in every run the same, to the last digit.

        Raises:
            ReplayError: The launch failed; or a message or a collective has no partner: says which.
            ValueError: The network or the compute does not fit the recording.
        """
        network.refuse_misfit(self.world_size)
        think = self._think(compute)
        collects_garbage = gc.isenabled()
        gc.disable()  # many objects and no garbage: looking for it would take half of the time
        try:
            schedule = self.schedule(network.algorithm)
            simulation = Simulation(schedule, network, think)
            return simulation.run()
        finally:
            if collects_garbage:
                gc.enable()

    def _think(self, compute: Compute | None) -> Think:
        if callable(compute):

            def before_an_event(rank: int, event: Event | None) -> float:
                if event is None:
                    return 0.0
                return _checked(compute(event))

            return before_an_event

        if compute is None:
            compute = [0.0] * self.world_size
        late_us = [_checked(us) for us in compute]
        if len(late_us) != self.world_size:
            raise ValueError(
                _(
                    "compute={compute!r}: it needs one number of microseconds for each of the "
                    "{world_size} ranks, or a function of an event",
                    compute=compute,
                    world_size=self.world_size,
                )
            )

        def before_the_first_event(rank: int, event: Event | None) -> float:
            if event is None:
                return late_us[rank]
            return 0.0

        return before_the_first_event

    def save(self, path: str | Path) -> None:
        """Write JSON that `Trace.load` reads."""
        events = [vars(event) for event in self.events]
        data = {"events": events, "ended_s": self.ended_s, "failed": self.failed}
        text = json.dumps(data)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read what `save` wrote.

        Raises:
            ValueError: The file holds something else.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            data = json.loads(text, object_hook=_frozen)
            events = tuple(Event(**row) for row in data["events"])
            return cls(events, _ended_s(data), data["failed"])
        except (ValueError, KeyError, TypeError) as error:
            message = _(
                "{path} is not a trace that Trace.save wrote: {error!r}", path=path, error=error
            )
            raise ValueError(message) from None


def _ended_s(data: dict[str, Any]) -> tuple[float, ...]:
    """When each rank ended; an older file has a list for each, which begins with that."""
    if "ended_s" in data:
        return tuple(data["ended_s"])
    ended_s = []
    for end_s, *_others in data["ended"]:
        ended_s.append(end_s)
    return tuple(ended_s)


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where an event has tuples."""
    frozen = dict(row)
    for name, value in row.items():
        if isinstance(value, list):
            frozen[name] = tuple(value)
    return frozen


def _plain(amount: float) -> float:
    """Whole bytes as a whole number."""
    whole_bytes = int(amount)
    if amount == whole_bytes:
        return whole_bytes
    return amount


def _checked(us: float) -> float:
    if not math.isfinite(us) or us < 0:
        raise ValueError(
            _("compute gave {us!r}: microseconds must be finite and at least 0", us=us)
        )
    return us
