"""Chapter 12's pictures: what a learner's own hooks return, and what methods cost."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes

from course_lessons.chapter_12 import (
    PERIOD,
    SLOW_MS,
    Candidate,
    Table,
    half_apart,
    ms_per_progress,
)
from course_lessons.drawing import answers_to_draw, bare
from course_utils import show
from course_utils.pictures.style import OKABE_ITO, rank_style

_MARKS = "os^DvPX*"


def _first_drawable(answers: Sequence[Callable], worker_of: Callable) -> tuple[str, list] | None:
    """Name and results on two ranks of the first answer that neither raises nor hangs."""
    for answer in answers:
        results = answers_to_draw(worker_of(answer), world_size=2)
        if results is not None:
            return answer.__name__, list(results)
    return None


# ---- what a learner's hook returns ---------------------------------------------------------------


class _Bucket:
    """A bucket of one parameter's gradients, as a hook sees it, without DDP."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def buffer(self) -> torch.Tensor:
        """All gradients, in one row."""
        return self._flat

    def set_buffer(self, flat: torch.Tensor) -> None:
        """Put a row in the place of the gradients."""
        self._flat = flat

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of each parameter."""
        return [self._flat]

    def index(self) -> int:
        """The first bucket is the only one."""
        return 0

    def is_last(self) -> bool:
        """The first bucket is the last one, too."""
        return True


def _returned(hook: Callable, state: Any, flat: torch.Tensor) -> list[float]:
    mean = hook(state, _Bucket(flat.clone()))
    if not isinstance(mean, torch.Tensor):
        mean = mean.wait()
    if isinstance(mean, list):  # of an all_reduce without `then`
        mean = mean[0]
    return mean.flatten().tolist()


def draw_half(*hooks: Callable) -> None:
    """Draw what a hook returns in two types, as a multiple of the right mean.

    Args:
        hooks: The first one that can be drawn is; a wrong one is drawn as well.
    """
    numbers = 10 ** torch.linspace(-9, 6, 151)  # on both ranks, so it is their mean as well
    types = {"float16": torch.float16, "bfloat16": torch.bfloat16}

    def worker_of(hook: Callable) -> Callable:
        return lambda: {name: _returned(hook, dtype, numbers) for name, dtype in types.items()}

    drawable = _first_drawable(hooks, worker_of)
    if drawable is None:
        return
    name, results = drawable
    figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    sentences = []
    # The line that should reach further lies below, and is wider.
    looks = {"float16": {"marker": "o", "ms": 3, "lw": 1, "zorder": 3}, "bfloat16": {"lw": 8}}
    for number, type_name in enumerate(types):
        ratio = torch.tensor(results[0][type_name]) / numbers
        look = {"color": OKABE_ITO[number], "solid_capstyle": "butt"} | looks[type_name]
        axes.plot(numbers.tolist(), ratio.tolist(), label=type_name, **look)
        sentences.append(f"{type_name} {_right_range(numbers, ratio)}")
    bare(axes, xscale="log", xlabel="mean of the gradients", ylim=(-0.1, 2.4))
    axes.set_ylabel("returned,\nas a multiple\nof the right mean")
    axes.legend(frameon=False, loc="upper center")
    ends = "Where a line ends, the numbers are too large for the type."
    text = f"{name} on two ranks, tried from 1e-09 to 1e+06. Right within 1 %: "
    text += f"{', '.join(sentences)}. {ends}"
    show(figure, text, f"At 1 the mean is right. From where to where is each line there? {ends}")


def _right_range(numbers: torch.Tensor, ratio: torch.Tensor) -> str:
    right = numbers[(ratio - 1).abs() < 0.01].tolist()
    if not right:
        return "nowhere"
    if len(right) == len(numbers):
        return "everywhere"
    return f"from {right[0]:.0e} to {right[-1]:.0e}"


def draw_top_k(*hooks: Callable) -> None:
    """Draw two ranks' twelve gradients, and what a hook returns that sends a quarter of them.

    Args:
        hooks: The first one that can be drawn is; a wrong one is drawn as well.
    """
    gradients = torch.tensor(
        [[9.0, -1, 2, 0, 5, 1, -7, 1, 0, 2, 1, -2], [8.0, 1, 0, -6, 1, 2, 0, 1, -5, 1, 2, 0]]
    )

    def worker_of(hook: Callable) -> Callable:
        return lambda: _returned(hook, 0.25, gradients[dist.get_rank()])

    drawable = _first_drawable(hooks, worker_of)
    if drawable is None:
        return
    name, returned = drawable
    figure, axes = plt.subplots(figsize=(9, 2.3), layout="constrained")
    labels = ["rank 0 has", "rank 1 has", "rank 0 gets", "rank 1 gets"]
    for row, values in enumerate([*gradients.tolist(), *returned]):
        sent = set()
        if row < 2:
            sent = set(gradients[row].abs().topk(3).indices.tolist())
        for place, value in enumerate(values):
            color = "white"
            if place in sent:
                color = rank_style(row)["color"] + "55"
            if row >= 2 and value:
                color = "#009E7355"
            axes.add_patch(plt.Rectangle((place, row), 0.92, 0.86, fc=color, ec="#777777"))
            axes.text(place + 0.46, row + 0.43, f"{value:g}", ha="center", va="center")
    longest = max(12, *map(len, returned))
    axes.set(xlim=(0, longest), ylim=(4, 0), xticks=[])
    axes.set_yticks([row + 0.43 for row in range(4)], labels)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    received = ", ".join(f"{value:g}" for value in returned[0])
    coloured = "Coloured: the three largest of each rank, and what is not 0 of what comes back."
    text = f"{name} with a share of 0.25. {coloured} Rank 0 gets {received}."
    show(figure, text, coloured)


def draw_low_rank(*steps: Callable) -> None:
    """Draw two ranks' matrices, their mean, and what a step of the power method makes of it.

    Args:
        steps: The first one that can be drawn is; a wrong one is drawn as well.
    """
    draw = torch.Generator().manual_seed(0)
    down, across = torch.linspace(0, 3, 16).double(), torch.linspace(0, 3, 12).double()
    mean = 2 * torch.outer(down.sin(), across.cos()) + torch.outer(down.cos(), across.sin())
    noise = 1.5 * torch.randn(16, 12, generator=draw, dtype=torch.float64)
    mean += noise / 10
    matrices = (mean + noise, mean - noise)
    start = torch.randn(12, 2, generator=draw, dtype=torch.float64)

    def worker_of(step: Callable) -> Callable:
        def work() -> list[torch.Tensor]:
            near, q = step(matrices[dist.get_rank()].clone(), start.clone())
            for _ in range(2):
                latest, q = step(matrices[dist.get_rank()].clone(), q)
            return [near, latest]

        return work

    drawable = _first_drawable(steps, worker_of)
    if drawable is None:
        return
    name, results = drawable
    titles = ["rank 0", "rank 1", "mean, which\nnobody has", "first step", "third step"]
    panels = [*matrices, mean, *results[0]]
    figure, axes = plt.subplots(1, 5, figsize=(9, 2.6), layout="constrained")
    for axis, title, panel in zip(axes, titles, panels, strict=True):
        axis.imshow(panel.numpy(), cmap="RdBu", vmin=-3, vmax=3)
        axis.set(title=title, xticks=[], yticks=[])
    apart = [((near - mean).norm() / mean.norm()).item() for near in results[0]]
    show(
        figure,
        f"{name} with two columns. The mean has little of either rank's noise. The first step's "
        f"result is {100 * apart[0]:.0f} % away from the mean, the third one's "
        f"{100 * apart[1]:.0f} %.",
    )


def draw_second_weight(paths: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draw the weight on which both ranks agree, step by step."""
    figure, axes = plt.subplots(figsize=(8, 2.3), layout="constrained")
    for (name, path), color, mark in zip(paths.items(), OKABE_ITO, _MARKS, strict=False):
        axes.plot([weights[1] for weights in path], color=color, marker=mark, ms=4, label=name)
    bare(axes, xlabel="steps", ylabel="second weight")
    axes.legend(frameon=False)
    show(figure, "Error feedback moves the weight late, and in larger steps.")


