"""What a translation may have lost or spoilt: code, links, HTML, numbers, signs, and its terms.

`source/zh/glossary.toml` says what each term is in Chinese, and what it is not.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Message
from markdown_it import MarkdownIt

from course_tools.i18n.catalogues import key
from course_tools.texts import read_toml

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
HALF_WIDTH = re.compile(
    rf"""
    [{HAN}] [,;?!(:]            # a sign of half width after a Chinese character
    | [,;?!)] [{HAN}]           # or before one
    | [{HAN}] \n (?!<) [{HAN}]  # a line end that would become a space
    """,
    re.VERBOSE,
)


def faults(known: dict[str, Message], wanted: Iterable[str], terms: Terms) -> Iterator[str]:
    """Yields what nobody has looked at in a catalogue, and what translations have lost."""
    wanted_keys = set(map(key, wanted))
    known_keys = known.keys()
    new = len(wanted_keys - known_keys)
    gone = len(known_keys - wanted_keys)
    if new or gone:
        yield f"the English is another now ({new} new, {gone} gone): make zh"
    for message in known.values():
        one_line = key(message.id)
        start = one_line[:70]
        if message.fuzzy:
            yield f"changed in English, and nobody has looked: {start}"
            continue
        if not message.string:
            continue
        for slip in all_slips(terms, message):
            yield f"{slip}: {start}"


def all_slips(terms: Terms, message: Message) -> Iterator[str]:
    """Yields what a translation has lost or spoilt, and then its terms that are at odds."""
    yield from slips(message)
    yield from terms_at_odds(terms, message)


def slips(message: Message) -> Iterator[str]:
    """Yields what a translation has lost of its English, or spoilt."""
    for name in MARKS:
        differences = _differences(name, message)
        if differences:
            listed = " ".join(differences)
            yield f"{name} differ: {listed}"
    without_code = SHOWN.sub("`", message.string)
    half_width = HALF_WIDTH.search(without_code)
    if half_width:
        place = half_width[0]
        yield f"a sign of half width, or a line end, at {place!r}"
    plain_words = _plain(message.string)
    if "**" in plain_words:
        yield "** that does not make bold: it needs a space, or a letter, on its outer side"


def _differences(name: str, message: Message) -> list[str]:
    """The marks of a kind that a translation has lost, and with a plus those that it has added."""
    pattern = MARKS[name]
    english = _marks(pattern, message.id)
    chinese = _marks(pattern, message.string)
    lost = english - chinese
    added = chinese - english
    if name in ("code", "numbers"):  # said once, or more often, as the sentence wants it
        lost_marks = english.keys() - chinese.keys()
        lost = Counter(lost_marks)
        added = Counter()
    if name == "links" and not lost:  # its readers may be led further
        added = Counter()
    differences = list(lost)
    for mark in added:
        differences.append(f"+{mark}")
    return differences


def _marks(pattern: re.Pattern[str], text: str) -> Counter[str]:
    """How often each mark stands in a text: what the pattern's groups hold, or all that it fits."""
    marks: Counter[str] = Counter()
    one_line = key(text)
    for match in pattern.finditer(one_line):
        groups = match.groups(default="")
        mark = "".join(groups)
        if not mark:
            mark = match[0]
        marks[mark] += 1
    return marks


def _plain(text: str) -> str:
    """The words of a text as Markdown shows them, without its code."""
    without_code = re.sub("(<code>).*?</code>", r"\1", text)  # its words are text to Markdown
    parser = MarkdownIt()
    (inline,) = parser.parseInline(without_code)
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
    written = read_toml(path)
    stay_english = written.get("english", {})
    terms = {}
    for term, wrong_words in stay_english.items():
        terms[term] = {"zh": term, "never": wrong_words, "loose": True}
    terms |= written.get("terms", {})
    return terms


def terms_at_odds(terms: Terms, message: Message) -> Iterator[str]:
    """Yields the terms that a translation does not use as the glossary says."""
    english = key(message.id)
    english = re.sub(CODE, "", english)
    english = english.lower()
    chinese = re.sub(CODE, "", message.string)
    for term, entry in terms.items():
        right = entry["zh"]
        wrong_words = entry.get("never", ())
        for wrong in wrong_words:
            if wrong in chinese:
                yield f"{term} is {right}, not {wrong}"
        if entry.get("loose"):
            continue
        if not _is_used(term, english):
            continue
        also_right = entry.get("also", ())
        right_words = [right, *also_right]
        is_right = any(word in chinese for word in right_words)
        if not is_right:
            yield f"{term} is {right}, which is missing"


def _is_used(term: str, english: str) -> bool:
    """Whether a text has a term, in the singular or the plural."""
    word = re.escape(term)
    return re.search(rf"\b{word}s?\b", english) is not None
