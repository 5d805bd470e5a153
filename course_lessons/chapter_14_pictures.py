"""Chapter 14's smaller pictures: what a recording has, what calls cost, what `.item()` contains."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course_lessons.chapter_14 import share_hidden, shares
from course_lessons.drawing import paint
from course_material.recordings import Row
from course_utils import show
from course_utils.pictures.style import OKABE_ITO

_KINDS = {"launch": "send", "compute": "compute", "collective": "collective", "copy": "receive"}
_PARTS = {"compute": "compute", "only NCCL": "collective", "only copies": "receive"}


def _bare(axes: Axes, names: Sequence[str], **settings: object) -> None:
    """A row for each name, the first at the top."""
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)


def draw_counts(counts: Mapping[tuple[str, str], int]) -> None:
    """Draw how many rows of each kind a recording has, lane by lane.

    Args:
        counts: By lane and kind, how many.
    """
    names, words = [], []
    figure, axes = plt.subplots(figsize=(8, 0.7 + 0.28 * len(counts)), layout="constrained")
    for row, ((lane, kind), count) in enumerate(sorted(counts.items())):
        style = {"facecolor": "#BBBBBB"}
        if kind in _KINDS:
            style = paint(_KINDS[kind])
        axes.barh(row, count, 0.7, linewidth=0, **style)
        axes.text(1.1 * count, row, f"{count:,}", va="center", fontsize=9)
        names.append(f"{lane}: {kind}")
        words.append(f"{lane}, {kind} {count:,}")
    _bare(axes, names, xscale="log", xlabel="rows", xlim=(1, 30_000))
    caption = "How many rows of each kind a lane has. The axis is logarithmic: compare the numbers."
    show(figure, f"Rows of the recording, by lane and kind: {'; '.join(words)}.", caption)


def draw_calls_and_kernels(calls: Sequence[Row], kernels: Sequence[Row]) -> None:
    """Draw how long the host is in each call, and how long its kernel runs, by size.

    Args:
        calls: All-reduces as the host calls them.
        kernels: Those of NCCL, in the same order.
    """
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    sizes_mb = [kernel.bytes / 1e6 for kernel in kernels]
    kernels_ms = [kernel.us / 1e3 for kernel in kernels]
    calls_ms = [call.us / 1e3 for call in calls]
    axes.plot(sizes_mb, kernels_ms, "o", color=OKABE_ITO[0], label="NCCL's kernel")
    axes.plot(sizes_mb, calls_ms, "s", color=OKABE_ITO[1], label="the host's call")
    axes.set(xlabel="MB that are reduced", ylabel="ms", xlim=(0, None), ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    middle_ms, call_ms = median(kernels_ms), median(calls_ms)
    show(
        figure,
        f"{len(kernels)} all-reduces: the median call takes {call_ms:.2f} ms, the median kernel "
        f"{middle_ms:.2f} ms; the longest kernel takes {max(kernels_ms):.1f} ms.",
    )


def draw_hidden(trainings: Mapping[str, Sequence[Row]]) -> None:
    """Draw which share of the communication is hidden behind computing."""
    figure, axes = plt.subplots(figsize=(8, 1.7), layout="constrained")
    words = []
    for row, (name, rows) in enumerate(trainings.items()):
        hidden = share_hidden(rows)
        axes.barh(row, 100 * hidden, 0.6, linewidth=0, **paint("compute"))
        axes.barh(row, 100 * (1 - hidden), 0.6, 100 * hidden, linewidth=0, **paint("collective"))
        words.append(f"{name} {hidden:.0%}")
    _bare(axes, list(trainings), xlabel="% of the communication", xlim=(0, 100))
    show(figure, f"Hidden behind computing, in green: {', '.join(words)}. The rest is exposed.")


def draw_inside(rows: Sequence[Row], item: Row, blocked_in_item: Callable) -> None:
    """Draw what an `.item()` contains, call inside call, and what an answer has found.

    Args:
        rows: A recording.
        item: One of its rows.
        blocked_in_item: A learner's, which returns a name and microseconds, or None.
    """
    try:
        answer = blocked_in_item(rows)
    except Exception as error:  # a learner's: any is told
        print(f"Nothing is marked yet: {type(error).__name__}: {error}")
        answer = None
    inside = []
    for row in rows:
        if row.lane == item.lane and item.start_us <= row.start_us and row.end_us <= item.end_us:
            inside.append(row)
    figure, axes = plt.subplots(figsize=(9, 0.7 + 0.4 * len(inside)), layout="constrained")
    words, is_found = [], False
    for place, row in enumerate(inside):
        is_answer = answer == (row.name, row.us)
        is_found = is_found or is_answer
        style = paint("wait") if is_answer else {"facecolor": "#BBBBBB"}
        axes.barh(place, max(row.us, 8), 0.7, row.start_us - item.start_us, **style)
        words.append(f"{row.name} {row.us:,.0f} µs")
    _bare(axes, words, xlabel="µs since .item() was called", xlim=(0, 1.02 * item.us))
    marked = ""
    if answer is not None:
        where = "which is marked" if is_found else "which is not in this .item()"
        marked = f" Your function returns {answer}, {where}."
    show(figure, f"The longest .item() contains: {'; '.join(words)}.{marked}")


def draw_shares(trainings: Mapping[str, Sequence[Row]]) -> None:
    """Draw how the time of a step divides, and how long it is and what it sends."""
    figure, axes = plt.subplots(figsize=(9, 2.3), layout="constrained")
    names, words = [], []
    for row, (name, rows) in enumerate(trainings.items()):
        left, said = 0.0, []
        for part, share in shares(rows).items():
            style = {"facecolor": "white", "edgecolor": "#999999"}
            if part in _PARTS:
                style = paint(_PARTS[part])
            label = part if row == 0 else None
            axes.barh(row, 100 * share, 0.7, 100 * left, label=label, **style)
            if share > 0.05:
                place = {"ha": "center", "va": "center", "fontsize": 9}
                behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axes.text(100 * (left + share / 2), row, f"{share:.1%}", bbox=behind, **place)
            left += share
            said.append(f"{part} {share:.1%}")
        steps_us = [row.us for row in rows if row.kind == "step"]
        brought = sum(row.bytes for row in rows if row.kind == "collective")
        brought_mb = brought / len(steps_us) / 1e6
        names.append(f"{name}\na step: {median(steps_us) / 1e3:.0f} ms, {brought_mb:,.0f} MB")
        words.append(f"{name}: {', '.join(said)}")
    _bare(axes, names, xlabel="% of a step", xlim=(0, 100))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    caption = "What a GPU does in a step; white is nothing. MB: what it brings to collectives."
    show(figure, f"{'. '.join(words)}.", caption)


def draw_probe(view_us: Mapping[str, float], launch_us: Mapping[str, float]) -> None:
    """Draw what a view takes in each recording, and what a launch takes."""
    figure, axes = plt.subplots(figsize=(8, 2), layout="constrained")
    words = []
    for row, name in enumerate(view_us):
        pair = ((view_us[name], "a view", "#BBBBBB"), (launch_us[name], "a launch", OKABE_ITO[0]))
        for half, (us, label, color) in enumerate(pair):
            y = row + 0.36 * (half - 0.5)
            axes.barh(y, us, 0.32, color=color, label=label if row == 0 else None)
            axes.text(us + 0.3, y, f"{us:.1f}", va="center", fontsize=9)
        words.append(f"{name}: a view {view_us[name]:.1f} µs, a launch {launch_us[name]:.1f} µs")
    _bare(axes, list(view_us), xlabel="µs, median", xlim=(0, 26))
    axes.legend(frameon=False, loc="lower right")
    show(figure, f"{'. '.join(words)}.")


def draw_watched(view_s: Mapping[bool, Sequence[float]]) -> None:
    """Draw what a view takes with a profiler and without, turn by turn.

    Args:
        view_s: Whether it was watched, and seconds of a view in each turn.
    """
    figure, axes = plt.subplots(figsize=(8, 1.7), layout="constrained")
    fastest_us = []  # a turn in which nothing else ran: what else a machine does only adds
    for row, turns_s in enumerate(view_s.values()):
        turns_us = [1e6 * turn_s for turn_s in turns_s]
        fastest_us.append(min(turns_us))
        axes.plot(turns_us, [row] * len(turns_us), "o", color=OKABE_ITO[row], alpha=0.5)
        axes.plot(2 * [fastest_us[row]], [row - 0.3, row + 0.3], color=OKABE_ITO[row], linewidth=3)
    xlabel = "µs of a view (dot: a turn, line: the fastest)"
    _bare(axes, ["alone", "recorded"], xlabel=xlabel, xlim=(0, None))
    ratio = fastest_us[1] / fastest_us[0]
    show(
        figure,
        f"A view: about {fastest_us[0]:.1f} µs; recorded, about {ratio:.1f} times as long.",
    )
