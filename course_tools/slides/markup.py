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

from course_tools.notebooks.cells import ANSI
from course_tools.notebooks.predictions import Question

COLOURS = HtmlFormatter(style="friendly", nowrap=True)
WHOLE = re.compile(r"[-|>]|\d\.|```")  # lists, tables, quotations, listings
ROOM_PX = 590  # below the heading
GAP_PX = 18  # between two pieces
LINE_PX = 40  # a line of words
COLUMNS = 70  # how wide it is
LISTING_PX = 1120  # how wide a listing is
BETWEEN_SENTENCES = re.compile(
    r"""(
    (?<=[.?!]) [*`)"]* \s+  # after a mark, what closes behind it and a space
    | (?<=[。？！]) [*`）”]*  # Chinese has no space there
    )""",
    re.VERBOSE,
)
ENDS = re.compile(r"(\s|[。？！][*`）”]*)$")
WIDE = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")  # Chinese
LINK_INSIDE = re.compile(r"\[([^]]+)\]\((?!http)[^)]*\)")
MOST = 14  # lines of output
# A line that answers a prediction, where nobody has made one.
ANSWER = re.compile(r"^(.*) \(no prediction\)$", re.MULTILINE)
ANSWER_WITH_LINE_END = re.compile(r"^.* \(no prediction\)\n?", re.MULTILINE)
markdown = mistune.create_markdown(escape=False, plugins=["table"])
# A slide, and what stands on it, as HTML.
SLIDE_AS_HTML = (
    '<section><div class="page"><header><h2>{title}</h2>{label}</header>'
    '{shown}</div><aside class="notes">{notes}</aside></section>'
)
LISTING_AS_HTML = '<pre class="{classes}" style="font-size:{size}px">{markup}</pre>'
VOTE_AS_HTML = '<div class="ask" data-asks="{number}"><b>{text} …</b>{answers}</div>'
MEASURED_AS_HTML = '<p class="fragment measured" data-tells="{number}">{text}</p>'


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
        is_too_high = piece.height > self.room
        if self.shown and is_too_high:
            return False
        self.shown.append(piece.markup)
        self.room -= piece.height + GAP_PX
        return True

    def html(self) -> str:
        """The slide as reveal.js reads it."""
        label = ""
        if self.label:
            label = f'<p class="label">{self.label}</p>'
        title = words(self.title).markup.strip()
        title = title.removeprefix("<p>")
        title = title.removesuffix("</p>")
        shown = "".join(self.shown)
        notes = ""
        for note in dict.fromkeys(self.notes):
            notes += words(note).markup
        return SLIDE_AS_HTML.format(title=title, label=label, shown=shown, notes=notes)


def in_sight(text: str) -> str:
    """The first sentence of a paragraph, and the first that stresses something; all of a list."""
    if WHOLE.match(text):
        return text
    sentences = [""]
    for piece in BETWEEN_SENTENCES.split(text):
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
    if "**" in text:
        return True
    return WHOLE.match(text) is not None


def _is_sentence(text: str) -> bool:
    """Whether a text ends one: its marks and brackets are closed, and it is no abbreviation."""
    if columns(text) <= 35:
        return False
    if text.count("(") != text.count(")"):
        return False
    for mark in "*`":
        count = text.count(mark)
        is_open = count % 2 == 1
        if is_open:
            return False
    return ENDS.search(text) is not None


def columns(line: str) -> int:
    """How wide a line is: a Chinese sign is as wide as two letters."""
    wide_signs = WIDE.findall(line)
    return len(line) + len(wide_signs)


