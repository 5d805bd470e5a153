"""Chapter 17's pictures: who holds which part of a block, yours too, and what it costs."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from torch import nn
from torch.nn.functional import gelu

from course_lessons.chapter_17 import Errors, wrong_ones
from course_lessons.drawing import Box, bare, box_figure, first_answers
from course_utils import show
from course_utils.pictures.style import rank_style

_GREY = "#DDDDDD"
_RIGHT, _WRONG = ("#009E73", None), ("#D55E00", "///")
_RIGHT_BOX, _WRONG_BOX = ("#009E7355", ""), ("#E69F0088", "////")
_PLANS = {"tensor": ("#0072B2", None), "data": ("#E69F00", "///")}


def _matrix(axis: Axes, left: float, width: float, height: float, cut: str, name: str) -> None:
    """A matrix of two ranks: "columns", "rows", "sum" (each has a partial one) or "whole"."""
    top = (3 - height) / 2
    halves = {
        "columns": [(left, top, width / 2, height), (left + width / 2, top, width / 2, height)],
        "rows": [(left, top, width, height / 2), (left, top + height / 2, width, height / 2)],
    }
    parts = halves.get(cut, [(left, top, width, height)])
    for rank, (x, y, wide, high) in enumerate(parts):
        colour = rank_style(rank)["color"] if len(parts) > 1 else _GREY
        hatch = "///" if rank else None
        style = {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}
        axis.add_patch(plt.Rectangle((x, y), wide, high, **style))
    axis.text(left + width / 2, top - 0.12, name, ha="center", va="bottom")


def draw_block() -> None:
    """Draw a block of two ranks: A by columns, B by rows, and one sum."""
    figure, axes = plt.subplots(figsize=(9, 2.2), layout="constrained")
    _matrix(axes, 0.0, 1.2, 1.4, "whole", "X, whole")
    axes.text(1.45, 1.5, "@", ha="center", va="center")
    _matrix(axes, 1.7, 2.4, 1.2, "columns", "A by columns")
    axes.text(4.6, 1.5, "gelu →", ha="center", va="center")
    _matrix(axes, 5.1, 2.4, 1.4, "columns", "hidden, by columns")
    axes.text(7.75, 1.5, "@", ha="center", va="center")
    _matrix(axes, 8.0, 1.2, 2.4, "rows", "B by rows")
    axes.text(9.95, 1.5, "sum over\nranks →", ha="center", va="center")
    _matrix(axes, 10.7, 1.2, 1.4, "whole", "Y, whole")
    axes.set(xlim=(-0.1, 12), ylim=(3.1, -0.3), aspect="equal")
    axes.axis("off")
    text = "Blue is rank 0, hatched orange is rank 1, and grey is whole on both. "
    show(figure, text + "There's one sum, at the very end.")


def draw_functions(*pairs: tuple[type, type]) -> None:
    """Let Copy and Sum work in two ranks around a product, and draw all numbers.

    Args:
        pairs: The first one that neither raises nor hangs is drawn, also if it is wrong.
    """
    drawable = first_answers(pairs, lambda pair: lambda: _around_a_product(*pair), 2)
    if drawable is None:
        return
    (copy, total), numbers = drawable
    wanted = [[2, 2, 8, 1, 1, 4], [2, 6, 8, 1, 3, 4]]
    columns = ["Copy(x)", "product", "Sum", "of product", "of Copy(x)", "of x"]
    rows = {}
    for rank, factor in enumerate((1, 3)):
        boxes = []
        for number, right in zip(numbers[rank], wanted[rank], strict=True):
            fill, hatch = _RIGHT_BOX if number == right else _WRONG_BOX
            boxes.append(Box(f"{number:g}", fill, hatch=hatch, bold=True))
        rows[f"rank {rank}, x = 2, times {factor}"] = [*boxes[:3], None, *boxes[3:]]
    figure = box_figure(rows, [*columns[:3], "", *columns[3:]], width=1.0)
    for middle, title in ((1.5, "forward →"), (5.5, "gradients in backward →")):
        figure.axes[0].text(middle, -0.75, title, ha="center", fontsize=10)
    sentences = []
    for name, pair in zip(columns, zip(*numbers, strict=True), strict=True):
        sentences.append(f"{name} {pair[0]:g} and {pair[1]:g}")
    phrase = f"forward, {', '.join(sentences[:3])}; gradients {', '.join(sentences[3:])}"
    names = f"{copy.__name__} and {total.__name__}"
    hatched = "What isn't as in one process is hatched."
    caption = f"{hatched} On the way back the gradients run from left to right as well."
    show(figure, f"{names} on ranks 0 and 1: {phrase}. {hatched}", caption)


def _around_a_product(copy: type, total: type) -> list[float]:
    """In a rank: what Copy, a product and Sum return, and the gradients before each of them."""
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    copied = copy.apply(x)
    copied.retain_grad()
    partial = copied * (1 + 2 * dist.get_rank())
    partial.retain_grad()
    summed = total.apply(partial)
    numbers = [copied.item(), partial.item(), summed.item()]
    summed.backward(torch.ones_like(summed))
    for tensor in (partial, copied, x):
        numbers.append(0.0 if tensor.grad is None else tensor.grad.item())
    return numbers


def draw_layers(*pairs: tuple[type[nn.Module], type[nn.Module]]) -> None:
    """Draw which numbers of two whole layers each of two ranks holds, and what comes out.

    Args:
        pairs: The first one that neither raises nor hangs is drawn, also if it is wrong.
    """
    drawable = first_answers(pairs, lambda pair: lambda: _cut_block(*pair), 2)
    if drawable is None:
        return
    (column, row), answers = drawable
    wholes = [parameter.detach() for parameter in _whole_block().parameters()]
    figure, axes = plt.subplots(figsize=(7.2, 2.6), layout="constrained")
    sentences = []
    places = {"A's weight": 0, "A's bias": 5.5, "B's weight": 9, "B's bias": 18.5}
    for number, (title, left) in enumerate(places.items()):
        shares = [held[number] for held, _ in answers]
        _draw_owners(axes, left, wholes[number], shares)
        columns = wholes[number].shape[1] if wholes[number].dim() == 2 else 1
        axes.text(left + columns / 2, -0.4, title, ha="center", fontsize=10)
        counts = [int(torch.isin(wholes[number], share).sum()) for share in shares]
        sentences.append(f"{title} {counts[0]} and {counts[1]} of {wholes[number].numel()}")
    verdicts = [f"{name} {word}" for name, word in zip(_OUTCOMES, answers[0][1], strict=True)]
    axes.text(9, 7, "\n".join(verdicts), fontsize=10, va="center")
    axes.set(xlim=(-0.1, 20.5), ylim=(8.1, -1.2), aspect="equal")
    axes.axis("off")
    names = f"{column.__name__} and {row.__name__}"
    text = f"{names}: {', '.join(verdicts)}. Numbers on rank 0 (blue) and rank 1 (hatched): "
    text += f"{', '.join(sentences)}. Grey is on both, white on none."
    caption = (
        "A square is a number: blue on rank 0, hatched on rank 1, grey on both, white on none."
    )
    show(figure, text, caption)


_OUTCOMES = ("output", "gradient of x", "gradients of A and B")


def _whole_block() -> nn.Sequential:
    """Both layers, as (outputs, inputs), with numbers that are all different."""
    block = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).double()
    first = 1
    with torch.no_grad():
        for parameter in block.parameters():
            numbers = torch.arange(first, first + parameter.numel(), dtype=torch.float64)
            parameter.copy_(numbers.view_as(parameter) / 100)
            first += parameter.numel()
    return block


def _cut_block(column: type[nn.Module], row: type[nn.Module]) -> tuple[list, list[str]]:
    """In a rank: what both layers hold, and whether output and gradient are right."""
    block = _whole_block()
    first, second = column(block[0]), row(block[1])
    held = [first.weight, first.bias, second.weight, second.bias]
    results = []
    for up, down in ((block[0], block[1]), (first, second)):
        x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(2, 4).requires_grad_()
        y = down(gelu(up(x)))
        y.square().sum().backward()
        results.append((y.detach(), torch.zeros_like(x) if x.grad is None else x.grad))
    is_right = []
    for right, outcome in zip(*results, strict=True):
        is_right.append(right.shape == outcome.shape and torch.allclose(right, outcome, rtol=1e-10))
    is_right.append(all(map(_has_right_gradients, held, block.parameters())))
    verdicts = ["right" if each else "wrong" for each in is_right]
    return [parameter.detach() for parameter in held], verdicts


def _has_right_gradients(share: torch.Tensor, parameter: nn.Parameter) -> bool:
    """Whether each number of a share has the gradient that it has in the whole parameter."""
    if share.grad is None:
        return False
    is_same = share.detach().reshape(-1, 1) == parameter.detach().flatten()
    right = parameter.grad.flatten()[is_same.int().argmax(dim=1)]
    is_known = is_same.any(dim=1).all()
    return bool(is_known) and torch.allclose(share.grad.flatten(), right, rtol=1e-10)


def _draw_owners(
    axes: Axes, left: float, tensor: torch.Tensor, shares: Sequence[torch.Tensor]
) -> None:
    """A square for each number of a tensor: whose it is."""
    grid = tensor if tensor.dim() == 2 else tensor.unsqueeze(1)
    owned = [torch.isin(grid, share) for share in shares]
    for y in range(grid.shape[0]):
        for x in range(grid.shape[1]):
            ranks = [rank for rank in (0, 1) if owned[rank][y, x]]
            colour = _GREY if len(ranks) == 2 else "white"
            if len(ranks) == 1:
                colour = rank_style(ranks[0])["color"]
            hatch = "////" if ranks == [1] else None
            edge = "white" if ranks else "#999999"
            style = {"facecolor": colour, "hatch": hatch, "edgecolor": edge}
            axes.add_patch(plt.Rectangle((left + x, y), 0.94, 0.94, **style))


def draw_heads(rows_of: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Draw which rows of one weight each rank takes as queries, keys and values.

    Args:
        rows_of: By the name of the cut, for each rank the numbers of its rows, in its order.
    """
    size = (9, 0.4 + 1.1 * len(rows_of))
    figure, panels = plt.subplots(len(rows_of), 1, figsize=size, layout="constrained", sharex=True)
    kinds = ("queries", "keys", "values")
    sentences = []
    for axes, (name, by_rank) in zip(panels, rows_of.items(), strict=True):
        third = sum(len(rows) for rows in by_rank) // 3
        phrases = []
        for rank, rows in enumerate(by_rank):
            taken = []
            for number, (kind, part) in enumerate(zip(kinds, rows.chunk(3), strict=True)):
                first, last = int(part[0]), int(part[-1])
                is_right = first // third == last // third == number
                fill, hatch = _RIGHT_BOX if is_right else _WRONG_BOX
                bar = {"facecolor": fill, "hatch": hatch, "edgecolor": "#777777"}
                axes.barh(rank, len(part), 0.8, first, align="center", **bar)
                behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                words = {"ha": "center", "va": "center", "fontsize": 9, "bbox": behind}
                axes.text(first + len(part) / 2, rank, f"as {kind}", **words)
                taken.append(f"{first}–{last}")
            phrases.append(f"rank {rank} {', '.join(taken)}")
        sentences.append(f"{name}, {'; '.join(phrases)}")
        ranks = range(len(by_rank))
        names = [f"rank {rank}" for rank in ranks]
        bare(axes, yticks=ranks, yticklabels=names, xlim=(0, 3 * third))
        axes.set_title(name, loc="left", fontsize=10)
        axes.invert_yaxis()
        for edge in range(4):
            axes.axvline(edge * third, color="black", linewidth=0.8)
    middles = [(number + 0.5) * third for number in range(3)]
    panels[-1].set_xticks(middles, [f"rows of {kind}" for kind in kinds])
    panels[-1].tick_params(axis="x", length=0)
    words = "Rows that a rank takes as queries, keys and values, hatched if they are something else"
    show(figure, f"{words}: {'. '.join(sentences)}.", f"{words}.")


