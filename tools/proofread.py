"""What a translation may have lost or added: code, links, HTML, numbers, emphasis; and its terms.

`source/zh/glossary.toml` says what each term is in Chinese, and what it is not.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Message

from translation import key

MARKS = {
    "code": re.compile(r"`([^`]+)`|<code>(.*?)</code>"),
    "links": re.compile(r'\]\(([^)]+)\)|href="([^"]+)"'),
    "tags": re.compile(r"</?(?:details|summary|kbd|code|i|b|sup|sub|br)\b"),
    "numbers": re.compile(r"(?<![\w.])(\d[\d,.]*\d|\d)"),
}


def slips(message: Message) -> Iterator[str]:
    """Yields what a translation has lost of its English: code, links, HTML, numbers."""
    for name, pattern in MARKS.items():
        mine, theirs = (_marks(pattern, text) for text in (message.id, message.string))
        lost, more = mine - theirs, theirs - mine
        if name in ("code", "numbers"):  # may be said again, or twice where English says it once
            lost, more = Counter(mine.keys() - theirs.keys()), Counter()
        if name == "code":
            more = Counter(theirs.keys() - mine.keys())
        if lost or more:
            yield f"{name} differ: {[*lost, *(f'+{each}' for each in more)]}"


def _marks(pattern: re.Pattern[str], text: str) -> Counter[str]:
    return Counter("".join(filter(None, m.groups())) or m[0] for m in pattern.finditer(key(text)))
