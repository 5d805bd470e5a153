"""Chapter 13's pictures: what ranks hold, what a learner's own stage does, who writes what."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from matplotlib.axes import Axes
from torch import nn

from course_lessons.chapter_13 import (
    Activations,
    Layer,
    Row,
    computing,
    few_blocks,
    step_by_blocks,
    three_blocks,
)
from course_lessons.drawing import bare, first_answers, reason_of
from course_lessons.sharding import Shards
from course_utils import Network, WorkerError, launch, show
from course_utils.launcher.launch import launch as launch_quietly
from course_utils.network.trace import Trace
from course_utils.pictures.style import rank_style

_PARTS = {  # colour of Okabe and Ito, hatch
    "weights": ("#0072B2", None),
    "gradients": ("#E69F00", "///"),
    "optimizer": ("#009E73", "..."),
}
_GREY, _DARK_BLUE = "#DDDDDD", "#0072B2"


def _box(axis: Axes, left: float, top: float, width: float, colour: str, text: str) -> None:
    """A coloured box of height 0.8 with a text in its middle."""
    axis.barh(top, width, 0.8, left, color=colour, edgecolor="white", align="edge")
    text_colour = "white" if colour == _DARK_BLUE else "black"
    axis.text(left + width / 2, top + 0.4, text, ha="center", va="center", color=text_colour)


# ---- bytes of a model ----------------------------------------------------------------------------


def draw_memory(*formulas: Callable[[int, int, int], float], memory_gb: float = 80) -> None:
    """Draw what a formula says of two models on 8 and 64 GPUs, for stages 0 to 3.

    Args:
        formulas: The first one that returns a number is drawn, also if it is wrong.
        memory_gb: Of a GPU.
    """
    for bytes_per_rank in formulas:
        try:
            float(bytes_per_rank(10**9, 8, 3))
            break
        except (NotImplementedError, TypeError, ValueError) as error:
            print("No picture yet:", error)
    else:
        return
    figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
    sentences = []
    for group, (billions, gpus) in enumerate([(7, 8), (7, 64), (70, 8), (70, 64)]):
        fitting = []
        for stage in range(4):
            held_gb = float(bytes_per_rank(billions * 10**9, gpus, stage)) / 1e9
            fits = held_gb <= memory_gb
            colour, hatch = ("#009E73", None) if fits else ("#D55E00", "///")
            place = 5 * group + stage
            axes.bar(place, held_gb, color=colour, hatch=hatch, edgecolor="white")
            axes.text(place, max(held_gb, 1) * 1.1, f"{held_gb:,.0f}", ha="center", fontsize=9)
            if fits:
                fitting.append(str(stage))
        stages = "no stage"
        if fitting:
            stages = ("stage " if len(fitting) == 1 else "stages ") + ", ".join(fitting)
        sentences.append(f"{billions}B on {gpus}: {stages}")
    axes.axhline(memory_gb, color="black", linestyle="--")
    axes.text(18.8, memory_gb * 1.1, f"{memory_gb:g} GB", ha="right")
    places = [5 * group + stage for group in range(4) for stage in range(4)]
    names = [str(stage) for _ in range(4) for stage in range(4)]
    for group, name in enumerate(["7B, 8 GPUs", "7B, 64 GPUs", "70B, 8 GPUs", "70B, 64 GPUs"]):
        names[4 * group + 1] += f"\n{name}"
    bare(axes, xticks=places, xticklabels=names, yscale="log", ylim=(1, 4000))
    axes.set_ylabel("GB per GPU")
    name = bytes_per_rank.__name__
    show(figure, f"By {name}, {memory_gb:g} GB are enough for: {'; '.join(sentences)}.")


def draw_held(rows: Mapping[str, Row]) -> None:
    """Draw measured MiB per rank, stacked, and what a rank sends, one bar for each stage."""
    size = (9, 0.36 * len(rows) + 1.1)
    figure, (held, sent) = plt.subplots(
        1, 2, figsize=size, width_ratios=(3, 1.3), layout="constrained", sharey=True
    )
    for place, row in enumerate(rows.values()):
        left = 0.0
        for part, (colour, hatch) in _PARTS.items():
            width = getattr(row, part)
            style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
            held.barh(place, width, 0.7, left, label=part if place == 0 else None, **style)
            left += width
        held.text(left + 0.1, place, f"{row.held:g}", va="center")
        sent.barh(place, row.sent, 0.7, color="#56B4E9", edgecolor="#00304D")
        sent.text(row.sent + 0.05, place, f"{row.sent:g}", va="center")
    bare(held, yticks=range(len(rows)), yticklabels=list(rows), xlabel="MiB per rank")
    held.set_xlim(0, 8.8)
    bare(sent, xlabel="sent per step, in 3/4 of the weights", xlim=(0, 3.9))
    held.invert_yaxis()
    held.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    sentences = []
    for name, row in rows.items():
        sentences.append(f"{name} holds {row.held:g} MiB and sends {row.sent:g}")
    text = f"Per rank, measured on four: {'; '.join(sentences)} times 3/4 of the weights."
    caption = "A row for each stage: which part of what a rank holds is smaller than above?"
    show(figure, text, caption)


# ---- how a stage works ---------------------------------------------------------------------------


def draw_two_halves() -> None:
    """An all-reduce in two halves, with the optimiser's step between them."""
    figure, panels = plt.subplots(1, 4, figsize=(8, 1.9), layout="constrained")
    titles = "gradients", "reduce-scatter", "optimiser's step", "all-gather"
    for panel, (axis, title) in enumerate(zip(panels, titles, strict=True)):
        for rank in range(3):
            for part in range(3):
                has_part = panel in (0, 3) or part == rank
                colour = rank_style(part)["color"] if has_part and panel else _GREY
                if not has_part:
                    colour = "#FFFFFF"
                text = ("g", "Σg", "w", "w")[panel] if has_part else ""
                _box(axis, part, rank, 0.95, colour, text)
        axis.set(xlim=(-0.1, 3), ylim=(3, -0.1), title=title, xticks=[])
        axis.set(yticks=[0.4, 1.4, 2.4], yticklabels=["rank 0", "rank 1", "rank 2"])
        axis.spines[:].set_visible(False)
        if panel:
            axis.set_yticks([])
    text = "Each rank gets one finished third of the sum, updates that third, and gathers the rest."
    show(figure, text)


