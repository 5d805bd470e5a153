"""Chapter 16's pictures: which run fails, who takes what, who waits, and what a test catches."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes

from course_lessons.drawing import Box, box_figure
from course_utils import WorkerError, WorkerTimeout, launch, show
from course_utils.launcher.deadlines import slowness
from course_utils.pictures.style import KINDS, rank_style

_GREEN, _ORANGE = "#009E7355", "#E69F0088"
_NAMES = {".": "passes", "F": "fails", "E": "error"}
_BATCHES = (3, 4)  # of ranks 0 and 1, four samples each
_ACROSS = 4  # bugs in a row
_HANGS_S = 5.0  # on a quiet machine


def draw_runs(printed: str, tests: Sequence[Callable], world_sizes: Sequence[int]) -> None:
    """Draw which test passes on how many ranks.

    Args:
        printed: What pytest has printed: its first line has a letter for each run.
        tests: The tests, in order; each has run once for each number of ranks.
        world_sizes: Those numbers.
    """
    letters = re.search(r"^[.FE]+", printed, re.MULTILINE)[0]
    rows, sentences = {}, []
    for number, test in enumerate(tests):
        of_test = letters[number * len(world_sizes) :][: len(world_sizes)]
        boxes = []
        for letter in of_test:
            boxes.append(Box(_NAMES[letter], _GREEN if letter == "." else _ORANGE))
        rows[test.__name__] = boxes
        sentences.append(f"{test.__name__}: {', '.join(box.words for box in boxes)}")
    columns = []
    for count in world_sizes:
        columns.append("1 rank" if count == 1 else f"{count} ranks")
    figure = box_figure(rows, columns, width=1.3)
    show(figure, f"Runs on {', '.join(columns)}. {'. '.join(sentences)}.")


def draw_samples(my_samples: Callable, samples: int, world_size: int) -> None:
    """Draw which samples each rank takes.

    Args:
        my_samples: Takes how many samples there are, returns those of this rank.
        samples: How many there are.
        world_size: How many ranks.
    """
    taken = launch(my_samples, samples, world_size=world_size, backend="gloo")
    last = max(samples - 1, *map(max, taken))
    rows, past = {}, []
    for rank, numbers in enumerate(taken):
        boxes: list[Box | None] = []
        for sample in range(last + 1):
            if sample not in numbers:
                boxes.append(None)
            elif sample < samples:
                boxes.append(Box(str(sample), rank_style(rank)["color"] + "55"))
            else:
                boxes.append(Box(str(sample), _ORANGE, hatch="////", bold=True))
                past.append(f"{sample} of rank {rank}")
        rows[f"rank {rank}"] = boxes
    figure = box_figure(rows, [""] * (last + 1), width=0.5)
    shares = ", ".join(f"rank {rank} {numbers}" for rank, numbers in enumerate(taken))
    show(figure, f"Of samples 0 to {samples - 1} take: {shares}. Past the end: {', '.join(past)}.")


def draw_validation(validate: Callable) -> None:
    """Draw the calls of two ranks with three batches and four, and what each rank returns.

    Args:
        validate: Takes a list of tensors of losses, returns the mean. A wrong one is drawn too.
    """

    def on_rank() -> float:
        losses = torch.full((4,), 1.0 + dist.get_rank())
        return validate([losses] * _BATCHES[dist.get_rank()])

    limit_s = _HANGS_S * slowness()
    try:
        results = launch(on_rank, world_size=2, backend="gloo", trace=True, timeout=limit_s)
    except WorkerTimeout as hang:
        calls = [_kinds(hang.waiting[rank].calls) for rank in (0, 1)]
        ends = []
        for rank in (0, 1):
            state = hang.waiting[rank].state
            ends.append("returns" if state == "returned" else "waits")
    except WorkerError as error:
        print("No picture yet:", error.failures[0].headline)
        return
    else:
        calls = [_kinds(results.trace.of_rank(rank)) for rank in (0, 1)]
        ends = [f"returns {_written(value)}" for value in results]
    wanted = sum(4 * count * (1 + rank) for rank, count in enumerate(_BATCHES)) / (
        4 * sum(_BATCHES)
    )
    _draw_validation(calls, ends, wanted)


def _written(value: Any) -> str:
    """A number, short; a wrong answer may return anything."""
    return f"{value:.3g}" if isinstance(value, int | float) else repr(value)[:20]


def _kinds(events: Iterable[Any]) -> list[str]:
    """The names of a rank's calls."""
    return [event.kind for event in events if event.kind not in ("return", "wait")]


