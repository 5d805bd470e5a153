"""What a check says: passed, not attempted, or wrong and in what; in a notebook as a table."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_utils.checks.verdict import Row

PASSED, NOT_ATTEMPTED, WRONG = "passed", "not attempted", "wrong"
SIGNS = {PASSED: "✓", NOT_ATTEMPTED: "–", WRONG: "✗"}
COLOURS = {PASSED: "#009E73", NOT_ATTEMPTED: "#888888", WRONG: "#D55E00"}  # two of Okabe and Ito
_HEAD = ("rank", "given", "wanted", "got")
_PRINTED = 8  # lines of each rank


class CheckFailed(AssertionError):
    """An answer that was required to be right is not."""


@dataclass(frozen=True, repr=False)
class Outcome:
    """What became of an answer; true only if it passed.

    Attributes:
        name: Of the answer.
        state: "passed", "not attempted" or "wrong".
        where: On how many ranks, in which case.
        message: What is wrong, and what to look at next.
        rows: Of the smallest failing case, one per rank.
        printed: What each rank printed in it.
    """

    name: str
    state: str
    where: str = ""
    message: str = ""
    rows: Sequence[Row] = ()
    printed: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        return self.state == PASSED

    def require(self) -> "Outcome":
        """Return the outcome if the answer passed; for graders.

        Raises:
            CheckFailed: It did not.
        """
        if not self:
            raise CheckFailed(str(self))
        return self

    @property
    def headline(self) -> str:
        """Such as `✗ wrong: broadcast (3 ranks, 5 numbers)`."""
        where = f" ({self.where})" if self.where else ""
        return f"{SIGNS[self.state]} {self.state}: {self.name}{where}"

    def __repr__(self) -> str:
        parts = [self.headline, self._table(), self.message, self._output()]
        return "\n\n".join(filter(None, parts))

    def _table(self) -> str:
        if not self.rows:
            return ""
        lines = [_HEAD, *((str(r), *row[:3]) for r, row in enumerate(self.rows))]
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
        return "It printed:\n" + "\n".join(lines) if lines else ""

    def _repr_html_(self) -> str:
        colour = COLOURS[self.state]
        parts = [
            f'<div style="{_CARD}border-left:4px solid {colour}">{_bold(self.headline, colour)}'
        ]
        if self.rows:
            head = "".join(f'<th style="{_CELL}">{name}</th>' for name in _HEAD)
            rows = "".join(_row(rank, row) for rank, row in enumerate(self.rows))
            parts.append(f'<table style="margin:6px 0"><tr>{head}</tr>{rows}</table>')
        for text in filter(None, (self.message, self._output())):
            parts.append(
                f'<div style="white-space:pre-wrap;{_face(text)}">{html.escape(text)}</div>'
            )
        return "".join(parts) + "</div>"


_CARD = "padding:4px 12px;margin:4px 0;max-width:70em;font-size:13px;line-height:1.5;"
_CELL = "text-align:left;padding:1px 14px 1px 4px;"
_MONO = "font-family:var(--jp-code-font-family,monospace);"


def _bold(text: str, colour: str) -> str:
    return f'<b style="color:{colour}">{text[0]}</b> <b>{html.escape(text[2:])}</b>'


def _face(text: str) -> str:
    """Launcher's reports, whose columns matter, in a fixed width."""
    return f"{_MONO}font-size:12px;margin-top:6px" if "\n" in text else ""


def _row(rank: int, row: Row) -> str:
    mark = f"background:{COLOURS[WRONG]}22;" if row.wrong else ""
    name = f"→ {rank}" if row.wrong else str(rank)
    cells = "".join(f'<td style="{_CELL}{_MONO}">{html.escape(text)}</td>' for text in row[:3])
    return f'<tr style="{mark}"><td style="{_CELL}">{name}</td>{cells}</tr>'