# ---- what methods cost ---------------------------------------------------------------------------


def draw_step_times(table: Table) -> None:
    """Draw what a step takes on each network, computing and messages."""
    figure, panels = plt.subplots(
        1, len(table.networks), figsize=(10, 2.6), layout="constrained", sharex=True, sharey=True
    )
    names = list(table.rows)
    for axis, network_name in zip(panels, table.networks, strict=True):
        sending = [table.rows[name].ms[network_name] - table.compute_ms for name in names]
        axis.barh(names, table.compute_ms, color="#009E73", label="computes")
        style = {"color": "#0072B2", "hatch": "///", "edgecolor": "white"}
        axis.barh(names, sending, left=table.compute_ms, label="messages", **style)
        axis.set(title=network_name, xlabel="ms of a step")
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=2, frameon=False)
    text = (
        "A step is 1 ms of computing and its messages (hatched): three times as long as that at "
        "1 Gbit/s, a sliver on the fast network. Only the hatched part can shrink."
    )
    caption = "Only the hatched part can shrink: see which share of a step it is on each network."
    show(figure, text, caption)


def draw_shares(shares: Sequence[float], ranks: Sequence[int]) -> None:
    """Draw how near products of low rank come."""
    figure, axes = plt.subplots(figsize=(7, 2.3), layout="constrained")
    axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], color="#777777")
    kept = [100 * shares[rank - 1] for rank in ranks]
    axes.plot(ranks, kept, "o", color="#0072B2")
    axes.set(xscale="log", xticks=ranks, xticklabels=ranks, ylim=(0, 105))
    axes.set(xlabel="rank of the product", ylabel="% of the gradient's\nsquared norm")
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "Four columns of 64 can hold nine tenths of one process's gradient of 256 × 64.")


