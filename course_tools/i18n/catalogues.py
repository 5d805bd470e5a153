"""Texts in another language, made of the English ones and of a catalogue (gettext, by Babel).

A unit is a paragraph, an item of a list, a row of a table or a folded answer. Its English text is
its key, wherever that breaks its lines. Only Markdown is touched: code, outputs and the ids of
cells stay those of the English notebook, so nothing has to be executed for another language.
"""

import copy
import posixpath
import re
from collections.abc import Collection, Iterable
from difflib import SequenceMatcher
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po
from nbformat import NotebookNode

BEGINS = re.compile(r"\s*(\||[-*] |1\. |<details>|#+ )")
NUMBERED = re.compile(r"\s*\d+\. ")  # an item of a list only below an item; else just a number
NO_PROSE = re.compile(
    r"""
    `[^`]*`
    | <code>.*?</code>
    | <[^>]+>
    | \]\([^)]*\)    # the target of a link
    | https?://\S+
    | &\w+;          # a sign that HTML gives a name
    """,
    re.VERBOSE,
)
TWO_LETTERS = re.compile(r"[A-Za-z]{2}")
LINK = re.compile(
    r"""
    (\]\( | href=" | src=")       # stands before the target
    (?!https?: | [#] | mailto:)   # which is neither elsewhere nor on this page
    ([^)"#\s]+)                   # the target
    """,
    re.VERBOSE,
)
Id = str | tuple[str, str]  # a unit, or a message's forms for one and for many
Entries = dict[str, Message]  # of a catalogue, by their keys
ENGLISH = "english"  # the tag of a cell in which something has no translation yet
COMMENT = "# A translation of {0}: see CONTRIBUTING.md."
PARTLY_ENGLISH = "> 本章有 {missing} 段尚未译成中文，暂时显示英文原文。"
ALL_ENGLISH = "> 本章尚未译成中文，以下为英文原文。"


def units(text: str) -> list[str]:
    """Returns the parts of a text; joined by line ends they are the text again."""
    parts: list[str] = []
    inside_fence = False
    previous_ended = True  # the line before was blank, or a unit of a single line
    for line in text.split("\n"):
        stripped = line.lstrip()
        is_fence = stripped.startswith("```")
        is_blank = not stripped
        begins = is_fence or is_blank or BEGINS.match(line)
        if parts and NUMBERED.match(line) and NUMBERED.match(parts[-1]):
            begins = True
        goes_on = parts and not previous_ended and not begins
        if inside_fence or goes_on:
            parts[-1] += f"\n{line}"
        else:
            parts.append(line)
        if is_fence:
            inside_fence = not inside_fence
        is_single_line = stripped.startswith(("#", "|"))
        ends = is_blank or is_fence or is_single_line
        previous_ended = ends and not inside_fence
    return parts


def is_prose(unit: str) -> bool:
    """Whether there is anything to translate; a drawing in words is, other code is not."""
    stripped = unit.lstrip()
    if stripped.startswith("```"):
        return stripped.startswith("```mermaid")
    if ' alt="' in unit:  # it describes a picture
        return True
    without_code = NO_PROSE.sub("", unit)
    return TWO_LETTERS.search(without_code) is not None


def key(unit: str) -> str:
    """What a unit is known by: its words, and not where its lines end."""
    return " ".join(unit.split())


def prose(notebook: NotebookNode) -> list[str]:
    """Returns the units of a notebook that need a translation, each once."""
    texts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            texts.append(cell.source)
    text = "\n\n".join(texts)
    return prose_of(text)


def prose_of(text: str) -> list[str]:
    """Returns the units of a text that need a translation, each once."""
    by_key = {}
    for unit in units(text):
        if is_prose(unit):
            unit_key = key(unit)
            by_key[unit_key] = unit
    return list(by_key.values())


def read(path: Path) -> Catalog:
    """Returns the catalogue in a file, or an empty one.

    Raises:
        babel.messages.pofile.PoFileError: The file is no catalogue.
    """
    if not path.exists():
        return empty()
    with path.open("rb") as file:
        return read_po(file, abort_invalid=True, ignore_obsolete=True)


def empty() -> Catalog:
    """Returns a catalogue without entries."""
    catalog = Catalog("zh_CN", project="ddp-course", version="1", fuzzy=False)
    catalog.last_translator = ""
    catalog.language_team = ""
    catalog.msgid_bugs_address = ""
    return catalog


def write(catalog: Catalog, path: Path, source: str) -> None:
    """Writes a catalogue, its lines broken where the texts' are."""
    catalog.header_comment = COMMENT.format(source)
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_po(file, catalog, width=10**6, ignore_obsolete=True)


def words(catalog: Catalog) -> Entries:
    """Returns the entries by their keys."""
    entries = {}
    for message in catalog:
        if message.id:  # only the header has none
            message_key = key(message.id)
            entries[message_key] = message
    return entries


