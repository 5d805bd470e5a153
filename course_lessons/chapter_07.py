"""What chapter 07 shows its results with, what judges its two functions, and a slow download."""

import copy
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as loading

from course_lessons.drawing import reason_of
from course_utils import launch, show
from course_utils.launcher.errors import WorkerError
from course_utils.pictures.style import rank_style

Hand = Sequence[Sequence[int]]  # a rank's samples, step by step


def draw_hands(
    axes: Axes,
    hands: Sequence[Hand],
    title: str,
    labels: Sequence[str] = (),
    twice: Sequence[tuple[int, int]] = (),
) -> None:
    """Draw ranks as rows and steps from left to right: a square per sample, shaded by its number.

    Args:
        hands: For each rank its steps, each a list of sample numbers below 12.
        labels: What stands before the rows; by default the ranks.
        twice: Rank and step of squares to hatch, since they are dealt a second time.
    """
    right_edge = 1.0
    for row, steps in enumerate(hands):
        place = 0
        for step, samples in enumerate(steps):
            for sample in samples:
                left = place + 0.4 * step
                _draw_sample(axes, left, row, sample, hatched=(row, step) in twice)
                right_edge = max(right_edge, left + 1)
                place += 1
    names = labels or [f"rank {rank}" for rank in range(len(hands))]
    axes.set_yticks([row + 0.45 for row in range(len(hands))], names)
    axes.set_xticks([])
    axes.set(xlim=(-0.2, right_edge + 0.2), ylim=(len(hands), -0.1), aspect="equal", title=title)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_sample(axes: Axes, left: float, row: int, sample: int, hatched: bool) -> None:
    shade = 0.15 + 0.85 * sample / 12
    ink = "white" if shade < 0.5 else "black"
    edge = {"ec": "#DDDDDD", "hatch": "///"} if hatched else {"ec": "white"}
    colour = plt.colormaps["cividis"](shade)
    axes.add_patch(plt.Rectangle((left, row), 0.95, 0.9, fc=colour, lw=2, **edge))
    axes.text(left + 0.47, row + 0.47, str(sample), ha="center", va="center", color=ink)


def count_orders(ranks: Sequence[Sequence[Hand]]) -> int:
    """How many different orders there are among the epochs, each seen over all ranks."""
    return len({str(epoch) for epoch in zip(*ranks, strict=True)})


def three_epochs(dealt: Mapping[str, Sequence[Sequence[Hand]]]) -> Figure:
    """Three epochs for each place of `set_epoch`: `dealt[place][rank][epoch]` is a hand."""
    figure, axes = plt.subplots(len(dealt), 3, figsize=(10.5, 4.6), layout="constrained")
    for row, (place, ranks) in enumerate(dealt.items()):
        for epoch in range(3):
            hands = [epochs[epoch] for epochs in ranks]
            draw_hands(axes[row, epoch], hands, f"epoch {epoch}, set_epoch {place}")
    return figure


def ten_samples(padded: Sequence[Sequence[int]], dropped: Sequence[Sequence[int]]) -> Figure:
    """Ten samples on four ranks, as a sampler pads them and as it leaves some out."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
    draw_hands(axes[0], _one_by_one(padded), "default: padded", twice=((2, 2), (3, 2)))
    draw_hands(axes[1], _one_by_one(dropped), "drop_last=True")
    return figure


def _one_by_one(hands: Sequence[Sequence[int]]) -> list[Hand]:
    return [[[sample] for sample in hand] for hand in hands]


def metrics(figures: Mapping[str, torch.Tensor]) -> Figure:
    """Loss and accuracy by each way to work them out; a line is what one process found.

    Args:
        figures: For each way a tensor of loss and share of right answers; the first is the line.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 2.6), sharey=True, layout="constrained")
    names = list(figures)
    for axis, column, scale, unit in (axes[0], 0, 1, "loss (nats)"), (axes[1], 1, 100, "right (%)"):
        values = [scale * values[column].item() for values in figures.values()]
        axis.axvline(values[0], color="#999999", linewidth=1.5)
        axis.plot(values, range(len(values)), "o", color="#0072B2")
        axis.set_yticks(range(len(names)), names)
        axis.set(xlabel=unit, ylim=(len(names) - 0.5, -0.5))
    return figure


