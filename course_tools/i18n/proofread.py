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
HAN = "\u4e00-\u9fff"
# Signs of half width next to a Chinese character, and a line end that would become a space.
HALF_WIDTH = re.compile(rf"[{HAN}][,;?!(]|[{HAN}]:|[,;?!)][{HAN}]|[{HAN}]\n(?!<)[{HAN}]")


def faults(
    known: dict[str, Message], wanted: Iterable[str], terms: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Yields what nobody has looked at in a catalogue, and what translations have lost."""
    units = set(map(key, wanted))
    new, gone = len(units - known.keys()), len(known.keys() - units)
    if new or gone:
        yield f"the English is another now ({new} new, {gone} gone): make zh"
    for message in known.values():
        start = key(message.id)[:70]
        if message.fuzzy:
            yield f"changed in English, and nobody has looked: {start}"
        elif message.string:
            for slip in (*slips(message), *terms_at_odds(terms, message)):
                yield f"{slip}: {start}"


def slips(message: Message) -> Iterator[str]:
    """Yields what a translation has lost of its English, or spoilt."""
    for name, pattern in MARKS.items():
        mine, theirs = (_marks(pattern, text) for text in (message.id, message.string))
        lost, more = mine - theirs, theirs - mine
        if name in ("code", "numbers"):  # said once, or more often, as the sentence wants it
            lost, more = Counter(mine.keys() - theirs.keys()), Counter()
        if name == "links" and not lost:  # its readers may be led further
            more = Counter()
        if lost or more:
            yield f"{name} differ: {' '.join([*lost, *(f'+{each}' for each in more)])}"
    if found := HALF_WIDTH.search(SHOWN.sub("`", message.string)):
        yield f"a sign of half width, or a line end, at {found[0]!r}"
    if "**" in _plain(message.string):
        yield "** that does not make bold: it needs a space, or a letter, on its outer side"


def _marks(pattern: re.Pattern[str], text: str) -> Counter[str]:
    return Counter("".join(filter(None, m.groups())) or m[0] for m in pattern.finditer(key(text)))


def _plain(text: str) -> str:
    """The words of a text as Markdown shows them, without its code."""
    text = re.sub("(<code>).*?</code>", r"\1", text)  # its words are text to Markdown
    inline = MarkdownIt().parseInline(text)[0].children or []
    return "".join(token.content for token in inline if token.type == "text")


def glossary(root: Path) -> dict[str, dict[str, Any]]:
    """Returns what each English term is in Chinese, and what it is not."""
    path = root / "source/zh/glossary.toml"
    said = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stays = {t: {"zh": t, "never": n, "loose": True} for t, n in said.get("english", {}).items()}
    return stays | said.get("terms", {})


def terms_at_odds(terms: dict[str, dict[str, Any]], message: Message) -> Iterator[str]:
    """Yields the terms that a translation does not use as the glossary says."""
    english = re.sub(CODE, "", key(message.id)).lower()
    chinese = re.sub(CODE, "", message.string)
    for term, says in terms.items():
        for wrong in says.get("never", ()):
            if wrong in chinese:
                yield f"{term} is {says['zh']}, not {wrong}"
        asked = not says.get("loose") and re.search(rf"\b{re.escape(term)}s?\b", english)
        if asked and not any(word in chinese for word in (says["zh"], *says.get("also", ()))):
            yield f"{term} is {says['zh']}, which is missing"
