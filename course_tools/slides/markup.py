"""A slide: what is in sight, as HTML with a guess of its height, and notes as Markdown."""

import html
import re
from dataclasses import dataclass, field
from typing import NamedTuple

import mistune
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_tools.notebooks.predictions import Question

COLOURS = HtmlFormatter(style="friendly", nowrap=True)
WHOLE = re.compile(r"[-|>]|\d\.|```")  # lists, tables, quotations, listings
ROOM_PX, GAP_PX = 590, 18  # below the heading; between two pieces
LINE_PX, COLUMNS = 40, 70  # a line of words, and how wide it is
LISTING_PX = 1120  # how wide a listing is
SENTENCE = r"((?<=[.?!])[*`)\"]*\s+|(?<=[。？！])[*`）”]*)"
ENDS = r"(\s|[。？！][*`）”]*)$"
MOST = 14  # lines of output
NOBODY = r" \(no prediction\)"
markdown = mistune.create_markdown(escape=False, plugins=["table"])


class Piece(NamedTuple):
    """Something on a slide, as HTML."""

    markup: str
    height: int  # in pixels, a guess


class Outputs(NamedTuple):
    """What a cell has below it."""

    pictures: list[tuple[str, str]]  # each with its caption
    text: str  # what was raised, or else printed
    answers: list[str]  # the printed lines that answer predictions


@dataclass
class Slide:
    """A slide, and how many pixels it has left."""

    title: str
    label: str = ""
    shown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    room: int = ROOM_PX

    def add(self, piece: Piece) -> bool:
        """Shows a piece if there is room, or nothing yet."""
        if self.shown and piece.height > self.room:
            return False
        self.shown.append(piece.markup)
        self.room -= piece.height + GAP_PX
        return True

    def html(self) -> str:
        """The slide as reveal.js reads it."""
        label = f'<p class="label">{self.label}</p>' if self.label else ""
        title_paragraph = words(self.title).markup.strip()
        title = title_paragraph.removeprefix("<p>").removesuffix("</p>")
        shown = "".join(self.shown)
        notes = ""
        for note in dict.fromkeys(self.notes):
            notes += words(note).markup
        return (
            f'<section><div class="page"><header><h2>{title}</h2>{label}</header>'
            f'{shown}</div><aside class="notes">{notes}</aside></section>'
        )


def in_sight(text: str) -> str:
    """The first sentence of a paragraph, and the first that stresses something; all of a list."""
    if WHOLE.match(text):
        return text
    sentences = [""]
    for piece in re.split(SENTENCE, text):
        sentences[-1] += piece
        if _is_sentence(sentences[-1]):
            sentences.append("")
    first, *others = sentences
    for sentence in others:
        if "**" in sentence:
            return first + sentence
    return first


def stresses(text: str) -> bool:
    """Whether a paragraph has bold words, or is a list or the like, which is shown as a whole."""
    return "**" in text or WHOLE.match(text) is not None


def _is_sentence(text: str) -> bool:
    """Whether a text ends one: its marks and brackets are closed, and it is no abbreviation."""
    if columns(text) <= 35:
        return False
    opening, closing = text.count("("), text.count(")")
    stars, ticks = text.count("*"), text.count("`")
    if opening != closing or stars % 2 or ticks % 2:
        return False
    return re.search(ENDS, text) is not None


def columns(line: str) -> int:
    """How wide a line is: a Chinese sign is as wide as two letters."""
    wide = re.findall(r"[\u3000-\u9fff\uff00-\uffef]", line)
    return len(line) + len(wide)