def draw_reading() -> None:
    """When a full weight exists under ZeRO-3: read, gather, free, and reduce."""
    figure, axes = plt.subplots(figsize=(8, 2.7), layout="constrained")
    spans = [(0, 0, "forward 0"), (1, 1, "forward 1"), (1, 2, "backward 1"), (0, 3, "backward 0")]
    for layer, place, name in spans:
        left, top = 3 * place, 1.6 * layer
        axes.plot([left, left], [top + 0.1, top + 0.9], color="#009E73", linewidth=3)
        _box(axes, left + 0.1, top + 0.1, 1.9, rank_style(5)["color"], f"{name}\nfull weight")
        begins = "read → gather" if place < 2 else "unpack → gather"
        ends = "free" if place < 2 else "reduce, free"
        axes.text(left, top + 0.04, begins, va="bottom")
        axes.text(left + 2, top + 1.3, ends, ha="right")
    for layer in range(2):
        line = 1.6 * layer + 1
        axes.plot([-0.2, 11.4], [line, line], color=_DARK_BLUE, linewidth=4, zorder=0)
        axes.text(11.5, line, f"shard {layer}", va="center")
    axes.set(xlim=(-0.3, 12.9), ylim=(3, -0.3))
    axes.axis("off")
    text = "Blue shards always exist; a full weight only from its gather until its layer is done."
    show(figure, text)


class _FiveNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 6.0))


def _gathers_and_reduces(kind: type[Shards]) -> Callable[[], tuple[list, list]]:
    """For a rank: what a stage gathers of five numbers, and what it reduces."""

    def worker() -> tuple[list, list]:
        model = kind(_FiveNumbers())
        (shard,) = model.parameters()
        gathered = model.gather(shard.detach(), shard.full_shape)
        gradient = torch.arange(1.0, 6.0) + 3 * dist.get_rank()
        model.reduce(shard, gradient)
        model.collect()
        return gathered.flatten().tolist(), shard.grad.flatten().tolist()

    return worker


