"""Made-up trainings under NCCL that hang, with known truth, and the dumps that they would leave.

Ranks form a pipeline of stages; each stage has replicas, and each replica is split among ranks. A
rank's CPU hands calls to its GPU, some ahead of what is done, and waits for it at the end of each
step. The GPU runs its calls in order, and a call is over when all whom it needs have come to it.
This is a model: it has no times but turns, and no message is over before its receiver has come.

    python tests/helpers/nccl_jobs.py [SEEDS] [KIND...]

tells for many seeds how often the guilty are named, and prints every case that is not right.
"""

import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from course_utils.flight.dumps import from_raw
from course_utils.flight.explanation import Explanation, explain

TURN_NS = 10**7
STEPS = 5
# What may go wrong. Of these, the first ones are told from dumps for sure, but for rare cases.
STOPPED, KILLED, FAILED_GPU, OTHER_SIZE = "stopped", "killed", "failed gpu", "other size"
OTHER_CALL, LESS, SWAPPED = "other call", "one step less", "swapped"
NO_SEND, SLOW_KERNEL = "no send", "kernel without end"
KINDS = (
    STOPPED, KILLED, FAILED_GPU, OTHER_SIZE, OTHER_CALL, LESS, SWAPPED, NO_SEND, SLOW_KERNEL,
)  # fmt: skip


GOOD = ("right", "among suspects", "with ranks that left no dump")


@dataclass(eq=False)
class Op:
    """One call of a program: a collective of a group, or one end of a message."""

    kind: str
    group: str
    peer: int = -1  # of a message
    size: int = 64
    waits: bool = False  # whether the CPU waits here until all is over
    in_background: bool = False  # a gradient's reduction: later calls need not wait for it
    batch: int = 0  # of messages that are issued together


@dataclass(eq=False)
class Issued:
    """A call that a rank's CPU has handed to its GPU."""

    op: Op
    number: int
    created: int
    is_over: bool = False
    is_noted: bool = False  # whether the recorder knows that it is over
    entry: dict = field(default_factory=dict)


@dataclass
class Shape:
    """How a job is laid out, and how it writes its dumps."""

    stages: int
    replicas: int
    splits: int
    ahead: int  # calls that a CPU may be ahead of its GPU
    is_batched: bool  # whether messages go in batches
    buffer: int  # entries that a recorder keeps
    only_pending: bool = False


class Rank:
    """A rank while it runs."""

    def __init__(self, program: list[Op]) -> None:
        self.program = program
        self.position = 0
        self.issued: list[Issued] = []
        self.pending: list[Issued] = []
        self.stops_before = -1  # the CPU never makes this call
        self.stuck_before: Op | None = None  # the GPU never comes to this call
        self.fails_at = -1  # the GPU notes nothing from this turn on
        self.breaks_at = -1  # and does nothing from this one on


