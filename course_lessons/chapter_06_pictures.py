"""Chapter 06's pictures: a learner's formulas beside replays, who sends to whom, lines, limits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from course_lessons.drawing import bare
from course_utils import show
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import OKABE_ITO, rank_style

_RIGHT = 1e-6  # relative, as the checks have it
_SEED = 6
_FURTHEST = 10.0  # a formula that is off by more is drawn at the edge


def _first_written(functions: Sequence[Callable], call: Callable[[Callable], Any]) -> tuple:
    """The first function that is written, and what a call of it gives."""
    for function in functions:
        try:
            return function, call(function)
        except Exception as error:  # a learner's function may raise anything
            print(f"No picture yet of {function.__name__}: {type(error).__name__}: {error}")
    raise ValueError("none of these functions can be drawn")


# ---- what a learner wrote ------------------------------------------------------------------------


def draw_formula(judged: Mapping[str, Any], *formulas: Callable) -> None:
    """Draw a formula's results, divided by those of the replays that its check goes by.

    Args:
        judged: The options of the check; the arguments of a case are drawn with a fixed seed.
        formulas: The first one that is written is drawn, also if it is wrong.
    """
    arguments, wanted = {}, {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        for case in judged["cases"]:
            arguments[case] = judged["inputs"](0, 1, case)
            (wanted[case],) = judged["spec"](*[[each] for each in arguments[case]])

    def ratios_of(formula: Callable) -> dict[str, float]:
        return {case: float(formula(*given)) / wanted[case] for case, given in arguments.items()}

    formula, ratios = _first_written(formulas, ratios_of)
    figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
    for place, (case, ratio) in enumerate(ratios.items()):
        kind, _, _ = case.rpartition(", ")
        right = abs(ratio - 1) < _RIGHT
        height = min(max(ratio, 1 / _FURTHEST), _FURTHEST)
        axes.plot(place, height, "o" if right else "X", ms=8, color=_color_of(kind, ratios))
        if not right:
            axes.annotate(
                f"{ratio:.2g}", (place, height), (0, 7), textcoords="offset points", ha="center"
            )
    axes.axhline(1, color="#777777", linewidth=1)
    axes.set_xticks(range(len(ratios)), list(ratios), rotation=40, ha="right", size=8)
    bare(axes, yscale="log", ylim=(0.07, 15), ylabel="formula / replay")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.minorticks_off()
    wrong = [f"{case}: {r:.2g}" for case, r in ratios.items() if abs(r - 1) >= _RIGHT]
    words = f"{len(ratios) - len(wrong)} of {len(ratios)} are 1"
    if wrong:
        words += f". Not so {'; '.join(wrong[:8])}"
    show(figure, f"{formula.__name__} divided by what real ranks took, replayed: {words}.")


def _color_of(kind: str, cases: Mapping[str, float]) -> str:
    kinds = list(dict.fromkeys(case.rpartition(", ")[0] for case in cases))
    return OKABE_ITO[kinds.index(kind) % len(OKABE_ITO)]


def draw_fit(*fits: Callable) -> None:
    """Draw times that are up to 20 % off a line, and the line that a fit finds.

    Args:
        fits: The first one that is written is drawn, also if it is wrong.
    """
    sizes = 4.0 ** np.arange(5, 14)
    off = np.array([0.9, 1.2, 0.85, 1.1, 0.8, 1.15, 0.95, 1.2, 0.8])
    times_us = (20 + 1e-4 * sizes) * off

    def line_of(fit: Callable) -> tuple[float, float]:
        fixed, per_byte = fit(sizes.copy(), times_us.copy())
        return float(fixed), float(per_byte)

    fit, (fixed, per_byte) = _first_written(fits, line_of)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.7), layout="constrained")
    left.plot(sizes, times_us, "o", color=OKABE_ITO[0], label="times")
    line_us = fixed + per_byte * sizes
    left.plot(sizes, line_us, color=OKABE_ITO[1], label=fit.__name__)
    left.legend(frameon=False)
    bare(left, xscale="log", yscale="log", xlabel="bytes", ylabel="µs")
    errors = 100 * (line_us / times_us - 1)
    right.stem(sizes, errors, linefmt="#777777", markerfmt="o", basefmt=" ")
    right.axhline(0, color="#777777", linewidth=1)
    bare(right, xscale="log", xlabel="bytes", ylabel="line, off by (%)")
    squares = float(np.square(errors / 100).sum())
    show(
        figure,
        f"{fit.__name__} finds {fixed:.1f} µs + S · {per_byte:.2e} µs. Its squared relative errors "
        f"add up to {squares:.3f}.",
    )


# ---- messages ------------------------------------------------------------------------------------


def draw_traffic(traces: Mapping[str, Trace]) -> None:
    """Draw the bytes that come into each rank, a panel for each algorithm."""
    figure, panels = plt.subplots(
        1, len(traces), figsize=(9, 2.5), layout="constrained", sharey=True
    )
    sentences = []
    for axes, (name, trace) in zip(panels, traces.items(), strict=True):
        traffic = trace.traffic()
        received_kb = [received / 1000 for received in traffic.received_bytes]
        busiest = max(received_kb)
        colors = [OKABE_ITO[1] if kb == busiest else OKABE_ITO[0] for kb in received_kb]
        axes.bar(range(len(received_kb)), received_kb, color=colors)
        axes.text(received_kb.index(busiest), busiest + 12, f"{busiest:.0f}", ha="center")
        in_all = sum(traffic.sent_bytes)
        messages = sum(traffic.sent_messages)
        bare(axes, title=f"{name}: {messages} messages", xlabel="rank", ylim=(0, 650))
        axes.title.set_size(10)
        axes.set_xticks(range(len(received_kb)))
        sentences.append(
            f"{name}: {messages} messages, {in_all:,.0f} bytes in all, "
            f"{1000 * busiest:,.0f} into the busiest rank"
        )
    panels[0].set_ylabel("KB that come in")
    caption = "How evenly do the bytes come in? The busiest ranks are orange."
    show(figure, f"{'. '.join(sentences)}.", caption)


# ---- lines over sizes, networks and ranks --------------------------------------------------------


def draw_race(latencies_us: Sequence[float], teams_us: Mapping[str, Sequence[float]]) -> None:
    """Draw when two teams are done, over the latency."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    sentences = []
    for number, (name, all_us) in enumerate(teams_us.items()):
        axes.plot(latencies_us, all_us, **rank_style(number), label=name)
        words = [f"{us:.0f}" for us in all_us]
        sentences.append(f"{name} {', '.join(words)} µs")
    first, second = teams_us.values()
    for latency_us, us, other_us in zip(latencies_us, first, second, strict=True):
        if us == other_us:
            axes.plot(latency_us, us, "o", ms=15, mfc="none", mec=INK)
    axes.legend(frameon=False)
    bare(axes, xlabel="latency (µs)", ylabel="done after (µs)", ylim=(0, None))
    latencies = ", ".join(f"{latency_us:g}" for latency_us in latencies_us)
    caption = "The circle is where both teams take equally long."
    show(figure, f"At a latency of {latencies} µs: {'; '.join(sentences)}.", caption)


