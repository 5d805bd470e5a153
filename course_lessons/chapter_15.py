"""What chapter 15 shows its results with, and what judges its two functions."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from course_material.language import SmallGPT, novel
from course_utils import show
from course_utils.pictures.style import plain_style

STORY, ALPHABET = novel()
CONTEXT = 32  # characters that the small GPT sees


def make_model(seed: int = 0) -> nn.Sequential:
    """A network for digits, with one hidden layer, equal on all ranks."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def small_gpt(dtype: torch.dtype = torch.float32) -> SmallGPT:
    """A GPT of one layer for the characters of the novel, equal on all ranks."""
    torch.manual_seed(0)
    return SmallGPT(len(ALPHABET), width=32, depth=1, context=CONTEXT).to(dtype)


def windows(count: int) -> tuple[Tensor, Tensor]:
    """Inputs and, a character further on, targets, from random places: (count, CONTEXT) each."""
    starts = torch.randint(len(STORY) - CONTEXT, (count, 1))
    drawn = STORY[starts + torch.arange(CONTEXT + 1)]
    return drawn[:, :-1], drawn[:, 1:]


def answers(count: int) -> tuple[Tensor, Tensor]:
    """Windows whose targets are -100 behind an answer of random length."""
    inputs, targets = windows(count)
    lengths = torch.randint(1, CONTEXT, (count, 1))
    return inputs, torch.where(torch.arange(CONTEXT) < lengths, targets, -100)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor, **options: str) -> Tensor:
    """The cross-entropy of a GPT's next characters; `options` are those of `cross_entropy`."""
    return cross_entropy(model(inputs).flatten(0, -2), targets.flatten(), **options)


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step of the optimizer."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_gpt(make_optimizer: Callable, factor: float = 1.0, limit: float = float("inf")) -> Tensor:
    """Train the GPT for 30 steps on a loss times a factor; return how its weights have moved."""
    model = small_gpt(torch.float64)
    start = parameters_to_vector(model.parameters()).detach()
    optimizer = make_optimizer(model.parameters())
    torch.manual_seed(1)
    for _ in range(30):
        optimizer.zero_grad()
        (factor * loss_of(model, *windows(8))).backward()
        clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - start


# `draw_copies`, `draw_apart` and `draw_errors_by_ranks` show figures with a sentence that in the
# lesson would answer the question right above it.


def draw_copies(differing: Mapping[int, int], of: int) -> None:
    """Draw how many numbers differ from the average of their copies, by the number of ranks."""
    figure, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
    names = [str(ranks) for ranks in differing]
    bars = axis.bar(names, list(differing.values()), color="#0072B2")
    axis.bar_label(bars)
    axis.set(xlabel="ranks", ylabel=f"of {of:,} differ", ylim=(0, 1.2 * max(differing.values())))
    show(figure, "Two and four ranks: none differs. Three and eight: many do.")