def words(text: str, later: bool = False) -> Piece:
    """Markdown; links inside the course, which lead nowhere from a slide, are plain words."""
    text = LINK_INSIDE.sub(r"\1", text)
    markup = markdown(text)
    height = 0
    for line in _lines(text):
        lines_on_slide = 1 + columns(line) // COLUMNS
        height += lines_on_slide * LINE_PX
    if height > ROOM_PX:
        share = ROOM_PX / height
        size = 28 * share**0.5  # smaller letters take less room in both directions
        size = max(20, size)
        markup = f'<div class="much" style="font-size:{size:.0f}px">{markup}</div>'
        height = ROOM_PX
    if later:
        markup = f'<div class="fragment so">{markup}</div>'
    return Piece(markup, height)


def in_brief(text: str, later: bool = False) -> Piece:
    """What is in sight of a paragraph."""
    sentences = in_sight(text)
    return words(sentences, later)


def _lines(text: str) -> list[str]:
    """The lines of a text for a guess of its height: a paragraph is one, wherever it breaks."""
    if not WHOLE.match(text):
        return [" ".join(text.split())]
    lines = []
    for line in text.splitlines():
        cells = line.split("|")
        longest = max(cells, key=columns)  # it decides how high a row of a table is
        inner_cells = len(cells) - 2  # in a row of a table, between its outer lines
        columns_of_table = max(1, inner_cells)
        lines.append(longest * columns_of_table)
    return lines


def code_listing(text: str) -> Piece:
    """Code with its colours."""
    lines = text.splitlines()
    shown_text = "\n".join(lines)
    markup = highlight(shown_text, PythonLexer(), COLOURS)
    return _listing(lines, "code", markup)


def output_listing(text: str) -> Piece:
    """Output, which is cut where it is long."""
    lines = text.splitlines()
    if len(lines) > MOST:
        first_lines = lines[: MOST - 1]
        lines = [*first_lines, "…"]
    shown_text = "\n".join(lines)
    markup = html.escape(shown_text)
    return _listing(lines, "output fragment", markup)


def _listing(lines: list[str], classes: str, markup: str) -> Piece:
    """Lines, which `markup` has as HTML, in letters as large as the longest of them allows."""
    size = _letter_px(lines)
    lines_on_slide = len(lines)
    for line in lines:
        letters_px = len(line) * size
        width_px = letters_px * 3 // 5
        lines_on_slide += width_px // LISTING_PX  # a long line is broken
    lines_px = lines_on_slide * size
    height = lines_px * 4 // 3 + 20
    listing = LISTING_AS_HTML.format(classes=classes, size=size, markup=markup.rstrip())
    return Piece(listing, height)


def _letter_px(lines: list[str]) -> int:
    """How large a letter may be, so that a listing fits in both directions."""
    columns_of_longest = max(map(len, lines))
    fits_across = 1850 // columns_of_longest
    fits_down = 390 // len(lines)
    size = min(24, fits_across, fits_down)
    return max(17, size)


def vote(question: Question, write: str) -> Piece:
    """The question and its choices; who has no choices is told to write an answer down first."""
    answers = f"<p>{write}</p>"
    if question.choices:
        boxes = ""
        for choice in question.choices:
            escaped = html.escape(choice)
            boxes += f"<li>{escaped}</li>"
        answers = f'<ol class="choices">{boxes}</ol>'
    text = html.escape(question.text)
    markup = VOTE_AS_HTML.format(number=question.number, text=text, answers=answers)
    return Piece(markup, 4 * LINE_PX)


def measured(number: int, line: str) -> Piece:
    """What answers a prediction."""
    text = html.escape(line)
    markup = MEASURED_AS_HTML.format(number=number, text=text)
    further_lines = len(line) // 60
    height = 60 + further_lines * LINE_PX
    return Piece(markup, height)


def outputs(cell: NotebookNode) -> Outputs:
    """A cell's outputs, sorted by what becomes of them."""
    pictures = []
    printed = ""
    raised = ""
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
    answers = ANSWER.findall(printed)
    text = raised
    if not raised:
        text = ANSWER_WITH_LINE_END.sub("", printed)
    text = ANSI.sub("", text)
    return Outputs(pictures, text.strip("\n"), answers)
