"""What the ranks of one launch sent, received and waited for."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.network.matching import Schedule, match
from course_utils.network.replay import Traffic
from course_utils.record.event import Event

if TYPE_CHECKING:
    from course_utils.network.network import Network
    from course_utils.network.replay import Replay

FORMAT = "course_utils trace 1"


@dataclass(frozen=True, repr=False)
class Trace:
    """Every event of every rank, rank by rank; iterating gives `Event`s.

    Attributes:
        events: All events, by rank and then in the order in which the rank issued them.
        ended: Of each rank: when its function returned or was stopped (seconds since the launch),
            and the CPU seconds that it had computed since its last event.
        failed: Whether the launch failed, so that the recording ends before its time.
    """

    events: tuple[Event, ...]
    ended: tuple[tuple[float, float], ...]
    failed: bool = False

    @classmethod
    def later(cls, make: Callable[[], tuple[Event, ...]], ended: tuple, failed: bool) -> "Trace":
        """A trace whose events are made when somebody asks for them, so that no launch waits."""
        trace = cls.__new__(cls)
        vars(trace).update(_make=make, ended=ended, failed=failed)
        return trace

    def __getattr__(self, name: str) -> tuple[Event, ...]:
        if name != "events" or "_make" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        vars(self)["events"] = vars(self).pop("_make")()
        return self.events

    def __reduce__(self) -> tuple:
        return Trace, (self.events, self.ended, self.failed)

    @property
    def world_size(self) -> int:
        """How many ranks were recorded."""
        return len(self.ended)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"Trace({self.world_size} ranks, {len(self)} events)"

    def of_rank(self, rank: int) -> list[Event]:
        """One rank's events, in the order in which it issued them."""
        return [event for event in self.events if event.rank == rank]

    @functools.cached_property
    def _schedules(self) -> dict[str, Schedule]:
        return {}

    def schedule(self, algorithm: str) -> Schedule:
        """Who meets whom, found once for all networks: see `match`."""
        if algorithm not in self._schedules:
            self._schedules[algorithm] = match(self, algorithm)
        return self._schedules[algorithm]

    def traffic(self, algorithm: str = "ring") -> Traffic:
        """Count bytes and messages per rank and per pair of ranks.

        Sends count as they are; a collective counts as the messages that `algorithm` ("ring",
        "tree" or "direct", see `collectives.py`) would send.

        Raises:
            ValueError: The algorithm is unknown.
            ReplayError: The ranks disagree about a collective, or a message has no partner.
        """
        size = range(self.world_size)
        amounts, counts = [[0.0 for _ in size] for _ in size], [[0 for _ in size] for _ in size]
        for message in self.schedule(algorithm).messages:
            amounts[message.source][message.target] += message.bytes
            counts[message.source][message.target] += 1
        whole = tuple(tuple(int(b) if b == int(b) else b for b in row) for row in amounts)
        return Traffic(whole, tuple(map(tuple, counts)))

    def replay(
        self,
        network: "Network",
        compute: "str | Callable[[Event], float] | Sequence[float]" = "zero",
    ) -> "Replay":
        """Run the recording again on a modelled network: see `Network.replay`."""
        return network.replay(self, compute)

    def save(self, path: str | Path) -> None:
        """Write JSON that `Trace.load` reads."""
        events = [asdict(event) for event in self.events]
        data = {"format": FORMAT, "ended": self.ended, "failed": self.failed, "events": events}
        Path(path).write_text(json.dumps(data), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read what `save` wrote.

        Raises:
            ValueError: The file holds something else.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(data["format"])
            events = tuple(
                Event(**{k: _frozen(v) for k, v in row.items()}) for row in data["events"]
            )
            return cls(events, tuple(map(tuple, data["ended"])), data.get("failed", False))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a trace that Trace.save wrote: {error!r}") from None

    def to_chrome(self, path: str | Path) -> None:
        """Write the Chrome trace format, which https://ui.perfetto.dev opens: a row per rank.

        What blocks the rank is drawn as a slice; what runs beside it, from call to completion, as
        an asynchronous one. Source: Chromium, Trace Event Format (2016).
        """
        names = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
            for rank in range(self.world_size)
        ]
        rows = [row for event in self.events for row in _chrome(event)]
        text = json.dumps({"traceEvents": names + rows, "displayTimeUnit": "ms"})
        Path(path).write_text(text, encoding="utf-8")


def _frozen(value: Any) -> Any:
    """JSON has lists where an event has tuples."""
    return tuple(value) if isinstance(value, list) else value


def _chrome(event: Event) -> list[dict[str, Any]]:
    start, end = 1e6 * event.start_s, 1e6 * event.end_s
    shown = {"line": event.where, "bytes": event.bytes, "dtype": event.dtype, "shape": event.shape}
    row = {"name": event.what, "cat": event.kind, "pid": event.rank, "tid": 0, "args": shown}
    if event.blocking or event.kind == "wait":
        return [{**row, "ph": "X", "ts": start, "dur": max(0.0, end - start)}]
    number = f"{event.rank}.{event.index}"
    return [
        {**row, "ph": "b", "id": number, "ts": start},
        {**row, "ph": "e", "id": number, "ts": max(start, end)},
    ]