def draw_errors(errors: Mapping[str, Errors]) -> None:
    """Draw of each way how far its gradients are off."""
    behind_words = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    names = list(next(iter(errors.values())).gradients)
    figure, axes = plt.subplots(figsize=(8, 2.2), layout="constrained")
    for row, way in enumerate(errors.values()):
        wrong = wrong_ones(way)
        for column, name in enumerate(names):
            colour, hatch = _WRONG if name in wrong else _RIGHT
            style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
            axes.barh(row, 0.94, 0.9, column, align="center", **style)
            word = f"off by {way.gradients[name]:.0%}" if name in wrong else "right"
            place = {"ha": "center", "va": "center", "fontsize": 9, "bbox": behind_words}
            axes.text(column + 0.47, row, word, **place)
    middles = [column + 0.47 for column in range(len(names))]
    bare(axes, yticks=range(len(errors)), yticklabels=list(errors), xticks=middles)
    axes.set_xticklabels([f"gradient of\n{name}" for name in names])
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    sentences = [
        "No Copy: everything before the last block is wrong.",
        "functional.all_reduce: everything is wrong, twice as large for each Sum on the way back.",
        "Errors are relative to the largest number of that gradient.",
    ]
    caption = f"From right to left, as in backward: where does each way go wrong? {sentences[-1]}"
    show(figure, " ".join(sentences), caption)


