"""What a check says: passed, not attempted, or wrong and why; in a notebook as a table."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_material import verdicts
from course_utils.launcher.language import N_, _, ngettext
from course_utils.launcher.words import ranks_listed

PASSED = N_("passed")
NOT_ATTEMPTED = N_("not attempted")
WRONG = N_("wrong")
NOT_CHECKED = N_("not checked yet")
CHANGED = N_("changed since its check")
_SIGNS = {PASSED: "✓", NOT_ATTEMPTED: "–", NOT_CHECKED: "–", CHANGED: "–", WRONG: "✗"}
_GREEN = "#009E73"  # this and the next are two of Okabe and Ito
_RED = "#D55E00"
_GREY = "#888888"
_COLOURS = {
    PASSED: _GREEN,
    NOT_ATTEMPTED: _GREY,
    NOT_CHECKED: _GREY,
    CHANGED: _GREY,
    WRONG: _RED,
}
_HEAD = (N_("rank"), N_("given"), N_("wanted"), N_("got"))
_PRINTED = 8  # lines of each rank that are shown
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
    state: str  # "passed", "not attempted" or "wrong"; in an overview others as well
    where: str = ""  # on how many ranks, unless it is never more than one; in which case
    message: str = ""  # what is wrong, and what to look at next
    rows: Sequence[Row] = ()  # of the smallest failing case, one per rank
    printed: Sequence[str] = ()  # by rank, what it printed in that case
    # If it passed, for each run: world size, case and recording.
    traces: Sequence[tuple[int, Any, Any]] = ()

    def __bool__(self) -> bool:
        return self.state == PASSED

    def require(self) -> "Outcome":
        """Return the outcome if the answer passed, else raise CheckFailed; for graders."""
        if not self:
            report = str(self)
            raise CheckFailed(report)
        return self

    def __repr__(self) -> str:
        headline = self._headline()
        table = self._table()
        output = self._output()
        parts = filter(None, [headline, table, self.message, output])
        return "\n\n".join(parts)

    def _headline(self) -> str:
        """Such as `✗ wrong: broadcast (3 ranks, 5 numbers)`."""
        where = ""
        if self.where:
            where = _(" ({where})", where=self.where)
        return _(
            "{sign} {state}: {name}{where}",
            sign=_SIGNS[self.state],
            state=_(self.state),
            name=self.name,
            where=where,
        )

    def _table(self) -> str:
        """The failing case as text, with an arrow before each wrong rank."""
        if not self.rows:
            return ""
        head = _head(self.rows)
        lines = [[" ", *head]]
        for rank, row in enumerate(self.rows):
            mark = " "
            if row.wrong:
                mark = "→"
            cells = [str(rank), row.given, row.wanted, row.got]
            shown_cells = cells[: len(head)]
            lines.append([mark, *shown_cells])
        widths = []
        for column in zip(*lines, strict=True):
            widest = max(map(len, column))
            widths.append(widest)
        text = []
        for line in lines:
            mark, *cells = map(str.ljust, line, widths)
            padded = "  ".join(cells)
            text.append(f"{mark} {padded.rstrip()}")
        return "\n".join(text)

    def _output(self) -> str:
        """The first lines that each rank printed."""
        text = []
        for rank, printed in enumerate(self.printed):
            lines = printed.splitlines()
            for line in lines[:_PRINTED]:
                text.append(f"[rank {rank}] {line}")
            left_out = len(lines) - _PRINTED
            if left_out > 0:
                more = _("... and {count} more lines", count=left_out)
                text.append(f"[rank {rank}] {more}")
        if not text:
            return ""
        heading = _("It printed:")
        return "\n".join([heading, *text])

    def _repr_html_(self) -> str:
        colour = _COLOURS[self.state]
        sign, headline = self._headline().split(" ", 1)
        headline = html.escape(headline)
        page = f'<div style="{_CARD}border-left:4px solid {colour}">'
        page += f'<b style="color:{colour}">{sign}</b> <b>{headline}</b>'
        if self.rows:
            page += self._table_as_html()
        for text in (self.message, self._output()):
            if text:
                page += _paragraph(text)
        return page + "</div>"

    def _table_as_html(self) -> str:
        page = '<table style="margin:6px 0"><tr>'
        head = _head(self.rows)
        for name in head:
            page += f'<th style="{_CELL}">{name}</th>'
        page += "</tr>"
        for rank, row in enumerate(self.rows):
            page += _row(rank, row, len(head))
        return page + "</table>"


def _head(rows: Sequence[Row]) -> list[str]:
    """The names of the columns; where a rank has failed, no rank got anything."""
    is_got = any(row.got for row in rows)
    names = [_(name) for name in _HEAD]
    if not is_got:
        names.pop()
    return names


def _paragraph(text: str) -> str:
    font = ""
    if "\n" in text:  # a report of the launcher's, whose columns need a fixed width
        font = f"{_MONO}font-size:12px;margin-top:6px"
    content = html.escape(text)
    return f'<div style="white-space:pre-wrap;{font}">{content}</div>'


def _row(rank: int, row: Row, columns: int) -> str:
    style = ""
    arrow = ""
    if row.wrong:
        style = f"background:{_RED}22;"
        arrow = "→ "
    page = f'<tr style="{style}"><td style="{_CELL}">{arrow}{rank}</td>'
    texts = row.given, row.wanted, row.got
    for text in texts[: columns - 1]:
        content = html.escape(text)
        page += f'<td style="{_CELL}{_MONO}">{content}</td>'
    return page + "</tr>"


def many(sizes: Iterable[int]) -> str:
    """Such as `1 rank` or `1, 2 and 3 ranks`."""
    numbers = sorted(sizes)
    form = 1 if numbers == [1] else 2  # singular or plural
    return ngettext("{numbers} rank", "{numbers} ranks", form, numbers=ranks_listed(numbers))


_outcomes: dict[str, Outcome] = {}  # the last one of each answer in this kernel, by its name


def note(outcome: Outcome) -> Outcome:
    """Remember an outcome, in a learner's lab also beyond this kernel, and return it."""
    _outcomes[outcome.name] = outcome
    verdicts.keep(outcome.name, outcome.state)
    return outcome


