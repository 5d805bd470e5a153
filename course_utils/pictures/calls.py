"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

import re
from collections import Counter

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_utils.hang.deadlock import differs
from course_utils.hang.facts import together
from course_utils.launcher.errors import WorkerTimeout
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


def plot_calls(source: WorkerTimeout | Trace) -> None:
    """Show the last five collectives of every rank, in order; what is missing or differs is marked.

    Of several groups it is the first in which a rank waits, or else the first one used.

    Args:
        source: The error of ranks that hang, or `results.trace`.

    Raises:
        TypeError: `source` is neither.
        ValueError: No rank is known to have called a collective.
    """
    if isinstance(source, Trace):
        events, size = source.events, source.world_size
        held = [call for call in events if not call.finished]
    elif isinstance(source, WorkerTimeout):
        events, size = [c for r in source.waiting.values() for c in r.calls], len(source.waiting)
        held = [call for one in source.waiting.values() for call in one.open]
    else:
        raise TypeError(f"calls are drawn of a WorkerTimeout or of a trace, not {source!r:.80}")
    found = [one for one in meetings(events, size) if one.key[0] == "collective"]
    if not found:
        raise ValueError("no rank is known to have called a collective: look at its messages")
    waited = (one for one in found if any(call in held for call in one.calls.values()))
    first = next(waited, found[0])
    met = [one for one in found if one.key == first.key][-_LAST:]
    show(draw(met, held), words(met))


def words(met: list[Meeting]) -> str:
    """What is missing and what differs, of several collectives in the first one."""
    said = []
    if other := next((one for one in met if difference(one)), None):
        labels = together({rank: _label(call) for rank, call in sorted(other.calls.items())})
        by = "; ".join(f"{label} on {ranks_named(who)}" for label, who in labels.items())
        said.append(f"#{other.number} differs in {difference(other)[0]}: {by}")
    if lacking := next((one for one in met if one.missing), None):
        said.append(f"#{lacking.number} is missing on {ranks_named(lacking.missing)}")
    to = f"s #{met[0].number} to #{met[-1].number}" if len(met) > 1 else f" #{met[0].number}"
    who = ranks_named(met[0].members)
    return f"Collective{to} of {who}: {'. '.join(said) or 'all the same'}."


def difference(met: Meeting) -> tuple[str, set[int]] | None:
    """What its calls differ in, and the ranks in the minority, or all."""
    calls = list(met.calls.values())
    what = differs(calls)
    if not what and len(set(map(_line, calls))) == 1:
        return None
    (most, often), *others = Counter(map(_label, calls)).most_common()
    even = others and others[0][1] == often
    return _IN.get(what, what or "line"), {c.rank for c in calls if even or _label(c) != most}


def _line(call: Event) -> str:
    return re.search(r"line \d+|$", call.place)[0]


def _shape(call: Event) -> str:
    return str(call.shape) if call.kind != "barrier" and call.dtype else ""


def _label(call: Event) -> str:
    """What tells it from another one, such as `all_reduce of float32 (4,), root 0, line 7`."""
    tensor = f" of {call.dtype} {_shape(call)}" if _shape(call) else ""
    root = "" if call.root is None or call.kind == "barrier" else f"root {call.root}"
    return ", ".join(filter(None, (call.kind + tensor, root, _line(call))))


def draw(met: list[Meeting], held: list[Event]) -> Figure:
    """Draw a row per rank and a column per collective, and in which calls ranks are held."""
    ranks, wide, row = sorted(met[0].members), len(met) * _WIDE, 1.2 * HIGH
    size = row * wide + 0.7, row * len(ranks) + 0.4
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    rank_rows(axes, ranks, wide)
    for column, one in enumerate(met):
        x = column * _WIDE
        axes.text(x + _WIDE / 2, -0.1, f"#{one.number}", ha="center", color=INK)
        _, blamed = difference(one) or ("", ())
        for y, rank in enumerate(ranks):
            if rank in one.missing:
                cell(axes, x, y, "missing", (), _WIDE, **_MISSING)
                continue
            call, edge = one.calls[rank], _DIFFERS if rank in blamed else {}
            below = f"{_shape(call)} {_line(call)}".strip()
            said = filter(None, (call.kind, below, "waits here" * (call in held)))
            cell(axes, x, y, "\n".join(said), (rank,), _WIDE, **edge)
            if edge:
                axes.text(x + _WIDE - 0.25, y + 0.33, "≠", ha="center", weight="bold", color=INK)
    return figure
