"""What a translation may have lost or spoilt: code, links, HTML, numbers, signs, and its terms.

`source/zh/glossary.toml` says what each term is in Chinese, and what it is not.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Message
from markdown_it import MarkdownIt

from course_tools.i18n.catalogues import key

CODE = r"`[^`]*`|<code>.*?</code>"
MARKS = {
    "code": re.compile(r"(?<!`)`([^`]+)`(?!`)|<code>(.*?)</code>"),
    "links": re.compile(r'\]\(([^)]+)\)|href="([^"]+)"'),
    "tags": re.compile(r"</?(?:details|summary|kbd|i|b|sup|sub|br)\b"),
    "numbers": re.compile(r"(?<![\w.])(\d[\d,.]*\d|\d)(?!\w)"),
}
SHOWN = re.compile(rf"{CODE}|\]\([^)]*\)|<[^>]+>")
Terms = dict[str, dict[str, Any]]  # by the English term
HAN = "\u4e00-\u9fff"
# Signs of half width next to a Chinese character, and a line end that would become a space.
HALF_WIDTH = re.compile(rf"[{HAN}][,;?!(]|[{HAN}]:|[,;?!)][{HAN}]|[{HAN}]\n(?!<)[{HAN}]")


def faults(known: dict[str, Message], wanted: Iterable[str], terms: Terms) -> Iterator[str]:
    """Yields what nobody has looked at in a catalogue, and what translations have lost."""
    wanted_keys = set(map(key, wanted))
    new = len(wanted_keys - known.keys())
    gone = len(known.keys() - wanted_keys)
    if new or gone:
        yield f"the English is another now ({new} new, {gone} gone): make zh"
    for message in known.values():
        start = key(message.id)[:70]
        if message.fuzzy:
            yield f"changed in English, and nobody has looked: {start}"
        elif message.string:
            for slip in slips(message):
                yield f"{slip}: {start}"
            for slip in terms_at_odds(terms, message):
                yield f"{slip}: {start}"


def slips(message: Message) -> Iterator[str]:
    """Yields what a translation has lost of its English, or spoilt."""
    for name, pattern in MARKS.items():
        english = _marks(pattern, message.id)
        chinese = _marks(pattern, message.string)
        lost = english - chinese
        added = chinese - english
        if name in ("code", "numbers"):  # said once, or more often, as the sentence wants it
            lost = Counter(english.keys() - chinese.keys())
            added = Counter()
        if name == "links" and not lost:  # its readers may be led further
            added = Counter()
        if lost or added:
            differences = [*lost, *(f"+{mark}" for mark in added)]
            yield f"{name} differ: {' '.join(differences)}"
    half_width = HALF_WIDTH.search(SHOWN.sub("`", message.string))
    if half_width:
        yield f"a sign of half width, or a line end, at {half_width[0]!r}"
    if "**" in _plain(message.string):
        yield "** that does not make bold: it needs a space, or a letter, on its outer side"


def _marks(pattern: re.Pattern[str], text: str) -> Counter[str]:
    """How often each mark stands in a text: what the pattern's groups hold, or all that it fits."""
    marks: Counter[str] = Counter()
    for match in pattern.finditer(key(text)):
        captured = "".join(match.groups(default=""))
        marks[captured or match[0]] += 1
    return marks


def _plain(text: str) -> str:
    """The words of a text as Markdown shows them, without its code."""
    without_code = re.sub("(<code>).*?</code>", r"\1", text)  # its words are text to Markdown
    (inline,) = MarkdownIt().parseInline(without_code)
    words = ""
    for token in inline.children or []:
        if token.type == "text":
            words += token.content
    return words


def glossary(root: Path) -> Terms:
    """Returns what each English term is in Chinese, and what it is not."""
    path = root / "source/zh/glossary.toml"
    if not path.exists():
        return {}
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    terms = {}
    for term, wrong_words in written.get("english", {}).items():  # terms that stay English
        terms[term] = {"zh": term, "never": wrong_words, "loose": True}
    return terms | written.get("terms", {})


def terms_at_odds(terms: Terms, message: Message) -> Iterator[str]:
    """Yields the terms that a translation does not use as the glossary says."""
    english = re.sub(CODE, "", key(message.id)).lower()
    chinese = re.sub(CODE, "", message.string)
    for term, entry in terms.items():
        for wrong in entry.get("never", ()):
            if wrong in chinese:
                yield f"{term} is {entry['zh']}, not {wrong}"
        if entry.get("loose"):
            continue
        is_used = re.search(rf"\b{re.escape(term)}s?\b", english)
        if not is_used:
            continue
        right_words = [entry["zh"], *entry.get("also", ())]
        if not any(word in chinese for word in right_words):
            yield f"{term} is {entry['zh']}, which is missing"
