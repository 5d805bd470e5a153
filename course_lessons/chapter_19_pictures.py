"""Chapter 19's pictures: what pretended ranks call, your formulas, and a plan among all."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from course_lessons import chapter_19, scaling
from course_lessons.chapter_19 import RECORDED_RANKS, Crossing
from course_lessons.drawing import Box, bare, box_figure, first_with_numbers
from course_lessons.scaling import CLUSTER, MODELS, TOKENS, Plan, Score
from course_utils import show
from course_utils.dry_run import DryRun

_PARTS = {
    "compute_s": ("computing", "#0072B2", None),
    "tensor_s": ("cutting layers", "#E69F00", "///"),
    "bubble_s": ("pipeline", "#999999", "..."),
    "data_s": ("copies, not hidden", "#D55E00", "xxx"),
}


_CALLS = {"all_gather": ("gather", "#0072B255"), "reduce_scatter": ("scatter", "#E69F0088")}
_FITS, _TOO_LARGE = ("#009E73", None), ("#D55E00", "///")
_SPREAD = {"color": "#0072B2", "marker": "", "linewidth": 1.5}
_MARKS = {"color": "#D55E00", "linestyle": "", "markersize": 7}
_STATE_PLANS = ((512, 1, 1, 0), (512, 1, 1, 1), (512, 1, 1, 3), (64, 8, 1, 1))  # dp, tp, pp, zero


def draw_order(runs: Mapping[str, DryRun], rank: int) -> None:
    """Draw the gathers and scatters of a rank in their order, with the bytes that it hands in."""
    rows, sentences = {}, []
    for name, run in runs.items():
        calls = [(kind, handed_in) for kind, handed_in, _ in chapter_19.calls(run.of_rank(rank))]
        boxes = []
        for kind, handed_in in calls:
            word, fill = _CALLS.get(kind, (kind, "white"))
            size = f"{handed_in / 1e6:.1f} MB" if handed_in >= 1e6 else f"{handed_in:,} B"
            boxes.append(Box(f"{word}\n{size}", fill))
        rows[name] = boxes
        counted = Counter(calls).items()
        phrases = [f"{times} × {kind} of {handed_in:,}" for (kind, handed_in), times in counted]
        sentences.append(f"{name}: {', '.join(phrases)}")
    titles = [str(number) for number in range(1, max(map(len, rows.values())) + 1)]
    figure = box_figure(rows, titles, width=0.68)
    words = f"Calls of rank {rank:,} and bytes that it hands in."
    caption = f"{words} Compare the order of both rows, and then their sizes."
    show(figure, f"{words} {'; '.join(sentences)}.", caption)


# ---- what a learner wrote ------------------------------------------------------------------------


def draw_sent(*formulas: Callable[[float, int, float], float]) -> None:
    """Draw what a rank sends by the number of ranks: by a formula, and as it was recorded.

    Args:
        formulas: The first one that returns a number is drawn, also if it is wrong.
    """
    weights, per_weight = chapter_19.recorded_weights(64), 4
    counts = [2**power for power in range(1, 11)]
    formula = first_with_numbers(formulas, [(weights, count, per_weight) for count in counts])
    if formula is None:
        return
    by_formula = [formula(weights, count, per_weight) / 1024 for count in counts]
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.plot(counts, by_formula, label=formula.__name__, **_SPREAD)
    off = 0.0
    for kind, marker in (("real", "o"), ("pretended", "^")):
        ranks = [count for count in counts if RECORDED_RANKS.get(count) == kind]
        sent = [chapter_19.recorded_bytes(count, 64) / 1024 for count in ranks]
        axes.plot(ranks, sent, marker=marker, label=f"{kind} ranks", **_MARKS)
        for count, kib in zip(ranks, sent, strict=True):
            off = max(off, abs(formula(weights, count, per_weight) / 1024 / kib - 1))
    _by_chips(axes, counts, "ranks")
    bare(axes, ylabel="KiB sent by a rank", ylim=(0, None))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    ends = f"from {by_formula[0]:,.0f} KiB with 2 ranks to {by_formula[-1]:,.0f} with 1,024"
    show(figure, f"{formula.__name__} goes {ends}. From the recorded steps it's {off:.0%} off.")


def _by_chips(axes: Axes, counts: Sequence[int], name: str) -> None:
    """An axis of powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel(name)


def draw_crossings(crossings: Mapping[str, Crossing]) -> None:
    """Draw seconds of computing and of sending by tokens per chip, and where both are equal."""
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    colours, sentences = iter(("#0072B2", "#D55E00")), []
    tokens = [2**power for power in range(7, 15)]
    for name, crossing in crossings.items():
        style = {"color": next(colours)}
        computing_s = [crossing.computing_s(count) for count in tokens]
        axes.plot(tokens, computing_s, label=f"{name} computes", **style)
        sending_s = [crossing.sending_s] * len(tokens)
        axes.plot(tokens, sending_s, label=f"{name} sends", linestyle="--", **style)
        axes.plot(crossing.tokens, crossing.sending_s, "o", markersize=8, **style)
        sentences.append(f"{name} at {crossing.tokens:,.0f}")
    _by_chips(axes, tokens, "tokens per chip")
    bare(axes, ylabel="seconds of a step", yscale="log")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(
        figure, f"Computing takes as long as sending where the lines cross: {', '.join(sentences)}."
    )


