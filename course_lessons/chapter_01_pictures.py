"""Chapter 01's pictures: two threads at one counter, cores at work, and what learners' twins do."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from course_lessons.drawing import answers_to_draw
from course_lessons.racing import COLOURS, HATCHES, Race
from course_lessons.twins import network
from course_utils import show

_SAMPLES = 12
_GREY = "#CCCCCC"


class Diary(dict):
    """A dict that notes who wrote what when: `written` has thread, seconds and value."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.written: list[tuple[int, float, Any]] = []

    def __setitem__(self, key: str, value: Any) -> None:
        """Write, and note it."""
        super().__setitem__(key, value)
        self.written.append((threading.get_ident(), time.perf_counter(), value))


def draw_counting(counters: Mapping[str, Diary]) -> None:
    """Draw what two threads wrote into a counter, and when.

    Args:
        counters: By the way in which they counted.
    """
    figure, panels = plt.subplots(
        1, len(counters), figsize=(9, 2.8), layout="constrained", sharey=True
    )
    sentences = []
    for axes, (name, counter) in zip(panels, counters.items(), strict=True):
        begun_s = counter.written[0][1]
        threads = sorted({thread for thread, _, _ in counter.written})
        for number, thread in enumerate(threads):
            points = []
            for writer, moment_s, value in counter.written:
                if writer == thread:
                    points.append((1000 * (moment_s - begun_s), value))
            color = COLOURS[number]
            style = {"color": color, "marker": "os"[number], "markersize": (7, 3)[number]}
            style |= {"mfc": ("none", color)[number], "linestyle": "none"}
            axes.plot(*zip(*points, strict=True), label=f"thread {number}", **style)
        values = [value for _, _, value in counter.written]
        axes.set_title(f"{name}: {counter['value']} at the end", loc="left", fontsize=10)
        axes.set(xlabel="ms since the first write", ylim=(0, 105))
        axes.spines[["top", "right"]].set_visible(False)
        sentences.append(f"{name}, {len(values)} writes end at about {counter['value']}")
    panels[0].set_ylabel("written")
    panels[0].legend(frameon=False)
    text = "; ".join(sentences)
    text = f"{text[0].upper()}{text[1:]}."
    caption = "Two marks at the same height: one number was written twice, so one addition is lost."
    show(figure, text, caption)


def draw_cores(races: Mapping[object, Race]) -> None:
    """Draw how many cores two threads kept at work, and what CPU time they needed."""
    figure, axes = plt.subplots(figsize=(8, 2.9), layout="constrained")
    looks = {"cores": "cores at work", "cpu_time": "CPU time, as a multiple of that in turn"}
    for number, (field, label) in enumerate(looks.items()):
        values = [getattr(race, field) for race in races.values()]
        places = [place + 0.4 * number - 0.2 for place in range(len(races))]
        color = (COLOURS[0], _GREY)[number]
        style = {"color": color, "hatch": HATCHES[number], "edgecolor": "white", "label": label}
        bars = axes.bar(places, values, 0.36, **style)
        axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.axhline(1, color="#555555", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(races)), [str(name) for name in races])
    axes.set(ylim=(0, 2.4), ylabel="of two threads")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "What two threads used. Up to the dashed line, no more than one core was at work.")