def weights_of_digits(last_divisor: int) -> Figure:
    """Three steps of two ranks: which weight a digit has, if the last step divides by this."""
    figure, axis = plt.subplots(figsize=(7, 1.9), layout="constrained")
    for rank, steps in enumerate(((0, 1, 2), (0, 1))):
        for step in steps:
            divisor = last_divisor if step == 2 else 16
            colour = rank_style(rank)["color"]
            axis.add_patch(plt.Rectangle((step, rank), 0.95, 0.9, fc=colour, alpha=0.35))
            axis.text(step + 0.47, rank + 0.45, f"8 digits × 1/{divisor}", ha="center", va="center")
    axis.text(2.47, 1.45, "answers with zeros", ha="center", va="center", color="#555555")
    axis.set_yticks([0.45, 1.45], ["rank 0", "rank 1"])
    axis.set_xticks([0.47, 1.47, 2.47], ["step 0", "step 1", "step 2"])
    axis.set(xlim=(0, 3), ylim=(2, 0))
    axis.spines[:].set_visible(False)
    return figure


def draw_stream(kind: type, length: int = 10, ranks: int = 2, workers: int = 2) -> None:
    """Run a stream on real ranks, each with loader workers, and draw which of them reads what.

    A stream that is wrong is drawn as well; below one that fails stands why there is no picture.
    """

    def read_by_workers() -> list[list[int]]:
        stream = kind(length)
        return [list(_read_as_worker(stream, number, workers)) for number in range(workers)]

    try:
        reads = launch(read_by_workers, world_size=ranks, backend="gloo", timeout=10)
    except WorkerError as error:
        print("No picture yet:", reason_of(error))
        return
    hands = [[samples] for by_worker in reads for samples in by_worker]
    labels = [f"rank {rank}, worker {number}" for rank in range(ranks) for number in range(workers)]
    figure, axis = plt.subplots(figsize=(7, 2.4), layout="constrained")
    draw_hands(axis, hands, "", labels)
    counts = Counter(chain(*chain(*reads)))
    often = sorted({counts[sample] for sample in range(length)})
    show(figure, f"Each row is a reader. A sample is read this often: {often}.")


def _read_as_worker(dataset: IterableDataset, number: int, workers: int) -> Iterator[int]:
    """What a loader's worker with that number would yield, from a copy of the dataset."""
    info = loading.WorkerInfo(id=number, num_workers=workers, seed=number, dataset=dataset)
    with mock.patch.object(loading, "_worker_info", info):
        yield from list(copy.copy(dataset))


STREAM_CASES = {  # samples, and workers of each loader
    "no workers": (7, 0),
    "one worker": (4, 1),
    "two workers": (10, 2),
    "fewer samples than readers": (1, 2),
}


def streaming(kind: type) -> Callable[[int, int], dict]:
    """Read two epochs on every rank; say how often each sample came, and who got more."""

    @functools.wraps(kind, updated=())
    def stream(length: int, workers: int) -> dict:
        dataset, report = kind(length), {}
        for epoch in ("first", "second"):
            samples = [int(sample) for sample in _as_workers(dataset, workers)]
            shards: list = [None] * dist.get_world_size()
            dist.all_gather_object(shards, samples)
            sizes = [len(shard) for shard in shards]
            counts = Counter(chain(*shards))
            report[f"{epoch} epoch: times each sample is read"] = dict(sorted(counts.items()))
            report[f"{epoch} epoch: longest less shortest shard"] = max(sizes) - min(sizes)
        return report

    return stream


def _as_workers(dataset: IterableDataset, workers: int) -> Iterator[int]:
    """What a loader yields, whose workers take turns in this process, each with its own copy."""
    if workers == 0:
        yield from dataset
    for number in range(workers):
        yield from _read_as_worker(dataset, number, workers)


