"""What a test sees of its launch from within a rank: the fixtures `trace`, `replay`, `late_ranks`.

They are made in pytest's process and inherited by each rank's fork, where `enter` tells them which
rank they are in.
"""

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from course_utils.launcher import torch_private
from course_utils.launcher.language import _
from course_utils.launcher.listener import Listener
from course_utils.launcher.torch_private import C10D
from course_utils.network.network import Network
from course_utils.network.simulation import Replay
from course_utils.network.trace import Trace, Traffic
from course_utils.record.event import Event
from course_utils.record.record import Record

_HOOK = 0x1A7E  # the number under which our hook is registered with a group
_MOST_MS = 20.0  # that a rank comes late to one call


class RankTrace:
    """What this rank has called until now, and what all ranks have; ask it inside the test."""

    def __init__(self) -> None:
        self._record: Record | None = None
        self._rank = 0
        self._asked: list[range] = []  # events with which this object has asked other ranks

    def enter(self, record: Record, rank: int) -> None:
        """In a rank: from now on this is that rank's."""
        self._record = record
        self._rank = rank

    @property
    def events(self) -> list[Event]:
        """This rank's events, waits among them, in the order in which it issued them."""
        kept = []
        for index, event in enumerate(self._all_events()):
            is_ours = any(index in asked for asked in self._asked)
            if not is_ours:
                kept.append(event)
        return _counted_anew(kept)

    @property
    def calls(self) -> list[Event]:
        """This rank's collectives and messages: each has `kind`, `bytes`, `dtype`, `shape`."""
        return [event for event in self.events if event.kind != "wait"]

    @property
    def kinds(self) -> list[str]:
        """The name of each of these calls, such as `["all_reduce", "barrier"]`."""
        return [call.kind for call in self.calls]

    def of_all_ranks(self) -> Trace:
        """The events of all ranks until now. All ranks have to call it: they meet here."""
        events_of_this_rank = tuple(self.events)
        by_rank: list[Any] = [None] * dist.get_world_size()
        before = len(self._all_events())
        dist.all_gather_object(by_rank, (events_of_this_rank, time.monotonic()))
        self._asked.append(range(before, len(self._all_events())))
        events: list[Event] = []
        ended_s = []
        for events_of_rank, end_s in by_rank:
            events += events_of_rank
            ended_s.append(end_s - self._recorded().start_s)
        return Trace(tuple(events), tuple(ended_s))

    def traffic(self, algorithm: str = "ring") -> Traffic:
        """Bytes and messages of all ranks: see `Trace.traffic`. All ranks have to call it."""
        return self.of_all_ranks().traffic(algorithm)

    def replay(self, network: Network | None = None, **described: Any) -> Replay:
        """The calls of all ranks on a modelled network. All ranks have to call it.

        Args:
            network: what it runs on; or describe one by
            **described: the arguments of `Network`, such as `latency_us=10, gbit_s=80`.
        """
        if network is None:
            network = Network(**described)
        return self.of_all_ranks().replay(network)

    def _all_events(self) -> tuple[Event, ...]:
        return self._recorded().events_until_now(self._rank)

    def _recorded(self) -> Record:
        if self._record is None:
            raise RuntimeError(
                _(
                    "trace is asked in the test itself, in its ranks; a fixture runs before there "
                    "are any."
                )
            )
        return self._record


def _counted_anew(events: list[Event]) -> list[Event]:
    """Events of which some were left out, with indices that follow each other again."""
    index_of = {}
    for index, event in enumerate(events):
        index_of[event.index] = index
    counted = []
    for index, event in enumerate(events):
        of = None if event.of is None else index_of[event.of]
        counted.append(dataclasses.replace(event, index=index, of=of))
    return counted


class LateRanks(Listener):
    """Delays before each call of each rank, the same in every run with the same seed.

    Attributes:
        seed: repeat the run with `--rank-seed` and this number.
        most_ms: the longest delay of one call; a test may change it.
    """

    def __init__(self, seed: int, test: str) -> None:
        self.seed = seed
        self.most_ms = _MOST_MS
        self._test = test
        self._draw = random.Random()

    @contextlib.contextmanager
    def in_worker(self, rank: int) -> Iterator[None]:
        """In a rank: have it come late to the calls of every group that is made from now on."""
        self._draw = self._random_of(rank)
        torch_private.wrap(f"{C10D}:_register_pg_in_world", self._hooking)
        yield

    def delays_ms(self, rank: int, calls: int) -> list[float]:
        """How late a rank comes to each of its first calls, in milliseconds."""
        draw = self._random_of(rank)
        delays_ms = []
        for _call in range(calls):
            delays_ms.append(draw.uniform(0.0, self.most_ms))
        return delays_ms

    def _random_of(self, rank: int) -> random.Random:
        return random.Random(f"{self.seed} {self._test} {rank}")

    def _hooking(self, register: Callable) -> Callable:
        def register_and_hook(group: c10d.ProcessGroup, *args: Any, **options: Any) -> None:
            register(group, *args, **options)
            if isinstance(group, c10d.ProcessGroup):
                torch_private.hook(group, _HOOK, self._come_late)

        return register_and_hook

    def _come_late(self, _call: Any) -> None:
        time.sleep(self._draw.uniform(0.0, self.most_ms) / 1000)