class Job:
    """A training, its faults, and its run until nothing moves any more."""

    def __init__(self, shape: Shape, chance: random.Random) -> None:
        self.shape = shape
        self.chance = chance
        self.turn = 0
        self.groups: dict[str, list[int]] = {}
        self.names: dict[int, list[str]] = defaultdict(list)
        self._make_groups()
        world_size = shape.stages * shape.replicas * shape.splits
        self.ranks = [Rank(self._program(rank)) for rank in range(world_size)]
        self.numbers: dict[tuple[int, str, str], int] = {}
        self.faults: dict[int, tuple[str, int]] = {}  # by rank what goes wrong, and where
        self.dead: set[int] = set()

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and split of a rank."""
        rest, split = divmod(rank, self.shape.splits)
        stage, replica = divmod(rest, self.shape.replicas)
        return stage, replica, split

    def _make_groups(self) -> None:
        shape = self.shape
        members: dict[str, list[int]] = defaultdict(list)
        for rank in range(shape.stages * shape.replicas * shape.splits):
            stage, replica, split = self.place(rank)
            members["default_pg"].append(rank)
            members[f"TENSOR {stage} {replica}"].append(rank)
            members[f"DATA {stage} {split}"].append(rank)
            members[f"PIPELINE {replica} {split}"].append(rank)
            members[f"MODEL {replica}"].append(rank)
        self.groups = {name: ranks for name, ranks in members.items() if len(ranks) > 1}
        for name, ranks in self.groups.items():
            for rank in ranks:
                self.names[rank].append(name)

    def _program(self, rank: int) -> list[Op]:
        stage, replica, split = self.place(rank)
        names = self.names[rank]
        tensor = f"TENSOR {stage} {replica}"
        data = f"DATA {stage} {split}"
        pipeline = f"PIPELINE {replica} {split}"
        before = rank - self.shape.replicas * self.shape.splits
        after = rank + self.shape.replicas * self.shape.splits
        program = [Op("all_reduce", "default_pg", waits=True)]
        batch = 0
        for _ in range(STEPS):
            for first, last in ((before, after), (after, before)):  # forward, then backward
                for _ in range(2):  # parts of a batch
                    batch += 1
                    if pipeline in names and 0 <= first < self.world_size:
                        program.append(Op("recv", pipeline, first, batch=batch))
                    if tensor in names:
                        program.append(Op("_all_gather_base", tensor))
                        program.append(Op("_reduce_scatter_base", tensor))
                    batch += 1
                    if pipeline in names and 0 <= last < self.world_size:
                        program.append(Op("send", pipeline, last, batch=batch))
            if data in names:
                program.append(Op("_reduce_scatter_base", data, in_background=True))
                program.append(Op("_all_gather_base", data))
            if f"MODEL {replica}" in names:
                program.append(Op("all_reduce", f"MODEL {replica}", size=1, waits=True))
            program.append(Op("all_reduce", "default_pg", size=2, waits=True))
        program.append(Op("broadcast", "default_pg", waits=True))
        return program

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.shape.stages * self.shape.replicas * self.shape.splits

    def break_rank(self, rank: int, kind: str, at: int) -> None:
        """Have a rank go wrong at a place in its program."""
        self.faults[rank] = (kind, at)
        state, program = self.ranks[rank], self.ranks[rank].program
        if kind in (STOPPED, KILLED):
            state.stops_before = at
        if kind == FAILED_GPU:
            state.fails_at = at  # the place is turned into a turn when it comes there
        if kind == SLOW_KERNEL:
            state.stuck_before = program[at]
        if kind == OTHER_SIZE:
            program[at] = Op(program[at].kind, program[at].group, size=program[at].size + 1)
        if kind == OTHER_CALL:
            program[at] = Op("broadcast", program[at].group, size=7)
        if kind == LESS:
            step = (len(program) - 2) // STEPS
            del program[-1 - step : -1]
        if kind == SWAPPED:
            program[at], program[at + 1] = program[at + 1], program[at]
        if kind == NO_SEND:
            del program[at]

    def run(self) -> None:
        """Until nothing moves for a while, or all have ended."""
        quiet = 0
        order = list(range(self.world_size))
        while quiet < 12:
            self.turn += 1
            self.chance.shuffle(order)
            moves = [self._issue(rank) for rank in order if self.chance.random() < 0.8]
            moves += [self._complete(rank) for rank in order]
            quiet = 0 if any(moves) else quiet + 1
        for rank, (kind, _) in self.faults.items():
            if kind == KILLED and rank in self.truth:
                self.dead.add(rank)

    @property
    def hangs(self) -> bool:
        """Whether a rank waits for ever."""
        return any(rank.pending for rank in self.ranks)

    @property
    def truth(self) -> set[int]:
        """The ranks that have gone wrong: one that others stopped before has done nothing."""
        return {rank for rank in self.faults if self._has_gone_wrong(rank)}

    def _has_gone_wrong(self, rank: int) -> bool:
        kind, at = self.faults[rank]
        state = self.ranks[rank]
        if kind in (STOPPED, KILLED):
            return state.position == at and self._may_issue(rank)
        if kind == FAILED_GPU:
            return 0 <= state.breaks_at < self.turn
        if kind == SLOW_KERNEL:
            return any(call.op is state.stuck_before for call in state.pending[:1])
        return state.position > at

    def _issue(self, rank: int) -> bool:
        state = self.ranks[rank]
        if state.position in (len(state.program), state.stops_before):
            return False
        if state.breaks_at >= 0 and self.turn > state.breaks_at + 3:
            return False  # its program has met the error
        if not self._may_issue(rank):
            return False
        op = state.program[state.position]
        if state.fails_at == state.position and state.breaks_at < 0:
            state.breaks_at = self.turn + self.chance.randrange(2, 6)
        state.position += 1
        sort = "messages" if op.peer >= 0 else "collectives"
        number = self.numbers.get((rank, op.group, sort), 0) + 1
        self.numbers[rank, op.group, sort] = number
        issued = Issued(op, number, self.turn)
        state.issued.append(issued)
        state.pending.append(issued)
        return True

    def _may_issue(self, rank: int) -> bool:
        """Whether the CPU waits for nothing."""
        pending = self.ranks[rank].pending
        return len(pending) < self.shape.ahead and not (pending and pending[-1].op.waits)

    def _is_active(self, rank: int, issued: Issued) -> bool:
        """Whether the GPU has come to a call."""
        state = self.ranks[rank]
        if 0 <= state.breaks_at < self.turn:
            return False
        for earlier in state.pending:
            if earlier.op is state.stuck_before:
                return False
            if earlier is issued:
                return True
            same_batch = earlier.op.peer >= 0 and earlier.op.batch == issued.op.batch
            if not same_batch and not (earlier.op.in_background and not issued.op.waits):
                return False
        return False

    def _complete(self, rank: int) -> bool:
        moved = False
        for issued in list(self.ranks[rank].pending):
            if not self._is_active(rank, issued):
                continue
            together = self._together(rank, issued)
            if not together:
                continue
            for member, call in together:
                call.is_over = True
                call.is_noted = not 0 <= self.ranks[member].fails_at < self.ranks[member].position
                self.ranks[member].pending.remove(call)
            moved = True
        return moved

    def _together(self, rank: int, issued: Issued) -> list[tuple[int, Issued]]:
        """All whom a call needs, if all have come to it."""
        op = issued.op
        members = self.groups[op.group] if op.peer < 0 else [rank, op.peer]
        together = []
        for member in members:
            call = issued if member == rank else self._counterpart(member, rank, issued)
            if call is None or not self._is_active(member, call):
                return []
            together.append((member, call))
        return together

    def _counterpart(self, member: int, rank: int, issued: Issued) -> Issued | None:
        op = issued.op
        for call in self.ranks[member].pending:
            if call.op.group != op.group:
                continue
            if op.peer < 0:
                is_same = call.op.peer < 0 and call.number == issued.number
                if is_same and (call.op.kind, call.op.size) == (op.kind, op.size):
                    return call
            elif call.op.peer == rank and {call.op.kind, op.kind} == {"send", "recv"}:
                return call
        return None

    def raw(self, without: frozenset[int] = frozenset()) -> dict[int, dict]:
        """The dumps, by rank."""
        raw = {}
        for rank in range(self.world_size):
            if rank not in self.dead and rank not in without:
                raw[rank] = self._dump(rank)
        return raw

    def _dump(self, rank: int) -> dict:
        entries = self._entries(rank)
        table = {}
        status = {}
        for number, name in enumerate(self.names[rank]):
            ranks = self.groups[name]
            key = str(3 * number + (rank % 2 if number else 0))  # names differ between ranks
            desc = name.split()[0]
            table[key] = {"name": key, "desc": desc, "ranks": str(ranks)}
            mine = [entry for entry in entries if entry["process_group"][0] == key]
            if mine:
                over = [entry for entry in mine if entry["state"] == "completed"]
                status[str(number)] = {
                    "last_enqueued_collective": _sequence(mine[-1]),
                    "last_started_collective": -1,
                    "last_completed_collective": _sequence(over[-1]) if over else -1,
                }
        if self.shape.only_pending:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        entries = entries[-self.shape.buffer :]
        return {"version": "2.9", "pg_config": table, "pg_status": status, "entries": entries}

    def _entries(self, rank: int) -> list[dict]:
        entries: list[dict] = []
        op_ids: Counter[str] = Counter()
        for issued in self.ranks[rank].issued:
            op = issued.op
            op_ids[op.group] += 1
            name = op.kind
            if op.peer >= 0:
                ranks = self.groups[op.group]
                arrow = "->" if op.kind == "send" else "<-"
                name = f"{op.kind} {ranks.index(rank)}{arrow}{ranks.index(op.peer)}"
            entry = self._entry(rank, issued, name, op_ids[op.group], len(entries))
            entries.append(entry)
            if op.peer >= 0 and self.shape.is_batched:
                # Only the entry that ends a batch knows that it is over.
                end = entry | {"profiling_name": "nccl:coalesced", "record_id": len(entries)}
                end["input_sizes"], end["input_dtypes"] = [], []
                entry["state"], entry["retired"] = "scheduled", False
                entries.append(end)
        return entries

    def _entry(self, rank: int, issued: Issued, name: str, op_id: int, record_id: int) -> dict:
        op = issued.op
        place = self.names[rank].index(op.group)
        key = str(3 * place + (rank % 2 if place else 0))
        is_message = op.peer >= 0
        over = issued.is_noted
        return {
            "record_id": record_id,
            "pg_id": place,
            "process_group": (key, op.group.split()[0]),
            "collective_seq_id": self._collectives_until(rank, issued),
            "p2p_seq_id": issued.number if is_message else 0,
            "op_id": op_id,
            "profiling_name": f"nccl:{name}",
            "time_created_ns": 10**18 + issued.created * TURN_NS + rank,
            "input_sizes": [[op.size]],
            "input_dtypes": ["Float"],
            "output_sizes": [[op.size]],
            "output_dtypes": ["Float"],
            "state": "completed" if over else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": over,
            "timeout_ms": 600_000,
            "is_p2p": is_message,
        }

    def _collectives_until(self, rank: int, issued: Issued) -> int:
        return issued.number if issued.op.peer < 0 else 0

    def explained(self, without: frozenset[int] = frozenset()) -> Explanation:
        """What is said of it."""
        raw = self.raw(without)
        return explain(from_raw(raw, {rank: f"_dump_{rank}" for rank in raw}, []))


def _sequence(entry: dict) -> int:
    return entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]


def random_shape(chance: random.Random) -> Shape:
    """A layout of 16 to 64 ranks."""
    stages, replicas, splits = chance.choice(
        [(2, 2, 4), (4, 2, 2), (4, 4, 1), (1, 4, 4), (2, 8, 1), (2, 4, 4), (4, 4, 4), (16, 1, 1)]
    )
    return Shape(
        stages,
        replicas,
        splits,
        ahead=chance.choice([1, 4, 12]),
        is_batched=chance.random() < 0.3,
        buffer=chance.choice([2000, 2000, 40]),
        only_pending=chance.random() < 0.4,
    )


def random_job(seed: int, kind: str, guilty: int = 1) -> tuple[Job, frozenset[int]]:
    """A job that has run until it hangs, and the ranks that lost their dumps."""
    chance = random.Random(f"{seed} {kind} {guilty}")
    job = Job(random_shape(chance), chance)
    when = chance.uniform(0.25, 0.9)  # both at about the same time
    for rank in chance.sample(range(job.world_size), guilty):
        program = job.ranks[rank].program
        job.break_rank(rank, kind, _place(program, kind, when))
    job.run()
    innocent = [rank for rank in range(job.world_size) if rank not in job.truth]
    lost = chance.sample(innocent, chance.choice([0, 0, 0, 1, 2]))
    return job, frozenset(lost)


def _place(program: list[Op], kind: str, when: float) -> int:
    """Where in a program a rank goes wrong: at the first fitting place from there on."""
    first = int(when * (len(program) - 2))
    for place in [*range(first, len(program) - 2), *range(first, 0, -1)]:
        op, next_op = program[place], program[place + 1]
        if kind == NO_SEND and op.kind != "send":
            continue
        if kind in (OTHER_SIZE, OTHER_CALL) and op.peer >= 0:
            continue
        if kind == SWAPPED and (op.group == next_op.group or op.in_background or op.waits):
            continue
        return place
    return len(program) - 2


def grade(job: Job, explanation: Explanation) -> str:
    """How good an explanation is."""
    guilty = set(explanation.guilty)
    if guilty == job.truth:
        return "right"
    lost = set(explanation.dumps.missing) - job.dead
    if job.dead and guilty - lost == job.truth and not explanation.sure:
        return "with ranks that left no dump"  # nobody can tell a lost dump from a dead rank
    if guilty - job.truth and explanation.sure:
        return "SURE AND WRONG"
    if guilty >= job.truth and explanation.verdict.outcome == "unknown":
        return "among suspects"
    if not guilty:
        return "nobody"
    return "part" if guilty < job.truth else "wrong"


def main() -> None:
    """Print how often each kind of hang is told."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    for kind in sys.argv[2:] or KINDS:
        for count in (1, 2):
            grades: Counter[str] = Counter()
            for seed in range(seeds):
                job, lost = random_job(seed, kind, count)
                if not job.truth or not job.hangs:
                    grades["did not hang"] += 1
                    continue
                explanation = job.explained(lost)
                grades[grade(job, explanation)] += 1
                if grade(job, explanation) not in GOOD:
                    reasons = [(e.rank, e.why) for e in explanation.verdict.evidence][:6]
                    print(f"  {kind} x{count} {seed}: {grade(job, explanation)}, truth "
                          f"{sorted(job.truth)}, ours {reasons} {explanation.verdict.certainty} "
                          f"{job.shape} lost {sorted(lost)}")  # fmt: skip
            print(f"{kind} x{count}: {dict(grades)}")


if __name__ == "__main__":
    main()
