"""Chapter 09's charts: losses after a death, how often to save, health, a cable, and jobs."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from course_lessons.chapter_09 import expected_goodput
from course_lessons.drawing import bare
from course_utils import show
from course_utils.pictures.style import rank_style

_GOOD, _BAD, _GREY = "#009E73", "#D55E00", "#777777"


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def draw_screens(outputs: Sequence[str]) -> None:
    """Draw by how much the figure on each host's screen misses the mean of all samples.

    Args:
        outputs: What each host printed, such as `epoch 0: as in the article 2.153, all 2.159`.
    """
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    sentences = []
    for host, output in enumerate(outputs):
        screen = re.findall(r"epoch (\d+): .* article ([\d.]+), all ([\d.]+)", output)
        epochs = [int(epoch) for epoch, _, _ in screen]
        misses = [float(local) - float(mean) for _, local, mean in screen]
        places = [epoch + 0.36 * host - 0.18 for epoch in epochs]
        hatch = (None, "///")[host]
        color = rank_style(host)["color"]
        style = {"color": color, "hatch": hatch, "edgecolor": "white", "label": f"host {host}"}
        bars = axes.bar(places, misses, 0.34, **style)
        axes.bar_label(bars, [f"{miss:+.3f}" for miss in misses], fontsize=9, padding=2)
        sentences.append(f"host {host} {', '.join(f'{miss:+.3f}' for miss in misses)}")
    axes.axhline(0, color="black", lw=1)
    names = [f"epoch {epoch}" for epoch in epochs]
    bare(axes, xticks=epochs, xticklabels=names, ylabel="figure minus\nmean of all")
    axes.margins(y=0.25)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, f"The article's figure minus the mean of all: {'; '.join(sentences)}.")


def draw_lives(
    whole: Sequence[tuple[int, float]], noted: Sequence[tuple[int, float]], killed_in: int
) -> None:
    """Draw the losses of a job that was killed once over those of one that was not.

    Args:
        whole: Step and loss, undisturbed.
        noted: Step and loss of both lives, one after the other.
        killed_in: The step in which a rank was killed.
    """
    figure, axes = plt.subplots(figsize=(8.4, 3.2), layout="constrained")
    wide = {"color": "#bbbbbb", "lw": 7, "solid_capstyle": "round", "label": "undisturbed"}
    axes.plot(*zip(*whole, strict=True), **wide)
    for life, losses in enumerate([noted[:killed_in], noted[killed_in:]]):
        style = rank_style(life) | {"linestyle": "none", "markersize": (7, 3)[life]}
        label = ["until the kill", "after the restart"][life]
        axes.plot(*zip(*losses, strict=True), label=label, **style)
    axes.axvline(killed_in - 0.5, color="black", ls=":", lw=1)
    height = whole[4][1]
    axes.annotate("rank 1 is killed", (killed_in - 0.5, height), (killed_in + 0.2, height))
    bare(axes, xlabel="step", ylabel="mean loss of both ranks", xticks=range(0, 49, 12))
    axes.legend()
    show(figure, "Both lives lie on the undisturbed curve; steps 24 to 27 were done twice.")


def draw_apart(
    control: Sequence[tuple[int, float]], noted: Sequence[tuple[int, float]], alone_from: int
) -> None:
    """Draw how far a job's losses are from those of an undisturbed one, step by step.

    Args:
        control: Step and loss, undisturbed.
        noted: Step and loss of both lives, one after the other.
        alone_from: How many of `noted` were computed by two ranks; the others by one.
    """
    expected = dict(control)
    gaps = [(step, abs(loss - expected[step])) for step, loss in noted]
    figure, axes = plt.subplots(figsize=(8.4, 2.2), layout="constrained")
    lives = {"two ranks": gaps[:alone_from], "one rank, alone": gaps[alone_from:]}
    for number, (label, life) in enumerate(lives.items()):
        markersize = (7, 3)[number]  # both are seen where they coincide
        style = rank_style(number) | {"linestyle": "none", "markersize": markersize}
        axes.plot(*zip(*life, strict=True), label=label, **style)
    axes.set_yscale("symlog", linthresh=1e-8)
    axes.set_yticks([0, 1e-8, 1e-7, 1e-6, 1e-5], ["0", "1e-8", "1e-7", "1e-6", "1e-5"])
    bare(axes, xlabel="step", ylabel="difference\nof losses", xticks=range(0, 49, 12))
    axes.set_ylim(-5e-9, 1e-5)
    axes.minorticks_off()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    together = max(gap for _, gap in lives["two ranks"])
    of_two = f"at most {together:g} apart" if together else "0 apart in every step"
    below = max(gap for _, gap in lives["one rank, alone"]) < 1e-5
    of_one = "stays below 1e-5" if below else "exceeds 1e-5"
    show(figure, f"From the undisturbed losses, two ranks are {of_two}; one rank alone {of_one}.")


# ---- how often to save ---------------------------------------------------------------------------


def draw_causes(
    intervals: Sequence[int], jobs: Sequence[Sequence[float]], costs: Sequence[float]
) -> None:
    """Draw what became of a job's time: work, saves, work that was lost, and restarts.

    Args:
        intervals: Minutes of work between two saves.
        jobs: For each, minutes that the job took, and deaths.
        costs: Minutes for a save, for a restart, and of all work.
    """
    save_min, restart_min, work_min = costs
    figure, axes = plt.subplots(figsize=(8.6, 2.7), layout="constrained")
    looks = {
        "work that counts": ("#009E73", None),
        "saves": ("#0072B2", "///"),
        "lost with deaths": ("#D55E00", "xxx"),
        "restarts": ("#999999", "..."),
    }
    sentences = []
    for row, (interval, (total_min, deaths)) in enumerate(zip(intervals, jobs, strict=True)):
        saves_min = work_min / interval * save_min
        restarts_min = deaths * restart_min
        lost_min = total_min - work_min - saves_min - restarts_min
        left, shares = 0.0, []
        parts = (work_min, saves_min, lost_min, restarts_min)
        for (name, (color, hatch)), minutes in zip(looks.items(), parts, strict=True):
            share = 100 * minutes / total_min
            style = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            axes.barh(row, share, 0.72, left, label=name if row == 0 else None, **style)
            if share >= 6:  # less has no room for its number
                behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                place = {"ha": "center", "va": "center", "fontsize": 9, "bbox": behind}
                axes.text(left + share / 2, row, f"{share:.0f} %", **place)
            shares.append(f"{name} {share:.0f} %")
            left += share
        axes.text(101, row, f"{deaths:.0f} deaths", va="center", fontsize=9)
        sentences.append(
            f"a save every {interval} minutes: {', '.join(shares)}, {deaths:.0f} deaths"
        )
    labels = [f"{interval} minutes" for interval in intervals]
    bare(axes, yticks=range(len(labels)), yticklabels=labels, xlim=(0, 112))
    axes.set(xlabel="% of the job's time", ylabel="between saves", xticks=range(0, 101, 20))
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    caption = "A bar is a job's time. From top to bottom, compare what saves and deaths take of it."
    show(figure, _sentence(sentences), caption)


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
    bare(axes, xlabel="minutes of work between saves", ylabel="goodput", xscale="log", ylim=(0, 1))
    axes.set_xticks(intervals, map(str, intervals))
    axes.minorticks_off()
    axes.legend()
    largest = max(
        abs(value - expected_goodput(interval, save, mtbf, restart))
        for interval, value in zip(intervals, measured, strict=True)
    )
    show(figure, f"Goodput by interval; measured and predicted differ by {largest:.2f} at most.")


def draw_intervals(*answers: Callable, save_s: float = 60, machine_mtbf_h: float = 1200) -> None:
    """Draw the interval between saves by the number of machines, as a learner's function has it.

    Args:
        answers: The first one that returns numbers is drawn; a wrong one is drawn as well.
        save_s: Seconds for a save.
        machine_mtbf_h: Hours between failures of one machine.
    """
    machines = (1, 10, 100, 1000)
    for answer in answers:
        try:
            minutes = [float(answer(save_s, machine_mtbf_h, n)) / 60 for n in machines]
        except Exception:  # a learner's function may raise anything
            continue
        break
    else:
        print("No picture yet: nothing that returns a number")
        return
    figure, axes = plt.subplots(figsize=(6.5, 2.6), layout="constrained")
    axes.plot(machines, minutes, "o-", color="#0072B2")
    for number, interval in zip(machines, minutes, strict=True):
        where = {"textcoords": "offset points", "xytext": (6, 6), "fontsize": 9}
        axes.annotate(f"{interval:.0f} minutes", (number, interval), **where)
    bare(axes, xscale="log", yscale="log", xlabel="machines", ylabel="minutes\nbetween saves")
    axes.set_xticks(machines, [f"{n:,}" for n in machines])
    axes.yaxis.set_major_formatter(lambda minutes, _: f"{minutes:g}")
    axes.margins(x=0.15, y=0.2)
    axes.minorticks_off()
    pairs = ", ".join(f"{n} {m:.0f}" for n, m in zip(machines, minutes, strict=True))
    show(figure, f"{answer.__name__}: minutes between saves by machines: {pairs}.")


# ---- health, and a cable -------------------------------------------------------------------------


def draw_health(checks: Sequence[tuple[Any, Sequence[tuple[float, bool]], Any]]) -> None:
    """Draw how long each rank took for the piece of work, and whether its result was right.

    Args:
        checks: Who was sick, what each rank reported (seconds, right), and the verdict.
    """
    settings = {"figsize": (9, 2.2), "layout": "constrained", "sharey": True, "sharex": True}
    figure, panels = plt.subplots(1, len(checks), **settings)
    sentences = []
    for axes, (sick, reports, verdict) in zip(panels, checks, strict=True):
        for rank, (took_s, right) in enumerate(reports):
            style = {"color": _GOOD} if right else {"color": _BAD, "hatch": "xxx"}
            axes.barh(rank, 1000 * took_s, 0.7, edgecolor="white", **style)
            if not right:
                place = {"textcoords": "offset points", "xytext": (5, 0), "va": "center"}
                axes.annotate("wrong", (1000 * took_s, rank), color=_BAD, **place)
        times_s = sorted(took_s for took_s, _ in reports)
        limit_ms = 1000 * (times_s[len(times_s) // 2] + 1)
        axes.axvline(limit_ms, color="black", ls=":", lw=1.2)
        words = verdict if isinstance(verdict, str) else " and ".join(verdict)
        title = f"sick: {'nobody' if sick is None else f'rank {sick[0]}, {sick[1]}'}"
        axes.set_title(f"{title}\n{words}", fontsize=10, loc="left")
        bare(axes, xlabel="ms (dotted: the limit)", xscale="log")
        sentences.append(f"{title}: {words}")
    panels[0].set_yticks(range(len(reports)), [f"rank {rank}" for rank in range(len(reports))])
    panels[0].invert_yaxis()
    show(figure, _sentence(sentences))


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
    style = {"mfc": "none", "color": "black", "label": "measured"}
    axes.plot(*zip(*marks or [(None, None)], strict=True), "o", **style)
    bare(axes, xlabel="all-reduced (MB)", ylabel="time (ms)", xticks=sizes, ylim=0)
    axes.legend()
    show(figure, "Line: predicted from a recording; marks, if there is a cable: measured on it.")


# ---- jobs, by lives ------------------------------------------------------------------------------


class _Life(NamedTuple):
    """A life of a job: its first step, the one after its last, by whom, and how it ended."""

    begin: int
    end: int
    crew: str
    ending: str
    is_good: bool


def _draw_job(lives: Sequence[_Life], vague: bool = False) -> None:
    """Draw the lives of a job one below the other, on an axis of steps."""
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.42 * len(lives)), layout="constrained")
    sentences = []
    for row, life in enumerate(lives):
        style = {"facecolor": f"{_GOOD}44", "edgecolor": _GOOD}
        axes.barh(row, life.end - life.begin, 0.7, life.begin, **style)
        axes.text((life.begin + life.end) / 2, row, life.crew, ha="center", va="center", fontsize=9)
        ink = _GREY if life.is_good else _BAD
        axes.plot(life.end, row, "o" if life.is_good else "X", color=ink, ms=9)
        axes.text(life.end + 0.5, row, life.ending, va="center", fontsize=9, color=ink)
        begin = f"about {life.begin}" if vague and row else str(life.begin)
        if vague and row:
            axes.text(life.begin - 0.3, row, begin, ha="right", va="center", fontsize=9)
        sentences.append(f"life {row}, {life.crew}, step {begin} to {life.end}: {life.ending}")
    names = [f"life {row}" for row in range(len(lives))]
    bare(axes, yticks=range(len(names)), yticklabels=names, xlim=(0, 29))
    axes.set(xlabel="steps", xticks=range(0, 21, 4))
    axes.invert_yaxis()
    caption = "A row for each life of the job: which steps it did, with what, and how it ended."
    show(figure, _sentence(sentences), caption)


def draw_night(night: Sequence[str]) -> None:
    """Draw the lives of chapter 09's Slurm job, by the lines of its log."""
    lives, begin, saved, nodes = [], 0, 0, ""
    for line in night:
        number = re.search(r"\d+$", line)
        if line.startswith("life"):
            nodes = "1 node" if number[0] == "1" else f"{number[0]} nodes"
        elif line.startswith("saved"):
            saved = int(number[0])
        elif line == "exit status 75":
            lives.append(_Life(begin, saved, nodes, "SIGTERM: exit status 75, requeued", True))
            begin = saved
        elif line.startswith("Node failure"):
            ending = f"{line.split()[-1]} fails: Slurm requeues"
            lives.append(_Life(begin, saved, nodes, ending, False))
            begin = saved
        elif line == "exit status 0":
            lives.append(_Life(begin, 20, nodes, "exit status 0", True))
    _draw_job(lives)


def draw_restarted(log: str, killed_after: int, vague: bool = False) -> None:
    """Draw both lives of a job whose rank 1 was killed once.

    Args:
        log: What the job printed; of each life, with which step it began.
        killed_after: The last step that the first life has done.
        vague: Where the second life begins varies from run to run.
    """
    begins = [int(step) for step in re.findall(r"a life .*step (?:about )?(\d+)", log)]
    first = _Life(begins[0], killed_after, "2 ranks", "rank 1 is killed", False)
    _draw_job([first, _Life(begins[-1], 20, "2 ranks", "all 20 steps done", True)], vague)
