"""Chapter 19's pictures: where computing stops hiding what is sent, and a plan among all plans."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from course_lessons import chapter_19, scaling
from course_lessons.drawing import bare
from course_lessons.scaling import CLUSTER, MODELS, Plan, Score
from course_utils import show

_PARTS = {
    "compute_s": ("computing", "#0072B2", None),
    "tensor_s": ("cutting layers", "#E69F00", "///"),
    "bubble_s": ("pipeline", "#999999", "..."),
    "data_s": ("copies, not hidden", "#D55E00", "xxx"),
}


def draw_hiding(model: str, chips: Sequence[int], replayed_s: Sequence[float]) -> None:
    """Draw seconds of computing, of bytes alone, and of replayed calls, by number of chips."""
    weights = MODELS[model].weights
    computing_s, alone_s = [], []
    for n in chips:
        computing_s.append(chapter_19.computing(MODELS[model], n))
        bytes_s = CLUSTER.link(n, apart=1)[1]
        alone_s.append(chapter_19.fsdp_bytes(weights, n, scaling.WEIGHT_BYTES) / bytes_s)
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    axes.plot(chips, computing_s, color="#0072B2", marker="s", label="computing")
    dashed = {"color": "#E69F00", "marker": "o", "linestyle": "--"}
    axes.plot(chips, alone_s, label="bytes alone", **dashed)
    axes.plot(chips, replayed_s, color="#D55E00", marker="^", label="calls, replayed")
    axes.set_xscale("log", base=2)
    bare(axes, xlabel="chips", ylabel="seconds of a step", xticks=chips, ylim=(0, None))
    axes.set_xticklabels([f"{n:,}" for n in chips])
    axes.minorticks_off()
    axes.legend(frameon=False)
    falls = f"Computing falls from {computing_s[0]:.2f} to {computing_s[-1]:.2f} s."
    rises = f"The replayed calls rise from {replayed_s[0]:.2f} to {replayed_s[-1]:.2f} s"
    show(figure, f"{falls} {rises}, although the bytes stay.")


def draw_steps(scores: Mapping[str, Score | None]) -> None:
    """Draw what a step is made of, a bar for each plan that fits."""
    bars = {name: scored for name, scored in scores.items() if scored}
    figure, axes = plt.subplots(figsize=(7, 0.7 + 0.4 * len(bars)), layout="constrained")
    for place, scored in enumerate(bars.values()):
        left = 0.0
        for part, (label, colour, hatch) in _PARTS.items():
            seconds = getattr(scored, part)
            style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
            axes.barh(place, seconds, 0.7, left, label=label if place == 0 else None, **style)
            left += seconds
    bare(axes, yticks=range(len(bars)), yticklabels=list(bars), xlabel="seconds of a step (model)")
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    words = ", ".join(f"{name}: {score.step_s:.1f} s" for name, score in bars.items())
    if len(bars) > 1:
        words += ". Orange grows with the ranks that cut a layer"
    show(figure, f"{words}.")


def draw_plans(model: str, chosen: Plan, scored: Score) -> None:
    """Draw memory and MFU of all plans on as many chips, and one among them."""
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    memory_gb, mfu = [], []
    for plan in scaling.plans(MODELS[model], chosen.chips):
        other = scaling.step_time(MODELS[model], CLUSTER, plan)
        memory_gb.append(other.bytes / 1e9)
        mfu.append(other.mfu)
    axes.scatter(memory_gb, mfu, s=12, color="#999999", label="all plans")
    star = {"s": 160, "marker": "*", "color": "#D55E00", "edgecolor": "black"}
    axes.scatter([scored.bytes / 1e9], [scored.mfu], label="yours", **star)
    axes.axvline(CLUSTER.chip.memory_bytes / 1e9, color="black", linestyle=":")
    axes.set_xscale("log")
    bare(axes, xlabel="GB that a chip must hold", ylabel="MFU", ylim=(0, None))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    side = "left" if scored.fits else "right"
    words = (
        f"Your plan stands at {scored.bytes / 1e9:.0f} GB and {scored.mfu:.0%}, {side} of the line"
    )
    show(figure, f"{words}. Only what is left of it fits into 80 GB.")


def draw_published() -> None:
    """Draw published MFU beside the model's."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    names = []
    for place, run in enumerate(chapter_19.PUBLISHED):
        scored = scaling.step_time(run.model, run.cluster, run.plan, run.tokens)
        first = place == 0
        axes.barh(place - 0.2, run.mfu, 0.36, color="#0072B2", label="published" if first else None)
        style = {"color": "#E69F00", "hatch": "///", "edgecolor": "white"}
        axes.barh(place + 0.2, scored.mfu, 0.36, label="model" if first else None, **style)
        names.append(f"{run.name}, {run.plan.chips:,} chips")
    bare(axes, yticks=range(len(names)), yticklabels=names, xlabel="MFU")
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, "Published MFU rises with Megatron's model; ours stays. For Llama ours is lower.")