def draw_bytes_by_ranks(table: Table, names: Sequence[str], world_sizes: Sequence[int]) -> float:
    """Print and draw KB of a step by world size; return the last ratio of the first two."""
    print("KB that a rank sends in a step   DDP   top 1 %   ratio")
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    curves: dict[str, list[float]] = {name: [] for name in names}
    for world_size in world_sizes:
        for name in names:
            sent_bytes = table.stretched(name, world_size).traffic("ring").sent_bytes
            curves[name].append(max(sent_bytes) / 1000)
        first, second = (curves[name][-1] for name in names)
        print(f"{world_size:22} ranks{first:9.0f}{second:10.1f}{first / second:8.1f}")
    for (name, curve), color, mark in zip(curves.items(), OKABE_ITO, _MARKS, strict=False):
        axes.plot(world_sizes, curve, color=color, marker=mark, label=name)
    axes.set(xscale="log", xlabel="ranks", ylabel="KB of a step", ylim=(0, None))
    axes.set_xticks(world_sizes, world_sizes)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    text = (
        "DDP's curve flattens below twice its gradients. Top-k's doesn't: four times the ranks, "
        "more than four times the bytes (the axis of ranks is logarithmic)."
    )
    caption = "From mark to mark there are four times the ranks. Which curve flattens?"
    show(figure, text, caption)
    return first / second


def draw_compressing(
    compared: Mapping[str, tuple[Sequence[float], float]], networks: Sequence[str]
) -> None:
    """Draw ms that methods save on each network beside ms that compressing takes."""
    figure, panels = plt.subplots(
        1, len(compared), figsize=(9, 2.3), layout="constrained", sharex=True, sharey=True
    )
    for axis, (name, (saved, took_ms)) in zip(panels, compared.items(), strict=True):
        labels = [f"saves: {network}" for network in networks]
        axis.barh(labels, saved, color="#0072B2")
        style = {"color": "#E69F00", "hatch": "///", "edgecolor": "white"}
        axis.barh(["takes: one core"], [took_ms], linewidth=0, **style)
        for place, ms in enumerate([*saved, took_ms]):
            axis.text(max(0, ms) + 0.06, place, f"{ms:.2f}", va="center")
        bare(axis, title=name, xlabel="ms of a step")
    panels[0].invert_yaxis()
    panels[0].margins(x=0.2)
    show(figure, "A method pays on a network whose bar is longer than the hatched one.")


