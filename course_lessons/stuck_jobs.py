"""Jobs that stand still, made up call by call, and what their flight recorders would leave.

A job's ranks form a grid, as in a training with tensor and data parallelism: each rank is in the
group of its row, in that of its column, and in the default group. One more rank, the last one, only
watches: it takes part in one call of the default group and is then over. Two ranks stop early, each
in code of its own, and whoever needs them stops too.

A dump has the form of PyTorch's own: `entries`, with the fields that the lab reads, and the table
`pg_config` of the groups.
"""

import pickle
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
    """

    rows: int
    columns: int
    killed: int = 0
    stops_at_the_end: bool = False


CASES = {
    "two rows, four columns": Grid(2, 4),
    "four rows, two columns": Grid(4, 2),
    "three rows, three columns, one rank killed": Grid(3, 3, killed=1),
    "two rows, eight columns": Grid(2, 8),
    "three rows, four columns, in their last calls": Grid(3, 4, stops_at_the_end=True),
    "four rows, four columns, both killed": Grid(4, 4, killed=2),
}


@dataclass
class _Job:
    """A job while it runs.

    Attributes:
        groups: Its groups: by name, the members.
        programs: By rank, the names of the groups in which it calls, call by call.
        entries: By rank, what its recorder has.
        made: How many calls a rank has made in a group, by rank and name.
    """

    groups: dict[str, list[int]]
    programs: dict[int, list[str]]
    entries: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    made: dict[tuple[int, str], int] = field(default_factory=dict)

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
        entries = self.entries[rank]
        if len(entries) == min(stops.get(rank, len(self.programs[rank])), len(self.programs[rank])):
            return False
        return not entries or self.is_complete(entries[-1])

    def _call(self, rank: int) -> None:
        name = self.programs[rank][len(self.entries[rank])]
        number = self.made.get((rank, name), 0) + 1
        self.made[rank, name] = number
        entry = {
            "process_group": (name, name),
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "state": "scheduled",
            "is_p2p": False,
        }
        self.entries[rank].append(entry)

    def missing_from(self, entry: dict[str, Any]) -> list[int]:
        """The members of its group that have not made this call."""
        name = entry["process_group"][0]
        missing = []
        for member in self.groups[name]:
            if self.made.get((member, name), 0) < entry["collective_seq_id"]:
                missing.append(member)
        return missing

    def is_complete(self, entry: dict[str, Any]) -> bool:
        """Whether all members have made this call; if so, the entry notes it."""
        if self.missing_from(entry):
            return False
        entry["state"] = "completed"
        return True

    def dump(self, rank: int) -> dict[str, Any]:
        """What the recorder of this rank leaves."""
        table = {}
        for name, members in self.groups.items():
            if rank in members:
                table[name] = {"name": name, "desc": name, "ranks": str(members)}
        for entry in self.entries[rank]:
            self.is_complete(entry)
        return {"version": "2.10", "pg_config": table, "entries": self.entries[rank]}


def _job(grid: Grid) -> _Job:
    """A job of this size, before its first call."""
    count = grid.rows * grid.columns
    groups = {WORLD: list(range(count + 1))}
    programs = {}
    for rank in range(count):
        row, column = divmod(rank, grid.columns)
        of_row, of_column = f"tensor {row}", f"data {column}"
        groups.setdefault(of_row, []).append(rank)
        groups.setdefault(of_column, []).append(rank)
        # A row whose number is odd has an extra layer, so numbers differ between groups.
        layers = 2 + row % 2
        programs[rank] = [WORLD] + _STEPS * ([of_row] * layers + [of_column])
    programs[count] = [WORLD]
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
        if _both_hold_somebody_up(job, stops):
            break
    guilty = sorted(stops)
    ranks = torch.randperm(len(job.programs)).tolist()
    dumps = {rank: job.dump(rank) for rank in ranks if rank not in guilty[: grid.killed]}
    return dumps, guilty


def _both_hold_somebody_up(job: _Job, stops: dict[int, int]) -> bool:
    """Whether both ranks came to where they stop, and some call lacks only the one or the other."""
    lacking_one = set()
    for rank, entries in job.entries.items():
        is_waiting = bool(entries) and not job.is_complete(entries[-1])
        if is_waiting and rank in stops:
            return False
        if is_waiting:
            missing = job.missing_from(entries[-1])
            if len(missing) == 1:
                lacking_one.update(missing)
    return lacking_one.issuperset(stops)


def write(dumps: dict[int, dict[str, Any]], folder: str | Path) -> None:
    """Write the dumps into files, as a job that is ended by its watchdog does."""
    for rank, dump in dumps.items():
        (Path(folder) / f"_dump_{rank}").write_bytes(pickle.dumps(dump))
