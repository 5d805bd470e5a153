"""Texts in another language, made of the English ones and of a catalogue (gettext, by Babel).

A unit is a paragraph, an item of a list, a row of a table or a folded answer; its English text is
its key, however its lines are broken. Only Markdown is touched: code, outputs and the ids of cells
stay those of the English notebook, so a language needs no run of its own.
"""

import copy
import posixpath
import re
from difflib import SequenceMatcher
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po
from nbformat import NotebookNode

BEGINS = re.compile(r"\s*(\||[-*] |1\. |<details>|#+ )")
NUMBERED = re.compile(r"\s*\d+\. ")  # in the middle of a paragraph it is no item, but a number
NO_PROSE = re.compile(r"`[^`]*`|<code>.*?</code>|<[^>]+>|\]\([^)]*\)|https?://\S+|&\w+;")
LINK = re.compile(r'(\]\(|href="|src=")(?!https?:|#|mailto:)([^)"#\s]+)')
ENGLISH = "english"  # the tag of a cell in which something has no translation yet
COMMENT = "# A translation of {0}: see CONTRIBUTING.md."
NOTES = (
    "> 本章有 {missing} 段尚未译成中文，暂时显示英文原文。",
    "> 本章尚未译成中文，以下为英文原文。",
)


def units(text: str) -> list[str]:
    """Returns the parts of a text; joined by line ends they are the text again."""
    parts: list[str] = []
    fence, fresh = False, True
    for line in text.split("\n"):
        fenced = line.lstrip().startswith("```")
        begins = fenced or not line.strip() or BEGINS.match(line)
        begins = begins or (parts and NUMBERED.match(line) and NUMBERED.match(parts[-1]))
        if fence or (parts and not fresh and not begins):
            parts[-1] += "\n" + line
        else:
            parts.append(line)
        fence ^= fenced
        fresh = not fence and (not line.strip() or fenced or line.lstrip()[:1] in "#|")
    return parts


def is_prose(unit: str) -> bool:
    """Whether there is anything to translate; a drawing in words is, other code is not."""
    if unit.lstrip().startswith("```"):
        return unit.lstrip().startswith("```mermaid")
    describes_a_picture = ' alt="' in unit
    return describes_a_picture or bool(re.search(r"[A-Za-z]{2}", NO_PROSE.sub("", unit)))


def key(unit: str) -> str:
    """What a unit is known by: its words, and not where its lines end."""
    return " ".join(unit.split())


def prose(notebook: NotebookNode) -> list[str]:
    """Returns the units of a notebook that need a translation, each once."""
    texts = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return prose_of("\n\n".join(texts))


def prose_of(text: str) -> list[str]:
    """Returns the units of a text that need a translation, each once."""
    return list({key(unit): unit for unit in units(text) if is_prose(unit)}.values())


def read(path: Path) -> Catalog:
    """Returns the catalogue in a file, or an empty one.

    Raises:
        babel.messages.pofile.PoFileError: The file is no catalogue.
    """
    if path.exists():
        with path.open("rb") as file:
            return read_po(file, abort_invalid=True, ignore_obsolete=True)
    return empty()


def empty() -> Catalog:
    """Returns a catalogue without entries."""
    catalog = Catalog("zh_CN", project="ddp-course", version="1", fuzzy=False)
    catalog.last_translator = catalog.language_team = catalog.msgid_bugs_address = ""
    return catalog


def write(catalog: Catalog, path: Path, source: str) -> None:
    """Writes a catalogue, its lines broken where the texts' are."""
    catalog.header_comment = COMMENT.format(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_po(file, catalog, width=10**6, ignore_obsolete=True)


def words(catalog: Catalog) -> dict[str, Message]:
    """Returns the entries by their keys."""
    return {key(message.id): message for message in catalog if message.id}


def take_up(catalog: Catalog, wanted: list[str]) -> Catalog:
    """Returns the catalogue for these units, in their order, with what was translated before.

    A unit that is new but resembles one that is gone gets its translation marked fuzzy, with the
    former English beside it: somebody has to look. The other translations that nobody needs go.
    """
    old = words(catalog)
    gone = {k: m for k, m in old.items() if m.string and k not in {key(u) for u in wanted}}
    for message in old.values():
        catalog.delete(message.id)
    for unit in wanted:
        was = old.get(key(unit)) or Message(unit)
        if key(unit) not in old and (like := _closest(key(unit), gone)):
            was = gone.pop(like)
            was.flags.add("fuzzy")
            was.user_comments = was.user_comments or [f"was: {like}"]
        catalog.add(unit, was.string, flags=was.flags, user_comments=was.user_comments)
    return catalog


def _closest(text: str, others: dict[str, Message]) -> str | None:
    """The one of the others that shares most words with a text, if it shares half of them."""
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(text.split())
    best, found = 0.5, None
    for other in others:
        matcher.set_seq1(other.split())
        if matcher.real_quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, found = ratio, other
    return found


def in_chinese(text: str, known: dict[str, Message]) -> tuple[str, int]:
    """Returns a text with every unit translated that somebody has, and how many are missing."""
    parts, missing = units(text), 0
    for number, unit in enumerate(parts):
        if is_prose(unit):
            message = known.get(key(unit))
            if message and message.string and not message.fuzzy:
                parts[number] = message.string
            else:
                missing += 1
    return "\n".join(parts), missing


def translated(notebook: NotebookNode, known: dict[str, Message]) -> NotebookNode:
    """Returns the notebook in Chinese; what is missing stays English, and its cells say so.

    The first cell tells the reader, the tag `english` tells a machine which cells they are.
    """
    result, missing = copy.deepcopy(notebook), 0
    for cell in result.cells:
        if cell.cell_type == "markdown":
            cell.source, lost = in_chinese(cell.source, known)
            missing += lost
            if lost:
                cell.metadata["tags"] = [*cell.metadata.get("tags", []), ENGLISH]
    if missing:
        note = NOTES[missing == len(prose(notebook))].format(missing=missing)
        result.cells[0].source += f"\n\n{note}"
    return result


def deeper(text: str, folder: str, translations: set[str]) -> str:
    """Returns a text of `folder` with links that hold in `folder`/zh, to Chinese where that is."""

    def link(match: re.Match[str]) -> str:
        to = posixpath.normpath(posixpath.join(folder, match[2]))
        there = posixpath.join(posixpath.dirname(to), "zh", posixpath.basename(to))
        return match[1] + posixpath.relpath(there if to in translations else to, f"{folder}/zh")

    return LINK.sub(link, text)