class Overview(list[Outcome]):
    """One line per exercise."""

    def __repr__(self) -> str:
        passed = sum(map(bool, self))
        total = _("{passed} of {count} exercises pass", passed=passed, count=len(self))
        lines = [total]
        for outcome in self:
            line = _(
                "{sign} {name}: {state}",
                sign=_SIGNS[outcome.state],
                name=outcome.name,
                state=_(outcome.state),
            )
            lines.append(line)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        total, _line_end, _exercises = repr(self).partition("\n")
        rows = "".join(map(_overview_row, self))
        return f"<b>{total}</b><table>{rows}</table>"


def _overview_row(outcome: Outcome) -> str:
    sign = _SIGNS[outcome.state]
    colour = _COLOURS[outcome.state]
    name = html.escape(outcome.name)
    state = _(outcome.state)
    return (
        f'<tr><td style="color:{colour};font-weight:bold">{sign}</td>'
        f'<td style="text-align:left"><code>{name}</code></td>'
        f'<td style="text-align:left">{state}</td></tr>'
    )


def progress(*exercises: str) -> Overview:
    """Show which answers pass, as they were last checked in this notebook.

    What a check said counts as long as the answer is unchanged, also in a later kernel.

    Args:
        exercises: The names of all answers in this notebook. Answers that no check has tried yet
            count as well.
    """
    names = dict.fromkeys([*exercises, *_outcomes])
    return Overview(map(_outcome_now, names))


def _outcome_now(name: str) -> Outcome:
    """The last outcome of an answer, unless the answer has been edited since."""
    state = verdicts.kept(name)
    if state == verdicts.CHANGED:
        return Outcome(name, CHANGED)
    if name in _outcomes:
        return _outcomes[name]
    if state not in _SIGNS:
        state = NOT_CHECKED
    return Outcome(name, state)