def ring_orders(brought: Sequence[Tensor], total: Tensor) -> list[list[tuple[int, ...]]]:
    """The orders of adding that give all bits of each quarter of a sum over four ranks.

    Args:
        brought: What each of four ranks brought, of shape (numbers,).
        total: What `all_reduce` made of it, of the same shape.

    Returns:
        For each quarter, those of all 24 orders that fit.
    """
    found = []
    for quarter in range(4):
        part = slice(quarter * len(total) // 4, (quarter + 1) * len(total) // 4)
        fitting = []
        for order in itertools.permutations(range(4)):
            added = sum(brought[rank][part] for rank in order)
            if torch.equal(added, total[part]):
                fitting.append(order)
        found.append(fitting)
    return found


def _different_steps(order: Sequence[int]) -> int:
    return len({(after - before) % 4 for before, after in itertools.pairwise(order)})


def ring(orders: Sequence[Sequence[Sequence[int]]]) -> Figure:
    """In which order four ranks add each quarter of a tensor, as squares from left to right.

    Of several orders that fit, the one is drawn whose steps are all alike, as in a ring.
    """
    figure, axis = plt.subplots(figsize=(6, 2.4), layout="constrained")
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
    for quarter, fitting in enumerate(orders):
        for place, rank in enumerate(min(fitting, key=_different_steps, default=())):
            square = plt.Rectangle((place, quarter), 0.95, 0.9, fc=colours[rank], alpha=0.5)
            axis.add_patch(square)
            axis.text(place + 0.47, quarter + 0.45, f"rank {rank}", ha="center", va="center")
    axis.set_yticks([quarter + 0.45 for quarter in range(4)], [f"quarter {q}" for q in range(4)])
    axis.set_xticks([place + 0.47 for place in range(4)], ["first", "second", "third", "fourth"])
    axis.set(xlim=(0, 4), ylim=(4, 0))
    axis.spines[:].set_visible(False)
    return figure


def draw_apart(differences: Mapping[tuple[str, torch.dtype], Tensor]) -> None:
    """Draw the largest difference of a weight, every second step, by run and by dtype."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.6), sharey=True, layout="constrained")
    names = list(dict.fromkeys(name for name, _ in differences))
    for axis, dtype in zip(axes, (torch.float32, torch.float64), strict=True):
        for number, name in enumerate(names):
            style = plain_style(number) | {"markersize": 5, "markevery": 3}
            axis.plot(range(2, 21, 2), differences[name, dtype], label=name, **style)
        title = str(dtype).removeprefix("torch.")
        axis.set(title=title, xlabel="step", yscale="log", ylim=(1e-14, 1))
    axes[0].set_ylabel("largest difference of a weight")
    axes[0].legend(fontsize=9, loc="lower left")
    text = "Left, in float32, the three lines meet. Right, in float64, rounding ends below 1e-9"
    show(figure, f"{text}, the bug above 1e-4.")


def draw_errors_by_ranks(errors: Mapping[str, Mapping[int, float]]) -> None:
    """Draw the relative error of a sum by the number of ranks, a line for each dtype."""
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for number, (name, by_ranks) in enumerate(errors.items()):
        axis.plot(list(by_ranks), list(by_ranks.values()), label=name, **plain_style(number))
    ranks = list(next(iter(errors.values())))
    axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="relative error of the sum")
    axis.set_xticks(ranks, ranks)
    axis.minorticks_off()
    axis.legend()
    text = "Both errors grow slowly with the number of ranks; bfloat16's is the larger by 2 to the"
    show(figure, f"{text} 16.")


def ones(totals: Mapping[str, Sequence[int]], counts: Sequence[int]) -> Figure:
    """The total of ones in bfloat16, by the number of ranks, for each order of adding."""
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for number, (name, values) in enumerate(totals.items()):
        axis.plot(counts, values, label=name, **plain_style(number))
    axis.set(xscale="log", yscale="log", xlabel="ranks in the model", ylabel="total of the ones")
    axis.set_xticks(counts, counts)
    axis.minorticks_off()
    axis.legend()
    return figure


def batches(ends: Mapping[float, Mapping[str, Sequence[float]]]) -> Figure:
    """Losses at the end by global batch, three seeds and their median; a panel for each rate."""
    figure, axes = plt.subplots(1, len(ends), figsize=(10, 3.4), sharey=True, layout="constrained")
    for axis, (rate, losses) in zip(axes, ends.items(), strict=True):
        for place, values in enumerate(losses.values()):
            axis.plot([place - 0.25, place + 0.25], [np.median(values)] * 2, color="#222222")
            spots = place + np.linspace(-0.16, 0.16, len(values))
            axis.plot(spots, values, "o", ms=6, mfc="none", mec="#555555")
        axis.set_xticks(range(len(losses)), list(losses), fontsize=9)
        axis.set(yscale="log", title=f"SGD, rate {rate}", xlabel="global batch")
    axes[0].set_ylabel("training loss at the end")
    return figure


def noise(exact: Mapping[int, float], estimated: Mapping[int, float]) -> Figure:
    """The gradient noise scale by the number of steps trained: of all samples, and estimated."""
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for number, (name, values) in enumerate((("all samples", exact), ("two batches", estimated))):
        axis.plot(list(values), list(values.values()), label=name, **plain_style(number))
    axis.set(xlabel="steps trained", ylabel="noise scale (digits)", yscale="log")
    axis.legend()
    return figure


def off_one_process(shares: Mapping[str, float], words: str) -> Figure:
    """How far gradients are off one process, in percent, a bar for each way to make them."""
    figure, axis = plt.subplots(figsize=(7, 0.5 + 0.4 * len(shares)), layout="constrained")
    bars = axis.barh(list(shares), [100 * share for share in shares.values()], color="#0072B2")
    axis.bar_label(bars, fmt="%.1f %%", padding=3)
    axis.invert_yaxis()
    axis.set(xlabel=words, xlim=(0, 125 * max(shares.values())))
    return figure


def norms(errors: Mapping[str, Tensor], sizes: Sequence[int]) -> Figure:
    """The relative error of the gradient by the local batch, a line for each norm."""
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for number, (name, of_sizes) in enumerate(errors.items()):
        axis.plot(sizes, of_sizes, label=name, **plain_style(number))
    axis.set(xscale="log", yscale="log", ylim=(1e-8, 10))
    axis.set_xticks(sizes, sizes)
    axis.minorticks_off()
    axis.set(xlabel="local batch (digits per rank)", ylabel="relative error of the gradient")
    axis.legend()
    return figure


def sample_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The gradient of each sample by itself, of shape (samples, numbers of the model)."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        output = functional_call(model, values, (image[None],))
        return cross_entropy(output, label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)


def exact_noise_scale(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The noise scale of all samples: the sum of variances over the squared norm of the mean.

    Source: McCandlish and others, https://arxiv.org/abs/1812.06162, equation 2.9.
    """
    total, squares = torch.zeros(()), torch.zeros(())
    for part in zip(images.split(64), labels.split(64), strict=True):  # all at once fill 300 MB
        gradients = sample_gradients(model, *part)
        total = total + gradients.sum(dim=0)
        squares = squares + (gradients**2).sum()
    squared_norm = ((total / len(images)) ** 2).sum()
    variance = squares / len(images) - squared_norm
    return (variance / squared_norm).item()


def two_batches(gradient: Tensor, local_batch: int) -> tuple[float, float]:
    """Variance and squared norm of the true gradient, estimated without bias from the ranks.

    Source: McCandlish and others, https://arxiv.org/abs/1812.06162, appendix A.1.

    Args:
        gradient: This rank's gradient, of shape (numbers,), the mean over its local batch.
        local_batch: Samples of each rank.
    """
    world_size = dist.get_world_size()
    small = (gradient**2).sum()
    dist.all_reduce(small, op=dist.ReduceOp.AVG)
    average = gradient.clone()
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    big = (average**2).sum()
    variance = (small - big) / (1 / local_batch - 1 / (world_size * local_batch))
    squared_norm = (world_size * big - small) / (world_size - 1)
    return variance.item(), squared_norm.item()


def _from_norms(small: float, big: float, few: int, many: int) -> tuple[float, float]:
    squared_norm = (many * big - few * small) / (many - few)
    variance = (small - big) / (1 / few - 1 / many)
    return variance, squared_norm


NOISE_CASES = {"batches of 1": 1, "batches of 8": 8, "batches of 64": 64}


def _noise_spec(gradients: list[Tensor], local_batches: list[int]) -> list[tuple[float, float]]:
    rows = torch.stack(gradients)
    small = (rows**2).sum(dim=1).mean().item()
    average = rows.mean(dim=0)
    big = (average**2).sum().item()
    few = local_batches[0]
    many = len(gradients) * few
    both = _from_norms(small, big, few, many)
    return [both] * len(gradients)


def _noise_inputs(rank: int, world_size: int, case: str) -> tuple[Tensor, int]:
    return 1 + torch.randn(5, dtype=torch.float64), NOISE_CASES[case]


def in_numbers(answer: Callable) -> Callable:
    """Take tensors of one number as well for an answer's two; refuse a gradient that it changed."""

    @functools.wraps(answer)
    def numbers(gradient: Tensor, local_batch: int) -> tuple[float, ...] | None:
        before = gradient.clone()
        result = answer(gradient, local_batch)
        if result is None:
            return None
        if not torch.equal(gradient, before):
            raise RuntimeError("the gradient has changed: a training still needs it as it was")
        return tuple(float(value) for value in result)

    return numbers


noise_judged = {"spec": _noise_spec, "inputs": _noise_inputs, "cases": list(NOISE_CASES)}
noise_judged |= {"world_sizes": (2, 3, 4), "rtol": 1e-9, "atol": 1e-9}

CLIP_CASES = {"one piece": (1, 0.1), "three pieces": (3, 0.1), "a limit never reached": (2, 1e6)}


@dataclass
class Step:
    """A rank's arguments, which a table shows in a few words."""

    model: nn.Module
    pieces: list
    limit: float

    def __repr__(self) -> str:
        count = len(self.pieces)
        plural = "s" if count > 1 else ""
        return f"{count} piece{plural}, limit {self.limit:,.10g}"


def _report(model: nn.Module, norm: float | None) -> dict:
    flat = parameters_to_vector(parameter.grad for parameter in model.parameters())
    return {"norm before clipping": norm, "gradient": flat}


def in_ddp(answer: Callable) -> Callable[[Step], dict]:
    """Wrap a step's model in DDP, call the answer, and return the norm and all gradients."""

    @functools.wraps(answer)
    def gradient(step: Step) -> dict:
        model = DistributedDataParallel(step.model)
        return _report(model, answer(model, step.pieces, step.limit))

    return gradient


def _clip_spec(steps: list[Step]) -> list[dict]:
    model = steps[0].model
    pieces = [piece for step in steps for piece in step.pieces]
    for inputs, targets in pieces:
        (mse_loss(model(inputs), targets) / len(pieces)).backward()
    norm = clip_grad_norm_(model.parameters(), steps[0].limit)
    return [_report(model, norm.item())] * len(steps)


def _clip_inputs(rank: int, world_size: int, case: str) -> Step:
    count, limit = CLIP_CASES[case]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    numbers = (1 + rank) * torch.randn(count, 3, 6, dtype=torch.float64)
    pieces = [(piece[:, :4], piece[:, 4:]) for piece in numbers]
    return Step(model, pieces, limit)


clip_judged = {"spec": _clip_spec, "inputs": _clip_inputs, "cases": list(CLIP_CASES)}
clip_judged |= {"rtol": 1e-5, "atol": 1e-8}  # torch adds 1e-6 to the norm it divides by
