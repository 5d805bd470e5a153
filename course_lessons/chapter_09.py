"""What chapter 09 judges and draws with: how often to save; and helpers of its scripts."""

import math
import os
import shutil
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

from course_utils import show
from course_utils.pictures.style import rank_style

CASES = (
    "a save of 1 minute, a machine that fails once in 50 days, 100 machines",
    "the same, and a save of 4 minutes",
    "the same, and 400 machines",
    "one machine",
)
_FIGURES = ((60.0, 1200.0, 100), (240.0, 1200.0, 100), (60.0, 1200.0, 400), (30.0, 5000.0, 1))


def interval_inputs(rank: int, world_size: int, case: str) -> tuple[float, float, int]:
    """Return seconds for a save, hours between failures of one machine, number of machines."""
    return _FIGURES[CASES.index(case)]


def interval_spec(save_s: list, machine_mtbf_h: list, machines: list) -> list[float]:
    """Return the interval in seconds after Young (1974): the root of 2 x cost x time to failure."""
    intervals = []
    for cost_s, mtbf_h, number in zip(save_s, machine_mtbf_h, machines, strict=True):
        job_mtbf_s = mtbf_h * 3600 / number
        intervals.append(math.sqrt(2 * cost_s * job_mtbf_s))
    return intervals


INTERVAL = {
    "spec": interval_spec,
    "inputs": interval_inputs,
    "cases": CASES,
    "world_sizes": (1,),
    "rtol": 1e-3,
}


def expected_goodput(interval: float, save: float, mtbf: float, restart: float) -> float:
    """Return the share of useful time, if failures come at random, by Daly's complete formula.

    Args:
        interval: Work between two saves; all four are in the same unit of time.
        save: What a save costs.
        mtbf: Mean time between two failures of the job.
        restart: From a failure until the job works again.
    """
    needed = mtbf * math.exp(restart / mtbf) * (math.exp((interval + save) / mtbf) - 1)
    return interval / needed


def draw_goodput(
    intervals: Sequence[float], measured: Sequence[float], save: float, mtbf: float, restart: float
) -> None:
    """Draw measured goodput over the interval between saves, with the formula's curve.

    Args:
        intervals: Minutes of work between two saves.
        measured: The share of useful time for each.
        save: Minutes for a save.
        mtbf: Mean minutes between two failures.
        restart: Minutes from a failure until the job works again.
    """
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    fine = [intervals[0] * (intervals[-1] / intervals[0]) ** (n / 100) for n in range(101)]
    predicted = [expected_goodput(interval, save, mtbf, restart) for interval in fine]
    young = math.sqrt(2 * save * mtbf)
    axes.plot(fine, predicted, color="0.5", label="predicted (Daly's formula)")
    axes.plot(intervals, measured, "o", color="black", label="measured, with real kills")
    axes.axvline(young, color="#0072B2", ls=":", label=f"Young: {young:.0f} minutes")
    axes.set(xlabel="minutes of work between saves", ylabel="goodput", xscale="log", ylim=(0, 1))
    axes.set_xticks(intervals, map(str, intervals))
    axes.minorticks_off()
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    largest = max(
        abs(value - expected_goodput(interval, save, mtbf, restart))
        for interval, value in zip(intervals, measured, strict=True)
    )
    show(figure, f"Goodput by interval; measured and predicted differ by {largest:.2f} at most.")


def draw_lives(
    whole: Sequence[tuple[int, float]], noted: Sequence[tuple[int, float]], killed_in: int
) -> None:
    """Draw the losses of a job that was killed once over those of one that was not.

    Args:
        whole: Step and loss, undisturbed.
        noted: Step and loss of both lives, one after the other.
        killed_in: The step in which a rank was killed.
    """
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    axes.plot(
        *zip(*whole, strict=True),
        color="#bbbbbb",
        lw=7,
        solid_capstyle="round",
        label="undisturbed",
    )
    for life, losses in enumerate([noted[:killed_in], noted[killed_in:]]):
        style = rank_style(life) | {"linestyle": "none", "markersize": (7, 3)[life]}
        axes.plot(
            *zip(*losses, strict=True), label=["until the kill", "after the restart"][life], **style
        )
    axes.axvline(killed_in - 0.5, color="black", ls=":", lw=1)
    height = whole[4][1]
    axes.annotate("rank 1 is killed", (killed_in - 0.5, height), (killed_in + 0.2, height))
    axes.set(xlabel="step", ylabel="mean loss of both ranks", xticks=range(0, 49, 12))
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "Both lives lie on the undisturbed curve; steps 24 to 27 were done twice.")


def draw_cable(
    sizes: Sequence[int], predicted_ms: Sequence[float], measured_ms: Sequence[Sequence]
) -> None:
    """Draw predicted times of an all-reduce as a line, and measured ones as marks.

    Args:
        sizes: Megabytes.
        predicted_ms: For each size.
        measured_ms: For each size some times, or None where there is no cable.
    """
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    axes.plot(sizes, predicted_ms, color="0.5", label="predicted from a recording")
    marks = []
    for megabytes, times in zip(sizes, measured_ms, strict=True):
        marks += [(megabytes, ms) for ms in times if ms is not None]
    axes.plot(
        *zip(*marks or [(None, None)], strict=True),
        "o",
        mfc="none",
        color="black",
        label="measured",
    )
    axes.set(xlabel="all-reduced (MB)", ylabel="time (ms)", xticks=sizes, ylim=0)
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "Line: predicted from a recording; marks, if there is a cable: measured on it.")


# The chapter writes these three into scripts as they stand, so they need what scripts import.
def resumed(checkpoint, model, optimizer):
    """Return the epoch to begin with; what was saved is in model and optimizer then."""
    if not os.path.exists(checkpoint):
        return 0
    epoch, of_model, of_optimizer = torch.load(checkpoint)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    return epoch


def save(checkpoint, *state):
    """Let rank 0 write a checkpoint next to the old one and rename it."""
    if dist.get_rank() == 0:
        torch.save(state, f"{checkpoint}.part")
        os.rename(f"{checkpoint}.part", checkpoint)  # whole or not there, whoever is killed


def note(file, step, loss):
    """Let rank 0 note the mean of all ranks' losses."""
    mean = loss / dist.get_world_size()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        with open(file, "a") as losses:
            losses.write(f"{step} {mean.item()}\n")


def listening(hosts: Any) -> str:
    """List who listens on the first host, with address and port as in the chapter's text.

    Args:
        hosts: As `course_cluster.two_hosts` gives them.
    """
    if not shutil.which("ss"):
        return "(no ss here)"
    lines = hosts[0].run("ss -Hltn").replace("0.0.0.0:", "*:").splitlines()
    sockets = [line.split()[3].replace(hosts[0].address, "ADDRESS") for line in lines]
    for number in range(2):
        name = str(23456 + number)
        sockets = [s.replace(f":{hosts.port + number}", f":{name} ") for s in sockets]
    return "\n".join(sorted(f"listening on {s}" for s in sockets if s.endswith(" ")))
