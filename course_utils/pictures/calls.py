"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from course_utils.hang.deadlock import differs
from course_utils.launcher.errors import WorkerTimeout
from course_utils.launcher.words import ranks_named as ranks
from course_utils.network.trace import Trace
from course_utils.pictures.cells import HIGH, cell, rank_rows
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import show
from course_utils.record.meetings import Key, meetings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course_utils.record.event import Event

_WIDE = 2.5  # of a cell, which is 1 high
_MISSING = {"linewidth": 2, "linestyle": "--"}
_DIFFERS = {"linewidth": 2, "edgecolor": INK}
_IN = {"order": "kind", "evaluation": "mode", "shape": "shape or dtype"}  # else as it is called


def plot_calls(source: WorkerTimeout | Trace, text: str | None = None, last: int = 5) -> None:
    """Show the last collectives of every rank, in order; what is missing or differs is marked.

    Args:
        source: The error of ranks that hang, or `results.trace`.
        text: The sentence below the picture; by default what is missing or differs.
        last: How many collectives, at most.

    Raises:
        TypeError: `source` is neither.
        ValueError: No rank is known to have called a collective.
    """
    sequence = Sequence(source, last)
    show(draw(sequence), sequence.text() if text is None else text)


class Cell(NamedTuple):
    """One collective of one rank; `waits` if the rank did not get out of it."""

    call: "Event"
    waits: bool

    @property
    def line(self) -> str:
        """Such as `line 7`."""
        found = re.search(r"line \d+", self.call.place)
        return found[0] if found else ""

    @property
    def lines(self) -> tuple[str, str]:
        """Such as `all_reduce` and `(4,) line 7`."""
        shape = f"{self.call.shape} " if self.call.kind != "barrier" and self.call.dtype else ""
        return self.call.kind, shape + self.line

    @property
    def label(self) -> str:
        """What tells it from another one, such as `all_reduce of float32 (4,), root 0, line 7`."""
        kind, rest = self.lines
        root = "" if self.call.root is None or kind == "barrier" else f", root {self.call.root}"
        rest = f" of {self.call.dtype} {rest}" if "(" in rest else f" {rest}"
        return (kind + rest.replace(" line", f"{root}, line")).rstrip()


class Sequence:
    """The collectives of one group: the first in which a rank waits, else the first one used.

    Attributes:
        rows: For each rank its cells, by the collective's number.
        numbers: Those that are looked at, the last ones.
        missing: Ranks that did not come to a collective, by its number.
        different: What a collective differs in, and the ranks to blame, or all; by its number.
    """

    def __init__(self, source: WorkerTimeout | Trace, last: int) -> None:
        """Raise TypeError or ValueError where there are no collectives."""
        found = list(_cells(source))
        if not found:
            raise ValueError("no rank is known to have called a collective: look at its messages")
        key, *_, first = next((one for one in found if one[3].waits), found[0])
        self.rows: dict[int, dict[int, Cell]] = {rank: {} for rank in sorted(first.call.group)}
        for its, number, rank, made in found:
            if its == key:
                self.rows[rank][number] = made
        self.numbers = sorted(set().union(*self.rows.values()))[-last:]
        columns = {n: {r: row[n] for r, row in self.rows.items() if n in row} for n in self.numbers}
        self.missing = {n: ranks(self.rows.keys() - own) for n, own in columns.items()
                        if len(own) < len(self.rows)}  # fmt: skip
        self.different = {n: found for n, own in columns.items() if (found := _difference(own))}

    def text(self) -> str:
        """What is missing and what differs, in words; of several collectives the first one."""
        first, last = self.numbers[0], self.numbers[-1]
        which = f"Collectives #{first} to #{last}" if first < last else f"Collective #{first}"
        said = []
        for number, (what, _) in list(self.different.items())[:1]:
            labels = defaultdict(list)
            for rank, row in self.rows.items():
                if number in row:
                    labels[row[number].label].append(rank)
            by = "; ".join(f"{label} on {ranks(who)}" for label, who in labels.items())
            said.append(f"#{number} differs in {what}: {by}")
        said += [f"#{n} is missing on {who}" for n, who in list(self.missing.items())[:1]]
        return f"{which} of {ranks(self.rows)}: {'. '.join(said) or 'all the same'}."


def _difference(cells: dict[int, Cell]) -> tuple[str, set[int]] | None:
    what = differs([cell.call for cell in cells.values()])
    if not what and len({cell.line for cell in cells.values()}) == 1:
        return None
    counts = Counter(cell.label for cell in cells.values()).most_common()
    most = counts[0][0] if len(counts) == 1 or counts[0][1] > counts[1][1] else None
    return _IN.get(what, what or "line"), {r for r, cell in cells.items() if cell.label != most}


def _cells(source: WorkerTimeout | Trace) -> Iterator[tuple[Key, int, int, Cell]]:
    """By group, the collective's number and rank."""
    if isinstance(source, Trace):
        events, size, waits = source, source.world_size, lambda call: not call.finished
    elif isinstance(source, WorkerTimeout):
        events = [call for one in source.waiting.values() for call in one.calls]
        size, waits = len(source.waiting), lambda call: call in source.waiting[call.rank].open
    else:
        raise TypeError(f"calls are drawn of a WorkerTimeout or of a trace, not {source!r:.80}")
    for meeting in meetings(events, size):
        if meeting.key[0] == "collective":
            for rank, call in meeting.calls.items():
                yield meeting.key, meeting.number, rank, Cell(call, waits(call))


def draw(sequence: Sequence) -> "Figure":
    """Draw a row per rank and a column per collective."""
    import matplotlib.pyplot as plt

    wide, high, row = len(sequence.numbers) * _WIDE, len(sequence.rows), 1.2 * HIGH
    figure, axes = plt.subplots(figsize=(row * wide + 0.7, row * high + 0.4), layout="constrained")
    rank_rows(axes, list(sequence.rows), wide)
    for column, number in enumerate(sequence.numbers):
        x = column * _WIDE
        axes.text(x + _WIDE / 2, -0.1, f"#{number}", ha="center", color=INK)
        _, blamed = sequence.different.get(number, ("", ()))
        for y, (rank, own) in enumerate(sequence.rows.items()):
            if number not in own:
                cell(axes, x, y, "missing", None, _WIDE, **_MISSING)
                continue
            said = [*filter(None, own[number].lines), *["waits here"] * own[number].waits]
            edge = _DIFFERS if rank in blamed else {}
            cell(axes, x, y, "\n".join(said), rank, _WIDE, **edge)
            if edge:
                axes.text(x + _WIDE - 0.25, y + 0.33, "≠", ha="center", weight="bold", color=INK)
    return figure
