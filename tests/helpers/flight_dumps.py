"""Dumps of the flight recorder as a test wants them."""

import pickle
from pathlib import Path

from course_utils.flight.dumps import from_raw
from course_utils.flight.explanation import Explanation, explain

WORLD = "the whole world"


class Job:
    """A job, under NCCL unless `backend` says otherwise: its groups and what ranks have called."""

    backend = "nccl"

    def __init__(self, world_size: int, **groups: list[int]) -> None:
        self.groups = {"default_pg": list(range(world_size)), **groups}
        self.numbers: dict[tuple[int, str], int] = {}
        self.entries: dict[int, list[dict]] = {rank: [] for rank in range(world_size)}
        self.clock_ns = 10**18

    def call(self, kind: str, *ranks: int, group: str = "default_pg", over=(), size=4) -> None:
        """These ranks call a collective; for those in `over` it is complete."""
        for rank in ranks:
            number = self.numbers.get((rank, group), 0) + 1
            self.numbers[rank, group] = number
            entry = {"collective_seq_id": number, "p2p_seq_id": 0, "op_id": number}
            self._add(
                rank, group, f"{self.backend}:{kind}", entry, rank in over, size, is_p2p=False
            )

    def message(self, kind: str, rank: int, peer: int, group: str, over: bool = False) -> None:
        """A send to, or a receive from, a peer."""
        ranks = self.groups[group]
        arrow = "->" if kind == "send" else "<-"
        name = f"{self.backend}:{kind} {ranks.index(rank)}{arrow}{ranks.index(peer)}"
        count = self.numbers.get((rank, "messages"), 0) + 1
        self.numbers[rank, "messages"] = count
        entry = {"collective_seq_id": 0, "p2p_seq_id": count, "op_id": count}
        self._add(rank, group, name, entry, over, 4, is_p2p=True)

    def _add(self, rank, group, name, entry, is_over, size, is_p2p) -> None:
        self.clock_ns += 10**6
        entry |= {
            "process_group": (str(list(self.groups).index(group)), group),
            "pg_id": list(self.groups).index(group),
            "profiling_name": name,
            "time_created_ns": self.clock_ns,
            "input_sizes": [[size]],
            "input_dtypes": ["Float"],
            "state": "completed" if is_over and self.backend == "nccl" else "scheduled",
            "retired": is_over,
            "is_p2p": is_p2p,
            "timeout_ms": 600_000,
        }
        self.entries[rank].append(entry)

    def dump(self, rank: int, only_pending: bool = False) -> dict:
        """What this rank leaves."""
        table, status = {}, {}
        for number, (desc, ranks) in enumerate(self.groups.items()):
            if rank not in ranks:
                continue
            table[str(number)] = {"name": str(number), "desc": desc, "ranks": str(ranks)}
            mine = [entry for entry in self.entries[rank] if entry["process_group"][1] == desc]
            over = [entry["op_id"] for entry in mine if entry["retired"]]
            status[str(number)] = {
                "last_enqueued_collective": max((entry["op_id"] for entry in mine), default=-1),
                "last_started_collective": -1,
                "last_completed_collective": max(over, default=-1),
            }
        entries = self.entries[rank]
        if only_pending:
            entries = [entry for entry in entries if not entry["retired"]]
        return {"version": "2.9", "pg_config": table, "pg_status": status, "entries": entries}

    def explained(self, without: tuple[int, ...] = (), only_pending: bool = False) -> Explanation:
        """What is said of it."""
        raw = {}
        for rank in self.entries:
            if rank not in without:
                raw[rank] = self.dump(rank, only_pending)
        return explain(from_raw(raw, {rank: f"_dump_{rank}" for rank in raw}, []))

    def write(self, folder: Path) -> None:
        """Leave all dumps in a folder, as torch does."""
        for rank in self.entries:
            (folder / f"_dump_{rank}").write_bytes(pickle.dumps(self.dump(rank), protocol=2))


def after_two_steps(world_size: int, **groups: list[int]) -> Job:
    """A job whose ranks have finished two collectives of all of them."""
    job = Job(world_size, **groups)
    everybody = range(world_size)
    for _ in range(2):
        job.call("all_reduce", *everybody, over=everybody)
    return job
