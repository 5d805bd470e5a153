"""Jobs that stand still, made up call by call, and what their flight recorders would leave.

A job's ranks form a grid, as in a training with tensor and data parallelism: each rank is in the
group of its row, in that of its column, and in the default group. In some jobs a column is a
pipeline instead: each rank receives from the one above it, and sends to the one below. One more
rank, the last one, only watches: it takes part in one call of the default group and is then over.
Two ranks stop early, each in code of its own, and whoever needs them stops too.

A dump has the form of PyTorch's own: `entries`, with the fields that the lab reads, and the table
`pg_config` of the groups.
"""

import pickle
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

WORLD = "default_pg"
_STEPS = 3


@dataclass(frozen=True)
class Grid:
    """The size of a job, and what its two guilty ranks leave.

    Attributes:
        rows: How many ranks have the same data.
        columns: How many ranks share a layer.
        killed: How many of the two guilty ranks were killed, and left no dump.
        stops_at_the_end: Whether both stop before their last call, when many others are done.
        sends: Whether columns are pipelines. Then one of the two is missed by messages only.
    """

    rows: int
    columns: int
    killed: int = 0
    stops_at_the_end: bool = False
    sends: bool = False


CASES = {
    "two rows, four columns": Grid(2, 4),
    "four rows, two columns": Grid(4, 2),
    "three rows, three columns, one rank killed": Grid(3, 3, killed=1),
    "two rows, eight columns": Grid(2, 8),
    "three rows, four columns, in their last calls": Grid(3, 4, stops_at_the_end=True),
    "four rows, four columns, both killed": Grid(4, 4, killed=2),
    "a pipeline of three stages with three ranks each": Grid(3, 3, sends=True),
    "a pipeline of six stages with two ranks each, one killed": Grid(6, 2, killed=1, sends=True),
}


@dataclass(frozen=True)
class _Step:
    """What a program does next: a collective of a group, or a message to or from a rank."""

    group: str
    kind: str = "all_reduce"
    peer: int | None = None


@dataclass
class _Job:
    """A job while it runs.

    Attributes:
        groups: Its groups: by name, the members.
        programs: By rank, what it calls.
        entries: By rank, what its recorder has.
        made: By rank, name of a group and peer of a message, how many calls.
    """

    groups: dict[str, list[int]]
    programs: dict[int, list[_Step]]
    entries: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    made: Counter[tuple[int, str, int | None]] = field(default_factory=Counter)

    def run_until_stuck(self, stops: dict[int, int]) -> None:
        """Let every rank go on until none can. A rank of `stops` stops after so many calls."""
        self.entries = {rank: [] for rank in self.programs}
        somebody_moves = True
        while somebody_moves:
            somebody_moves = False
            for rank in self.programs:
                if self._can_call(rank, stops):
                    self._call(rank)
                    somebody_moves = True

    def _can_call(self, rank: int, stops: dict[int, int]) -> bool:
        calls = len(self.programs[rank])
        if len(self.entries[rank]) == min(stops.get(rank, calls), calls):
            return False
        return not self.waits(rank)

    def _call(self, rank: int) -> None:
        step = self.programs[rank][len(self.entries[rank])]
        self.made[rank, step.group, step.peer] += 1
        entry = {
            "process_group": (step.group, step.group),
            "collective_seq_id": self.made[rank, step.group, None],
            "profiling_name": f"nccl:{step.kind}",
            "state": "scheduled",
            "is_p2p": step.peer is not None,
        }
        if step.peer is not None:
            members = self.groups[step.group]
            arrow = "->" if step.kind == "send" else "<-"
            ends = f"{members.index(rank)}{arrow}{members.index(step.peer)}"
            entry["profiling_name"] += f" {ends}"
            entry["p2p_seq_id"] = self._messages_of(rank, step.group)
        self.entries[rank].append(entry)

    def _messages_of(self, rank: int, group: str) -> int:
        return sum(self.made[rank, group, peer] for peer in self.groups[group])

    def missing_from(self, rank: int) -> list[int]:
        """Who has not come to the last call of this rank."""
        step = self.programs[rank][len(self.entries[rank]) - 1]
        number = self.made[rank, step.group, step.peer]
        if step.peer is not None:
            is_there = self.made[step.peer, step.group, rank] >= number
            return [] if is_there else [step.peer]
        missing = []
        for member in self.groups[step.group]:
            if self.made[member, step.group, None] < number:
                missing.append(member)
        return missing

    def waits(self, rank: int) -> bool:
        """Whether its last call is not complete; if it is, its entry notes it."""
        if not self.entries[rank]:
            return False
        if self.missing_from(rank):
            return True
        self.entries[rank][-1]["state"] = "completed"
        return False

    def dump(self, rank: int) -> dict[str, Any]:
        """What the recorder of this rank leaves."""
        table = {}
        for name, members in self.groups.items():
            if rank in members:
                table[name] = {"name": name, "desc": name, "ranks": str(members)}
        self.waits(rank)
        return {"version": "2.10", "pg_config": table, "entries": self.entries[rank]}


