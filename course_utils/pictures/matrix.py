"""Who sent how much to whom, as a matrix."""

from typing import TYPE_CHECKING

from course_utils.network.replay import Traffic
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import show
from course_utils.pictures.words import SPOKEN, size, together

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PRINTED = 16  # ranks, at most, for which cells are printed


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
    sent, received = traffic.sent_bytes, traffic.received_bytes
    said = together(
        f"{out:,.10g} bytes out and {into:,.10g} in"
        for out, into in zip(sent, received, strict=True)
    )
    if len(said) > SPOKEN:
        most, least = sent.index(max(sent)), sent.index(min(sent))
        said = [
            f"of {len(sent)} ranks rank {most} sends most, {max(sent):,.10g} bytes, "
            f"and rank {least} least, {min(sent):,.10g} bytes"
        ]
    count = sum(traffic.sent_messages)
    plural = "s" * (count != 1)
    return f"{sum(sent):,.10g} bytes in {count:,} message{plural}; {'; '.join(said)}."


def draw(traffic: Traffic) -> "Figure":
    """Draw the matrix, from rank (rows) to rank (columns), darker for more bytes."""
    import matplotlib.pyplot as plt

    n, most = len(traffic.bytes), max(map(max, traffic.bytes))
    inches = max(2.2, min(8.0, 0.85 * n))
    figure, axes = plt.subplots(figsize=(inches + 0.6, inches + 0.6), layout="constrained")
    axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=most or 1)
    axes.set(xlabel="to rank", ylabel="from rank")
    axes.set_xticks(range(0, n, 1 + n // 17))
    axes.set_yticks(range(0, n, 1 + n // 17))
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_color("#DDDDDD")
    if n > _PRINTED:
        axes.set_title(f"the darkest cell: {size(most)}", y=-0.06, fontsize=10)
        return figure
    for source, row in enumerate(traffic.bytes):
        axes.axhline(source - 0.5, color="#EEEEEE", linewidth=0.8)
        axes.axvline(source - 0.5, color="#EEEEEE", linewidth=0.8)
        for target, amount in enumerate(row):
            count = traffic.messages[source][target]
            said = f"{size(amount)}\n{count:,} msg" if count else "·"
            colour = INK if 2 * amount <= most else "white"
            style = {"ha": "center", "va": "center", "size": 8.5 if n <= 8 else 6, "color": colour}
            axes.text(target, source, said, **style)
    return figure
