"""Chapter 18's pictures: which stage does what when, the bubble, and what is held."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_lessons.chapter_18 import TOKEN_US, Routed, Step, bubble
from course_lessons.drawing import bare
from course_utils import show

_FORWARD = {"facecolor": "#0072B2", "edgecolor": "white"}
_BACKWARD = {"facecolor": "#E69F00", "edgecolor": "white", "hatch": "////"}
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_MOST_NUMBERS = 12  # of microbatches: more than so many numbers are too small to read


def _draw_stages(axis: Axes, step: Step) -> None:
    """A row for each stage; a bar for each microbatch that it computes."""
    for bar in step.replay().intervals:
        if bar.what != "compute":
            continue
        kind, k = step.marks[bar.rank, bar.event.index]
        style = _FORWARD if kind == "F" else _BACKWARD
        left, width = bar.start_us / 1000, (bar.end_us - bar.start_us) / 1000
        axis.barh(bar.rank, width, 0.84, left, linewidth=0.8, **style)
        if step.count <= _MOST_NUMBERS:
            place = {"ha": "center", "va": "center", "fontsize": 9, "bbox": _BEHIND}
            axis.text(left + width / 2, bar.rank, str(k), **place)
    names = [f"stage {number}" for number in range(step.stages)]
    bare(axis, yticks=range(step.stages), yticklabels=names)
    axis.invert_yaxis()


def draw_schedules(steps: Mapping[str, Step]) -> None:
    """Draw steps one below the other, on the same axis, if messages take no time."""
    height = 0.7 + sum(0.5 + 0.3 * step.stages for step in steps.values())
    settings = {"figsize": (9, height), "layout": "constrained", "sharex": True, "squeeze": False}
    figure, axes = plt.subplots(len(steps), 1, **settings)
    sentences = []
    for axis, (name, step) in zip(axes[:, 0], steps.items(), strict=True):
        _draw_stages(axis, step)
        axis.set_title(name, loc="left", fontsize=10)
        end_ms = max(step.replay().finish_us) / 1000
        idle = f"a stage idles for {step.idle_share():.0%} of it"
        sentences.append(f"{name}: the step takes {end_ms:.1f} ms, and {idle}.")
    axes[-1, 0].set_xlabel("virtual ms")
    patches = [Patch(label="forward", **_FORWARD), Patch(label="backward", **_BACKWARD)]
    place = {"loc": "outside upper right", "ncols": 2, "frameon": False}
    figure.legend(handles=patches, **place)
    show(figure, " ".join(sentences))


def draw_bubble(counts: Sequence[int], replayed: Mapping[int, Sequence[float]]) -> None:
    """Draw the bubble by the number of microbatches: lines are formulas, markers are replays."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    colours, markers = ("#0072B2", "#D55E00", "#009E73"), ("o", "s", "^")
    finely = range(1, max(counts) + 1)
    for number, (stages, shares) in enumerate(replayed.items()):
        formula = [100 * bubble(stages, count) for count in finely]
        axes.plot(finely, formula, color=colours[number], linewidth=1)
        points = [100 * share for share in shares]
        style = {"color": colours[number], "marker": markers[number], "linestyle": ""}
        axes.plot(counts, points, label=f"{stages} stages", **style)
    bare(axes, xlabel="microbatches", ylabel="bubble, % of the step", ylim=(0, 100))
    axes.set_xticks(list(counts))
    axes.legend(frameon=False)
    show(figure, "Each marker, a replay, lies on the line of its formula.")


def draw_held(steps: Mapping[str, Step]) -> None:
    """Draw how many microbatches each stage holds at once, schedule by schedule."""
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    styles = ({"facecolor": "#999999", "edgecolor": "white"}, _FORWARD)
    sentences = []
    for number, (name, step) in enumerate(steps.items()):
        places = [stage + 0.4 * number - 0.2 for stage in range(step.stages)]
        bars = axes.bar(places, step.most_held, 0.36, label=name, **styles[number])
        axes.bar_label(bars)
        held = ", ".join(map(str, step.most_held))
        sentences.append(f"{name} holds {held} microbatches at most, from the first stage on.")
    names = [f"stage {stage}" for stage in range(step.stages)]
    bare(axes, xticks=range(len(names)), xticklabels=names, ylabel="held at once")
    axes.margins(y=0.2)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, " ".join(sentences))


def draw_experts(layers: Mapping[str, Routed]) -> None:
    """Draw how long each expert computes, and how long its rank then waits."""
    settings = {"figsize": (9, 1.9), "layout": "constrained", "sharex": True, "sharey": True}
    figure, axes = plt.subplots(1, len(layers), **settings)
    sentences = []
    for axis, (name, layer) in zip(axes, layers.items(), strict=True):
        end_us = max(layer.replay.finish_us)
        for rank, count in enumerate(layer.received):
            computes_us = TOKEN_US * count
            axis.barh(rank, computes_us, 0.8, color="#009E73")
            style = {"facecolor": "#FDEFD0", "edgecolor": "#E69F00", "hatch": "|||"}
            axis.barh(rank, end_us - computes_us, 0.8, computes_us, linewidth=0, **style)
        ranks = range(len(layer.received))
        bare(axis, yticks=ranks, yticklabels=[f"expert {rank}" for rank in ranks])
        axis.set_xlabel("virtual µs")
        axis.set_title(name, loc="left", fontsize=10)
        sentences.append(f"{name}: all are done after {end_us:.0f} µs.")
    axes[0].invert_yaxis()
    show(figure, f"Green computes, yellow strokes wait. {' '.join(sentences)}")
