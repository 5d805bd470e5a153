"""Who sent how much to whom, as a matrix."""

from collections import defaultdict
from typing import TYPE_CHECKING

from course_utils.launcher.words import ranks
from course_utils.network.replay import Traffic
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import show
from course_utils.pictures.words import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PRINTED, _SPOKEN = 16, 8  # ranks, at most, for which cells are printed; groups that are named


def plot_traffic(
    source: "Trace | Traffic", text: str | None = None, algorithm: str = "ring"
) -> None:
    """Show bytes and messages from each rank to each rank.

    Args:
        source: `results.trace`, or its `traffic()`.
        text: The sentence below the picture; by default the totals.
        algorithm: Of a trace: how its collectives send, "ring", "tree" or "direct".

    Raises:
        TypeError: `source` is neither.
        ValueError: The algorithm is unknown.
        ReplayError: A message or a collective has no partner.
    """
    if isinstance(source, Trace):
        source = source.traffic(algorithm)
    if not isinstance(source, Traffic):
        raise TypeError(f"traffic is drawn of results.trace or its traffic(), not {source!r:.80}")
    show(draw(source), traffic_text(source) if text is None else text)


def traffic_text(traffic: Traffic) -> str:
    """The totals, and what each rank sends and receives."""
    groups = defaultdict(list)
    sent, received = traffic.sent_bytes, traffic.received_bytes
    for rank, (out, into) in enumerate(zip(sent, received, strict=True)):
        groups[f"{out:,.10g} bytes out and {into:,.10g} in"].append(rank)
    count = sum(traffic.sent_messages)
    total = f"{sum(sent):,.10g} bytes in {count:,} message{'s' * (count != 1)}"
    if len(groups) > _SPOKEN:
        most, least = sent.index(max(sent)), sent.index(min(sent))
        return (
            f"{total}; of {len(sent)} ranks rank {most} sends most, {max(sent):,.10g} bytes, "
            f"and rank {least} least, {min(sent):,.10g} bytes."
        )
    return f"{total}; " + "; ".join(f"{ranks(own)} {said}" for said, own in groups.items()) + "."


def draw(traffic: Traffic) -> "Figure":
    """Draw the matrix, from rank (rows) to rank (columns), darker for more bytes."""
    import matplotlib.pyplot as plt

    n = len(traffic.bytes)
    inches = max(2.2, min(8.0, 0.85 * n))
    figure, axes = plt.subplots(
        figsize=(inches + (1.7 if n > _PRINTED else 0.6), inches + 0.6), layout="constrained"
    )
    most = max(map(max, traffic.bytes))
    seen = [[b if m else float("nan") for b, m in zip(*rows, strict=True)]
            for rows in zip(traffic.bytes, traffic.messages, strict=True)]  # fmt: skip
    image = axes.imshow(seen, cmap="Blues", vmin=0, vmax=most or 1)
    step = 1 + n // 17
    axes.set(xlabel="to rank", ylabel="from rank", facecolor="white")
    axes.set_xticks(range(0, n, step))
    axes.set_yticks(range(0, n, step))
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_color("#DDDDDD")
    if n <= _PRINTED:
        _cells(axes, traffic, most)
        return figure
    bar = figure.colorbar(image, ax=axes, label="bytes", shrink=0.8)
    bar.formatter = lambda value, _: size(value)
    bar.outline.set_visible(False)
    bar.update_ticks()
    return figure


def _cells(axes: "Axes", traffic: Traffic, most: float) -> None:
    n = len(traffic.bytes)
    for source in range(n):
        for target in range(n):
            amount, count = traffic.bytes[source][target], traffic.messages[source][target]
            if not count:
                axes.text(target, source, "·", ha="center", va="center", color="#BBBBBB")
                continue
            axes.text(
                target, source, f"{size(amount)}\n{count:,} msg", ha="center", va="center",
                fontsize=8.5 if n <= 8 else 6, color="white" if 2 * amount > most else INK,
            )  # fmt: skip
    for at in range(1, n):
        axes.axhline(at - 0.5, color="#EEEEEE", linewidth=0.8)
        axes.axvline(at - 0.5, color="#EEEEEE", linewidth=0.8)
