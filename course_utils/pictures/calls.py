"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

import re
from collections import Counter, defaultdict

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_utils.hang.deadlock import differs
from course_utils.launcher.errors import WorkerTimeout
from course_utils.launcher.words import ranks_named as ranks
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import HIGH, cell, rank_rows
from course_utils.pictures.style import show
from course_utils.record.event import Event
from course_utils.record.meetings import meetings

_WIDE = 2.5  # of a cell, which is 1 high
_MISSING = {"linewidth": 2, "linestyle": "--"}
_DIFFERS = {"linewidth": 2, "edgecolor": INK}
_IN = {"order": "kind", "evaluation": "mode", "shape": "shape or dtype"}  # else as it is called


def plot_calls(source: WorkerTimeout | Trace, last: int = 5) -> None:
    """Show the last collectives of every rank, in order; what is missing or differs is marked.

    Args:
        source: The error of ranks that hang, or `results.trace`.
        last: How many collectives, at most.

    Raises:
        TypeError: `source` is neither.
        ValueError: No rank is known to have called a collective.
    """
    sequence = Sequence(source, last)
    show(draw(sequence), sequence.text())


class Sequence:
    """The last collectives of one group: the first in which a rank waits, else the first one used.

    Attributes:
        ranks: Of the group.
        met: The collectives, with the calls that have come to them.
        waits: Tells of a call whether its rank did not get out of it.
        different: What a collective differs in, and the ranks to blame, or all; by its number.
    """

    def __init__(self, source: WorkerTimeout | Trace, last: int) -> None:
        """Raise TypeError or ValueError where there are no collectives."""
        if isinstance(source, Trace):
            events, size = source.events, source.world_size
            self.waits = lambda call: not call.finished
        elif isinstance(source, WorkerTimeout):
            events = [call for one in source.waiting.values() for call in one.calls]
            size = len(source.waiting)
            self.waits = lambda call: call in source.waiting[call.rank].open
        else:
            raise TypeError(f"calls are drawn of a WorkerTimeout or of a trace, not {source!r:.80}")
        found = [one for one in meetings(events, size) if one.key[0] == "collective"]
        if not found:
            raise ValueError("no rank is known to have called a collective: look at its messages")
        first = next((one for one in found if any(map(self.waits, one.calls.values()))), found[0])
        self.ranks = sorted(first.members)
        self.met = [one for one in found if one.key == first.key][-last:]
        differences = {one.number: _difference(one.calls) for one in self.met}
        self.different = {number: what for number, what in differences.items() if what}

    def text(self) -> str:
        """What is missing and what differs, in words; of several collectives the first one."""
        first, last = self.met[0].number, self.met[-1].number
        said = []
        for one in [one for one in self.met if one.number in self.different][:1]:
            labels = defaultdict(list)
            for rank in sorted(one.calls):
                labels[_label(one.calls[rank])].append(rank)
            by = "; ".join(f"{label} on {ranks(who)}" for label, who in labels.items())
            said.append(f"#{one.number} differs in {self.different[one.number][0]}: {by}")
        lacking = [one for one in self.met if one.missing][:1]
        said += [f"#{one.number} is missing on {ranks(one.missing)}" for one in lacking]
        which = f"Collectives #{first} to #{last}" if first < last else f"Collective #{first}"
        return f"{which} of {ranks(self.ranks)}: {'. '.join(said) or 'all the same'}."


def _difference(calls: dict[int, Event]) -> tuple[str, set[int]] | None:
    what = differs(list(calls.values()))
    if not what and len(set(map(_line, calls.values()))) == 1:
        return None
    counts = Counter(map(_label, calls.values())).most_common()
    most = counts[0][0] if len(counts) == 1 or counts[0][1] > counts[1][1] else None
    return _IN.get(what, what or "line"), {r for r, call in calls.items() if _label(call) != most}


def _line(call: Event) -> str:
    found = re.search(r"line \d+", call.place)
    return found[0] if found else ""


def _shape(call: Event) -> str:
    return str(call.shape) if call.kind != "barrier" and call.dtype else ""


def _label(call: Event) -> str:
    """What tells it from another one, such as `all_reduce of float32 (4,), root 0, line 7`."""
    tensor = f" of {call.dtype} {_shape(call)}" if _shape(call) else ""
    root = "" if call.root is None or call.kind == "barrier" else f"root {call.root}"
    return ", ".join(filter(None, (call.kind + tensor, root, _line(call))))


def draw(sequence: Sequence) -> Figure:
    """Draw a row per rank and a column per collective."""
    wide, high, row = len(sequence.met) * _WIDE, len(sequence.ranks), 1.2 * HIGH
    figure, axes = plt.subplots(figsize=(row * wide + 0.7, row * high + 0.4), layout="constrained")
    rank_rows(axes, sequence.ranks, wide)
    for column, one in enumerate(sequence.met):
        x = column * _WIDE
        axes.text(x + _WIDE / 2, -0.1, f"#{one.number}", ha="center", color=INK)
        _, blamed = sequence.different.get(one.number, ("", ()))
        for y, rank in enumerate(sequence.ranks):
            if rank in one.missing:
                cell(axes, x, y, "missing", None, _WIDE, **_MISSING)
                continue
            call, edge = one.calls[rank], _DIFFERS if rank in blamed else {}
            below = f"{_shape(call)} {_line(call)}".strip()
            said = filter(None, (call.kind, below, "waits here" * sequence.waits(call)))
            cell(axes, x, y, "\n".join(said), rank, _WIDE, **edge)
            if edge:
                axes.text(x + _WIDE - 0.25, y + 0.33, "≠", ha="center", weight="bold", color=INK)
    return figure
