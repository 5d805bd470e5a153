"""Chapter 17's pictures: who holds which part of a block, and what cutting it costs."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course_lessons.chapter_17 import Errors, wrong_ones
from course_lessons.drawing import bare
from course_utils import show
from course_utils.pictures.style import rank_style

_GREY = "#DDDDDD"
_RIGHT, _WRONG = ("#009E73", None), ("#D55E00", "///")
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
    show(figure, " ".join(sentences))


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
    show(figure, f"In total: {', '.join(totals)}. {look}")
