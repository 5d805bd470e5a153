"""What chapter 08 judges and draws with: a roll call with absent ranks, raw logs of real jobs."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

from course_lessons.drawing import reason_of
from course_utils import launch, show
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.pictures.style import rank_style

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
        dist.barrier()
        if rank == world_size - 1:
            time.sleep(_LATE_S)
        answers = [who_is_missing(store, "before epoch 1", _PATIENT_S)]
        dist.barrier()
        if rank not in absence.ranks(world_size):
            answers.append(who_is_missing(store, "before epoch 2", _PATIENCE_S))
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


def draw_roll_call(who_is_missing: Callable) -> None:
    """Let four ranks call the roll while rank 2 is absent, and draw what each says of each.

    Args:
        who_is_missing: As for `in_a_roll_call`; a wrong one is drawn as well.
    """
    absence = Absence("rank 2 is absent", never=(2,))
    try:
        lists = launch(in_a_roll_call(who_is_missing), absence, world_size=RANKS, backend="gloo")
    except WorkerError as error:
        print("No picture yet:", reason_of(error))
        return
    figure, axes = plt.subplots(figsize=(6, 2.6))
    for rank, answers in enumerate(lists):
        missing = answers[1] if len(answers) > 1 else None
        for other in range(RANKS):
            _draw_verdict(axes, rank, other, missing)
    axes.set(xlim=(-0.05, RANKS), ylim=(RANKS, -0.05))
    axes.set_xticks([other + 0.45 for other in range(RANKS)], map("of rank {}".format, range(4)))
    axes.set_yticks([rank + 0.45 for rank in range(RANKS)], map("rank {} says".format, range(4)))
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    named = [answers[1] for answers in lists if len(answers) > 1]
    show(figure, f"Rank 2 is absent. The other three name: {named}.")


def _draw_verdict(axes: plt.Axes, rank: int, other: int, missing: list[int] | None) -> None:
    """One square: what a rank says of a rank."""
    words = "here"
    color = rank_style(other)["color"] + "44"
    if missing is None:
        words, color = "", "white"
    elif other in missing:
        words, color = "missing", "#d5000055"
    axes.add_patch(plt.Rectangle((other, rank), 0.94, 0.9, fc=color, ec="#999999"))
    axes.text(other + 0.47, rank + 0.45, words, ha="center", va="center")


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


def draw_suspects(suspects: Callable) -> None:
    """Draw whom a function suspects in each recorded job, in which rank 2 failed first.

    Args:
        suspects: Takes logs and exit codes of all ranks, returns ranks. A wrong one is drawn too.
    """
    answers = {}
    for job in JOBS:
        try:
            answers[job] = list(suspects(*raw_logs(job)))
        except Exception as error:  # a learner's: any is told
            print(f"No picture yet: {type(error).__name__}: {error}")
            return
    figure, axes = plt.subplots(figsize=(7, 2.9))
    for row, job in enumerate(JOBS):
        logs, exit_codes = raw_logs(job)
        for rank in range(RANKS):
            log = logs[rank].rpartition("\n")[2].partition(": ")[2].partition(":")[0]
            color = "#E69F0088" if rank in answers[job] else "white"
            axes.add_patch(plt.Rectangle((rank, row), 0.94, 0.9, fc=color, ec="#999999"))
            text = f"{log or 'nothing'}, {exit_codes[rank]}"
            axes.text(rank + 0.47, row + 0.45, text, ha="center", va="center", fontsize=9)
    axes.set(xlim=(-0.05, RANKS), ylim=(len(JOBS), -0.05))
    axes.set_xticks([rank + 0.47 for rank in range(RANKS)], map("rank {}".format, range(RANKS)))
    axes.set_yticks([row + 0.45 for row in range(len(JOBS))], JOBS)
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    found = [job for job in JOBS if answers[job] == ([] if job == "nothing" else [CULPRIT])]
    show(figure, f"Last words, exit code; coloured: suspected. Right in {len(found)} of 6 jobs.")


# Quoted, shortened, from public issues; the numbers in brackets are theirs.
WATCHDOG = """\
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1516, OpType=ALLREDUCE, \
NumelIn=25427968, NumelOut=25427968, Timeout(ms)=600000) ran for 600017 milliseconds
[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 1516, \
last enqueued NCCL work: 1516, last completed NCCL work: 1515.
[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1517, OpType=ALLREDUCE, \
NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600026 milliseconds"""


def draw_calls(hang: WorkerTimeout) -> None:
    """Draw each rank's calls in order, with the step in which it made them.

    Args:
        hang: What part 1's launch of three ranks ended with; each rank prints its steps.
    """
    figure, axes = plt.subplots(figsize=(6.4, 1.9))
    for rank, printed in enumerate(hang.output):
        steps = re.findall(r"step \d", printed)
        ends = f"step {len(steps)}\nwaits"
        if hang.waiting[rank].state == "returned":
            ends = "returned"
        for call, words in enumerate([*steps, ends]):
            _draw_call(axes, rank, call, words, done=call < len(steps))
    axes.set(xlim=(0, 5), ylim=(3, 0))
    axes.set_xticks([call + 0.47 for call in range(5)], [f"call {call + 1}" for call in range(5)])
    axes.set_yticks([rank + 0.43 for rank in range(3)], ["rank 0", "rank 1", "rank 2"])
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    show(figure, "In its third call rank 1 is in step 3, and meets the others' step 2.")


def _draw_call(axes: plt.Axes, rank: int, call: int, words: str, done: bool) -> None:
    """One box: bold where the step is not the one that has this call's number."""
    color = rank_style(rank)["color"]
    style = {"hatch": "////", "ls": "--"} if words == "returned" else {}
    fill = color + "66" if done else "white"
    axes.add_patch(plt.Rectangle((call, rank), 0.94, 0.86, fc=fill, ec=color, **style))
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    text_style = {"bbox": behind} if style else {}
    if done and words != f"step {call}":
        text_style["weight"] = "bold"
    place = (call + 0.47, rank + 0.43)
    axes.text(*place, words, ha="center", va="center", fontsize=9, **text_style)


def draw_waits(errors: Mapping[str, WorkerTimeout]) -> None:
    """Draw when three ranks were busy and when they waited, and print who waits least.

    Args:
        errors: By name, what a launch with a recording ended with.
    """
    figure, sides = plt.subplots(1, 2, figsize=(8, 2.4), sharex=True, layout="constrained")
    for axes, (name, error) in zip(sides, errors.items(), strict=True):
        waits_s = _draw_side(axes, error)
        axes.set(title=name, xlabel="s since the launch", xlim=(0, None), ylim=(2.5, -0.5))
        axes.set_yticks(range(3), ["rank 0", "rank 1", "rank 2"])
        print(f"{name}: rank {waits_s.index(min(waits_s))} waits least")
    show(
        figure,
        "Grey: a rank is busy with its own; pale: it is inside all_reduce, hatched where that did "
        "not end. Rank 2 is always busy, and the others wait for it.",
    )


def _draw_side(axes: plt.Axes, error: WorkerTimeout) -> list[float]:
    """One recording; returns the seconds that each rank waited."""
    waits_s = [0.0] * 3
    over_s = max(event.end_s for event in error.trace)
    for rank in range(3):
        color, free_s = rank_style(rank)["color"], 0.0
        for event in error.trace.of_rank(rank):
            axes.barh(rank, event.start_s - free_s, 0.6, free_s, fc="#777777")
            took_s, free_s = event.end_s - event.start_s, event.end_s
            style = {} if event.finished else {"hatch": "////"}
            axes.barh(rank, took_s, 0.6, event.start_s, fc=color + "44", ec=color, **style)
            waits_s[rank] += took_s
        axes.barh(rank, over_s - free_s, 0.6, free_s, fc="#777777")
    return waits_s


_SHADES = {
    "names it": "#009E73AA",
    "shows it": "#009E7344",
    "notices": "#F0E44288",
    "luck": "#E69F0088",
    "another": "#D55E00BB",
    "silent": "white",
}


def draw_verdicts(verdicts: Mapping[str, Sequence[str]], faults: Sequence[str]) -> Counter:
    """Draw the table of tools and failures.

    Args:
        verdicts: By tool, what it made of each failure: a key of `_SHADES`.
        faults: The failures, in the same order.

    Returns:
        By tool, in how many failures it names or shows the culprit.
    """
    found: Counter[str] = Counter()
    figure, axes = plt.subplots(figsize=(9.5, 2.8))
    for x, (tool, column) in enumerate(verdicts.items()):
        for y, words in enumerate(column):
            found[tool] += words in ("names it", "shows it")
            shade = _SHADES[words]
            axes.add_patch(plt.Rectangle((x, y), 0.96, 0.9, fc=shade, ec="#999999"))
            axes.text(x + 0.48, y + 0.45, words, ha="center", va="center", fontsize=9)
    axes.set(xlim=(0, len(verdicts)), ylim=(len(faults), 0))
    axes.set_xticks([x + 0.48 for x in range(len(verdicts))], verdicts, fontsize=9)
    axes.set_yticks([y + 0.45 for y in range(len(faults))], faults)
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    text = ", ".join(f"{tool} {count}" for tool, count in found.items())
    show(figure, f"In how many of the six failures a tool names or shows the culprit: {text}.")
    return found
