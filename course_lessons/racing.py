"""Two equal pieces of work, raced in turn, in two threads and in two processes (chapter 01).

The clock of a way starts when both are ready to work: threads have been started and wait at a
barrier, processes have met. Of several rounds the fastest counts, since whatever disturbs a round
makes it slower. Beside the clock stands the CPU time, which explains it:

    times as fast = cores at work / CPU time, compared with the work in turn
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.figure import Figure

Work = Callable[[], object]
Lap = tuple[float, float]  # seconds on the clock, seconds of CPU time
COLOURS, HATCHES = ("#0072B2", "#D55E00"), ("////", "")  # of Okabe and Ito: threads, processes


class Race(NamedTuple):
    """How a race went: two ways as multiples of the speed in turn, and what the threads spent."""

    threads: float
    processes: float
    cores: float  # at work while two threads ran
    cpu_time: float  # of both threads, as a multiple of that in turn


def race(make_works: Callable[[], Sequence[Work]], rounds: int = 4) -> torch.Tensor:
    """Run both works in all three ways; called in each of two ranks.

    Rank 0 does the first two ways alone. In the third, each rank does one work.

    Returns:
        (rounds, 3, 2): per round and way the seconds on the clock and of CPU time in this rank.
    """
    works, rank = make_works(), dist.get_rank()
    laps = torch.zeros(rounds, 3, 2, dtype=torch.float64)
    in_turn(works)  # warm up
    for number in range(rounds):
        dist.barrier()
        if rank == 0:
            laps[number, 0] = torch.tensor(in_turn(works))
            laps[number, 1] = torch.tensor(in_threads(works))
        dist.barrier()
        laps[number, 2] = torch.tensor(in_turn(works[rank : rank + 1]))
    return laps


def in_turn(works: Sequence[Work]) -> Lap:
    """One work after the other, in this thread."""
    clock, cpu = time.perf_counter(), time.thread_time()
    for work in works:
        work()
    return time.perf_counter() - clock, time.thread_time() - cpu


def in_threads(works: Sequence[Work]) -> Lap:
    """Every work in a thread of its own, from the moment when all threads have started."""
    ready = threading.Barrier(len(works) + 1)
    cpu_s = [0.0] * len(works)

    def run(number: int) -> None:
        torch.set_num_threads(1)  # else torch would spread each thread's work over all cores
        ready.wait()
        _, cpu_s[number] = in_turn(works[number : number + 1])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    ready.wait()
    clock = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - clock, sum(cpu_s)


def result(laps_by_rank: Sequence[torch.Tensor]) -> Race:
    """Of what `race` returned in both ranks, the fastest round of each way."""
    laps = torch.stack(list(laps_by_rank))  # (rank, round, way, clock and CPU)
    clocks, cpus = laps[..., 0].amax(dim=0), laps[..., 1].sum(dim=0)
    best = clocks.argmin(dim=0, keepdim=True)
    turn, threads, processes = clocks.gather(0, best)[0].tolist()
    cpu_turn, cpu_threads, _ = cpus.gather(0, best)[0].tolist()
    return Race(turn / threads, turn / processes, cpu_threads / threads, cpu_threads / cpu_turn)


def table(races: dict[object, Race]) -> str:
    """The races as lines: the two ways, and behind them what the threads spent."""
    head = f"{'':>12}  two processes  two threads = cores at work / CPU time"
    lines = [
        f"{name:>12}   about {race.processes:.2f}     about {race.threads:.2f}     "
        f"about {race.cores:.2f}    about {race.cpu_time:.2f}"
        for name, race in races.items()
    ]
    return "\n".join([head, *lines])


def bars(races: dict[object, Race], xlabel: str = "") -> Figure:
    """Threads and processes of every race as bars; the dashed line is the speed in turn."""
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for number, way in enumerate(("threads", "processes")):
        values = [getattr(race, way) for race in races.values()]
        places = [place + 0.4 * number - 0.2 for place in range(len(races))]
        style = {"color": COLOURS[number], "hatch": HATCHES[number], "edgecolor": "white"}
        drawn = axes.bar(places, values, 0.36, label=f"two {way}", **style)
        axes.bar_label(drawn, fmt="%.2f", padding=2)
    axes.axhline(1, color="#555555", linewidth=1, linestyle="--")
    axes.set(ylim=(0, 2.6), ylabel="times as fast as in turn", xlabel=xlabel)
    axes.set_xticks(range(len(races)), races)
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