def draw_pieces(*kinds: type[Shards]) -> None:
    """Let a stage gather five numbers and reduce their gradients in three ranks.

    Args:
        kinds: The first one that neither raises nor hangs is drawn, also if it is wrong.
    """
    drawable = first_answers(kinds, _gathers_and_reduces, 3)
    if drawable is None:
        return
    kind, answers = drawable
    figure, panels = plt.subplots(1, 2, figsize=(9, 1.9), layout="constrained")
    titles = "what gather returns", "what reduce leaves in shard.grad"
    for side, (axis, title) in enumerate(zip(panels, titles, strict=True)):
        for rank, pieces in enumerate(answers):
            for place, number in enumerate(pieces[side]):
                owner = place // 2 if side == 0 else rank
                _box(axis, place, rank, 0.95, rank_style(owner)["color"], f"{number:g}")
        axis.set(xlim=(-0.1, 7), ylim=(3, -0.1), title=title, xticks=[])
        axis.set(yticks=[0.4, 1.4, 2.4], yticklabels=["rank 0", "rank 1", "rank 2"])
        axis.spines[:].set_visible(False)
    gathered_right = all(pieces[0] == [1, 2, 3, 4, 5] for pieces in answers)
    reduced = [[round(number, 3) for number in pieces[1]] for pieces in answers]
    reduced_right = reduced == [[4, 5], [6, 7], [8, 0]]
    gathered = "right" if gathered_right else "not right yet"
    places = "in their places" if reduced_right else "not there yet"
    text = f"{kind.__name__}: gathering 1 to 5 is {gathered}. The means 4 to 8, and a zero that "
    text += f"fills up, are {places}."
    show(figure, text)


class _Diary:
    """How many full weights and full gradients exist, event by event."""

    def __init__(self) -> None:
        self.weights: weakref.WeakSet = weakref.WeakSet()
        self.gradients: weakref.WeakSet = weakref.WeakSet()
        self.rows: list[tuple[int, int]] = []
        self.forward_ends = 0

    def note(self, model: Shards) -> None:
        time.sleep(0.005)  # gloo's thread lets go of a tensor a little later
        for full in model.full.values():
            if full.grad is not None:
                self.gradients.add(full.grad.untyped_storage())
        self.rows.append((len(self.weights), len(self.gradients)))


def _watches(kind: type[Shards], layers: int) -> Callable[[], tuple[list, int]]:
    """For a rank: what exists in one step of a stage, event by event, and when forward ends."""
    diary = _Diary()

    class Watched(kind):
        def gather(self, local, shape):
            full = super().gather(local, shape)
            diary.weights.add(full.untyped_storage())
            diary.note(self)
            return full

        def gradient_is_ready(self, full):
            diary.note(self)
            super().gradient_is_ready(full)
            diary.note(self)

        def reduce(self, shard, gradient):
            diary.gradients.add(gradient.untyped_storage())  # in stage 3 autograd hands it in
            diary.note(self)
            super().reduce(shard, gradient)
            diary.note(self)

    def worker() -> tuple[list, int]:
        model = Watched(nn.Sequential(*[Layer() for _ in range(layers)]))
        loss = model(torch.randn(4, 256)).square().mean()
        diary.forward_ends = len(diary.rows)
        loss.backward()
        model.finish()
        return diary.rows, diary.forward_ends

    return worker


def draw_alive(*kinds: type[Shards], layers: int = 4) -> None:
    """Train a stage for one step, and draw how many full weights and gradients exist when.

    Args:
        kinds: The first one that neither raises nor hangs is drawn, also if it is wrong.
        layers: Of the network.
    """
    drawable = first_answers(kinds, lambda kind: _watches(kind, layers), 2)
    if drawable is None:
        return
    kind, answers = drawable
    rows, forward_ends = answers[0]
    figure, axes = plt.subplots(figsize=(8, 2.2), layout="constrained")
    weights = [row[0] for row in rows]
    gradients = [row[1] for row in rows]
    styles = {
        "full weights": (weights, {"color": "#0072B2", "linestyle": "-"}),
        "full gradients": (gradients, {"color": "#D55E00", "linestyle": "--"}),
    }
    for name, (counts, style) in styles.items():
        axes.step(range(len(counts)), counts, where="post", label=name, **style)
    axes.axvline(forward_ends - 0.5, color="black", linewidth=0.8)
    axes.text(forward_ends - 0.4, layers + 0.2, "backward →")
    bare(axes, xlabel="events of one step, rank 0", ylabel="how many exist", ylim=(0, layers + 1))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    weights_said = _how_many(max(weights, default=0), layers, "weights")
    gradients_said = _how_many(max(gradients, default=0), layers, "gradients")
    show(figure, f"{kind.__name__}: at most {weights_said} and {gradients_said} exist at once.")