def draw_lines(
    table: Sequence[tuple[float, float]], fit: Callable, parts: Sequence[slice] = (slice(None),)
) -> None:
    """Draw measured times with the lines that a fit finds for parts of them, and what they miss."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3), layout="constrained")
    sizes, times_us = np.array(table, dtype=float).T
    left.plot(sizes, times_us, "o", color=INK, label="measured")
    sentences, captions = [], []
    for number, part in enumerate(parts):
        color = OKABE_ITO[number]
        fixed, per_byte = fit(sizes[part], times_us[part])
        line_us = fixed + per_byte * sizes[part]
        words = f"{fixed:.1f} µs + S / {1e-3 / per_byte:.3g} GB/s"
        left.plot(sizes[part], line_us, color=color, label=words)
        off = 100 * (line_us / times_us[part] - 1)
        places = np.arange(len(sizes))[part]
        right.bar(places, off, color=color)
        for place, percent in zip(places, off, strict=True):
            up = percent >= 0
            right.annotate(
                f"{percent:+.0f}" if abs(percent) >= 10 else f"{percent:+.1f}", (place, percent),
                (0, 2 if up else -2), textcoords="offset points", ha="center",
                va="bottom" if up else "top", size=7.5,
            )  # fmt: skip
        misses = ", ".join(f"{percent:+.1f}" for percent in off)
        sentences.append(f"{words} misses by {misses} %")
        captions.append(f"{words} is off by at most {abs(off).max():.1f} %")
    left.legend(frameon=False)
    bare(left, xscale="log", yscale="log", xlabel="bytes", ylabel="µs")
    right.axhline(0, color="#777777", linewidth=1)
    right.set_xticks(range(len(sizes)), [_size(size) for size in sizes], rotation=60, size=8)
    right.margins(y=0.2)
    bare(right, ylabel="line, off by (%)")
    show(figure, f"{'. '.join(sentences)}.", f"{'. '.join(captions)}.")


def _size(size: float) -> str:
    """Bytes, in short."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.0f} GiB"


