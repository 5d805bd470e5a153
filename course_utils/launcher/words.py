"""Ranks in words."""

import re
import textwrap
from collections.abc import Iterable

_COLUMNS = 95  # JupyterLab breaks a longer line of an error anywhere, also within a word
_CHINESE = re.compile("[\u4e00-\u9fff]")  # may be broken anywhere


def ranks_named(numbers: Iterable[int]) -> str:
    """Such as `rank 3`, or `ranks 0, 1 and 3`, in order, each by its number."""
    *names, last = map(str, sorted(numbers))
    return f"ranks {', '.join(names)} and {last}" if names else f"rank {last}"


def were(numbers: Iterable[int]) -> str:
    """Such as `rank 3 was`, or `ranks 0 and 1 were`."""
    names = ranks_named(numbers)
    return f"{names} {'were' if names.startswith('ranks') else 'was'}"


def wrapped(text: str) -> str:
    """The text with its long sentences on several lines; indented lines have code, and stay."""
    rows = []
    for row in text.split("\n"):
        if len(row) <= _COLUMNS or row.startswith(" ") or _CHINESE.search(row):
            rows.append(row)
        else:
            rows += textwrap.wrap(row, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rows)
