"""What chapter 13 shows its results with: a budget in bytes, and when a layer's weight is whole."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course_utils import show

# Bytes per parameter in mixed precision with Adam, as ZeRO's authors count them, and the first
# stage that divides each among the ranks.
BUDGET = {
    "weights (bf16)": (2, 3),
    "gradients (bf16)": (2, 2),
    "optimiser (fp32: weights, two moments)": (12, 1),
}
COLOURS = ("#0072B2", "#E69F00", "#009E73")
HATCHES = ("", "///", "...")


def budget_bytes(parameters: int, ranks: int, stage: int) -> float:
    """The bytes that each rank holds at a stage of ZeRO, 0 to 3, without activations."""
    total_bytes = 0.0
    for bytes_each, divided_from in BUDGET.values():
        divisor = ranks if stage >= divided_from else 1
        total_bytes += parameters * bytes_each / divisor
    return total_bytes


def _budgets(parameters: Sequence[int], ranks: Sequence[int], stages: Sequence[int]) -> list[float]:
    return list(map(budget_bytes, parameters, ranks, stages))


def _model_and_ranks(rank: int, world_size: int, case: str) -> tuple[int, int, int]:
    parameters = int(torch.randint(10**6, 10**11, ()))
    ranks = 1 if case.endswith("one rank") else int(torch.randint(2, 1025, ()))
    return parameters, ranks, int(case.split()[1][:1])


HELD = {
    "spec": _budgets,
    "inputs": _model_and_ranks,
    "cases": [f"stage {stage}" for stage in range(4)] + ["stage 1, one rank", "stage 3, one rank"],
    "world_sizes": (1,),
    "hide": (budget_bytes,),
}


def draw_budgets(held_bytes: Callable[[int, int, int], float]) -> None:
    """Draw what a learner's function says of two models on 8 and on 64 GPUs, right or wrong."""
    teams = [(7, 8), (7, 64), (70, 8), (70, 64)]
    try:
        heights = {}
        for billions, ranks in teams:
            by_stage = [held_bytes(billions * 10**9, ranks, stage) for stage in range(4)]
            heights[billions, ranks] = by_stage
    except Exception as error:
        print(f"No picture yet: held_bytes says {error!r}.")
        return
    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    styles = zip(("#999999", *COLOURS), ("", "///", "...", "xx"), strict=True)
    for stage, (colour, hatch) in enumerate(styles):
        lefts = [place + 0.2 * stage for place in range(len(teams))]
        gb = [heights[team][stage] / 1e9 for team in teams]
        label = f"ZeRO-{stage}" if stage else "replicated"
        axes.bar(lefts, gb, 0.18, color=colour, hatch=hatch, edgecolor="white", label=label)
    axes.axhline(80, color="#222222", linestyle="--", label="80 GB")
    axes.set(yscale="log", ylabel="GB per GPU", xticks=[place + 0.3 for place in range(4)])
    axes.set_xticklabels([f"{billions}B on {ranks}" for billions, ranks in teams])
    axes.legend(ncols=5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
    axes.spines[["top", "right"]].set_visible(False)
    fitting = [f"{b}B on {n}" for b, n in teams if heights[b, n][3] < 80e9]
    show(figure, f"By your function, ZeRO-3 fits into 80 GB for: {', '.join(fitting) or 'none'}.")


def figure_of_a_layer() -> Figure:
    """When a layer's weight is whole, and who calls what, in one step of ZeRO-3."""
    events = ("read", "gather", "layer computes", "free")
    back = ("read", "gather", "layer computes\nbackward", "free", "reduce")
    figure, axes = plt.subplots(figsize=(10, 2.6), layout="constrained")
    axes.set(xlim=(-1.6, 10.2), ylim=(-0.9, 1.7))
    axes.axis("off")
    axes.text(-1.5, 0, "weight held", va="center", fontsize=11)
    axes.text(-1.5, 1, "called", va="center", fontsize=11)
    for number, words in enumerate((*events, "", *back)):
        if words:
            colour = COLOURS[2] if "computes" in words else "#222222"
            axes.text(number + 0.4, 1, words, ha="center", va="center", color=colour, fontsize=10)
    spans = [(0, 1.5, "shard"), (1.5, 3.4, "whole"), (3.4, 6.5, "shard"), (6.5, 8.4, "whole")]
    spans.append((8.4, 10, "shard"))
    for start, end, words in spans:
        height = 0.6 if words == "whole" else 0.15
        colour = COLOURS[1] if words == "whole" else COLOURS[0]
        axes.bar(start, height, end - start, -0.3, align="edge", color=colour, edgecolor="white")
        axes.text((start + end) / 2, -0.6, words, ha="center", va="center", fontsize=10)
    axes.text(2, 1.5, "forward", ha="center", weight="bold")
    axes.text(7.4, 1.5, "backward", ha="center", weight="bold")
    return figure