def draw_tokens(*formulas: Callable[[float, float], float]) -> None:
    """Draw tokens that hide sending by a network's speed: by a formula, and where lines cross.

    Args:
        formulas: The first one that returns a number is drawn, also if it is wrong.
    """
    flops_s = CLUSTER.chip.peak_flops_s * CLUSTER.chip.reached
    gb_s = [50, 100, 200, 400, 800]
    formula = first_with_numbers(formulas, [(flops_s, speed * 1e9) for speed in gb_s])
    if formula is None:
        return
    weights = MODELS["7B"].weights
    by_formula, crossing = [], []
    for speed in gb_s:
        sending_s = chapter_19.fsdp_bytes(weights, 2**50, 2) / (speed * 1e9)
        crossing.append(chapter_19.crossing_tokens(weights, flops_s, sending_s))
        by_formula.append(float(formula(flops_s, speed * 1e9)))
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    axes.plot(gb_s, by_formula, label=formula.__name__, **_SPREAD)
    axes.plot(gb_s, crossing, marker="o", label="where both\ntimes cross", **_MARKS)
    _by_chips(axes, gb_s, "GB/s that a chip sends")
    bare(axes, ylabel="tokens per chip", yscale="log")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    # Rounded twice: 1,483.5 and what is found by halving, 1,483.4999999, become the same number.
    by_speed = ", ".join(f"{round(count, 3):,.0f}" for count in by_formula)
    crossed_at = ", ".join(f"{round(count, 3):,.0f}" for count in crossing)
    speeds = ", ".join(map(str, gb_s))
    show(
        figure,
        f"At {speeds} GB/s {formula.__name__} says {by_speed}. The times cross at {crossed_at}.",
    )


def draw_state(*formulas: Callable[..., float]) -> None:
    """Draw the GB of weights, gradients and Adam's states on a chip, for four plans of 70B.

    Args:
        formulas: The first one that returns a number is drawn, also if it is wrong.
    """
    weights, memory_gb = MODELS["70B"].weights, CLUSTER.chip.memory_bytes / 1e9
    formula = first_with_numbers(formulas, [(weights, *plan) for plan in _STATE_PLANS])
    if formula is None:
        return
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    names, sentences, most_gb = [], [], 1300.0
    for place, (dp, tp, pp, zero) in enumerate(_STATE_PLANS):
        held_gb = float(formula(weights, dp, tp, pp, zero)) / 1e9
        colour, hatch = _FITS if held_gb <= memory_gb else _TOO_LARGE
        axes.barh(place, held_gb, 0.7, color=colour, hatch=hatch, edgecolor="white")
        axes.text(max(held_gb, 1) * 1.08, place, f"{held_gb:,.1f}", va="center")
        most_gb = max(most_gb, held_gb)
        names.append(f"dp {dp}, tp {tp}, {f'ZeRO-{zero}' if zero else 'no ZeRO'}")
        sentences.append(f"{names[-1]}: {held_gb:,.1f}")
    axes.axvline(memory_gb, color="black", linestyle="--")
    bare(axes, yticks=range(len(names)), yticklabels=names, xscale="log", xlim=(1, 3 * most_gb))
    axes.set_xlabel(f"GB on a chip; dashed is its memory, {memory_gb:.0f} GB")
    axes.invert_yaxis()
    show(figure, f"GB of 70B by {formula.__name__}: {'; '.join(sentences)}.")


def draw_tensor(*formulas: Callable[..., float]) -> None:
    """Draw seconds of the all-reduces that cut layers, by how many ranks cut them.

    Args:
        formulas: The first one that returns a number is drawn, also if it is wrong.
    """
    model, chips = MODELS["70B"], 512
    counts, calls = (2, 4, 8, 16), []
    for tp in counts:
        of_copy = TOKENS // chips * tp
        calls.append((model.layers, model.hidden, of_copy, tp, *CLUSTER.link(tp, apart=1)))
    formula = first_with_numbers(formulas, calls)
    if formula is None:
        return
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    sentences = []
    for place, (tp, call) in enumerate(zip(counts, calls, strict=True)):
        seconds = float(formula(*call))
        plan = Plan(dp=chips // tp, tp=tp)
        by_model_s = scaling.step_time(model, CLUSTER, plan).tensor_s
        label = None if place else formula.__name__
        axes.barh(place, seconds, 0.7, color="#E69F00", hatch="///", edgecolor="white", label=label)
        label = None if place else "step_time"
        axes.plot(by_model_s, place, marker="D", label=label, **_MARKS)
        axes.text(max(seconds, by_model_s) + 0.08, place, f"{seconds:.2f}", va="center")
        sentences.append(f"tp {tp}: {seconds:.2f} s, step_time {by_model_s:.2f}")
    names = [f"tp {tp}" for tp in counts]
    words = "seconds of these all-reduces in a step, 70B on 512 chips"
    bare(axes, yticks=range(len(names)), yticklabels=names, xlabel=words)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, f"By {formula.__name__}, {'; '.join(sentences)}.")


