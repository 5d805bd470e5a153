"""What chapter 08 judges with: a roll call with absent ranks, raw logs of real jobs."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from course_utils import WorkerError, WorkerTimeout, launch

RANKS = 4
_LATE_S = 0.2  # a rank that is slow, and comes in time
_PATIENT_S = 8.0  # so long that a slow rank is in time on a busy machine as well
_PATIENCE_S = 1.0
_roll_calls = itertools.count()  # ranks are forks of one process and count alike


@dataclass(frozen=True)
class Absence:
    """Who does not come to a roll call, of how many ranks.

    Attributes:
        name: What a learner reads of it.
        never: Ranks that do not call, counted from the end where negative.
    """

    name: str
    never: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name

    def ranks(self, world_size: int) -> list[int]:
        """Return who is missing, in the order of ranks."""
        return sorted({rank % world_size for rank in self.never})


ABSENCES = (
    Absence("everybody is there"),
    Absence("the last rank is absent", never=(-1,)),
    Absence("rank 0 is absent", never=(0,)),
    Absence("ranks 0 and 1 are absent", never=(0, 1)),
)


class _CountingStore:
    """A store that adds up the limits of all waits that were in vain, and has no wait without one.

    A sum of limits is the same on every machine, which seconds on a clock are not.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self.in_vain_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for notes, as `Store.wait` does."""
        if timeout is None:
            raise TypeError(f"store.wait({keys}) has no limit: an absent rank would hang it")
        try:
            self._store.wait(keys, timeout)
        except RuntimeError:
            self.in_vain_s += timeout.total_seconds()
            raise

    def get(self, key: str) -> bytes:
        """Read a note, as `Store.get` does; that would wait for it without a limit."""
        if not self._store.check([key]):
            raise TypeError(f"store.get({key!r}) waits for a note: an absent rank would hang it")
        return self._store.get(key)


def in_a_roll_call(who_is_missing: Callable) -> Callable:
    """Wrap a function so that each rank calls it twice: first one is slow, then some are missing.

    Args:
        who_is_missing: Takes a store, the name of a roll call and a patience in seconds; returns
            the ranks that did not come.

    Returns:
        A function of an `Absence`; it returns what a rank got from both calls, and from the first
        alone where the rank itself is missing from the second.
    """

    def roll_call(absence: Absence) -> list:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        # torch has no public name for the store by which the ranks met.
        store = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore(f"roll call {next(_roll_calls)}", store)
        store = _CountingStore(store)
        dist.barrier()
        if rank == world_size - 1:
            time.sleep(_LATE_S)
        answers = [who_is_missing(store, "before epoch 1", _PATIENT_S)]
        dist.barrier()
        if rank not in absence.ranks(world_size):
            answers.append(who_is_missing(store, "before epoch 2", _PATIENCE_S))
        if store.in_vain_s > 1.5 * _PATIENCE_S:
            waited = f"{store.in_vain_s:g} s in all, and patience_s is {_PATIENCE_S:g}"
            raise ValueError(f"it lets its waits last {waited}")
        dist.barrier()  # nobody leaves while somebody waits
        return answers

    roll_call.__name__ = getattr(who_is_missing, "__name__", "answer")
    return roll_call


def roll_call_spec(absences: list[Absence]) -> list[list]:
    """Return for each rank what both roll calls should have told it."""
    world_size = len(absences)
    missing = absences[0].ranks(world_size)
    wanted = []
    for rank in range(world_size):
        wanted.append([[]] if rank in missing else [[], missing])
    return wanted


def roll_call_inputs(rank: int, world_size: int, case: Absence) -> Absence:
    """Return what every rank gets: who will be missing."""
    return case


ROLL_CALL = {
    "spec": roll_call_spec,
    "inputs": roll_call_inputs,
    "cases": ABSENCES,
    "world_sizes": (2, 4),
    "allow": ("store",),
    "timeout": 40.0,
}


def symptom_of(task: Callable, *arguments: Any) -> tuple[str, WorkerError | None]:
    """Run a task in ranks, print the last part of its report, and return what is seen of it.

    Returns:
        "hangs", "dies" or "lies", the last where it comes to an end; and the error, if any.
    """
    try:
        launch(task, *arguments, backend="gloo", timeout=2)
    except WorkerError as error:
        print(error.parts[-1])
        symptom = "hangs" if isinstance(error, WorkerTimeout) else "dies"
        return symptom, error
    return "lies", None


_TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 39, in <module>\n'
    "    main()\n"
    '  File "train.py", line 32, in main\n'
    "    dist.all_reduce(load(rank, step, sys.argv[1]))\n"
)
_IN_LOAD = _TRACEBACK + '  File "train.py", line {}, in load\n    {}\n'
_PEER = _TRACEBACK + (
    "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:21422. "
    "This is typically caused by a remote worker crashing.\n"
)
_RECV = _TRACEBACK + (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv "
    "operation to complete\n"
)
_SEND = _RECV.replace(":78", ":129").replace("recv", "send")
_LABEL = _IN_LOAD.format(20, "return torch.nn.functional.one_hot(LABELS[11])") + (
    "IndexError: index 11 is out of bounds for dimension 0 with size 10\n"
)
_MEMORY = _IN_LOAD.format(18, "return torch.empty(2**50)") + (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 4503599627370496 bytes.\n"
)
_FILE = _IN_LOAD.format(22, 'return torch.load("part-0042.pt")') + (
    "FileNotFoundError: [Errno 2] No such file or directory: 'part-0042.pt'\n"
)
# What four ranks under torchrun wrote to stderr.log, and their exit codes; rank 2 was the culprit.
# Recorded with torch 2.15 and gloo on one machine; torch's own frames are left out.
JOBS = {
    "a label": (["", _PEER, _LABEL, _PEER], [-15, -15, -15, 1]),
    "memory": (["", _PEER, _MEMORY, _PEER], [-15, -15, 1, -15]),
    "a file": (["", _PEER, _FILE, _PEER], [-15, -15, 1, -15]),
    "a kill": (["", _PEER, "", _PEER], [-15, -15, -9, -15]),
    "a sleep": ([_RECV, _RECV, "", _SEND], [1, -15, -15, -15]),
    "nothing": (["", "", "", ""], [0, 0, 0, 0]),
}
CULPRIT = 2  # of the recorded jobs


def raw_logs(job: str, culprit: int = CULPRIT) -> tuple[list[str], list[int]]:
    """Return a recorded job's logs and exit codes, with the ranks turned round.

    Args:
        job: A key of `JOBS`.
        culprit: The rank that shall have been the first to fail.

    Returns:
        For each of four ranks its `stderr.log`, and for each its exit code.
    """
    logs, exit_codes = JOBS[job]
    turned_logs, turned_codes = [], []
    for rank in range(RANKS):
        recorded = (rank - culprit + CULPRIT) % RANKS
        lines = logs[recorded].splitlines()
        turned_logs.append("\n".join(f"[rank{rank}]: {line}" for line in lines))
        turned_codes.append(exit_codes[recorded])
    return turned_logs, turned_codes


def suspects_spec(logs: list[list[str]], exit_codes: list[list[int]]) -> list[list[int]]:
    """Return for each rank of the check whom to look at first: read off the recordings."""
    wanted = []
    for log, codes in zip(logs, exit_codes, strict=True):
        culprits = []
        for job, culprit in itertools.product(JOBS, range(RANKS)):
            if job != "nothing" and (log, codes) == raw_logs(job, culprit):
                culprits.append(culprit)
        wanted.append(culprits)
    return wanted


def suspects_inputs(rank: int, world_size: int, case: str) -> tuple[list[str], list[int]]:
    """Return a job's logs and exit codes; who is the culprit is drawn."""
    return raw_logs(case, int(torch.randint(RANKS, ())))


SUSPECTS = {
    "spec": suspects_spec,
    "inputs": suspects_inputs,
    "cases": tuple(JOBS),
    "world_sizes": (1, 4),
}


# Quoted, shortened, from public issues; the numbers in brackets are theirs.
WATCHDOG = """\
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1516, OpType=ALLREDUCE, \
NumelIn=25427968, NumelOut=25427968, Timeout(ms)=600000) ran for 600017 milliseconds
[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 1516, \
last enqueued NCCL work: 1516, last completed NCCL work: 1515.
[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1517, OpType=ALLREDUCE, \
NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600026 milliseconds
[PG 1 Rank 1] Exception (either an error or timeout) ..."""