def _how_many(count: int, layers: int, noun: str) -> str:
    """In words that hold in every run: a tensor may live a little longer than it's needed."""
    if count == layers:
        return f"all {layers} full {noun}"
    if not count:
        return f"no full {noun}"
    return f"two full {noun}" if count <= 2 else f"{count} full {noun}"


# ---- activations, clipping, checkpoints ----------------------------------------------------------


def draw_saved(table: Mapping[str, Sequence[Activations]], world_sizes: Sequence[int]) -> None:
    """Draw KiB that a rank keeps for backward, by number of ranks."""
    figure, axes = plt.subplots(figsize=(7, 2.3), layout="constrained")
    looks = {"plain": ("#0072B2", None, -0.2), "recompute": ("#E69F00", "///", 0.2)}
    for name, (colour, hatch, shift) in looks.items():
        heights = [each.saved_kib for each in table[name]]
        places = [number + shift for number in range(len(world_sizes))]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
        axes.bar(places, heights, 0.36, label=name, **style)
    names = ["1 rank" if count == 1 else f"{count} ranks" for count in world_sizes]
    bare(axes, xticks=range(len(names)), xticklabels=names, ylabel="KiB kept per rank")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, "More ranks don't shrink a rank's activations; computing them again does.")


def _computes_again(kind: type[torch.autograd.Function]) -> Callable[[], tuple]:
    """For a rank: when blocks are computed, and the bytes that autograd keeps."""

    def worker() -> tuple[list, int, int]:
        blocks, notes = few_blocks(), []
        for number, block in enumerate(blocks):

            def computes(*_: Any, number: int = number) -> None:
                notes.append((number, "recorded" if torch.is_grad_enabled() else "not recorded"))

            block.register_forward_pre_hook(computes)
            first = next(block.parameters())
            first.register_post_accumulate_grad_hook(
                lambda _, number=number: notes.append((number, "gradients"))
            )
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

        _, saved_bytes = step_by_blocks(kind, blocks, x)
        return notes, saved_bytes, len(blocks) * x.nbytes

    return worker


def draw_recomputing(*kinds: type[torch.autograd.Function]) -> None:
    """Draw when three blocks are computed in one step, and what autograd keeps in between.

    Args:
        kinds: The first one that neither raises nor hangs is drawn, also if it is wrong.
    """
    drawable = first_answers(kinds, _computes_again, 1)
    if drawable is None:
        return
    kind, ((notes, saved_bytes, input_bytes),) = drawable
    looks = {
        "not recorded": ("#EEEEEE", "forward,\nnot recorded"),
        "recorded": ("#56B4E9", "forward,\nrecorded"),
        "gradients": ("#E69F00", "backward"),
    }
    figure, axes = plt.subplots(figsize=(1.05 * max(6, len(notes)) + 0.6, 2.2))
    for place, (number, mode) in enumerate(notes):
        colour, words = looks[mode]
        _box(axes, place, number, 0.95, colour, words)
        axes.texts[-1].set_fontsize(9)
    axes.set(xlim=(-0.05, max(6, len(notes))), ylim=(3, -0.1), xticks=[])
    axes.set(yticks=[0.4, 1.4, 2.4], yticklabels=["block 0", "block 1", "block 2"])
    axes.set_xlabel("one step, from left to right")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    order = ", ".join(f"{number} {mode}" for number, mode in notes)
    kept = f"Autograd keeps {saved_bytes} bytes for backward; the inputs of the blocks are"
    text = f"{kind.__name__}: {order}. {kept} {input_bytes}."
    show(figure, text, f"When does each block compute, and when again? {kept} {input_bytes}.")


def draw_clipped(gradient: Sequence[float], arrows: Mapping[str, Sequence[float]]) -> None:
    """Draw a gradient of two numbers, and what is left of it after clipping."""
    figure, axes = plt.subplots(figsize=(4.4, 3.4), layout="constrained")
    colours = iter([("#777777", ":"), ("#D55E00", "--"), ("#009E73", "-")])
    for name, (x, y) in {"gradient": gradient, **arrows}.items():
        colour, dash = next(colours)
        label = f"{name}: ({x:.2g}, {y:.2g})"
        axes.plot([0, x], [0, y], color=colour, linestyle=dash, marker="o", label=label)
    bare(axes, xlabel="number on rank 0", ylabel="number on rank 1", aspect="equal")
    axes.set(xlim=(0, 4.2), ylim=(0, 4.2))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, "Clipped by the norm of all shards, the gradient keeps its direction.")