def draw_bytes(rows: Sequence[int], tensor_kib: Sequence[float], data_kib: float) -> None:
    """Draw KiB sent in a step by the number of rows, for both ways."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.plot(rows, tensor_kib, color="#0072B2", marker="s", label="tensor parallel")
    data = {"color": "#E69F00", "marker": "o", "linestyle": "--", "label": "data parallel"}
    axes.plot(rows, [data_kib] * len(rows), **data)
    bare(axes, xlabel="rows of the batch", ylabel="KiB sent per rank", xticks=rows, ylim=(0, None))
    axes.legend(frameon=False)
    crossing = rows[0] * data_kib / tensor_kib[0]
    grows = "Tensor parallel's bytes grow with the rows, data parallel's stay."
    show(figure, f"{grows} The lines cross at about {crossing:.0f} rows.")


def draw_kept(kib: Mapping[str, tuple[float, float]]) -> None:
    """Draw KiB sent and KiB kept, with whole rows and with cut ones."""
    figure, axes = plt.subplots(figsize=(7, 1.8), layout="constrained")
    for place, (sent, kept) in enumerate(kib.values()):
        axes.barh(place - 0.2, sent, 0.36, color="#0072B2", label="sent" if not place else None)
        style = {"color": "#E69F00", "hatch": "///", "edgecolor": "white"}
        axes.barh(place + 0.2, kept, 0.36, label="kept" if not place else None, **style)
    bare(axes, yticks=range(len(kib)), yticklabels=list(kib), xlabel="KiB per rank")
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, "Both send the same amount, but with cut rows a rank keeps less.")


def draw_plans(prices: Mapping[int, Mapping[str, float]]) -> None:
    """Draw microseconds of both kinds of calls, by how many ranks cut a layer."""
    figure, axes = plt.subplots(figsize=(7, 1.9), layout="constrained")
    labels = {"tensor": "cutting the layer", "data": "summing gradients"}
    for place, by_kind in enumerate(prices.values()):
        left = 0.0
        for kind, (colour, hatch) in _PLANS.items():
            style = {"color": colour, "hatch": hatch, "edgecolor": "white"}
            label = labels[kind] if place == 0 else None
            axes.barh(place, by_kind[kind], 0.7, left, label=label, **style)
            left += by_kind[kind]
    names = []
    for tensor in prices:
        copies = 8 // tensor
        names.append(f"cut among {tensor}, {copies} {'copy' if copies == 1 else 'copies'}")
    bare(axes, yticks=range(len(prices)), yticklabels=names, xlabel="µs on the modelled network")
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    totals = []
    for tensor, by_kind in prices.items():
        totals.append(f"{sum(by_kind.values()):.1f} µs cut among {tensor}")
    look = "Blue is long where the layer's own calls cross nodes; otherwise only gradients do."
    caption = "The shorter the bar, the better. Which calls cross nodes in each of the plans?"
    show(figure, f"In total: {', '.join(totals)}. {look}", caption)