def draw_speed(*searches: Callable[..., float], counts: Sequence[int]) -> None:
    """Draw what a chip is worth with so many of them, and the seconds of the fastest step.

    Args:
        searches: The first one that returns a number is drawn, also if it is wrong.
        counts: Of chips.
    """
    calls = [(model, CLUSTER, count) for model in MODELS.values() for count in counts]
    search = first_with_numbers(searches, calls)
    if search is None:
        return
    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    sentences = []
    looks = (("#0072B2", "s", "-", -14), ("#D55E00", "o", "--", 7))
    speeds = chapter_19.speed_by_chips(search, counts)
    for (name, steps), (colour, marker, dash, above) in zip(speeds.items(), looks, strict=True):
        shares = [share for _, share in steps]
        style = {"color": colour, "marker": marker, "linestyle": dash}
        axes.plot(counts, shares, label=name, **style)
        for count, (step_s, share) in zip(counts, steps, strict=True):
            offset = {"textcoords": "offset points", "ha": "center", "size": 9, "color": colour}
            axes.annotate(f"{step_s:.2f} s", (count, share), (0, above), **offset)
        phrases = [f"{step_s:.2f} s ({share:.0%})" for step_s, share in steps]
        sentences.append(f"{name} {', '.join(phrases)}")
    _by_chips(axes, counts, "chips")
    bare(axes, ylabel="speed per chip", ylim=(0, 1.15))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    chips = ", ".join(f"{count:,}" for count in counts)
    words = f"By {search.__name__}, on {chips} chips a step takes, and a chip is worth"
    caption = f"By {search.__name__}: more chips, shorter steps. Where is a chip worth less?"
    show(figure, f"{words}: {'; '.join(sentences)}.", caption)


# ---- the model -----------------------------------------------------------------------------------


def draw_hiding(model: str, replayed_s: Mapping[int, float]) -> None:
    """Draw seconds of computing, of bytes alone, and of replayed calls, by number of chips."""
    weights = MODELS[model].weights
    chips, calls_s = list(replayed_s), list(replayed_s.values())
    computing_s, alone_s = [], []
    for n in chips:
        computing_s.append(chapter_19.computing(MODELS[model], n))
        bytes_s = CLUSTER.link(n, apart=1)[1]
        alone_s.append(chapter_19.fsdp_bytes(weights, n, scaling.WEIGHT_BYTES) / bytes_s)
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    axes.plot(chips, computing_s, color="#0072B2", marker="s", label="computing")
    dashed = {"color": "#E69F00", "marker": "o", "linestyle": "--"}
    axes.plot(chips, alone_s, label="bytes alone", **dashed)
    axes.plot(chips, calls_s, color="#D55E00", marker="^", label="calls, replayed")
    axes.set_xscale("log", base=2)
    bare(axes, xlabel="chips", ylabel="seconds of a step", xticks=chips, ylim=(0, None))
    axes.set_xticklabels([f"{n:,}" for n in chips])
    axes.minorticks_off()
    axes.legend(frameon=False)
    falls = f"Computing falls from {computing_s[0]:.2f} to {computing_s[-1]:.2f} s."
    rises = f"The replayed calls rise from {calls_s[0]:.2f} to {calls_s[-1]:.2f} s"
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
    """Draw memory and MFU of all plans on as many chips, and one among them.

    Plans with ZeRO-3 are left out, unless the chosen one has it.
    """
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    memory_gb, mfu, fits_fast = [], [], []
    for plan in scaling.plans(MODELS[model], chosen.chips):
        if plan.zero > max(chosen.zero, 1):
            continue
        other = scaling.step_time(MODELS[model], CLUSTER, plan)
        memory_gb.append(other.bytes / 1e9)
        mfu.append(other.mfu)
        if other.mfu >= 0.5:
            fits_fast.append(other.fits)
    axes.scatter(
        memory_gb,
        mfu,
        s=12,
        color="#999999",
        label="all plans" if chosen.zero == 3 else "without ZeRO-3",
    )
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
    fast = f"{sum(fits_fast)} of the {len(fits_fast)} plans with an MFU of at least 50%"
    show(figure, f"{words}. Only what is left of it fits into 80 GB: {fast}.")


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