def draw_running_means(means: Mapping[str, torch.Tensor]) -> None:
    """Draw batch norm's running means, each of shape (784,), as images."""
    figure, axes = plt.subplots(1, len(means), figsize=(8, 2.4), layout="constrained")
    for axis, (title, mean) in zip(axes, means.items(), strict=True):
        axis.imshow(mean.view(28, 28).cpu().numpy(), cmap="gray_r")
        axis.set_title(title, fontsize=10)
        axis.set(xticks=[], yticks=[])
    show(
        figure,
        "Batch norm's running mean. Left: rank 0 takes the mean of even digits for normal, rank 1 "
        "that of odd ones. Right: averaged, and alike.",
    )


def draw_straggling() -> None:
    """Draw when four ranks compute and wait in 16 steps, without what messages take."""
    figure, panels = plt.subplots(
        2, 2, figsize=(10, 3.4), layout="constrained", sharex=True, sharey=True
    )
    for column, (who, slow_ms) in enumerate(SLOW_MS.items()):
        for row, (name, steps) in enumerate({"DDP": 1, "every 16 steps": PERIOD}.items()):
            axis = panels[row, column]
            begin_ms = 0.0
            for exchange in range(0, PERIOD, steps):
                ends_ms = []
                for rank in range(4):
                    taken_ms = [slow_ms(rank, exchange + step) for step in range(steps)]
                    ends_ms.append(_draw_steps(axis, rank, begin_ms, taken_ms))
                begin_ms = max(ends_ms)
            axis.set_title(f"{name}, {who}: {begin_ms:g} ms", fontsize=10)
    panels[0, 0].set_yticks(range(4), [f"rank {rank}" for rank in range(4)])
    panels[0, 0].invert_yaxis()
    for axis in panels[1]:
        axis.set_xlabel("ms")
    looks = "Hatched: slow steps. White between or after a rank's steps: it waits for others."
    text = f"{looks} Lower left, nobody waits, and all are done after 28 ms. Lower right, three "
    text += "ranks wait 48 ms for rank 2."
    show(figure, text, f"{looks} Who waits below, on the left and on the right?")


