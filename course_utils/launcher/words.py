"""Ranks in words."""

import re
import textwrap
from collections.abc import Iterable

from course_utils.launcher.language import listed, ngettext

_COLUMNS = 95  # JupyterLab breaks a longer line of an error anywhere, also within a word
_MANY = 16  # ranks that are named one by one
_CHINESE = re.compile("[\u4e00-\u9fff]")  # may be broken anywhere


def ranks_named(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, or `ranks 0, 1 and 3`, in order; of many, `ranks 0-17 and 20-31`."""
    in_order = sorted(numbers)
    return ngettext("rank {ranks}", "ranks {ranks}", len(in_order), ranks=ranks_listed(in_order))


def ranks_listed(numbers: Iterable[int]) -> str:
    """The same without the word: `3`, or `0, 1 and 3`, or `0-17 and 20-31`."""
    in_order = sorted(numbers)
    if len(in_order) > _MANY:
        return listed(_runs(set(in_order)))
    return listed(in_order)


def _runs(numbers: set[int]) -> list[str]:
    """Numbers that follow each other as one, such as `3-7`."""
    names = []
    for first in sorted(numbers):
        if first - 1 in numbers:  # its run has been named
            continue
        last = first
        while last + 1 in numbers:
            last += 1
        names.append(_run_named(first, last))
    return names


def _run_named(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}"


def wrapped(text: str) -> str:
    """The text with its long sentences on several lines; indented lines have code, and stay."""
    rows = []
    for row in text.split("\n"):
        is_code = row.startswith(" ")
        if is_code or len(row) <= _COLUMNS or _CHINESE.search(row):
            rows.append(row)
        else:
            rows += textwrap.wrap(row, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rows)