def _job(grid: Grid) -> _Job:
    """A job of this size, before its first call."""
    count = grid.rows * grid.columns
    groups = {WORLD: list(range(count + 1))}
    programs = {}
    for rank in range(count):
        row, column = divmod(rank, grid.columns)
        of_row = f"tensor {row}"
        of_column = f"pipeline {column}" if grid.sends else f"data {column}"
        groups.setdefault(of_row, []).append(rank)
        groups.setdefault(of_column, []).append(rank)
        # A row whose number is odd has an extra layer, so numbers differ between groups.
        layers = (2 + row % 2) * [_Step(of_row)]
        step = [*layers, _Step(of_column)]
        if grid.sends:
            received = [_Step(of_column, "recv", rank - grid.columns)] if row > 0 else []
            is_last = row == grid.rows - 1
            sent = [] if is_last else [_Step(of_column, "send", rank + grid.columns)]
            step = [*received, *layers, *sent]
        programs[rank] = [_Step(WORLD), *_STEPS * step]
    programs[count] = [_Step(WORLD)]
    return _Job(groups, programs)


def _draw(count: int) -> int:
    return int(torch.randint(0, count, ()))


def stuck_job(grid: Grid) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """Make up a job that two ranks hold up, by torch's random numbers.

    Returns:
        By rank, its dump, in a random order and without those of killed ranks; and the two ranks.
    """
    while True:
        job = _job(grid)
        stops = {}
        while len(stops) < 2:
            rank = _draw(grid.rows * grid.columns)
            calls = len(job.programs[rank])
            stops[rank] = calls - 1 if grid.stops_at_the_end else 1 + _draw(calls - 1)
        job.run_until_stuck(stops)
        if _both_hold_somebody_up(job, stops, grid.sends):
            break
    guilty = sorted(stops)
    ranks = torch.randperm(len(job.programs)).tolist()
    dumps = {rank: job.dump(rank) for rank in ranks if rank not in guilty[: grid.killed]}
    return dumps, guilty


def _both_hold_somebody_up(job: _Job, stops: dict[int, int], sends: bool) -> bool:
    """Whether both ranks came to where they stop, and some call lacks only the one or the other.

    Where ranks send, one of the two has to be missed by messages only.
    """
    lacking_one = set()
    missed_in_collectives: set[int] = set()
    for rank, entries in job.entries.items():
        if not job.waits(rank):
            continue
        if rank in stops:
            return False
        missing = job.missing_from(rank)
        if len(missing) == 1:
            lacking_one.update(missing)
        if not entries[-1]["is_p2p"]:
            missed_in_collectives.update(missing)
    if sends and missed_in_collectives.issuperset(stops):
        return False
    return lacking_one.issuperset(stops)


def write(dumps: dict[int, dict[str, Any]], folder: str | Path) -> None:
    """Write the dumps into files, as a job that is ended by its watchdog does."""
    for rank, dump in dumps.items():
        (Path(folder) / f"_dump_{rank}").write_bytes(pickle.dumps(dump))