def _draw_steps(axis: Axes, rank: int, begin_ms: float, taken_ms: Sequence[float]) -> float:
    """Draw a rank's steps without a break, and return when the last one ends."""
    for step_ms in taken_ms:
        hatch = "////" if step_ms > 1 else None
        axis.barh(
            rank, step_ms, 0.7, begin_ms, color=rank_style(rank)["color"], hatch=hatch,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        begin_ms += step_ms
    return begin_ms


_BELOW_LEFT, _LEFT = ((-8, -12), "right"), ((-9, -4), "right")
_RIGHT, _ABOVE = ((9, -4), "left"), ((9, 5), "left")
# Where a curve is named, in the panel of bytes and in that of time: at which of its marks, how
# many points from it, and which end of the name is there.
_NAMED = {
    "DDP": ((2, *_RIGHT), (2, *_RIGHT)),
    "bfloat16": ((2, *_LEFT), (2, *_LEFT)),
    "top 1 %": ((2, *_ABOVE), (0, (12, 2), "left")),
    "top 1 %, error feedback": ((1, (-24, -27), "center"), (2, (60, 42), "left")),
    "PowerSGD, rank 4": ((0, *_RIGHT), (0, *_ABOVE)),
    "every 16 steps": ((2, *_BELOW_LEFT), (2, *_BELOW_LEFT)),
    "DiLoCo, every 16 steps": ((0, *_ABOVE), (0, (9, 9), "left")),
}
_LEADER = 20  # a name that is more points away from its mark has a line that leads there


def draw_progress(table: Table) -> None:
    """Draw the loss against what a rank has sent, and against virtual time."""
    figure, both = plt.subplots(2, 1, figsize=(7.9, 6.6), sharey=True, layout="constrained")
    for (name, row), color, mark in zip(table.rows.items(), OKABE_ITO, _MARKS, strict=False):
        mean, spread = row.losses.mean(dim=0)[1:], half_apart(row.losses)[1:]
        named = _NAMED.get(name, ((2, *_RIGHT), (2, *_RIGHT)))
        for axes, per_step, where in zip(both, (table.kb_of, table.us_of), named, strict=True):
            until = [table.total(name, per_step, steps) / 1000 for steps in (16, 32, 48)]
            axes.errorbar(until, mean, spread, color=color, marker=mark, capsize=3)
            number, offset, side = where
            leader = {"arrowstyle": "-", "color": color, "linewidth": 0.8}
            axes.annotate(
                name, (until[number], mean[number].item()), offset, ha=side,
                textcoords="offset points",
                arrowprops=leader if max(map(abs, offset)) > _LEADER else None,
            )  # fmt: skip
    labels = "sent by each of four ranks (MB)", "virtual time at 1 Gbit/s (ms)"
    all_ticks = (0.2, 0.5, 1, 2, 5, 10, 20), (20, 50, 100, 200)
    for axes, xlabel, ticks in zip(both, labels, all_ticks, strict=True):
        bare(axes, xscale="log", xlabel=xlabel, ylabel="loss on held-out text")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.margins(x=0.1, y=0.1)
    better = "Lower and further left is better, and both scales across are logarithmic."
    text = (
        f"{better} Above: those that talk every 16 steps and top-k need about a tenth of DDP's "
        "bytes for the same loss. Below: every 16 steps is fastest as far as it goes. Only "
        "bfloat16 gets as low as DDP."
    )
    show(figure, text, f"{better} Bars: from one seed to the other.")


def draw_decision(
    candidates: Mapping[str, Candidate],
    names: Sequence[str],
    all_compute_ms: Sequence[float],
    choose: Callable[[Mapping[str, Candidate], float, bool], str],
) -> None:
    """Draw time per progress by a step's computing, and circles around what a function chooses."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 3), layout="constrained", sharey=True)
    titles = ("nothing overlaps", "all that can overlap does")
    for axis, overlap, title in zip(panels, (False, True), titles, strict=True):
        for name, color, mark in zip(names, OKABE_ITO, _MARKS, strict=False):
            times = []
            for compute_ms in all_compute_ms:
                ms = ms_per_progress(candidates[name], compute_ms, overlap)
                times.append(ms / compute_ms)
            axis.plot(all_compute_ms, times, color=color, marker=mark, label=name)
        bare(axis, xscale="log", xlabel="computing of a step (ms)", title=title)
        axis.set_xticks(all_compute_ms, [f"{compute_ms:g}" for compute_ms in all_compute_ms])
        axis.minorticks_off()
    panels[0].set_ylim(0.9, 4.2)  # what lies higher would press the rest together
    panels[0].set_ylabel("time per progress,\nin units of computing")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", frameon=False)
    try:
        for axis, overlap in zip(panels, (False, True), strict=True):
            for compute_ms in all_compute_ms:
                chosen = candidates[choose(dict(candidates), compute_ms, overlap)]
                height = ms_per_progress(chosen, compute_ms, overlap) / compute_ms
                axis.plot(compute_ms, height, "o", ms=16, mfc="none", mec="black")
    except Exception as error:  # a learner's function may raise anything
        print(f"No circles yet: {choose.__name__} raises {type(error).__name__}: {error}")
    text = (
        "The lowest mark is best, and circles are what your function chooses. DDP is close to "
        "bfloat16 or hidden under it. Every 16 steps leads only where a step is short. Where the "
        "top 1 % and PowerSGD end above, they take longer still."
    )
    caption = (
        "The lowest mark is best; circles are what your function chooses. DDP is close to bfloat16 "
        "or hidden under it. Lines that leave the picture above go on there."
    )
    show(figure, text, caption)