def _draw_validation(calls: Sequence[Sequence[str]], ends: Sequence[str], wanted: float) -> None:
    """A row for each rank: its calls, and how it ends."""
    longest = max(map(len, calls))
    rows, sentences = {}, []
    for rank, kinds in enumerate(calls):
        boxes: list[Box | None] = []
        for kind in kinds:
            boxes.append(Box(kind, rank_style(rank)["color"] + "55"))
        if ends[rank] == "waits":
            boxes[-1] = Box(f"{kinds[-1]}\nwaits", "white", rank_style(rank)["color"])
        boxes += [None] * (longest - len(kinds))
        boxes.append(Box(ends[rank], bold=True))
        rows[f"rank {rank}, {_BATCHES[rank]} batches"] = boxes
        sentences.append(f"rank {rank} calls {', '.join(kinds) or 'nothing'}, and {ends[rank]}")
    columns = [f"call {number}" for number in range(1, longest + 1)]
    figure = box_figure(rows, [*columns, "in the end"], width=1.15)
    mean = f"The mean of all samples is {wanted:.3g}"
    caption = f"{mean}. Do both ranks make as many calls, and do both return it?"
    show(figure, f"{mean}: {'; '.join(sentences)}.", caption)


def draw_late(delays_ms: Mapping[int, Sequence[float]], pause_ms: float) -> None:
    """Draw when two ranks call and read, and when the sum is there, for each seed.

    Args:
        delays_ms: By seed, how late each rank comes to the call.
        pause_ms: After so long a rank reads its number.
    """
    settings = {"figsize": (9, 1.9), "layout": "constrained", "sharex": True}
    figure, panels = plt.subplots(1, len(delays_ms), **settings)
    sentences = []
    for axes, (seed, late_ms) in zip(panels, delays_ms.items(), strict=True):
        early = []
        for rank, delay_ms in enumerate(late_ms):
            _draw_late_rank(axes, rank, delay_ms, pause_ms)
            if delay_ms + pause_ms < max(late_ms):
                early.append(f"rank {rank}")
        axes.axvline(max(late_ms), color="black", linestyle="--", linewidth=1)
        names = [f"rank {rank}" for rank in range(len(late_ms))]
        axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
        axes.set(title=f"seed {seed}", xlabel="ms since the barrier")
        axes.spines[["top", "right"]].set_visible(False)
        sentences.append(f"seed {seed}: {' and '.join(early) or 'nobody'} reads too early")
    figure.get_layout_engine().set(wspace=0.08)
    looks = "Grey: a rank is late; green: its pause; cross: it reads; dashed: both have called."
    caption = f"{looks} Does a cross come too early?"
    show(figure, f"{looks} {'. '.join(sentences)}.", caption)


def _draw_late_rank(axes: Axes, rank: int, delay_ms: float, pause_ms: float) -> None:
    axes.barh(rank, delay_ms, 0.5, color="#BBBBBB")
    axes.barh(rank, pause_ms, 0.5, delay_ms, color=KINDS["compute"].fill)
    axes.plot(delay_ms + pause_ms, rank, "X", color="black", markersize=9)


def draw_findings(exhibits: Mapping[str, tuple[str, Sequence[str]]]) -> None:
    """Draw the bugs by what they do, and what a linter finds in them.

    Args:
        exhibits: By name, what the bug does to a training, and the rules that find it.
    """
    boxes_of: dict[str, list[Box]] = {}
    found = []
    for name, (kind, rules) in exhibits.items():
        words = name.replace("_", " ")
        if rules:
            words += f"\n{', '.join(rules)}"
            found.append(f"{', '.join(rules)} in {name}, which {kind}")
        boxes_of.setdefault(kind, []).append(Box(words, _GREEN if rules else "white"))
    rows: dict[str, Sequence[Box]] = {}
    for kind, boxes in boxes_of.items():
        for begin in range(0, len(boxes), _ACROSS):
            rows[kind + " " * begin] = boxes[begin : begin + _ACROSS]  # the same name again
    figure = box_figure(rows, [""] * _ACROSS, width=2.1)
    text = f"Of {len(exhibits)} bugs the linter sees {len(found)}: {'; '.join(found)}."
    caption = "Bugs by what they do. Green: the linter sees it, by the rule below its name."
    show(figure, text, caption)


def draw_verdicts(verdicts: Mapping[str, Mapping[str, bool]]) -> None:
    """Draw which version, a column, each test, a row, lets pass.

    Args:
        verdicts: By test and by version, whether it passes; the version "right" should.
    """
    rows, sentences = {}, []
    for test, accepted in verdicts.items():
        boxes = []
        for version, passes in accepted.items():
            fill = _GREEN if passes == (version == "right") else _ORANGE
            boxes.append(Box("passes" if passes else "caught", fill))
        rows[test] = boxes
        caught = sum(not passes for passes in accepted.values())
        sentences.append(f"{test} catches {caught} of {len(accepted) - 1}")
    names = list(next(iter(verdicts.values())))
    show(box_figure(rows, names, width=1.2), f"{', '.join(sentences)}.")