def take_up(catalog: Catalog, wanted: list[str]) -> Catalog:
    """Returns the catalogue for these units, in their order, with what was translated before.

    A new unit that resembles one which is gone gets its translation, marked fuzzy, with the former
    English as a comment: somebody has to look. Other translations that nobody needs any more go.
    """
    old = words(catalog)
    wanted_keys = set(map(key, wanted))
    unused = {}
    for old_key, message in old.items():
        if message.string and old_key not in wanted_keys:
            unused[old_key] = message
    for message in old.values():
        catalog.delete(message.id)
    for unit in wanted:
        unit_key = key(unit)
        message = old.get(unit_key)
        if not message:
            message = _resembling(unit, unused)
        add(catalog, unit, message.string, message)
    return catalog


def add(catalog: Catalog, unit: Id, chinese: str | tuple[str], entry: Message) -> None:
    """Adds a unit with its translation, and with the flags and comments of another entry."""
    catalog.add(unit, chinese, flags=entry.flags, user_comments=entry.user_comments)


def _resembling(unit: str, unused: Entries) -> Message:
    """Takes the translation of similar English out of the unused ones; else an empty one."""
    unit_key = key(unit)
    similar = _closest(unit_key, unused)
    if similar is None:
        return Message(unit)
    message = unused.pop(similar)
    message.flags.add("fuzzy")
    if not message.user_comments:
        message.user_comments = [f"was: {similar}"]
    return message


def _closest(text: str, others: Iterable[str]) -> str | None:
    """The one of the others that shares most words with a text, if it shares half of them."""
    matcher = SequenceMatcher(None, autojunk=False)
    words_of_text = text.split()
    matcher.set_seq2(words_of_text)
    closest = None
    best_ratio = 0.5
    for other in others:
        words_of_other = other.split()
        matcher.set_seq1(words_of_other)
        if matcher.real_quick_ratio() <= best_ratio:  # an upper bound, which costs little
            continue
        ratio = matcher.ratio()
        if ratio > best_ratio:
            closest = other
            best_ratio = ratio
    return closest


def in_chinese(text: str, known: Entries) -> tuple[str, int]:
    """Returns a text with every unit translated that somebody has, and how many are missing."""
    parts = units(text)
    missing = 0
    for index, unit in enumerate(parts):
        if not is_prose(unit):
            continue
        unit_key = key(unit)
        message = known.get(unit_key)
        if holds(message):
            parts[index] = message.string
        else:
            missing += 1
    return "\n".join(parts), missing


def as_far_as_known(text: str, known: Entries) -> str:
    """Returns a text in Chinese; what nobody has translated stays English."""
    translation, _ = in_chinese(text, known)
    return translation


def holds(message: Message | None) -> bool:
    """Whether there is a translation, of the English as it is now."""
    if message is None:
        return False
    if message.fuzzy:
        return False
    return bool(message.string)


def translated(notebook: NotebookNode, known: Entries) -> NotebookNode:
    """Returns the notebook in Chinese; what is missing stays English, and its cells say so.

    The first cell tells the reader, the tag `english` tells a machine which cells they are.
    """
    result = copy.deepcopy(notebook)
    missing = 0
    for cell in result.cells:
        if cell.cell_type != "markdown":
            continue
        cell.source, missing_here = in_chinese(cell.source, known)
        if missing_here:
            missing += missing_here
            tags = cell.metadata.get("tags", [])
            cell.metadata["tags"] = [*tags, ENGLISH]
    if not missing:
        return result
    note = PARTLY_ENGLISH.format(missing=missing)
    if missing == len(prose(notebook)):
        note = ALL_ENGLISH
    first_cell = result.cells[0]
    first_cell.source += f"\n\n{note}"
    return result


def anchor(heading: str, earlier: Collection[str]) -> str:
    """Returns the anchor that MyST makes of a heading, after those it has made on the page."""
    lower_case = heading.strip().lower()
    with_hyphens = lower_case.replace(" ", "-")
    slug = re.sub(r"[^\w\- ]", "", with_hyphens)
    unused = slug
    repeats = 0
    while unused in earlier:
        repeats += 1
        unused = f"{slug}-{repeats}"
    return unused


def deeper(text: str, folder: str, translations: set[str]) -> str:
    """Returns a text of `folder` with links that hold in `folder`/zh, to Chinese where that is."""

    def link(match: re.Match[str]) -> str:
        opening, written = match.groups()
        joined = posixpath.join(folder, written)
        target = posixpath.normpath(joined)
        if target in translations:
            parent, name = posixpath.split(target)
            target = posixpath.join(parent, "zh", name)
        folder_of_text = f"{folder}/zh"
        from_there = posixpath.relpath(target, folder_of_text)
        return opening + from_there

    return LINK.sub(link, text)
