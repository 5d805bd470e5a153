"""What chapter 10 works with: a yardstick for silent faults, the check of an optimiser, pictures.

Nothing here imports Keras, which a learner may not have: models come from the chapter.
"""

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_lessons.drawing import reason_of
from course_utils import launch, show
from course_utils.launcher.errors import WorkerError
from course_utils.pictures.style import rank_style

KINDS = ("dealt", "own digits")
_RANKS, _IMAGES, _STEPS, _SEEDS = 2, 64, 11, 3
CLASSES = 10
_SIZES = {0: "exactly 0", 1e-5: "under 1e-5", 1e-3: "under 1e-3"}


def apart(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return in words how far the weight is that is furthest off."""
    away = (a - b).abs().max().item()
    for size, words in _SIZES.items():
        if away <= size:
            return words
    return "over 1e-3"


def draw_losses(losses: Sequence[Sequence[tuple[float, float]]]) -> None:
    """Draw each rank's own loss beside the one of reduced sums.

    Args:
        losses: For each rank, for each epoch: its own mean loss, and the reduced one.
    """
    figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
    epochs = range(len(losses[0]))
    for rank, pairs in enumerate(losses):
        heights = [own for own, _ in pairs]
        places = [epoch + 0.25 * rank for epoch in epochs]
        axes.bar(places, heights, 0.22, color=rank_style(rank)["color"], label=f"rank {rank}'s")
    reduced = [pair[1] for pair in losses[0]]
    places = [epoch + 0.25 * len(losses) for epoch in epochs]
    axes.bar(places, reduced, 0.22, color="0.6", label="reduced", hatch="//")
    axes.set_xticks([epoch + 0.25 for epoch in epochs], [f"epoch {epoch}" for epoch in epochs])
    axes.set(ylabel="loss", ylim=(0, 1.25 * max(max(pair) for pairs in losses for pair in pairs)))
    axes.legend(frameon=False, ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, "In each epoch the reduced loss lies between those of the two ranks.")


def draw_distances(distances: Mapping[str, tuple[str, str]]) -> None:
    """Draw how far ranks are from each other, and from one device.

    Args:
        distances: By way of training, both distances in the words of `apart`.
    """
    words = [*_SIZES.values(), "over 1e-3"]
    figure, axes = plt.subplots(figsize=(7.5, 0.5 * len(distances) + 0.7), layout="constrained")
    for row, pair in enumerate(distances.values()):
        for column, distance in enumerate(pair):
            color = ("#009E7366", "#009E7333", "#E69F0044", "#D55E0066")[words.index(distance)]
            axes.add_patch(plt.Rectangle((column, row), 0.97, 0.92, fc=color, ec="#777777"))
            axes.text(column + 0.48, row + 0.46, distance, ha="center", va="center")
    axes.set(xlim=(0, 2), ylim=(len(distances), 0))
    axes.set_xticks([0.48, 1.48], ["between the ranks", "from one device"])
    axes.set_yticks([row + 0.46 for row in range(len(distances))], list(distances))
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    parts = [f"{name}: {pair[0]}, {pair[1]}" for name, pair in distances.items()]
    caption = "How far the weights are apart in the end: compare both columns, row by row."
    show(figure, f"Between the ranks, and from one device. {'; '.join(parts)}.", caption)


class Yardstick:
    """What a fault costs: test losses from three seeds, with it and without.

    Args:
        training: Images `(n, 28, 28, 1)` from 0 to 255 and labels `(n,)`.
        testing: The same to test on.
    """

    def __init__(self, training: tuple, testing: tuple) -> None:
        self._training, self._testing = _pooled(*training), _pooled(*testing)
        self.losses: dict[tuple[str, str], torch.Tensor] = {}

    def batches(self, seed: int, shards: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield two epochs of 11 batches: 64 images of this rank, `(64, 49)`, and their labels.

        Args:
            seed: Of the shuffle.
            shards: `dealt`, or `own digits`: those below 5 are rank 0's.
        """
        images, labels = self._training
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            order = torch.randperm(len(labels), generator=generator)
            shard = order[dist.get_rank() :: _RANKS]
            if shards == "own digits":
                shard = order[(labels[order] < CLASSES // 2) == (dist.get_rank() == 0)]
            for chosen in shard.split(_IMAGES)[:_STEPS]:
                yield images[chosen], labels[chosen]

    @torch.no_grad()
    def tested(self, model: Callable) -> float:
        """Return the loss on all test digits."""
        images, labels = self._testing
        return cross_entropy(model(images, training=False), labels).item()

    def measure(self, name: str, trained: Callable, **fault: Any) -> list[list]:
        """Train from three seeds with each kind of shards, note and print rank 0's test losses.

        Args:
            name: Of the fault.
            trained: Takes a seed, the kind of shards and `fault`; returns a test loss.

        Returns:
            The losses of each rank, by kind and seed, as a launch returns them.
        """

        def all_runs() -> list[list[float]]:
            return [[trained(seed, kind, **fault) for seed in range(_SEEDS)] for kind in KINDS]

        runs = launch(all_runs, backend="gloo", timeout=120, trace=True)
        self.keep(name, runs[0])
        return runs

    def keep(self, name: str, losses: Sequence[Sequence[float]]) -> None:
        """Note test losses, by kind of shards and seed, and print them."""
        for kind, of_seeds in zip(KINDS, losses, strict=True):
            self.losses[name, kind] = torch.tensor(of_seeds)
            times = self.times_cured(name, kind)
            low, high = self.losses[name, kind].aminmax()
            words = f"loss about {low:.2f} to about {high:.2f}, about {times:.1f} times the cured"
            print(f"{name}, {kind}: {words}")

    def times_cured(self, name: str, kind: str) -> float:
        """Return the median test loss, divided by that without any fault."""
        return (self.losses[name, kind].median() / self.losses["cured", kind].median()).item()

    def draw(self, words: str, caption: str = "") -> None:
        """Draw all test losses so far: a point for each seed, a band for the cured ones.

        Args:
            words: As `text` for `show`.
            caption: As for `show`.
        """
        names = list(dict.fromkeys(name for name, _ in self.losses))
        size = (9, 0.34 * len(names) + 1.1)
        figure, panels = plt.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
        for axes, kind in zip(panels, KINDS, strict=True):
            cured = self.losses["cured", kind]
            axes.axvspan(cured.min(), cured.max(), color="0.88")
            for row, name in enumerate(names):
                losses = self.losses[name, kind]
                axes.plot(losses, [row] * len(losses), "o", color="0.25", mfc="none")
                axes.plot(losses.median(), row, marker="|", ms=14, mew=2.5, color="black")
            axes.set(xscale="log", xlim=(0.15, 8), title=kind, xlabel="test loss (log scale)")
            axes.set_xticks([0.2, 0.3, 0.5, 1, 2, 5], ["0.2", "0.3", "0.5", "1", "2", "5"])
            axes.minorticks_off()
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        show(figure, words, caption)

    def draw_shards(self) -> None:
        """Draw how many of each digit either rank trains on in an epoch."""

        def counted() -> list[torch.Tensor]:
            counts = []
            for kind in KINDS:
                labels = torch.cat([labels for _, labels in self.batches(0, kind)])
                counts.append(labels[: len(labels) // 2].bincount(minlength=CLASSES))
            return counts

        counts = launch(counted, backend="gloo")
        figure, panels = plt.subplots(1, 2, figsize=(8, 2.1), sharey=True, layout="constrained")
        for number, (axes, kind) in enumerate(zip(panels, KINDS, strict=True)):
            for rank in range(_RANKS):
                places = [digit + 0.4 * rank - 0.2 for digit in range(CLASSES)]
                color = rank_style(rank)["color"]
                axes.bar(places, counts[rank][number], 0.4, color=color, label=f"rank {rank}")
            axes.set(title=kind, xlabel="digit", xticks=range(CLASSES), ylim=(0, 190))
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("images an epoch")
        panels[1].legend(frameon=False, ncols=2)
        show(figure, "Dealt, both ranks see all digits; with own digits, each sees five of them.")


def _pooled(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Seven times seven numbers from 0 to 1 of each image, and the labels."""
    return avg_pool2d(images.permute(0, 3, 1, 2) * (1 / 255), 4).flatten(1), labels


def draw_drift(histories: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Draw one moving mean on both ranks over the steps, for each cure.

    Args:
        histories: By cure, for each rank its statistics after each step, `(steps, statistics)`;
            the first is without any cure.
    """
    figure, panels = plt.subplots(
        1, len(histories), figsize=(9, 2.6), sharey=True, layout="constrained"
    )
    ours, theirs = next(iter(histories.values()))
    channel = (ours[-1] - theirs[-1])[:64].abs().argmax()  # the one of 64 means that drifts most
    for axes, (name, of_ranks) in zip(panels, histories.items(), strict=True):
        for rank, history in enumerate(of_ranks):
            style = rank_style(rank) | {"markevery": 4}
            axes.plot(history[:, channel], label=f"rank {rank}", **style)
        axes.set(title=name, xlabel="step")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("one moving mean")
    panels[0].legend(frameon=False)
    text = (
        "Without a cure the ranks end apart. Averaged after each step, they never part. Averaged "
        "once, or given rank 0's, they part and meet at the end: once meets where each step ends, "
        "rank 0's doesn't."
    )
    caption = "Panel by panel: do the two ranks part, do they meet at the end, and at which height?"
    show(figure, text, caption)


def draw_masks(masks: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Draw which units two ranks drop in five calls, and say how the masks compare.

    Args:
        masks: By cure, for each rank its masks `(calls, units)`.
    """
    figure, panels = plt.subplots(
        2, len(masks), figsize=(9, 2.6), sharex=True, sharey=True, layout="constrained"
    )
    parts = []
    for column, (name, of_ranks) in enumerate(masks.items()):
        for rank, mask in enumerate(of_ranks):
            axes = panels[rank, column]
            axes.imshow(mask, cmap="Greys_r", vmin=-0.3, vmax=1.3, aspect="auto")
            axes.set(xticks=[], yticks=[])
            axes.set_ylabel(f"rank {rank}" if column == 0 else "")
        panels[0, column].set_title(name, size=9)
        parts.append(f"{name}: {_compared(*of_ranks)}")
    words = "Dark: dropped; a row for each call."
    caption = f"{words} Compare rank 0's mask with rank 1's below it, also one call later."
    show(figure, f"{words} {'; '.join(parts)}.", caption)


def _compared(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    if torch.equal(ours, theirs):
        return "the same"
    if torch.equal(ours[1:], theirs[:-1]):
        return "the same, one call later (rank 1's first row is rank 0's second)"
    return "different"


def all_reduces(run: Any) -> int:
    """Return how many all_reduce rank 0 made in a traced launch."""
    return [event.kind for event in run.trace.of_rank(0)].count("all_reduce")


# --- the check of an optimiser that averages ---

_FIT_IMAGES, _FIT_STEPS, _FEATURES, _OUTPUTS = 6, 4, 4, 3


def fit_options(keras: Any) -> dict[str, Any]:
    """Return the options by which an optimiser is judged that fit() uses on every rank.

    Args:
        keras: The module, with torch as its backend.
    """

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        layers = [keras.Input((_FEATURES,)), keras.layers.Dense(5, activation="tanh")]
        model = keras.Sequential([*layers, keras.layers.Dense(_OUTPUTS)])
        rates = {"a small rate": 0.01, "a large rate": 0.3}
        for variable in model.variables:
            variable.assign(torch.randn(variable.shape))
        count = _FIT_IMAGES * _FIT_STEPS
        labels = torch.randint(_OUTPUTS, (count,))
        return model, torch.randn(count, _FEATURES), labels, rates[case]

    def spec(models: list, images: list, labels: list, rates: list) -> list[torch.Tensor]:
        # Of each step the images of all ranks, one rank's after the other's.
        together = [_by_steps(images), _by_steps(labels)]
        size = _FIT_IMAGES * len(models)
        optimizer = keras.optimizers.Adam(rates[0])
        return [_fit(keras, models[0], optimizer, *together, size)] * len(models)

    return {
        "spec": spec,
        "inputs": inputs,
        "cases": ("a small rate", "a large rate"),
        "world_sizes": (1, 2, 3),
        "rtol": 1e-3,
        "atol": 1e-5,
        "timeout": 20,
    }


def _by_steps(of_ranks: Sequence[torch.Tensor]) -> torch.Tensor:
    steps = []
    for step in range(_FIT_STEPS):
        begin = _FIT_IMAGES * step
        steps += [tensor[begin : begin + _FIT_IMAGES] for tensor in of_ranks]
    return torch.cat(steps)


def _fit(
    keras: Any,
    model: Any,
    optimizer: Any,
    images: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
) -> torch.Tensor:
    """All weights after one epoch of fit()."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.fit(images, labels, batch_size=batch_size, shuffle=False, verbose=0)
    return torch.cat([variable.value.detach().flatten() for variable in model.variables])


def fitting(optimizer_class: type, keras: Any) -> Callable:
    """Wrap a class of optimisers: DDP makes the ranks start equal, then each calls fit()."""

    @functools.wraps(optimizer_class, updated=())
    def fitted(model: Any, images: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        DistributedDataParallel(model)
        return _fit(keras, model, optimizer_class(rate), images, labels, _FIT_IMAGES)

    return fitted


def draw_parting(keras: Any, optimizer_class: type) -> None:
    """Draw how far two ranks' weights are apart after each step of fit(), and with Keras's Adam.

    Args:
        keras: The module.
        optimizer_class: A learner's; a wrong one is drawn as well.
    """
    try:
        distances = _distances_by_step(keras, optimizer_class)
    except WorkerError as error:
        print("No picture yet:", reason_of(error))
        return
    _draw_distances_by_step(distances, _distances_by_step(keras, keras.optimizers.Adam))


def _distances_by_step(keras: Any, optimizer_class: type) -> list[float]:
    """How far rank 1's weights are from rank 0's after each step of fit()."""
    inputs = fit_options(keras)["inputs"]

    class Watching(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            variables = self.model.trainable_variables
            mine = torch.cat([variable.value.detach().flatten() for variable in variables])
            rank_0s = mine.clone()
            dist.broadcast(rank_0s, src=0)
            print("apart", (mine - rank_0s).abs().max().item())

    def fitted() -> None:
        keras.utils.set_random_seed(dist.get_rank())
        model, images, labels, rate = inputs(dist.get_rank(), _RANKS, "a large rate")
        DistributedDataParallel(model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer_class(rate), loss)
        how = {"batch_size": _FIT_IMAGES, "shuffle": False, "verbose": 0}
        model.fit(images, labels, callbacks=[Watching()], **how)

    return [float(number) for number in re.findall(r"apart (\S+)", _quietly(fitted))]


def _quietly(fn: Callable) -> str:
    """What rank 1 prints in a launch; nobody else hears it."""
    with contextlib.redirect_stdout(io.StringIO()):
        return launch(fn, world_size=_RANKS, backend="gloo", timeout=20).output[1]


def _draw_distances_by_step(distances: Sequence[float], uncured: Sequence[float]) -> None:
    figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
    steps = range(1, len(distances) + 1)
    axes.plot(steps, uncured, color="0.6", ls="--", marker="s", label="Keras's Adam")
    axes.plot(steps, distances, label="this optimiser", **rank_style(1))
    axes.legend(frameon=False)
    axes.set(xlabel="step of fit()", ylabel="rank 1's weights\nfrom rank 0's", xticks=list(steps))
    axes.set_ylim(-0.05, max(*distances, *uncured) * 1.05)
    axes.spines[["top", "right"]].set_visible(False)
    together = "stay equal" if max(distances) == 0 else "part"
    words = f"The largest difference of a weight, step by step: here the ranks {together}."
    show(figure, f"{words} With Keras's Adam they part in the first step.")
