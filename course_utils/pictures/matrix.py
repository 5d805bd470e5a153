"""Who sent how much to whom, as a matrix."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_utils.network.trace import Trace, Traffic
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import first_of, show, size, together


def plot_traffic(trace: Trace) -> None:
    """Show bytes and messages from each rank to each rank, with the totals below.

    Args:
        trace: `results.trace`; its collectives send in rings.

    Raises:
        TypeError: This is not a trace.
        ReplayError: A message or a collective has no partner.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"traffic is drawn of a recording, results.trace, not {trace!r:.80}")
    source = trace.traffic()
    pairs = zip(source.sent_bytes, source.received_bytes, strict=True)
    said = together(f"{out:,.10g} bytes out and {into:,.10g} in" for out, into in pairs)
    amount, count = sum(source.sent_bytes), sum(source.sent_messages)
    total = f"{amount:,.10g} bytes in {count:,} message{'s' * (count != 1)}"
    show(draw(source), f"{total}; {first_of(said)}")


def draw(traffic: Traffic) -> Figure:
    """Draw the matrix, from rank (rows) to rank (columns), darker for more bytes."""
    n, most = len(traffic.bytes), max(map(max, traffic.bytes))
    inches, letters = max(2.2, min(16.0, 0.85 * n)) + 0.6, min(8.5, 160 / n)
    figure, axes = plt.subplots(figsize=(inches, inches), layout="constrained")
    axes.imshow(traffic.bytes, cmap="Blues", vmin=0, vmax=most or 1)
    axes.set(xlabel="to rank", ylabel="from rank", xticks=range(n), yticks=range(n))
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_color("#DDDDDD")
    for source, row in enumerate(traffic.bytes):
        axes.axhline(source - 0.5, color="#EEEEEE", linewidth=0.8)
        axes.axvline(source - 0.5, color="#EEEEEE", linewidth=0.8)
        for target, amount in enumerate(row):
            count = traffic.messages[source][target]
            said = f"{size(amount)}\n{count:,} msg" if count else "·"
            colour = INK if 2 * amount <= most else "white"
            axes.text(target, source, said, ha="center", va="center", size=letters, color=colour)
    return figure
