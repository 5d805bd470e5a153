"""A slide: what is in sight, as HTML with a guess of its height, and notes as Markdown."""

import html
import re
from dataclasses import dataclass, field

import mistune
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_tools.notebooks.predictions import Question

COLOURS = HtmlFormatter(style="friendly", nowrap=True)
WHOLE = re.compile(r"[-|>]|\d\.|```")  # lists, tables, quotations, listings
ROOM_PX, GAP_PX, LINE_PX, WIDE = 590, 18, 40, 70  # below the heading; a line of words
SENTENCE = r"((?<=[.?!])[*`)\"]*\s+|(?<=[。？！])[*`）”]*)"
ENDS = r"(\s|[。？！][*`）”]*)$"
MOST = 14  # lines of output
NOBODY = r" \(no prediction\)"
markdown = mistune.create_markdown(escape=False, plugins=["table"])
Piece = tuple[str, int]  # HTML, and its height in pixels


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
        fits = piece[1] <= self.room or not self.shown
        if fits:
            self.shown.append(piece[0])
            self.room -= piece[1] + GAP_PX
        return fits

    def html(self) -> str:
        """The slide as reveal.js reads it."""
        label = f'<p class="label">{self.label}</p>' if self.label else ""
        title = words(self.title)[0].strip().removeprefix("<p>").removesuffix("</p>")
        notes = "".join(words(note)[0] for note in dict.fromkeys(self.notes))
        return (
            f'<section><div class="page"><header><h2>{title}</h2>{label}</header>'
            f'{"".join(self.shown)}</div><aside class="notes">{notes}</aside></section>'
        )


def in_sight(text: str) -> str:
    """The first sentence of a paragraph, and the first that stresses something; all of a list."""
    if WHOLE.match(text):
        return text
    sentences = [""]
    for piece in re.split(SENTENCE, text):
        sentences[-1] += piece
        last = sentences[-1]
        whole = all(last.count(mark) % 2 == 0 for mark in ("*", "`"))
        closed = whole and last.count("(") == last.count(")")
        if closed and columns(last) > 35 and re.search(ENDS, last):
            sentences.append("")
    stressed = [one for one in sentences[1:] if "**" in one]
    return "".join([sentences[0], *stressed[:1]])


def columns(line: str) -> int:
    """How wide a line is: a Chinese sign is as wide as two letters."""
    return len(line) + len(re.findall(r"[\u3000-\u9fff\uff00-\uffef]", line))


def words(text: str, later: bool = False) -> Piece:
    """Markdown; links inside the course, which lead nowhere from a slide, are plain words."""
    text = re.sub(r"\[([^]]+)\]\((?!http)[^)]*\)", r"\1", text)
    shown, lines = markdown(text), [" ".join(text.split())]
    if WHOLE.match(text):  # of a row of a table the longest cell counts
        rows = [line.split("|") for line in text.splitlines()]
        lines = [max(cells, key=columns) * max(1, len(cells) - 2) for cells in rows]
    high = LINE_PX * sum(1 + columns(line) // WIDE for line in lines)
    if high > ROOM_PX:
        size = max(20, 28 * (ROOM_PX / high) ** 0.5)
        shown, high = f'<div class="much" style="font-size:{size:.0f}px">{shown}</div>', ROOM_PX
    return f'<div class="fragment so">{shown}</div>' if later else shown, high


def listing(text: str, kind: str) -> Piece:
    """Code or output in letters as large as its longest line allows; long output is cut."""
    lines = text.splitlines()
    if kind == "output" and len(lines) > MOST:
        lines = [*lines[: MOST - 1], "…"]
    text, size = "\n".join(lines), max(17, min(24, 1850 // max(map(len, lines)), 390 // len(lines)))
    high = sum(1 + len(line) * size * 3 // 5 // 1120 for line in lines) * size * 4 // 3 + 20
    shown = highlight(text, PythonLexer(), COLOURS) if kind == "code" else html.escape(text)
    fragment = "" if kind == "code" else " fragment"
    return f'<pre class="{kind}{fragment}" style="font-size:{size}px">{shown.rstrip()}</pre>', high


def vote(question: Question, write: str) -> Piece:
    """The question and its choices; who has no choices is told to write an answer down first."""
    boxes = "".join(f"<li>{html.escape(one)}</li>" for one in question.choices)
    how = f'<ol class="choices">{boxes}</ol>' if boxes else f"<p>{write}</p>"
    asked = f"<b>{html.escape(question.text)} …</b>{how}"
    return f'<div class="ask" data-asks="{question.number}">{asked}</div>', 4 * LINE_PX


def measured(number: int, said: str) -> Piece:
    """What answers a prediction."""
    tells = f'<p class="fragment measured" data-tells="{number}">{html.escape(said)}</p>'
    return tells, 60 + len(said) // 60 * LINE_PX


def outputs(cell: NotebookNode) -> tuple[list[tuple[str, str]], str, list[str]]:
    """Pictures with captions; what was raised, or else printed; and what answers predictions."""
    pictures, printed, raised = [], "", ""
    for output in cell.outputs:
        data = output.get("data", {})
        shown = data.get("text/html", "")
        if "<img" in shown:
            pictures.append((shown, ""))
        elif shown.startswith("<p"):
            pictures[-1] = (pictures[-1][0], data["text/plain"])
        elif output.output_type == "error":
            raised = "\n".join(output.traceback)
        elif not shown:
            printed += output.get("text") or data["text/plain"]
    told = re.findall(rf"(?m)^(.*){NOBODY}$", printed)
    rest = raised or re.sub(rf"(?m)^.*{NOBODY}\n?", "", printed)
    return pictures, re.sub(r"\x1b\[[\d;]*m", "", rest).strip("\n"), told