def draw_after_a_step(kept: Mapping[str, int]) -> None:
    """Draw what lies where after a step of `DataParallel`.

    Args:
        kept: Bytes by what they are on device 0; the last entry counts a replica's parameters.
    """
    *on_device_0, in_replica = kept.items()
    figure, axes = plt.subplots(figsize=(8, 1.9), layout="constrained")
    names = [f"device 0: {name}" for name, _ in on_device_0]
    names.append(f"a replica: {in_replica[0]}")
    sizes = [size / 1000 for _, size in on_device_0]
    bars = axes.barh(names, [*sizes, in_replica[1]], color=["#0072B2"] * len(sizes) + ["#D55E00"])
    axes.bar_label(bars, [f"{size:,} bytes" for _, size in on_device_0] + ["0"], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("KB")
    axes.spines[["top", "right"]].set_visible(False)
    words = ", ".join(f"{name} {size:,} bytes" for name, size in on_device_0)
    text = f"Device 0 has {words}. A replica has {in_replica[1]} {in_replica[0]}."
    show(
        figure, text, "All of it is on device 0: a replica has no parameters that Adam could step."
    )


# ---- what a learner's twins do -------------------------------------------------------------------


def draw_threads(data_parallel: Callable[..., torch.Tensor], devices: int = 2) -> None:
    """Draw which samples of a batch each thread computed, and whether the output is right.

    Args:
        data_parallel: A learner's; a wrong one is drawn as well.
        devices: Threads that it may use.
    """

    def worker() -> dict[str, Any]:
        model, seen = network(4, depth=2), []
        batch = torch.arange(4.0 * _SAMPLES).view(_SAMPLES, 4) / 10 - 2
        wanted = model(batch).detach()

        def note(module: Any, inputs: tuple[torch.Tensor]) -> None:
            rows = [round((row[0].item() + 2) / 0.4) for row in inputs[0]]
            seen.append((threading.get_ident(), rows))

        model.register_forward_pre_hook(note)
        output = data_parallel(model, batch, devices)
        return {"seen": seen, "right": _right_rows(output, wanted)}

    results = answers_to_draw(worker, world_size=1)
    if results is None:
        return
    seen, right = results[0]["seen"], results[0]["right"]
    threads = _in_order_of_samples(seen)
    figure, axes = plt.subplots(figsize=(8, 1.5), layout="constrained")
    of_row = {}
    for thread, rows in seen:
        for row in rows:
            of_row[row] = threads.index(thread)
    for row in range(_SAMPLES):
        number = of_row.get(row)
        style = {"fc": "white", "ec": "#777777"}
        if number is not None:
            style["fc"] = f"{COLOURS[number % 2]}55"  # pale: the text is read on it
        axes.add_patch(plt.Rectangle((row, 0), 0.9, 0.8, **style))
        word = "nobody" if number is None else f"thread {number}"
        axes.text(row + 0.45, 0.4, word, ha="center", va="center", fontsize=9)
        axes.text(row + 0.45, 1.1, "✓" if row in right else "–", ha="center", va="center")
    _bare_row(axes)
    counted = "1 thread" if len(threads) == 1 else f"{len(threads)} threads"
    show(
        figure,
        f"{data_parallel.__name__} with {devices} devices: {counted} computed "
        f"{len(of_row)} of {_SAMPLES} samples; right outputs (✓): {len(right)}.",
    )


def _in_order_of_samples(seen: Sequence[tuple[int, list[int]]]) -> list[int]:
    """Threads by the first sample that each computed, whoever came first.

    Args:
        seen: A thread and the samples that it was given, for each call of a replica.
    """
    first_sample: dict[int, int] = {}
    for thread, rows in seen:
        first_sample[thread] = min([*rows, first_sample.get(thread, _SAMPLES)])
    return sorted(first_sample, key=lambda thread: first_sample[thread])


def _bare_row(axes: Axes) -> None:
    axes.set(xlim=(-0.1, _SAMPLES), ylim=(1.4, -0.1), yticks=[])
    axes.set_xticks([row + 0.45 for row in range(_SAMPLES)], range(_SAMPLES))
    axes.tick_params(length=0)
    axes.set_xlabel("sample of the batch")
    axes.spines[:].set_visible(False)


def _right_rows(output: Any, wanted: torch.Tensor) -> list[int]:
    if not isinstance(output, torch.Tensor) or output.shape != wanted.shape:
        return []
    same = torch.isclose(output.detach(), wanted, atol=1e-5).all(dim=1)
    return same.nonzero().flatten().tolist()


def draw_gradients(in_processes: Callable[[torch.nn.Module, torch.Tensor], None]) -> None:
    """Draw the first layer's gradient in two ranks, and that of one process with the whole batch.

    Args:
        in_processes: A learner's; a wrong one is drawn, and one that is not done, up to its end.
    """

    def worker() -> list[torch.Tensor]:
        batch = torch.arange(4.0 * _SAMPLES).view(_SAMPLES, 4) / 10 - 2
        model, plain = network(4, depth=2), network(4, depth=2)
        plain(batch).square().mean().backward()
        with contextlib.suppress(NotImplementedError):
            in_processes(model, batch)
        gradients = [next(net.parameters()).grad for net in (plain, model)]
        return [torch.zeros(4, 4) if grad is None else grad.clone() for grad in gradients]

    results = answers_to_draw(worker, world_size=2)
    if results is None:
        return
    wanted = results[0][0]
    panels = {"one process": wanted, "rank 0": results[0][1], "rank 1": results[1][1]}
    figure, axes = plt.subplots(1, 3, figsize=(7, 2.6), layout="constrained")
    most = max(panel.abs().max().item() for panel in panels.values())
    sentences = []
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        axis.imshow(panel.numpy(), cmap="RdBu", vmin=-2 * most, vmax=2 * most)  # pale: text fits
        for (row, column), value in _entries(panel):
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9)
        off = ((panel - wanted).norm() / wanted.norm()).item()
        title = name if name == "one process" else f"{name}: {off:.0%} off"
        axis.set_title(title, fontsize=10)
        axis.set(xticks=[], yticks=[])
        if name != "one process":
            sentences.append(title)
    name = getattr(in_processes, "__name__", "your function")
    show(figure, f"{name}, the first layer's gradient beside one process: {', '.join(sentences)}.")


def _entries(matrix: torch.Tensor) -> list[tuple[tuple[int, int], float]]:
    places = []
    for row, values in enumerate(matrix.tolist()):
        places += [((row, column), value) for column, value in enumerate(values)]
    return places