def _stream_spec(lengths: list[int], workers: list[int]) -> list[dict]:
    report: dict = {}
    for epoch in ("first", "second"):
        report[f"{epoch} epoch: times each sample is read"] = dict.fromkeys(range(lengths[0]), 1)
        uneven = int(lengths[0] % len(lengths) > 0)
        report[f"{epoch} epoch: longest less shortest shard"] = uneven
    return [report] * len(lengths)


def _stream_inputs(rank: int, world_size: int, case: str) -> tuple[int, int]:
    return STREAM_CASES[case]


stream_judged = {"spec": _stream_spec, "inputs": _stream_inputs, "cases": list(STREAM_CASES)}


def dropout_masks(masks: Mapping[str, Sequence[torch.Tensor]]) -> Figure:
    """The units that four ranks keep under dropout, dark, and those that they drop, pale."""
    figure, axes = plt.subplots(1, len(masks), figsize=(10, 1.9), layout="constrained")
    for axis, (name, of_ranks) in zip(axes, masks.items(), strict=True):
        grid = {"cmap": "Greys", "vmin": -0.2, "vmax": 1.3, "edgecolors": "white"}
        axis.pcolormesh(torch.stack(list(of_ranks)), linewidth=1.5, **grid)
        axis.set(title=f"{name}: 24 units under dropout", xticks=[], ylim=(4, 0))
        axis.set_yticks([rank + 0.5 for rank in range(4)], [f"rank {rank}" for rank in range(4)])
        axis.tick_params(length=0)
    return figure


def worker_noise(runs: Sequence[Sequence[Sequence[float]]]) -> Figure:
    """What four loader workers draw, as forked and seeded: equal numbers have equal colours.

    Args:
        runs: For each run, for each of two ranks, the numbers of its two workers.
    """
    figure, axes = plt.subplots(1, len(runs), figsize=(8, 1.8), layout="constrained")
    for axis, title, ranks in zip(axes, ("as forked", "seeded per rank"), runs, strict=True):
        values = sorted({number for numbers in ranks for number in numbers})
        for rank, numbers in enumerate(ranks):
            for worker, number in enumerate(numbers):
                colour = plt.colormaps["cividis"](0.2 + 0.25 * values.index(number))
                axis.add_patch(plt.Rectangle((worker, rank), 0.95, 0.9, fc=colour))
                middle = worker + 0.47, rank + 0.45
                axis.text(*middle, f"{number:.3f}", ha="center", va="center", color="white")
        axis.set_xticks([0.47, 1.47], ["worker 0", "worker 1"])
        axis.set_yticks([0.45, 1.45], ["rank 0", "rank 1"])
        axis.set(xlim=(0, 2), ylim=(2, 0), title=title)
        axis.spines[:].set_visible(False)
    return figure


LINES = 100  # of the file that everybody wants
SECONDS_PER_LINE = 0.01


def download(path: Path) -> None:
    """Write a file as a slow server sends it: a line every 10 ms, which is on disk at once."""
    with path.open("w", buffering=1) as file:
        for number in range(LINES):
            file.write(f"sample {number}\n")
            time.sleep(SECONDS_PER_LINE)


def no_server(path: Path) -> None:
    """Begin a file as `download` does, and fail after ten lines."""
    path.write_text("sample\n" * 10)
    raise OSError("the server is down")


def path_on(disks: str | Path) -> Path:
    """Where this rank's node has the file: each node has a disk of its own, here a folder."""
    folder = Path(disks, os.environ["GROUP_RANK"])
    folder.mkdir(exist_ok=True)
    return folder / "data.txt"


def is_complete(path: Path) -> bool:
    """Whether all lines of the file are there."""
    return path.exists() and len(path.read_text().splitlines()) == LINES