def draw_beyond(tables: Mapping[str, Sequence], fit: Callable, used: int = 4) -> None:
    """Draw lines fitted to the smallest sizes of each table, and the times beyond."""
    figure, panels = plt.subplots(1, len(tables), figsize=(9, 2.8), layout="constrained")
    sentences = []
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        sizes, times_us = np.array(table, dtype=float).T
        fixed, per_byte = fit(sizes[:used], times_us[:used])
        axes.plot(sizes, fixed + per_byte * sizes, color=OKABE_ITO[0], label="line")
        axes.plot(sizes[:used], times_us[:used], "o", color=OKABE_ITO[0], label="fitted to")
        axes.plot(sizes[used:], times_us[used:], "o", mfc="white", mec=INK, label="beyond")
        line_us = fixed + per_byte * sizes[-1]
        off = line_us / times_us[-1] - 1
        axes.annotate(f"{off:+.0%}", (sizes[-1], line_us), (-8, 0), textcoords="offset points",
                      ha="right", va="bottom")  # fmt: skip
        bare(axes, xscale="log", yscale="log", xlabel="bytes", ylabel="µs", title=name)
        words = f"line {line_us:,.0f} µs, measured {times_us[-1]:,.0f}"
        sentences.append(f"{name}, {sizes[-1]:,.0f} bytes: {words}, {off:+.0%}")
    panels[0].legend(frameon=False)
    show(figure, f"{'. '.join(sentences)}.")


def draw_bound(sizes: Sequence[int], shares: Mapping[str, Sequence[float]]) -> None:
    """Draw how near algorithms come to the bound, over the size."""
    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    sentences = []
    for number, (name, of_size) in enumerate(shares.items()):
        percent = [100 * share for share in of_size]
        axes.plot(sizes, percent, **rank_style(number), label=name)
        axes.annotate(
            f"{percent[-1]:.1f} %", (sizes[-1], percent[-1]), (8, 0),
            textcoords="offset points", va="center",
        )  # fmt: skip
        sentences.append(f"{name} {', '.join(f'{each:.1f}' for each in percent)} %")
    axes.axhline(100, color="#777777", linewidth=1)
    axes.text(sizes[0], 97, "the bound", va="top")
    axes.legend(frameon=False, loc="center left")
    bare(axes, xscale="log", xlabel="tensor (bytes), 8 ranks", ylabel="bound / time (%)")
    axes.margins(x=0.1)
    text = f"From {sizes[0]:,} to {sizes[-1]:,} bytes: {'; '.join(sentences)}."
    caption = "Higher is better. How does the order change from small tensors to large ones?"
    show(figure, text, caption)


def draw_three_nodes(table: Sequence[tuple[float, float]], gb_s: float, ranks: int) -> None:
    """Draw measured times beside those of a model that has seen none, and how far it is off."""
    sizes, times_us = np.array(table, dtype=float).T
    predicted_us = 2 * (ranks - 1) / ranks * sizes / (1000 * gb_s)
    off = 100 * (predicted_us / times_us - 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 2.9), layout="constrained")
    left.plot(sizes / 1e6, times_us, "o", color=INK, label="measured")
    left.plot(sizes / 1e6, predicted_us, color=OKABE_ITO[0], label="predicted")
    left.legend(frameon=False)
    bare(left, xlabel="MB", ylabel="µs", ylim=(0, None), xlim=(0, None))
    right.bar(range(len(sizes)), off, color=OKABE_ITO[0])
    for place, percent in enumerate(off):
        right.text(place, percent - 0.2, f"{percent:.1f}", ha="center", va="top", size=8)
    right.set_xticks(range(len(sizes)), [f"{size / 1e6:.1f}" for size in sizes], size=8)
    bare(right, xlabel="MB", ylabel="prediction, off by (%)", ylim=(-13, 0.5))
    pairs = [
        f"{size / 1e6:.1f} MB {us:,.1f} and {model_us:,.1f} µs"
        for size, us, model_us in zip(sizes, times_us, predicted_us, strict=True)
    ]
    caption = (
        "Left, what was measured, and a line that was predicted without it. Right, how far the "
        "line is off: look where that changes."
    )
    show(figure, f"Measured and predicted: {', '.join(pairs)}.", caption)