def draw_units(*trains: Callable) -> None:
    """Draw the collectives of one step of a training of three blocks, in two ranks.

    Args:
        trains: The first one that is written is drawn, also if it is wrong, raises or hangs.
    """
    for train in trains:

        def worker(train: Callable = train) -> None:
            torch.manual_seed(dist.get_rank())
            train(three_blocks(), [torch.randn(4, 6, dtype=torch.float64)], 0.01)

        try:
            options = {"world_size": 2, "backend": "gloo", "timeout": 20, "trace": True}
            trace = launch(worker, **options).trace
            break
        except WorkerError as error:
            print(f"No picture yet of {train.__name__}: {reason_of(error)}")
    else:
        return
    looks = {"all_gather": ("#0072B2", None), "reduce_scatter": ("#E69F00", "///")}
    looks |= {"all_reduce": ("#009E73", "...")}
    figure, axes = plt.subplots(figsize=(9, 2.4), layout="constrained")
    events = [event for event in trace.of_rank(0) if event.kind in looks]
    for place, event in enumerate(events):
        colour, hatch = looks[event.kind]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
        axes.bar(place, event.bytes, 0.8, **style)
        axes.text(place, event.bytes + 8, f"{event.bytes:g}", ha="center", size=9)
    for kind, (colour, hatch) in looks.items():
        axes.bar(0, 0, color=colour, hatch=hatch, edgecolor="white", label=kind)
    bare(axes, xlabel="calls of rank 0, in their order", ylabel="bytes handed in", xticks=[])
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.margins(y=0.15)
    counts = [f"{sum(e.kind == kind for e in events)} {kind}" for kind in looks]
    show(figure, f"One step of {train.__name__} and its return, on rank 0: {', '.join(counts)}.")


