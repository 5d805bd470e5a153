"""What chapter 14 shows its results with: a trace drawn, shares of a step, and what its checks try.

The two functions that a learner writes there are judged on recordings of real GPUs, of which a
tenth of the kernels is left out at random, and on small traces that are made up.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lessons.drawing import paint
from course_material.recordings import Row, recording
from course_utils import show

LABELS = {
    "compute": "computing",
    "collective": "collective",
    "send": "launch",
    "wait": "in .item()",
    "receive": "copy",
}
STYLE_OF_ROW = {"compute": "compute", "collective": "collective", "launch": "send"}
PIECES = 75  # into which a step is cut to be drawn
RECORDINGS = ("resnet50_2xA100", "per_gradient_2xV100", "recommender_8xA100")


def draw_lanes(
    rows: Sequence[Row],
    start_us: float,
    end_us: float,
    text: str,
    launched: tuple[Row, Row] | None = None,
) -> None:
    """Draw a row for each thread of the host and each stream of the GPU, with a sentence below.

    An arrow leads from a launch to its kernel, if `launched` has both.
    """
    seen = [row for row in rows if row.start_us < end_us and start_us < row.end_us]
    drawn = [row for row in seen if _style_name(row)]
    nccl_lanes = {row.lane for row in drawn if row.kind == "collective"}
    lanes = sorted({row.lane for row in drawn}, key=lambda lane: _place(lane, nccl_lanes))
    height = 0.55 * len(lanes) + 1
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    shortest_us = (end_us - start_us) / 900  # no bar is narrower than a pixel
    for style_name, label in LABELS.items():
        styled = [row for row in drawn if _style_name(row) == style_name]
        for row in styled:
            left_ms = (row.start_us - start_us) / 1e3
            width_ms = max(row.us, shortest_us) / 1e3
            bar = [(left_ms, width_ms)]
            bottom = lanes.index(row.lane) - 0.36
            axes.broken_barh(bar, (bottom, 0.72), linewidth=0, **paint(style_name))
        if styled:
            axes.bar(-1, 0, label=label, linewidth=0, **paint(style_name))
    if launched:
        ends = []
        for row, edge in zip(launched, (0.36, -0.36), strict=True):
            middle_us = row.start_us + row.us / 2
            ends.append(((middle_us - start_us) / 1e3, lanes.index(row.lane) + edge))
        arrow = {"arrowstyle": "-|>", "linewidth": 1.5, "color": "black"}
        axes.annotate("", xytext=ends[0], xy=ends[1], arrowprops=arrow)
    names = [_lane_name(lane, nccl_lanes) for lane in lanes]
    axes.set(yticks=range(len(lanes)), yticklabels=names, ylim=(len(lanes) - 0.5, -0.5))
    axes.set(xlim=(0, (end_us - start_us) / 1e3), xlabel="time (ms)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, text)


def _style_name(row: Row) -> str | None:
    if row.kind == "copy":
        return "receive"
    if row.kind != "host":
        return STYLE_OF_ROW.get(row.kind)
    if row.name.startswith(("c10d::", "nccl:", "gloo:")):
        return "collective"
    return "wait" if row.name == "aten::item" else None


def _place(lane: str, nccl_lanes: set[str]) -> tuple[bool, bool, str]:
    return lane in nccl_lanes, lane.startswith("stream"), lane


def _lane_name(lane: str, nccl_lanes: set[str]) -> str:
    if lane in nccl_lanes and lane.startswith("stream"):
        return f"{lane}, NCCL"
    return lane


def covered_us(rows: Sequence[Row]) -> float:
    """The time in which at least one of the rows lasts, in microseconds."""
    if not rows:
        return 0.0
    in_order = sorted(rows, key=lambda row: row.start_us)
    total_us = 0.0
    covered_until_us = in_order[0].start_us
    for row in in_order:
        total_us += max(0.0, row.end_us - max(row.start_us, covered_until_us))
        covered_until_us = max(covered_until_us, row.end_us)
    return total_us


def shares(rows: Sequence[Row]) -> dict[str, float]:
    """How the steps' time divides, by four names whose shares add up to 1.

    "compute": a compute kernel runs. "only NCCL": a collective does, and no compute kernel.
    "only copies": a copy, and neither of the two. "nothing": the GPU has nothing to do.
    """
    step_us = sum(row.us for row in rows if row.kind == "step")
    compute = [row for row in rows if row.kind == "compute"]
    kernels = [row for row in rows if row.kind in ("compute", "collective")]
    work = [row for row in rows if row.kind in ("compute", "collective", "copy")]
    compute_us, kernels_us, work_us = covered_us(compute), covered_us(kernels), covered_us(work)
    return {
        "compute": compute_us / step_us,
        "only NCCL": (kernels_us - compute_us) / step_us,
        "only copies": (work_us - kernels_us) / step_us,
        "nothing": 1 - work_us / step_us,
    }


def share_hidden(rows: Sequence[Row]) -> float:
    """The share of communication during which a compute kernel runs."""
    compute = [row for row in rows if row.kind == "compute"]
    collectives = [row for row in rows if row.kind == "collective"]
    collectives_us = covered_us(collectives)
    exposed_us = covered_us(compute + collectives) - covered_us(compute)
    return 1 - exposed_us / collectives_us


def cut_out(rows: Sequence[Row], start_us: float, end_us: float) -> Iterator[Row]:
    """What of the rows lies between two moments."""
    for row in rows:
        begin_us, over_us = max(row.start_us, start_us), min(row.end_us, end_us)
        if begin_us < over_us:
            yield row._replace(start_us=begin_us, us=over_us - begin_us)


def draw_steps(trainings: Mapping[str, Sequence[Row]], text: str) -> None:
    """Draw the last step of each training: what the GPU does in each of 75 pieces."""
    figure, panels = plt.subplots(len(trainings), 1, figsize=(9, 4.8), layout="constrained")
    styles = {"compute": "compute", "only NCCL": "collective", "only copies": "receive"}
    for axes, (name, rows) in zip(panels, trainings.items(), strict=True):
        step, pieces = _pieces_of_last_step(rows)
        by_piece = [shares(piece) for piece in pieces]
        bottoms = [0.0] * PIECES
        for part, style_name in styles.items():
            heights = [100 * piece[part] for piece in by_piece]
            _bars(axes, step, heights, bottoms, label=part, **paint(style_name))
            bottoms = [bottom + h for bottom, h in zip(bottoms, heights, strict=True)]
        axes.set(ylabel=f"{name}\n(%)", ylim=(0, 100), xlim=(0, step.us / 1e3))
    panels[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    panels[-1].set(xlabel="time since the step began (ms), each axis its own")
    show(figure, text)


def draw_exposed(exposed_ms: Callable, trainings: Mapping[str, Sequence[Row]]) -> None:
    """Draw what a learner's function finds in each of 75 pieces of a step, right or wrong."""
    found = {}
    for name, rows in trainings.items():
        step, pieces = _pieces_of_last_step(rows)
        try:
            found[name] = step, [exposed_ms(piece) for piece in pieces]
        except Exception as error:
            print(f"No picture yet: exposed_ms says {error!r}.")
            return
    figure, panels = plt.subplots(len(found), 1, figsize=(9, 4), layout="constrained")
    for axes, (name, (step, heights_ms)) in zip(panels, found.items(), strict=True):
        piece_ms = step.us / PIECES / 1e3
        heights = [100 * ms / piece_ms for ms in heights_ms]
        _bars(axes, step, heights, [0.0] * PIECES, **paint("collective"))
        axes.set(ylabel=f"{name}\n(%)", ylim=(0, 100), xlim=(0, step.us / 1e3))
    panels[-1].set(xlabel="time since the step began (ms), each axis its own")
    totals = [f"{name} {sum(heights_ms):.1f} ms" for name, (_, heights_ms) in found.items()]
    show(figure, f"Exposed in the last step, as your function finds it: {', '.join(totals)}.")


