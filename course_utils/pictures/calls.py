"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

import re
from collections import Counter

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.flight.explanation import Explanation
from course_utils.hang.facts import ranks_by_text
from course_utils.hang.wait_graph import differs
from course_utils.launcher.errors import WorkerTimeout
from course_utils.launcher.language import english
from course_utils.launcher.words import ranks_named
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import HIGH, cell, rank_rows
from course_utils.pictures.style import show
from course_utils.record.event import Event, Meeting, meetings

_LAST = 5  # collectives, at most
_WIDE = 2.5  # of a cell, which is 1 high
_MISSING = {"linewidth": 2, "linestyle": "--"}
_DIFFERS = {"linewidth": 2, "edgecolor": INK}
_IN = {"order": "kind", "evaluation": "mode", "shape": "shape or dtype"}  # else as it is called


def plot_calls(source: WorkerTimeout | Trace | Explanation) -> None:
    """Show the last five collectives of every rank, in order; what is missing or differs is marked.

    Of several groups it is the first in which a rank waits, or else the first one used.

    Args:
        source: The error of ranks that hang, `results.trace`, or what `explain_dumps` returns.

    Raises:
        TypeError: `source` is none of these.
        ValueError: No rank is known to have called a collective.
    """
    if isinstance(source, Trace):
        events, world_size = source.events, source.world_size
        open_calls = [call for call in events if not call.finished]
    elif isinstance(source, WorkerTimeout | Explanation):
        logs = source.waiting.values()
        events, world_size = [call for log in logs for call in log.calls], len(logs)
        open_calls = [call for log in logs for call in log.open_calls]
    else:
        raise TypeError(f"calls are drawn of a WorkerTimeout or of a trace, not {source!r:.80}")
    collectives = [m for m in meetings(events, world_size) if m.key[0] == "collective"]
    if not collectives:
        raise ValueError("no rank is known to have called a collective: look at its messages")
    shown = _of_one_group(collectives, open_calls)[-_LAST:]
    show(draw(shown, open_calls), words(shown))


def _of_one_group(collectives: list[Meeting], open_calls: list[Event]) -> list[Meeting]:
    """Those of the first group in which a rank waits, or else of the first one used."""
    first = collectives[0]
    for meeting in collectives:
        if any(call in open_calls for call in meeting.calls.values()):
            first = meeting
            break
    return [meeting for meeting in collectives if meeting.key == first.key]


@english()  # as are all other words of pictures
def words(shown: list[Meeting]) -> str:
    """What is missing and what differs, of several collectives in the first one."""
    sentences = []
    for meeting in shown:
        if differs_in := difference(meeting):
            labels = {rank: _label(call) for rank, call in sorted(meeting.calls.items())}
            groups = ranks_by_text(labels).items()
            by_label = "; ".join(f"{label} on {ranks_named(ranks)}" for label, ranks in groups)
            sentences.append(f"#{meeting.number} differs in {differs_in[0]}: {by_label}")
            break
    for meeting in shown:
        if meeting.missing:
            sentences.append(f"#{meeting.number} is missing on {ranks_named(meeting.missing)}")
            break
    numbers = f" #{shown[0].number}"
    if len(shown) > 1:
        numbers = f"s #{shown[0].number} to #{shown[-1].number}"
    group = ranks_named(shown[0].members)
    return f"Collective{numbers} of {group}: {'. '.join(sentences) or 'all the same'}."


def difference(meeting: Meeting) -> tuple[str, set[int]] | None:
    """What its calls differ in, and the ranks in the minority, or all."""
    calls = list(meeting.calls.values())
    kind = differs(calls)
    lines = {_line(call) for call in calls}
    if not kind and len(lines) == 1:
        return None
    counts = Counter(_label(call) for call in calls).most_common()
    commonest, often = counts[0]
    no_majority = len(counts) > 1 and counts[1][1] == often
    blamed = {call.rank for call in calls if no_majority or _label(call) != commonest}
    return _IN.get(kind, kind or "line"), blamed


def _line(call: Event) -> str:
    return re.search(r"line \d+|$", call.place)[0]


def _shape(call: Event) -> str:
    if call.kind == "barrier" or not call.dtype:
        return ""
    return str(call.shape)


def _label(call: Event) -> str:
    """What tells it from a different one, such as `all_reduce of float32 (4,), root 0, line 7`."""
    parts = [call.kind]
    if _shape(call):
        parts[0] += f" of {call.dtype} {_shape(call)}"
    if call.root is not None and call.kind != "barrier":
        parts.append(f"root {call.root}")
    if _line(call):
        parts.append(_line(call))
    return ", ".join(parts)


def draw(shown: list[Meeting], open_calls: list[Event]) -> Figure:
    """Draw a row per rank and a column per collective, and in which calls ranks are held."""
    ranks = sorted(shown[0].members)
    width = len(shown) * _WIDE
    row_inches = 1.2 * HIGH
    size = (row_inches * width + 0.7, row_inches * len(ranks) + 0.4)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    rank_rows(axes, ranks, width)
    for column, meeting in enumerate(shown):
        x = column * _WIDE
        axes.text(x + _WIDE / 2, -0.1, f"#{meeting.number}", ha="center", color=INK)
        _, blamed = difference(meeting) or ("", ())
        for y, rank in enumerate(ranks):
            if rank in meeting.missing:
                cell(axes, x, y, "missing", (), _WIDE, **_MISSING)
            else:
                call = meeting.calls[rank]
                _draw_call(axes, (x, y), call, call in open_calls, rank in blamed)
    return figure


def _draw_call(
    axes: Axes, corner: tuple[float, float], call: Event, is_open: bool, is_blamed: bool
) -> None:
    x, y = corner
    shape = _shape(call) if call.shape else ""  # "()" of a single number would be a riddle
    lines = [call.kind, f"{shape} {_line(call)}".strip()]
    if is_open:
        lines.append("waits here")
    text = "\n".join(line for line in lines if line)
    edge = _DIFFERS if is_blamed else {}
    cell(axes, x, y, text, (call.rank,), _WIDE, **edge)
    if is_blamed:
        axes.text(x + _WIDE - 0.25, y + 0.33, "≠", ha="center", weight="bold", color=INK)
