"""Which collective every rank called first, second, third; which one is missing or differs."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from course_utils.hang.deadlock import differs
from course_utils.launcher.errors import WorkerTimeout
from course_utils.launcher.words import ranks_named as ranks
from course_utils.network.trace import Trace
from course_utils.record.notes import Call

_OTHERS = {"send", "recv", "wait", "new_group", "return"}
_IN = {"order": "kind", "evaluation": "mode", "shape": "shape or dtype"}  # else as it is called


@dataclass(frozen=True)
class Cell:
    """One collective of one rank; `waits` if the rank did not get out of it."""

    call: Call
    line: str
    waits: bool

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
        found = _of_trace(source) if isinstance(source, Trace) else _of_error(source)
        if not found:
            raise ValueError("no rank is known to have called a collective: look at its messages")
        first = next((cell for _, cell in found if cell.waits), found[0][1]).call
        self.group = first.group
        self.rows: dict[int, dict[int, Cell]] = {rank: {} for rank in sorted(first.group)}
        for rank, cell in found:
            if cell.call.group_name == first.group_name:
                self.rows[rank][cell.call.number] = cell
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


def _of_error(error: WorkerTimeout) -> list[tuple[int, Cell]]:
    if not isinstance(error, WorkerTimeout):
        raise TypeError(f"calls are drawn of a WorkerTimeout or of a trace, not {error!r:.80}")
    return [
        (one.rank, Cell(call, _line(call.line.place if call.line else ""), call in one.open))
        for one in error.waiting.values() for call in one.calls if call.kind not in _OTHERS
    ]  # fmt: skip


def _of_trace(trace: Trace) -> list[tuple[int, Cell]]:
    found, counts = [], Counter()
    for event in trace:
        if event.kind in _OTHERS:
            continue
        counts[event.rank, event.group_name] += 1
        call = Call(
            event.kind, counts[event.rank, event.group_name], event.group, event.group_name, None,
            event.start_s, event.dtype, event.shape, event.bytes, root=event.root,
        )  # fmt: skip
        found.append((event.rank, Cell(call, _line(event.place), not event.finished)))
    return found


def _line(place: str) -> str:
    """Such as `line 7`."""
    found = re.search(r"line \d+", place)
    return found[0] if found else ""