def _pieces_of_last_step(rows: Sequence[Row]) -> tuple[Row, list[list[Row]]]:
    step = [row for row in rows if row.kind == "step"][-1]
    kinds = ("step", "compute", "collective", "copy")
    inside = list(cut_out([row for row in rows if row.kind in kinds], step.start_us, step.end_us))
    piece_us = step.us / PIECES
    starts_us = [step.start_us + piece_us * number for number in range(PIECES)]
    return step, [list(cut_out(inside, start, start + piece_us)) for start in starts_us]


def _bars(axes: Axes, step: Row, heights: list[float], bottoms: list[float], **paint) -> None:
    width_ms = step.us / PIECES / 1e3
    lefts_ms = [width_ms * number for number in range(PIECES)]
    axes.bar(lefts_ms, heights, width_ms, bottoms, align="edge", linewidth=0, **paint)


def _exposed_by_events(traces: Sequence[Sequence[Row]]) -> list[float]:
    """From one start or end to the next: how many kernels of each kind run?"""
    return [_exposed_in_one(rows) for rows in traces]


def _exposed_in_one(rows: Sequence[Row]) -> float:
    changes = []
    for row in rows:
        if row.kind in ("compute", "collective"):
            changes += [(row.start_us, row.kind, 1), (row.end_us, row.kind, -1)]
    running, exposed_us = Counter(), 0.0
    for (at_us, kind, change), (next_us, *_) in pairwise(sorted(changes)):
        running[kind] += change
        if running["collective"] and not running["compute"]:
            exposed_us += next_us - at_us
    return exposed_us / 1000