def draw_ranks(ranks: Sequence[int], ms_by_name: Mapping[str, Sequence[float]]) -> None:
    """Draw what an all-reduce takes, over the number of ranks."""
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    sentences = []
    for number, (name, all_ms) in enumerate(ms_by_name.items()):
        style = rank_style(number)
        if name == "bound":
            style = {"color": "#777777", "linestyle": "-", "linewidth": 4, "alpha": 0.4}
        axes.plot(ranks, all_ms, **style, label=name)
        sentences.append(f"{name} {', '.join(f'{ms:,.1f}' for ms in all_ms)} ms")
    axes.set_xticks(ranks, [f"{n:,}" for n in ranks])
    axes.legend(frameon=False, ncols=2)
    bare(axes, xscale="log", yscale="log", xlabel="ranks", ylabel="ms, 25 MiB, by formula")
    axes.set_xticks(ranks, [f"{n:,}" for n in ranks])
    axes.set_yticks([10, 100, 1000, 10000], ["10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    numbers = ", ".join(f"{n:,}" for n in ranks)
    caption = "Both scales are logarithmic. Which lines cross, and which one stays near the bound?"
    show(figure, f"On {numbers} ranks: {'; '.join(sentences)}.", caption)


def draw_cards(nodes: Sequence[int], ms_by_name: Mapping[str, Sequence[float]]) -> None:
    """Draw how long the busiest card is busy, over the number of nodes."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    sentences = []
    for number, (name, all_ms) in enumerate(ms_by_name.items()):
        places = np.arange(len(nodes)) + 0.27 * (number - 1)
        hatch = (None, "////", "....")[number]
        axes.bar(places, all_ms, 0.25, color=OKABE_ITO[number], hatch=hatch, ec="white", label=name)
        for place, ms in zip(places, all_ms, strict=True):
            axes.text(place, ms + 0.1, f"{ms:.2f}", ha="center", size=8)
        sentences.append(f"{name} {', '.join(f'{ms:.2f}' for ms in all_ms)} ms")
    axes.set_xticks(range(len(nodes)), nodes)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    bare(axes, xlabel="nodes of 8 ranks", ylabel="ms at a card, 25 MiB")
    numbers = ", ".join(map(str, nodes))
    caption = "The more nodes there are, the less two levels save over several rings."
    show(figure, f"On {numbers} nodes: {'; '.join(sentences)}.", caption)


def draw_limits(ranks: Sequence[int], batches: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draw the batch that hides the all-reduce and its limits, over ranks, a panel per model."""
    figure, panels = plt.subplots(1, len(batches), figsize=(9.4, 3), layout="constrained")
    sentences = []
    for axes, (model, limits) in zip(panels, batches.items(), strict=True):
        for number, (name, of_ranks) in enumerate(limits.items()):
            axes.plot(ranks, of_ranks, **rank_style(number), markersize=5, label=name)
        words = [f"{of_ranks[1]:.1f} ({name})" for name, of_ranks in limits.items()]
        sentences.append(f"{model} on {ranks[1]} ranks: {', '.join(words)}")
        bare(axes, xscale="log", yscale="log", xlabel="ranks", title=model)
        axes.set_xticks(ranks, [f"{n:,}" for n in ranks], size=8)
        axes.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
        axes.minorticks_off()
    panels[0].set_ylabel("local batch")
    panels[0].legend(frameon=False, fontsize=9)
    caption = (
        "From a line on, a batch is large enough. Which of the two limits is near both together, "
        "and what does a slower network change?"
    )
    show(figure, f"{'. '.join(sentences)}.", caption)


def draw_buckets(
    caps_mb: Sequence[float],
    ms_by_network: Mapping[str, Sequence[float]],
    published_ms: Mapping[float, float],
) -> None:
    """Draw what a step takes by the size of its buckets, and what was published."""
    figure, axes = plt.subplots(figsize=(7.5, 2.9), layout="constrained")
    sentences = []
    for number, (name, all_ms) in enumerate(ms_by_network.items()):
        axes.plot(caps_mb, all_ms, **rank_style(number), label=f"model, {name}")
        for cap_mb, ms in zip(caps_mb, all_ms, strict=True):
            axes.annotate(f"{ms:.1f}", (cap_mb, ms), (0, -14), textcoords="offset points",
                          ha="center", size=8)  # fmt: skip
        sentences.append(f"{name} {', '.join(f'{ms:.1f}' for ms in all_ms)} ms")
    axes.plot(
        list(published_ms), list(published_ms.values()), "X", color=INK, ms=9, label="published"
    )
    for cap_mb, ms in published_ms.items():
        axes.annotate(f"{ms:g}", (cap_mb, ms), (0, 7), textcoords="offset points", ha="center")
        sentences.append(f"published at {cap_mb:g} MB {ms:g} ms")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    bare(axes, xscale="log", xlabel="limit of a bucket (MB)", ylabel="ms of a step, 16 ranks")
    axes.set_ylim(60, 280)
    axes.set_xticks(caps_mb, [f"{cap_mb:g}" for cap_mb in caps_mb])
    axes.minorticks_off()
    caption = "Lines are the model's steps by the limit of a bucket; crosses are published steps."
    sizes = ", ".join(map(str, caps_mb))
    show(figure, f"With buckets of {sizes} MB: {'; '.join(sentences)}.", caption)
