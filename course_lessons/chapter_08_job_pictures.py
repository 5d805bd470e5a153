"""Chapter 08's pictures, part 7: what jobs under `torchrun` and a log of NCCL's have left."""

import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt

from course_lessons.drawing import Box, box_figure, draw_boxes
from course_lessons.torchrun_jobs import Jobs
from course_utils import show
from course_utils.pictures.style import OKABE_ITO, rank_style

_CALLED = {"gradient": "g", "loss": "L", "right": "R"}  # how a call is written, by its argument
_LATE_S = 0.1  # what is called a delay


def draw_root_causes(jobs: Jobs, faults: Sequence[str]) -> None:
    """Draw when each rank failed, as torchrun knows it: in whole seconds.

    Args:
        jobs: Finished jobs.
        faults: Which of them.
    """
    times = {}
    for fault in faults:
        found = _failure_times(jobs, fault)
        if len(found) == 2:
            times[fault] = found
    figure, axes = plt.subplots(figsize=(8, 0.7 + 0.45 * len(times)), layout="constrained")
    for row, seconds in enumerate(times.values()):
        first_s = min(seconds.values())
        axes.axhline(row, color="#DDDDDD", zorder=0)
        for rank, second in seconds.items():
            style = rank_style(rank) | {"linestyle": "", "markersize": 9}
            label = f"rank {rank}" if row == 0 else None
            axes.plot(second - first_s, row + 0.3 * (rank - 0.5), label=label, **style)
    axes.set(yticks=range(len(times)), yticklabels=list(times), ylim=(len(times) - 0.5, -0.5))
    axes.set(xlabel="whole seconds since the first failure", xlim=(-0.5, axes.get_xlim()[1] + 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    sentences = []
    for fault, seconds in times.items():
        sentences.append(f"{fault}: rank 1 about {seconds[1] - seconds[0]:.0f} s after rank 0")
    words = "torchrun's times of failures, in whole seconds."
    caption = f"{words} In which rows do they tell who was first?"
    show(figure, f"{words} {'. '.join(sentences)}.", caption)


def _failure_times(jobs: Jobs, fault: str) -> dict[int, float]:
    """By rank, the second in which it failed, as torchrun's last table has it."""
    table = (jobs.folder_of(fault) / "torchrun.txt").read_text()
    found = {}
    for time, rank in re.findall(r"time +: (\S+).*?rank +: (\d)", table, re.S):
        found[int(rank)] = datetime.strptime(time, "%Y-%m-%d_%H:%M:%S").timestamp()
    return found


def draw_looks(jobs: Jobs, faults: Sequence[str]) -> None:
    """Draw in which line each rank was, look by look, and how many steps its log had.

    Args:
        jobs: Finished jobs, at which `Jobs.look` has looked.
        faults: Those to draw.
    """
    figure, panels = plt.subplots(1, len(faults), figsize=(9.5, 1.9), layout="constrained")
    sentences = []
    for axes, fault in zip(panels, faults, strict=True):
        looks = list(zip(jobs.seen[fault], jobs.steps[fault], strict=True))
        rows: dict[str, list[Box | None]] = {"rank 0": [], "rank 1": []}
        for places, steps in looks:
            for rank, boxes in enumerate(rows.values()):
                line = re.sub(r"^dist\.|\(gradient\)", "", places[rank])
                words = f"{line}\nsteps: {steps[rank]}"
                boxes.append(Box(words, rank_style(rank)["color"] + "44"))
        draw_boxes(axes, rows, [f"look {number}" for number in range(1, len(looks) + 1)])
        axes.set_title(fault, fontsize=10)
        grows = jobs.steps[fault][0] != jobs.steps[fault][-1]
        sentences.append(f"{fault}: from look to look the log {'grows' if grows else 'stays'}")
    show(figure, f"Where both ranks are, and steps in their logs. {'. '.join(sentences)}.")


def draw_recorders(jobs: Jobs, faults: Sequence[str]) -> None:
    """Draw the calls in the flight recorders of both ranks, call below call.

    Args:
        jobs: Finished jobs.
        faults: Those to draw, six.
    """
    figure, panels = plt.subplots(3, 2, figsize=(9.5, 4.6), layout="constrained")
    sentences = []
    for axes, fault in zip(panels.flat, faults, strict=True):
        lists = [_recorded(jobs, fault, rank) for rank in (0, 1)]
        draw_boxes(axes, _side_by_side(lists), [str(number) for number in range(1, 9)])
        delay_s = _delay_s(lists)
        title = fault
        if delay_s > _LATE_S:
            title += f": rank 1 comes {delay_s:.1f} s later"
        if not _dump_of(jobs, fault, 1).exists():
            title += ": rank 1 has left no file"
        axes.set_title(title, fontsize=10, loc="left")
        counts = [len(calls) for calls in lists]
        sentences.append(f"{fault}: {counts[0]} and {counts[1]} calls")
    caption = (
        "Calls of ranks 0 and 1 by number: g is the gradients' line, L the loss's, R that of right "
        "answers. Orange: its partner is missing (–) or differs."
    )
    show(figure, f"{caption} {'. '.join(sentences)}.", caption)


def _recorded(jobs: Jobs, fault: str, rank: int) -> list[dict[str, Any]]:
    """A rank's calls: how each is written, and when it was made; none if it has left nothing."""
    file = _dump_of(jobs, fault, rank)
    if not file.exists():
        return []
    calls = []
    for entry in pickle.loads(file.read_bytes())["entries"]:
        lines = [frame["line"] for frame in entry["frames"] if "train.py" in frame["filename"]]
        argument = re.search(r"\((\w+)\)", jobs.code(fault, lines[0]))[1]
        calls.append({"letter": _CALLED[argument], "made_s": entry["time_created_ns"] / 1e9})
    return calls


def _dump_of(jobs: Jobs, fault: str, rank: int) -> Path:
    """The file into which a rank's flight recorder was written."""
    return jobs.folder_of(fault) / f"calls{rank}"


def _side_by_side(lists: Sequence[list[dict[str, Any]]]) -> dict[str, list[Box | None]]:
    """Both ranks' calls as boxes; one that is alone or differs is orange."""
    rows: dict[str, list[Box | None]] = {"rank 0": [], "rank 1": []}
    for pair in zip_longest(*lists):
        letters = [call["letter"] if call else "" for call in pair]
        for rank, boxes in enumerate(rows.values()):
            fill = rank_style(rank)["color"] + "44"
            if letters[0] != letters[1]:
                fill = OKABE_ITO[4] + "88"
            if letters[rank]:
                boxes.append(Box(letters[rank], fill))
            else:
                boxes.append(Box("–"))
    return rows


def _delay_s(lists: Sequence[list[dict[str, Any]]]) -> float:
    """How much later rank 1 makes its calls than rank 0, in the middle of all."""
    delays_s = []
    for first, second in zip(*lists, strict=False):
        delays_s.append(second["made_s"] - first["made_s"])
    return median(delays_s) if delays_s else 0.0


def draw_costs(times_s: Mapping[str, Sequence[float]]) -> None:
    """Draw how long many calls took, by the debug level; each dot is a call.

    Args:
        times_s: By level, seconds of each call.
    """
    figure, axes = plt.subplots(figsize=(8, 1.7), layout="constrained")
    medians_us = []
    for row, calls_s in enumerate(times_s.values()):
        calls_us = [1e6 * call_s for call_s in calls_s]
        heights = [row + 0.5 * (number / len(calls_us) - 0.5) for number in range(len(calls_us))]
        color = OKABE_ITO[row]
        axes.plot(calls_us, heights, ".", color=color, markersize=4, alpha=0.6)
        medians_us.append(median(calls_us))
        axes.plot(2 * [medians_us[-1]], [row - 0.4, row + 0.4], color=color, linewidth=3)
    axes.set(xscale="log", xlabel="µs of an all_reduce of 4 numbers (dot: a call, line: median)")
    axes.set(yticks=range(len(times_s)), yticklabels=list(times_s), ylim=(1.6, -0.6))
    axes.spines[["top", "right"]].set_visible(False)
    times = medians_us[1] / medians_us[0]
    show(figure, f"With DETAIL an all_reduce of 4 numbers takes about {times:.1f} times as long.")


def draw_watchdog(log: str) -> None:
    """Draw what a watchdog's lines say of two ranks: calls completed, and the one that is stuck.

    Args:
        log: Lines of NCCL's watchdog, as quoted in `chapter_08.WATCHDOG`.
    """
    pattern = r"\[Rank (\d)\].*?SeqNum=(\d+).*?NumelIn=(\d+).*?ran for (\d+) milli"
    stuck = {}
    for found in re.findall(pattern, log):
        rank, number, numel, waited_ms = map(int, found)
        words = f"stuck for {waited_ms / 1000:.0f} s,\n{numel:,} numbers"
        stuck[rank] = number, words.replace("1 numbers", "1 number")
    completed = int(re.search(r"last completed NCCL work: (\d+)", log)[1])
    numbers = [number for number, _ in stuck.values()]
    shown = range(min(numbers) - 1, max(numbers) + 1)
    rows, sentences = {}, []
    for rank, (number, words) in stuck.items():
        known = completed if rank == 0 else None  # the log says it of rank 0 alone
        rows[f"rank {rank}"] = [_logged(rank, call, number, words, known) for call in shown]
        sentences.append(f"rank {rank} in call {number}: {words.replace(chr(10), ' ')}")
    columns = [f"call {call}" for call in shown]
    show(box_figure(rows, columns, width=1.8), f"By the log, {'; '.join(sentences)}.")


def _logged(rank: int, call: int, stuck_in: int, words: str, completed: int | None) -> Box:
    """What the log says of a call of one rank."""
    color = rank_style(rank)["color"]
    if call == stuck_in:
        return Box(words, "white", color, "////")
    if call > stuck_in:
        return Box("not enqueued yet")
    return Box("completed" if call == completed else "already past", color + "44")


_SHADES = {
    "names it": "#009E73AA",
    "shows it": "#009E7344",
    "notices": "#F0E44288",
    "luck": "#E69F0088",
    "wrong rank": "#D55E00BB",
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
    rows: dict[str, list[Box]] = {fault: [] for fault in faults}
    for tool, column in verdicts.items():
        for fault, words in zip(faults, column, strict=True):
            found[tool] += words in ("names it", "shows it")
            rows[fault].append(Box(words, _SHADES[words]))
    text = ", ".join(f"{tool} {count}" for tool, count in found.items())
    figure = box_figure(rows, list(verdicts), width=1.0)
    caption = "A column for each tool: the more green, the more often it leads to the culprit."
    words = "In how many of the six failures a tool names or shows the culprit"
    show(figure, f"{words}: {text}.", caption)
    return found
