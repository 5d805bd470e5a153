"""Rank by time: who computes, communicates and waits when."""

from collections import defaultdict
from typing import TYPE_CHECKING

from course_utils.network.network import Network
from course_utils.pictures.activity import activity
from course_utils.pictures.bars import ARROWS, INK, KINDS, Activity, coarse, lanes
from course_utils.pictures.style import show
from course_utils.pictures.words import real_text, virtual_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from course_utils.network.replay import Replay
    from course_utils.network.trace import Trace

_PIXELS = 1500  # at most so many bars side by side


def plot_timeline(
    source: "Trace | Replay",
    text: str | None = None,
    network: Network | None = None,
) -> None:
    """Show who does what when, a row per rank.

    Args:
        source: `results.trace`, in real time; or a replay of it, on the virtual clock.
        text: The sentence below the picture, which strict tests compare. By default what is the
            same in every run: of a replay who is done when and how long it waited in calls, of
            real time only how many calls of which kind each rank made.
        network: A trace is replayed on it; a replay names its own.

    Raises:
        TypeError: `source` is neither.
        ReplayError: A message or a collective has no partner, and a network was given.
    """
    what = activity(source, network)
    if text is None:
        text = real_text(source) if what.unit == "ms" else virtual_text(what)
    show(draw(what), text)


def draw(what: Activity) -> "Figure":
    """Draw the picture, on white, with its legend above."""
    import matplotlib.pyplot as plt

    height = min(7.5, max(1.0, 0.62 * what.world_size)) + 1.1
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    rows = lanes(what.bars)
    _bars(axes, what, rows)
    if len(what.arrows) <= ARROWS:
        _arrows(axes, what, rows)
    axes.set(xlabel=what.clock, xlim=(0, max(what.end, 1e-9) * 1.01))
    axes.set_ylim(what.world_size - 0.1, -0.1)
    step = 1 + what.world_size // 33
    axes.set_yticks([r + 0.45 for r in range(0, what.world_size, step)])
    axes.set_yticklabels([f"rank {r}" for r in range(0, what.world_size, step)])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    _legend(figure, rows, bool(what.arrows) and len(what.arrows) <= ARROWS)
    return figure


def _bars(axes: "Axes", what: Activity, rows: dict[str, tuple[float, float]]) -> None:
    """Draw each kind of each rank in one stroke; what is short stays as wide as its edge."""
    spans = defaultdict(list)
    for bar in coarse(what.bars, what.end / _PIXELS):
        spans[bar.rank, bar.what].append((bar.start, bar.end - bar.start))
    for (rank, kind), own in spans.items():
        top, height = rows[kind]
        style, place = KINDS[kind], (rank + 0.9 * top, 0.9 * height)
        axes.broken_barh(own, place, facecolor=style.fill, edgecolor=style.fill, linewidth=0.8)
        axes.broken_barh(
            own, place, facecolor="none", edgecolor=style.ink, hatch=3 * style.hatch, linewidth=0
        )


def _arrows(axes: "Axes", what: Activity, rows: dict[str, tuple[float, float]]) -> None:
    """From the sender's port to the receiver's; a collective in real time has none."""
    middle = {kind: 0.9 * (top + height / 2) for kind, (top, height) in rows.items()}
    for arrow in what.arrows:
        axes.annotate(
            "",
            (arrow.end, arrow.target + middle["receive"]),
            (arrow.start, arrow.source + middle["send"]),
            arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.7, "shrinkA": 0,
                        "shrinkB": 0, "mutation_scale": 7, "alpha": 0.6},
        )  # fmt: skip


def _legend(figure: "Figure", rows: dict[str, tuple[float, float]], arrows: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries = []
    for kind, style in KINDS.items():
        if kind in rows:
            edge = style.ink if style.hatch else style.fill
            patch = Patch(
                facecolor=style.fill, edgecolor=edge, hatch=2 * style.hatch, label=style.name
            )
            entries.append(patch)
    if arrows:
        entries.append(Line2D([], [], color=INK, linewidth=0.8, marker=">", markersize=4,
                              label="a message"))  # fmt: skip
    if entries:
        figure.legend(handles=entries, loc="outside upper left", ncols=6, frameon=False, fontsize=9)