def draw_dealing(
    batches: Callable, data: torch.Tensor, parts: Sequence[tuple[int, int, int]]
) -> None:
    """Draw which rank reads which sample, where the number of ranks changes in mid-epoch.

    Args:
        batches: A generator of a rank's batches from a step on.
        data: All samples, of shape (samples, numbers).
        parts: Ranks, the first step and how many steps, for each part of the training.
    """
    figure, axes = plt.subplots(figsize=(9.4, 1.9), layout="constrained")
    place, read, ticks = 0, [], {}
    for world_size, first, steps in parts:

        def worker(first: int = first, steps: int = steps) -> list[list[int]]:
            samples = []
            for _, batch in zip(range(steps), batches(first), strict=False):
                is_sample = (data[:, None] == batch).all(dim=-1)
                samples.append(is_sample.int().argmax(dim=0).tolist())
            return samples

        by_rank = launch_quietly(worker, world_size=world_size, backend="gloo", timeout=20)
        for step in range(steps):
            ticks[place + 6] = f"step {first + step}: {world_size} ranks"
            for turn in range(12 // world_size):
                for rank in range(world_size):
                    sample = by_rank[rank][step][turn]
                    read.append(sample)
                    _box(axes, place, 0, 0.9, rank_style(rank)["color"] + "66", str(sample))
                    axes.texts[-1].set(fontsize=9)
                    axes.text(place + 0.45, 0.98, rank, ha="center", va="center", size=9)
                    place += 1
            axes.plot([place - 0.05] * 2, [-0.15, 1.15], color="black", linewidth=1.2)
    axes.set(xlim=(-0.1, place), ylim=(1.2, -0.2))
    axes.set_yticks([0.4, 0.98], ["sample", "read by rank"])
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    once = len(set(read)) == len(read) == len(data)
    words = "once" if once else "not once"
    show(figure, f"In the first epoch each of the {len(data)} samples is read {words}.")


def draw_checkpoint(folder: Path, name: str, readers: int) -> None:
    """Draw which rows of a weight each rank has written, and which of them each reader holds."""
    pieces = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata[name]
    rows = pieces.size[0]
    written = [(chunk.offsets[0], chunk.sizes[0]) for chunk in pieces.chunks]
    per_reader = -(-rows // readers)  # as FSDP2 cuts: all but the last ranks get as many
    read = []
    for reader in range(readers):
        start = reader * per_reader
        read.append((start, min(per_reader, rows - start)))
    figure, axes = plt.subplots(figsize=(9, 1.6), layout="constrained")
    for top, bars in enumerate((written, read)):
        for rank, (start, length) in enumerate(bars):
            _box(axes, start, top, length, rank_style(rank)["color"], f"rank {rank}: {length}")
    bare(axes, yticks=[0.4, 1.4], yticklabels=["written by", "read by"], xlabel=f"row of {name}")
    axes.invert_yaxis()
    counts = ", ".join(str(length) for _, length in read)
    show(
        figure,
        f"{len(written)} files hold {written[0][1]} rows each. "
        f"The {readers} readers need {counts} rows, so some read from two files.",
    )


# ---- time ----------------------------------------------------------------------------------------


def draw_steps(traces: Mapping[str, Trace], network: Network) -> None:
    """Draw when rank 0 computes and when its port sends, on a modelled network."""
    figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
    looks = {"compute": ("#009E73", None, -0.36), "send": ("#0072B2", "////", 0.0)}
    for place, trace in enumerate(traces.values()):
        for interval in trace.replay(network, computing(60.0)).intervals:
            if interval.rank != 0 or interval.what not in looks:
                continue
            colour, hatch, shift = looks[interval.what]
            style = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            took_us = interval.end_us - interval.start_us
            axes.barh(place + shift, took_us, 0.34, interval.start_us, align="edge", **style)
    for kind, label in {"compute": "computes", "send": "its port sends"}.items():
        colour, hatch, _ = looks[kind]
        axes.bar(0, 0, color=colour, hatch=hatch, edgecolor="white", label=label)
    bare(axes, yticks=range(len(traces)), yticklabels=list(traces), ylim=(1.5, -0.5))
    axes.set(xlabel="virtual time of one step, rank 0 of 4 (µs)", xlim=(0, 2700))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    text = "Zero3 computes or sends; with Ahead only the first gather and the last sum stick out."
    show(figure, text)


def draw_hiding(layers_us: Sequence[float], steps_us: Mapping[str, Sequence[float]]) -> None:
    """Draw what a step takes, and what of it is computing, by what a layer computes."""
    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    sentences = []
    for number, (name, all_us) in enumerate(steps_us.items()):
        axes.plot(layers_us, all_us, **rank_style(number), label=name)
        for layer_us, us in zip(layers_us, all_us, strict=True):
            offset = {"textcoords": "offset points", "ha": "center", "size": 9}
            axes.annotate(f"{us:.0f}", (layer_us, us), (0, 6 if number < 2 else -14), **offset)
        sentences.append(f"{name} {', '.join(f'{us:.0f}' for us in all_us)}")
    computing_us = [24 * layer_us for layer_us in layers_us]
    axes.plot(layers_us, computing_us, color="#777777", linewidth=4, alpha=0.4, label="computing")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    bare(axes, xlabel="a layer computes (µs)", ylabel="a step (µs)", ylim=(0, 2900))
    layers = ", ".join(f"{layer_us:g}" for layer_us in layers_us)
    words = f"If a layer computes for {layers} µs, a step takes, in µs"
    show(figure, f"{words}: {'; '.join(sentences)}.")


def draw_mesh() -> None:
    """Eight ranks on two nodes: who shares a copy, and who holds the same shard."""
    figure, axes = plt.subplots(figsize=(7, 1.9), layout="constrained")
    for node in range(2):
        for place in range(4):
            rank = 4 * node + place
            _box(axes, place, node, 0.95, rank_style(place)["color"], f"rank {rank}\nshard {place}")
        axes.text(4.1, node + 0.4, "one copy: gather, reduce-scatter", va="center")
    for place in range(4):
        axes.plot([place + 0.48] * 2, [0.8, 1.0], color="black", linewidth=3)
    axes.set(xlim=(-0.1, 6.9), ylim=(2, -0.1), xticks=[])
    axes.set(yticks=[0.4, 1.4], yticklabels=["node 0", "node 1"])
    axes.spines[:].set_visible(False)
    show(figure, "Rows shard a copy inside a node; columns add up the same shard across nodes.")
