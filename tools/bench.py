"""What a launch costs, beside a bare fork that does the same and beside other launchers.

A launch here is: start the ranks, join a gloo group, one all_reduce, bring every result back, and
end with nobody left. All of them take turns (A B C, A B C, ...), so that a drift of the machine
hits them alike; what counts is the median of the ratios within a turn. Last comes the speed of DDP
training itself, as `launch` and as `torchrun` start it (throughput.py).

    python tools/bench.py [--repeats 25] [--ranks 2 4 8] [--json FILE]
"""

import argparse
import contextlib
import functools
import heapq
import importlib.util
import io
import json
import logging
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import throughput
from course_utils import Network, Trace, launch
from course_utils.network.trace import Event

ROOT = Path(__file__).resolve().parents[1]
OURS, FLOOR = "launch", "bare fork"
TARGETS = {2: 1.15, 4: None, 8: 1.25}  # launch against the bare fork
FIRST_TARGET, GB_S_TARGET, RECORDED_TARGET = 1.5, 1.0, 1.1
REPLAY_TARGET = 2.0  # seconds
DDP_TARGET = 0.97  # images per second under launch, to torchrun's
MEGABYTE = 1 << 20


def total() -> float:
    """What every rank does: 1 + 2 + ... by one all_reduce."""
    tensor = torch.full((10,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return tensor[0].item()


def join(rank: int, ranks: int, file: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    store = dist.FileStore(file, ranks)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)


def with_launch(ranks: int) -> list[float]:
    return list(launch(total, world_size=ranks, backend="gloo"))


def with_bare_fork(ranks: int) -> list[float]:
    """The floor: no guards, no capture, no errors, no deadline."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, children = [], []
        for rank in range(ranks):
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                torch.set_num_threads(1)
                join(rank, ranks, f"{folder}/store")
                os.write(write, pickle.dumps(total()))
                os._exit(0)
            os.close(write)
            pipes.append(read)
            children.append(child)
        results = [pickle.loads(os.read(pipe, 4096)) for pipe in pipes]
        for pipe, child in zip(pipes, children, strict=True):
            os.waitpid(child, 0)
            os.close(pipe)
    return results


def _entry(rank: int, ranks: int, file: str, queue: Any) -> None:
    torch.set_num_threads(1)
    join(rank, ranks, file)
    queue.put((rank, total()))


def with_start_processes(ranks: int) -> list[float]:
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        queue = mp.get_context("fork").SimpleQueue()
        arguments = (ranks, f"{folder}/store", queue)
        mp.start_processes(_entry, arguments, nprocs=ranks, start_method="fork")
        results = dict(queue.get() for _ in range(ranks))
        queue.close()
    return [results[rank] for rank in range(ranks)]


def _joined(file: str) -> None:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        join(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]), f"{file}/store")
    Path(file, os.environ["LOCAL_RANK"]).write_text(str(total()))


def with_accelerate(ranks: int) -> list[float]:
    """Hands no results back: they go through files."""
    from accelerate import notebook_launcher

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        with contextlib.redirect_stdout(io.StringIO()):
            notebook_launcher(_joined, (folder,), num_processes=ranks, use_port="0")
        return [float(Path(folder, str(rank)).read_text()) for rank in range(ranks)]


def with_lightning(ranks: int) -> list[float]:
    """Its strategy for notebooks, which forks as well; rank 0's result alone comes back."""
    from lightning.fabric import Fabric

    logging.disable(logging.WARNING)  # it greets every rank
    try:
        fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp_notebook")
        return [fabric.launch(lambda fabric: total())] * ranks
    finally:
        logging.disable(logging.NOTSET)


LAUNCHERS: dict[str, tuple[str, Callable[[int], list[float]]]] = {
    FLOOR: ("torch", with_bare_fork),
    OURS: ("torch", with_launch),
    "torch start_processes(fork)": ("torch", with_start_processes),
    "Accelerate notebook_launcher": ("accelerate", with_accelerate),
    "Lightning ddp_notebook": ("lightning", with_lightning),
}


def installed() -> dict[str, Callable[[int], list[float]]]:
    return {n: run for n, (package, run) in LAUNCHERS.items() if importlib.util.find_spec(package)}


def seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def quartiles(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def compare(ranks: int, repeats: int) -> list[dict[str, Any]]:
    """One row for every launcher, in milliseconds, with its ratio to the bare fork."""
    runs, times = installed(), {name: [] for name in installed()}
    for name, run in list(runs.items()):
        try:
            wrong = run(ranks) != [ranks * (ranks + 1) / 2] * ranks  # warm, and right?
        except Exception as error:
            wrong = error
        if wrong:
            print(f"{name} failed: {wrong!r}", file=sys.stderr)
            del runs[name], times[name]
    for turn in range(repeats):
        for name in sorted(runs, reverse=turn % 2 == 1):  # nobody is always after the same other
            times[name].append(1e3 * seconds(functools.partial(runs[name], ranks)))
    return [
        {
            "launcher": name,
            "ranks": ranks,
            **quartiles(mine),
            "ratio": quartiles([a / b for a, b in zip(mine, times[FLOOR], strict=True)]),
            "ratio_of_medians": statistics.median(mine) / statistics.median(times[FLOOR]),
            "all_ms": [round(value, 2) for value in mine],
        }
        for name, mine in times.items()
    ]


FRESH = """
import sys, time
from course_utils import launch
import torch, torch.distributed as dist
sys.path.insert(0, "tools")
import bench
print([bench.seconds(lambda: bench.with_launch(2)) for _ in range(7)])
"""


def first_against_later(repeats: int) -> dict[str, Any]:
    """In fresh processes: the first launch against the median of the next six."""
    ratios, firsts, laters = [], [], []
    for _ in range(repeats):
        command = [sys.executable, "-c", FRESH]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        first, *later = json.loads(told.stdout.splitlines()[-1])
        firsts.append(1e3 * first)
        laters.append(1e3 * statistics.median(later))
        ratios.append(firsts[-1] / laters[-1])
    return {"first": quartiles(firsts), "later": quartiles(laters), "ratio": quartiles(ratios)}


def large_results(repeats: int, megabytes: int = 256) -> dict[str, float]:
    """GB/s at which two ranks make and hand over `megabytes` each, a whole launch included."""

    def work(size: int) -> torch.Tensor:
        return torch.ones(size // 4)

    size, speeds, kept = megabytes * MEGABYTE, [], []
    for _ in range(repeats):
        spent = seconds(lambda: kept.extend(launch(work, size, world_size=2, backend="gloo")))
        speeds.append(2 * size / spent / 1e9)
        kept.clear()  # giving the memory back is not part of a launch
    return quartiles(speeds)


def ddp_speed(repeats: int) -> dict[str, Any]:
    """Images per second of one function, started both ways in turns, and the ratio in a turn."""
    found = throughput.paired(repeats)
    ratios = [a / b for a, b in zip(found["launch"], found["torchrun"], strict=True)]
    return {**{name: quartiles(all_) for name, all_ in found.items()}, "ratio": quartiles(ratios)}


def many_small() -> float:
    """CPU seconds of this rank's main thread in a thousand small all_reduces."""
    tensor, start = torch.ones(8), time.thread_time()
    for _ in range(1000):
        dist.all_reduce(tensor)
    return time.thread_time() - start


def recorded(ranks: int, repeats: int) -> dict[str, Any]:
    """A launch with a thousand small all_reduces, recorded against not recorded, in pairs."""
    times, cpu = {False: [], True: []}, {False: [], True: []}
    for turn in range(2 * repeats + 2):
        trace = turn % 4 in (1, 2)  # nobody always comes first
        started = time.perf_counter()
        used = launch(many_small, world_size=ranks, backend="gloo", trace=trace)
        if turn > 1:  # warm
            times[trace].append(time.perf_counter() - started)
            cpu[trace].append(statistics.mean(used))
    pairs = zip(times[True], times[False], strict=True)
    added = statistics.median(cpu[True]) - statistics.median(cpu[False])
    return {"ratio": quartiles([a / b for a, b in pairs]), "added_cpu_us_per_call": 1e3 * added}


def redraw_speed(ranks: int, repeats: int = 15) -> dict[str, Any]:
    """Milliseconds from a slider of `explore` to its picture, of a ring all-reduce.

    The ratio is to writing one SVG element for every bar of it, and nothing else.
    """
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    from recordings import NETWORK, ring

    from course_utils import explore

    def floor() -> str:
        boxes = ((bar.start_us, bar.end_us, bar.rank) for bar in bars)
        return "".join(f'<path d="M{x:.1f} {y}L{z:.1f} {y}"/>' for x, z, y in boxes)

    trace = ring(ranks)
    bars, slider = trace.replay(NETWORK).intervals, explore(trace).children[0].children[0]
    redraws, floors = [], []
    for turn in range(repeats + 1):
        value = slider.options[turn % 2][1]
        redraws.append(1e3 * seconds(functools.partial(setattr, slider, "value", value)))
        floors.append(1e3 * seconds(floor))
    ratios = [a / b for a, b in zip(redraws[1:], floors[1:], strict=True)]  # the first one warms
    return {"ms": quartiles(redraws[1:]), "ratio": quartiles(ratios)}


def replay_speed(repeats: int = 5, messages: int = 100_000) -> dict[str, Any]:
    """Seconds to replay a recording of so many messages, against as many operations of a heap.

    Eight ranks, each sending to the next; every message is a send, a recv and two waits. Whom each
    one meets is found anew in every turn. A heap is what orders a simulation, so 5 pushes and pops
    a message are what the machine itself can do.
    """
    ranks, at_once = 8, {"group": tuple(range(8)), "tag": 0, "start_s": 0.0, "end_s": 0.0}

    def turn(rank: int, at: int) -> list[Event]:
        ring = (("send", rank + 1, None), ("recv", rank - 1, None), ("wait", 0, 0), ("wait", 0, 1))
        return [
            Event(rank=rank, index=at + i, kind=kind, bytes=4096, peer=peer % ranks,
                  of=None if of is None else at + of, **at_once)
            for i, (kind, peer, of) in enumerate(ring)
        ]  # fmt: skip

    turns = range(0, messages // ranks * 4, 4)
    events = tuple(event for rank in range(ranks) for at in turns for event in turn(rank, at))
    numbers, spent, ratios = [hash(str(k)) for k in range(5 * messages)], [], []
    for _ in range(repeats):
        trace = Trace(events, ((0.0, 0.0),) * ranks)
        floor = seconds(functools.partial(_through_a_heap, numbers))
        spent.append(seconds(functools.partial(trace.replay, Network(10, 80))))
        ratios.append(spent[-1] / floor)
    return {"seconds": quartiles(spent), "ratio": quartiles(ratios)}


def _through_a_heap(numbers: list[int]) -> None:
    heap: list[int] = []
    for number in numbers:
        heapq.heappush(heap, number)
    while heap:
        heapq.heappop(heap)


def table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in cells)
        for cells in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    )


def shown(row: dict[str, Any]) -> list[str]:
    target = TARGETS.get(row["ranks"]) if row["launcher"] == OURS else None
    ratio = row["ratio"]
    return [
        row["launcher"],
        str(row["ranks"]),
        f"{row['median']:.1f}",
        f"{row['low']:.1f} to {row['high']:.1f}",
        f"{ratio['median']:.2f}",
        f"{ratio['low']:.2f} to {ratio['high']:.2f}",
        f"{row['ratio_of_medians']:.2f}",
        verdict(ratio["median"], target) if target else "",
    ]


def verdict(value: float, limit: float, least: bool = False) -> str:
    reached = value >= limit if least else value <= limit
    return f"{'>=' if least else '<='} {limit:g} {'reached' if reached else 'MISSED'}"


HEAD = ["launcher", "ranks", "ms", "quartiles", "x fork", "quartiles", "of medians", "target"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    options = parser.parse_args()
    absent = {n: p for n, (p, _) in LAUNCHERS.items() if n not in installed()}
    rows = [row for ranks in options.ranks for row in compare(ranks, options.repeats)]
    print(table([HEAD, *map(shown, rows)]))
    for name, package in absent.items():
        print(f"{name}: not installed (pip install {package})")
    first = first_against_later(max(3, options.repeats // 5))
    ratio, both = first["ratio"]["median"], (first["first"]["median"], first["later"]["median"])
    print("\nfirst launch of a fresh process {:.1f} ms, later ones {:.1f} ms".format(*both), end="")
    print(f": {ratio:.2f} times ({verdict(ratio, FIRST_TARGET)})")
    speed = large_results(max(5, options.repeats // 3))
    print(f"256 MB from each of 2 ranks: {speed['median']:.2f} GB/s", end="")
    print(f" ({verdict(speed['median'], GB_S_TARGET, least=True)})")
    recording = {ranks: recorded(ranks, options.repeats) for ranks in options.ranks if ranks < 8}
    for ranks, found in recording.items():
        ratio = found["ratio"]
        print(
            "recording 1,000 small all_reduces of {} ranks: {:.2f} times, quartiles {:.2f} to "
            "{:.2f}, and {:.1f} us of CPU a call ({})".format(
                ranks, ratio["median"], ratio["low"], ratio["high"],
                found["added_cpu_us_per_call"], verdict(ratio["median"], RECORDED_TARGET),
            )
        )  # fmt: skip
    replays = replay_speed()
    told = "replay of 100,000 messages: {:.2f} s, {:.2f} times 500,000 numbers through a heap ({})"
    took = replays["seconds"]["median"]
    print(told.format(took, replays["ratio"]["median"], verdict(took, REPLAY_TARGET)))
    redraws = {ranks: redraw_speed(ranks) for ranks in (8, 64)}
    for ranks, found in redraws.items():
        told = "a redraw of explore with {} ranks: {:.0f} ms, {:.1f} times writing its bars"
        told = told.format(ranks, found["ms"]["median"], found["ratio"]["median"])
        print(told + ", quartiles {low:.1f} to {high:.1f}".format(**found["ratio"]))
    ddp = ddp_speed(max(5, options.repeats // 2))
    for name in ("launch", "torchrun"):
        print(f"DDP under {name}: {ddp[name]['median']:,.0f} images/s")
    ratio = ddp["ratio"]
    print("  ratio {median:.3f}, quartiles {low:.3f} to {high:.3f}".format(**ratio), end="")
    print(f" ({verdict(ratio['median'], DDP_TARGET, least=True)})")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", end="")
    print(": other programs took part in this" * (os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)))
    if options.json:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg(), "torch": version("torch")}
        machine["python"] = sys.version.split()[0]
        found = {"machine": machine, "launchers": rows, "absent": list(absent)}
        found |= {"recording": recording, "first": first, "large_results_gb_s": speed}
        found |= {"redraws": redraws, "replays": replays}
        found |= {"ddp_images_s": ddp}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