# Compute kernels and collectives per step, streams of each, the longest of each in microseconds.
MADE_UP = {
    "one of each": (1, 1, 1, 90, 90),
    "no collective": (8, 0, 1, 90, 0),
    "no compute kernel": (0, 6, 1, 0, 50),
    "short compute kernels": (20, 4, 1, 9, 80),
    "compute kernels on three streams": (20, 6, 3, 60, 60),
    "collectives on two streams": (5, 20, 2, 20, 80),
    "more of both than time": (30, 30, 3, 80, 80),
}


def made_up(
    computes: int, collectives: int, streams: int, compute_us: int, collective_us: int
) -> list[Row]:
    """Two to four steps of 250 µs; whole microseconds, so many kernels end where others begin."""
    steps = int(torch.randint(2, 5, ()))
    rows = [Row("step", "step", "main thread", 250.0 * k, 250.0, 0, 0) for k in range(steps)]
    wanted = [("compute", "gemm", computes, compute_us), ("copy", "Memcpy DtoH", 3, 60)]
    wanted.append(("collective", "ncclKernel", collectives, collective_us))
    for kind, name, count, longest_us in wanted:
        for number in range(count * steps):
            start_us = float(torch.randint(0, 250 * steps - longest_us, ()))
            us = float(torch.randint(1, longest_us + 1, ()))
            size = 0 if kind == "compute" else 4 * int(torch.randint(1, 10**6, ()))
            lane = f"stream {7 + number % streams}"
            rows.append(Row(kind, name, lane, start_us, us, size, 0))
    return sorted(rows, key=lambda row: row.start_us)


@functools.cache
def _work_of(name: str) -> list[Row]:
    return [row for row in recording(name) if row.kind not in ("host", "launch")]


def _kernels(rank: int, world_size: int, case: str) -> list[Row]:
    if case in MADE_UP:
        return made_up(*MADE_UP[case])
    kept = (torch.rand(len(_work_of(case))) < 0.9).tolist()
    rows = zip(_work_of(case), kept, strict=True)
    return [row for row, keep in rows if keep or row.kind == "step"]


EXPOSED = {
    "spec": _exposed_by_events,
    "inputs": _kernels,
    "cases": [*MADE_UP, *RECORDINGS],
    "world_sizes": (1,),
    "hide": (covered_us, shares, share_hidden),
}


def _longest_by_thread(traces: Sequence[Sequence[Row]]) -> list[tuple[str, float] | None]:
    """Thread by thread, each call of CUDA's is tried against each `.item()` of that thread."""
    return [_longest_in_one(rows) for rows in traces]


def _longest_in_one(rows: Sequence[Row]) -> tuple[str, float] | None:
    found = []
    for lane in {row.lane for row in rows}:
        items = [row for row in rows if row.lane == lane and row.name == "aten::item"]
        calls = [row for row in rows if row.lane == lane and row.name.startswith("cuda")]
        for call in calls:
            inside = [i for i in items if i.start_us <= call.start_us and call.end_us <= i.end_us]
            if inside:
                found.append((call.us, call.name))
    if not found:
        return None
    longest_us, name = max(found)
    return name, longest_us


