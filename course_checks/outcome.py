"""What a check says: passed, not attempted, or wrong and in what; in a notebook as a table."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_material.messages import said
from course_utils.launcher.words import ranks_named

PASSED, NOT_ATTEMPTED, WRONG = "passed", "not attempted", "wrong"
NOT_CHECKED = "not checked yet"
_SIGNS = {PASSED: "✓", NOT_ATTEMPTED: "–", NOT_CHECKED: "–", WRONG: "✗"}
_COLOURS = {PASSED: "#009E73", WRONG: "#D55E00"}  # two of Okabe and Ito
_COLOURS |= {NOT_ATTEMPTED: "#888888", NOT_CHECKED: "#888888"}
_HEAD = ("rank", "given", "wanted", "got")
_PRINTED = 8  # lines of each rank
_CARD = "padding:4px 12px;margin:4px 0;max-width:70em;font-size:13px;line-height:1.5;"
_CELL = "text-align:left;padding:1px 14px 1px 4px;"
_MONO = "font-family:var(--jp-code-font-family,monospace);"


class CheckFailed(AssertionError):
    """An answer that was required to be right is not."""


class Row(NamedTuple):
    """One rank of a failing case."""

    given: str
    wanted: str
    got: str
    wrong: bool


@dataclass(frozen=True, repr=False)
class Outcome:
    """What became of an answer; true only if it passed."""

    name: str  # of the answer
    state: str  # "passed", "not attempted" or "wrong"; in an overview also "not checked yet"
    where: str = ""  # on how many ranks, in which case
    message: str = ""  # what is wrong, and what to look at next
    rows: Sequence[Row] = ()  # of the smallest failing case, one per rank
    printed: Sequence[str] = ()  # what each rank printed in it
    traces: Sequence[tuple[int, Any, Any]] = ()  # where it passed: world size, case, recording

    def __bool__(self) -> bool:
        return self.state == PASSED

    def require(self) -> "Outcome":
        """Return the outcome if the answer passed, else raise CheckFailed; for graders."""
        if not self:
            raise CheckFailed(str(self))
        return self

    def __repr__(self) -> str:
        parts = [self._headline(), self._table(), said(self.message), self._output()]
        return "\n\n".join(filter(None, parts))

    def _headline(self) -> str:
        """Such as `✗ wrong: broadcast (3 ranks, 5 numbers)`."""
        where = f" ({self.where})" if self.where else ""
        text = f"{_SIGNS[self.state]} {self.state}: {self.name}{where}"
        return said(text, "outcome.Outcome")

    def _table(self) -> str:
        if not self.rows:
            return ""
        lines = [_head(), *((str(r), *row[:3]) for r, row in enumerate(self.rows))]
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        marks = [" ", *("→" if row.wrong else " " for row in self.rows)]
        return "\n".join(
            f"{mark} " + "  ".join(map(str.ljust, line, wide)).rstrip()
            for mark, line in zip(marks, lines, strict=True)
        )

    def _output(self) -> str:
        lines = []
        for rank, text in enumerate(self.printed):
            own = text.splitlines()
            lines += [f"[rank {rank}] {line}" for line in own[:_PRINTED]]
            if len(own) > _PRINTED:
                lines.append(f"[rank {rank}] ... and {len(own) - _PRINTED} more lines")
        return "\n".join([said("It printed:"), *lines]) if lines else ""

    def _repr_html_(self) -> str:
        colour, (sign, text) = _COLOURS[self.state], self._headline().split(" ", 1)
        page = f'<div style="{_CARD}border-left:4px solid {colour}">'
        page += f'<b style="color:{colour}">{sign}</b> <b>{html.escape(text)}</b>'
        if self.rows:
            head = "".join(f'<th style="{_CELL}">{name}</th>' for name in _head())
            rows = "".join(_row(rank, row) for rank, row in enumerate(self.rows))
            page += f'<table style="margin:6px 0"><tr>{head}</tr>{rows}</table>'
        for text in filter(None, (said(self.message), self._output())):
            # Launcher's reports, whose columns matter, in a fixed width.
            face = f"{_MONO}font-size:12px;margin-top:6px" if "\n" in text else ""
            page += f'<div style="white-space:pre-wrap;{face}">{html.escape(text)}</div>'
        return page + "</div>"


def _head() -> list[str]:
    return [said(name, "outcome._HEAD") for name in _HEAD]


def _row(rank: int, row: Row) -> str:
    mark, arrow = (f"background:{_COLOURS[WRONG]}22;", "→ ") if row.wrong else ("", "")
    cells = "".join(f'<td style="{_CELL}{_MONO}">{html.escape(text)}</td>' for text in row[:3])
    return f'<tr style="{mark}"><td style="{_CELL}">{arrow}{rank}</td>{cells}</tr>'


def many(sizes: Iterable[int]) -> str:
    """Such as `1 rank` or `1, 2 and 3 ranks`."""
    numbers = ranks_named(sizes).split(" ", 1)[1]
    return f"{numbers} rank{'s' * (numbers != '1')}"


_outcomes: dict[str, Outcome] = {}  # of this kernel, by the answer's name; the last one counts


def note(outcome: Outcome) -> Outcome:
    """Remember an outcome, and return it."""
    _outcomes[outcome.name] = outcome
    return outcome


class Overview(list[Outcome]):
    """One line per exercise."""

    def __repr__(self) -> str:
        lines = [f"{_SIGNS[own.state]} {own.name}: {own.state}" for own in self]
        lines.insert(0, f"{sum(map(bool, self))} of {len(self)} exercises pass")
        return said("\n".join(lines), "outcome.Overview")

    def _repr_html_(self) -> str:
        total, *_ = repr(self).split("\n")
        rows = "".join(
            f'<tr><td style="color:{_COLOURS[own.state]};font-weight:bold">{_SIGNS[own.state]}</td>'
            f'<td style="text-align:left"><code>{html.escape(own.name)}</code></td>'
            f'<td style="text-align:left">{said(own.state, "outcome")}</td></tr>'
            for own in self
        )
        return f"<b>{total}</b><table>{rows}</table>"


def progress(*exercises: str) -> Overview:
    """Show which answers pass, as they were last checked in this notebook.

    Args:
        exercises: The names of all answers in this notebook. Those that no check has tried yet
            count as well.
    """
    known = {name: Outcome(name, NOT_CHECKED) for name in exercises} | _outcomes
    return Overview(known.values())