def words(text: str, later: bool = False) -> Piece:
    """Markdown; links inside the course, which lead nowhere from a slide, are plain words."""
    text = re.sub(r"\[([^]]+)\]\((?!http)[^)]*\)", r"\1", text)
    markup = markdown(text)
    lines_on_slide = 0
    for line in _lines(text):
        lines_on_slide += 1 + columns(line) // COLUMNS
    height = lines_on_slide * LINE_PX
    if height > ROOM_PX:
        shrunk = 28 * (ROOM_PX / height) ** 0.5
        size = max(20, shrunk)
        markup = f'<div class="much" style="font-size:{size:.0f}px">{markup}</div>'
        height = ROOM_PX
    if later:
        markup = f'<div class="fragment so">{markup}</div>'
    return Piece(markup, height)


def _lines(text: str) -> list[str]:
    """The lines of a text for a guess of its height: a paragraph is one, wherever it breaks."""
    if not WHOLE.match(text):
        return [" ".join(text.split())]
    lines = []
    for line in text.splitlines():
        cells = line.split("|")
        longest = max(cells, key=columns)  # it decides how high a row of a table is
        columns_of_table = max(1, len(cells) - 2)
        lines.append(longest * columns_of_table)
    return lines


def listing(text: str, kind: str) -> Piece:
    """Code or output in letters as large as its longest line allows; long output is cut."""
    lines = text.splitlines()
    if kind == "output" and len(lines) > MOST:
        first_lines = lines[: MOST - 1]
        lines = [*first_lines, "…"]
    size = _letter_px(lines)
    broken_lines = 0  # on the slide, where long lines are broken
    for line in lines:
        width_px = len(line) * size * 3 // 5
        broken_lines += 1 + width_px // LISTING_PX
    height = broken_lines * size * 4 // 3 + 20
    shown_text = "\n".join(lines)
    if kind == "code":
        classes = kind
        markup = highlight(shown_text, PythonLexer(), COLOURS)
    else:
        classes = f"{kind} fragment"
        markup = html.escape(shown_text)
    pre = f'<pre class="{classes}" style="font-size:{size}px">{markup.rstrip()}</pre>'
    return Piece(pre, height)


def _letter_px(lines: list[str]) -> int:
    """How large a letter may be, so that a listing fits in both directions."""
    longest = max(len(line) for line in lines)
    fits_across = 1850 // longest
    fits_down = 390 // len(lines)
    size = min(24, fits_across, fits_down)
    return max(17, size)


def vote(question: Question, write: str) -> Piece:
    """The question and its choices; who has no choices is told to write an answer down first."""
    answers = f"<p>{write}</p>"
    if question.choices:
        boxes = ""
        for choice in question.choices:
            boxes += f"<li>{html.escape(choice)}</li>"
        answers = f'<ol class="choices">{boxes}</ol>'
    text = html.escape(question.text)
    asks = f"<b>{text} …</b>{answers}"
    markup = f'<div class="ask" data-asks="{question.number}">{asks}</div>'
    return Piece(markup, 4 * LINE_PX)


def measured(number: int, line: str) -> Piece:
    """What answers a prediction."""
    text = html.escape(line)
    markup = f'<p class="fragment measured" data-tells="{number}">{text}</p>'
    further_lines = len(line) // 60
    height = 60 + further_lines * LINE_PX
    return Piece(markup, height)


def outputs(cell: NotebookNode) -> Outputs:
    """A cell's outputs, sorted by what becomes of them."""
    pictures, printed, raised = [], "", ""
    for output in cell.outputs:
        data = output.get("data", {})
        markup = data.get("text/html", "")
        if "<img" in markup:
            pictures.append((markup, ""))
        elif markup.startswith("<p"):
            picture, _ = pictures[-1]
            caption = data["text/plain"]
            pictures[-1] = (picture, caption)
        elif output.output_type == "error":
            raised = "\n".join(output.traceback)
        elif not markup:
            printed += output.get("text") or data["text/plain"]
    answers = re.findall(rf"(?m)^(.*){NOBODY}$", printed)
    text = raised
    if not text:
        text = re.sub(rf"(?m)^.*{NOBODY}\n?", "", printed)
    without_colours = re.sub(r"\x1b\[[\d;]*m", "", text)
    return Outputs(pictures, without_colours.strip("\n"), answers)