WAITS = {
    "it waits in the copy": ("cudaMemcpyAsync", "item"),
    "it waits after the copy": ("cudaStreamSynchronize", "item"),
    "a second thread waits longer": ("cudaMemcpyAsync", "thread"),
    "a call before it waits longer": ("cudaStreamSynchronize", "before"),
    "an .item() of the CPU takes longer": ("cudaMemcpyAsync", "cpu"),
    "no .item() at all": ("cudaMemcpyAsync", "none"),
    "the second of three waits": ("cudaStreamSynchronize", "three"),
}


def _host_calls(rank: int, world_size: int, case: str) -> list[Row]:
    if case in RECORDINGS:
        rows = [row for row in recording(case) if row.kind in ("host", "launch")]
        # Some calls are missing, so that no answer can know which one is the longest.
        kept = (torch.rand(len(rows)) < 0.7).tolist()
        return [row for row, keep in zip(rows, kept, strict=True) if keep]
    waiting, kind = WAITS[case]
    count = 3 if kind == "three" else 1
    rows = []
    for number in range(count):
        long_us = float(torch.randint(100, 900, ()))
        if number == 1:
            long_us += 1000
        rows += _one_item(10_000.0 * number + 3000, waiting, long_us)
    if kind == "thread":
        long_us = rows[0].us - 10  # inside the time of `.item()`, and not called by it
        copies = [row for row in rows if row.name == "cudaMemcpyAsync"]
        rows = [row._replace(us=row.us / 2) if row in copies else row for row in rows]
        rows.append(Row("launch", "cudaLaunchKernel", "autograd thread", 3005.0, long_us, 0, 7))
    if kind == "before":
        rows.append(Row("launch", "cudaMemcpyAsync", "main thread", 10.0, 2900.0, 8, 8))
    if kind == "cpu":
        rows.append(Row("host", "aten::item", "main thread", 9000.0, 5000.0, 0, 0))
    if kind == "none":
        rows = [row._replace(name="aten::to") if row.name == "aten::item" else row for row in rows]
    return sorted(rows, key=lambda row: row.start_us)


def _one_item(start_us: float, waiting: str, long_us: float) -> list[Row]:
    """An `.item()` with the calls inside it, as the recordings have them."""
    calls = [("launch", "cudaMemcpyAsync"), ("host", "cudaStreamSynchronize")]
    lane, at_us, rows = "main thread", start_us + 5, []
    for kind, name in calls:
        short_us = float(torch.randint(2, 9, ()))
        us = long_us if name == waiting else short_us
        rows.append(Row(kind, name, lane, at_us, us, 0, int(kind == "launch")))
        at_us += us + 1
    outer = Row("host", "aten::item", lane, start_us, at_us + 4 - start_us, 0, 0)
    inner_us = outer.us - 4
    inner = Row("host", "aten::_local_scalar_dense", lane, start_us + 2, inner_us, 0, 0)
    return [outer, inner, *rows]


BLOCKED = {
    "spec": _longest_by_thread,
    "inputs": _host_calls,
    "cases": [*WAITS, *RECORDINGS],
    "world_sizes": (1,),
}


def figure_of_delays(trainings: Mapping[str, Sequence[Row]]) -> Figure:
    """For each training, how many compute kernels start how long after their launch."""
    figure, axes = plt.subplots(figsize=(9, 2.8), layout="constrained")
    for (name, rows), line in zip(trainings.items(), ("-", "--", ":"), strict=True):
        delays_us = sorted(max(0.1, delay) for delay in launch_delays_us(rows))
        percent = [100 * (number + 1) / len(delays_us) for number in range(len(delays_us))]
        axes.plot(delays_us, percent, line, label=name)
    axes.set(xscale="log", xlabel="from the end of the launch to the kernel's start (µs)")
    axes.set(ylabel="kernels started (%)", ylim=(0, 100))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def launch_delays_us(rows: Sequence[Row]) -> list[float]:
    """How long after the end of its launch each compute kernel starts, in microseconds."""
    launches = {row.launch: row for row in rows if row.kind == "launch"}
    compute = [row for row in rows if row.kind == "compute"]
    return [row.start_us - launches[row.launch].end_us for row in compute]