def who_waits() -> Figure:
    """Four ranks on two nodes: one of each node fetches, and all meet when both have ended."""
    figure, axis = plt.subplots(figsize=(8, 2.2), layout="constrained")
    for rank, name in enumerate(("node 0, local 0", "node 0, local 1")):
        _wait_row(axis, rank, name, fetches=rank == 0)
    for rank, name in enumerate(("node 1, local 0", "node 1, local 1"), 2):
        _wait_row(axis, rank, name, fetches=rank == 2)
    axis.axvline(3, color="#222222", linewidth=2)
    axis.text(3.05, 2, "all_gather_object:\nwhat went wrong?", va="center", fontsize=10)
    axis.set(xlim=(-1.4, 4.4), ylim=(4, -0.2), xticks=[], yticks=[], xlabel="time →")
    axis.spines[:].set_visible(False)
    return figure


def _wait_row(axis: Axes, rank: int, name: str, fetches: bool) -> None:
    label = "fetches data.part, renames it" if fetches else "waits"
    colour = rank_style(rank)["color"] if fetches else "#DDDDDD"
    axis.add_patch(plt.Rectangle((0, rank + 0.1), 3, 0.75, fc=colour, alpha=0.5))
    axis.text(1.5, rank + 0.5, label, ha="center", va="center")
    axis.text(-0.1, rank + 0.5, name, ha="right", va="center")


FETCH_CASES = {  # what is there before the start, and whether the server answers
    "nothing there": ("", True),
    "complete from the last start": ("complete", True),
    "interrupted at the last start": ("interrupted", True),
    "complete, and no server": ("complete", False),
    "nothing there, and no server": ("", False),
}


def fetching(answer: Callable) -> Callable[[str], dict]:
    """Start two times on a disk in memory; say what is there then, and how often it was fetched."""

    @functools.wraps(answer)
    def fetched(case: str) -> dict:
        before, answers = FETCH_CASES[case]
        disk = Disk(before, answers)
        trouble = [answer(disk, disk.fetch), answer(disk, disk.fetch)]
        return {
            "trouble at both starts": [bool(words) for words in trouble],
            "there afterwards": disk.files.get("data", "nothing"),
            "fetched": disk.fetches,
            "data was never half there": disk.always_whole,
        }

    return fetched


class Disk:
    """A node's disk, with two names: `data`, which all ranks read, and `part`.

    Attributes:
        files: "complete" or "interrupted" for each name that is there.
        fetches: How often the server was asked.
        always_whole: Whether `data` was never there in part.
    """

    def __init__(self, before: str, answers: bool) -> None:
        self.files: dict[str, str] = {}
        if before == "complete":
            self.files["data"] = before
        if before == "interrupted":
            self.files["part"] = before
        self.answers = answers
        self.fetches = 0
        self.always_whole = True

    def has(self, name: str) -> bool:
        """Whether a file of that name is there, complete or not."""
        return name in self.files

    def rename(self, old: str, new: str) -> None:
        """Give a file a different name, in one moment.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if old not in self.files:
            raise FileNotFoundError(old)
        self.files[new] = self.files.pop(old)
        self._look()

    def fetch(self, name: str) -> None:
        """Fetch all lines into that file, from the beginning.

        Raises:
            OSError: The server is down; a part of the file is there.
        """
        self.fetches += 1
        self.files[name] = "interrupted"
        self._look()
        if not self.answers:
            raise OSError("the server is down")
        self.files[name] = "complete"

    def _look(self) -> None:
        if self.files.get("data") == "interrupted":
            self.always_whole = False


def _fetch_spec(cases: list[str]) -> list[dict]:
    before, answers = FETCH_CASES[cases[0]]
    fails = before != "complete" and not answers
    fetches = 2 if fails else int(before != "complete")
    report = {
        "trouble at both starts": [fails, fails],
        "there afterwards": "nothing" if fails else "complete",
        "fetched": fetches,
        "data was never half there": True,
    }
    return [report] * len(cases)


def _fetch_inputs(rank: int, world_size: int, case: str) -> str:
    return case


fetch_judged = {"spec": _fetch_spec, "inputs": _fetch_inputs, "cases": list(FETCH_CASES)}
fetch_judged |= {"world_sizes": (1, 2)}
