"""The pictures of README, drawn from what notebooks printed: `make pictures`.

    python -m course_tools.site.readme_pictures            writes them
    python -m course_tools.site.readme_pictures --check    are they what the notebooks say now?

Nothing is run. A cell and its output are taken as they stand in an executed notebook, and the ring
from the words of chapter 03's own figure. Each picture comes in a light and in a dark form, as SVG:
text stays text, a moving one needs no player, and GitHub shows both.
"""

import re
import sys
from html import escape

import nbformat
from nbformat import NotebookNode
from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.notebooks.cells import ANSI
from course_tools.site import ring_picture
from course_tools.site.svg import THEMES, Theme, rectangle, words_at
from course_tools.texts import has_text

TO = ROOT / "source/pictures"
# All lengths are pixels.
WIDTH = 860
MARGIN = 18
PANEL_WIDTH = WIDTH - 2 * MARGIN
FONT_SIZE = 12.5
CHARACTER = 7.5  # a character's width is 0.6 of its size
LINE = 19  # from one line of text to the next
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    'viewBox="0 0 {width} {height}" role="img" font-family="{font}" font-size="{size}">\n'
    "<title>{title}</title>\n"
    "{contents}</svg>\n"
)

Spans = list[tuple[str, str]]  # pieces of a line, each with its colour


def notebook(name: str) -> NotebookNode:
    """Reads an executed lesson."""
    path = ROOT / f"notebooks/{name}.ipynb"
    return nbformat.read(path, as_version=4)


def cell_with(name: str, words: str) -> NotebookNode:
    """Returns the one code cell of a lesson that has these words.

    Raises:
        ValueError: There is none, or there are several.
    """
    matching = []
    lesson = notebook(name)
    for cell in lesson.cells:
        if cell.cell_type != "code":
            continue
        if words in cell.source:
            matching.append(cell)
    count = len(matching)
    if count != 1:
        raise ValueError(f"{count} cells of {name} have the words {words!r}, not one")
    return matching[0]


def printed(cell: NotebookNode) -> str:
    """Returns what a cell printed, or the text of what it raised."""
    text = ""
    for output in cell.outputs:
        if output.output_type == "stream":
            text += output.text
        elif output.output_type == "error":
            text += "\n".join(output.traceback)
    without_colours = ANSI.sub("", text)
    return without_colours.strip("\n")


def errors_of(cell: NotebookNode) -> list[NotebookNode]:
    """Returns those outputs of a cell that are errors."""
    errors = []
    for output in cell.outputs:
        if output.output_type == "error":
            errors.append(output)
    return errors


def coloured(code: str, theme: Theme) -> list[Spans]:
    """Returns the lines of a cell, in pieces of a colour each."""
    line: Spans = []
    lines = [line]
    lexer = PythonLexer(ensurenl=False)
    for token, value in lex(code, lexer):
        ink = ink_of(token, theme)
        first_text, *texts_of_new_lines = value.split("\n")
        span = (first_text, ink)
        line.append(span)
        for text in texts_of_new_lines:
            span = (text, ink)
            line = [span]
            lines.append(line)
    return lines


def ink_of(token: _TokenType, theme: Theme) -> str:
    """The colour of a token of Python: that of the first kind which it belongs to."""
    inks = (
        (Comment, theme.faint),
        (Keyword, theme.keyword),
        (Operator.Word, theme.keyword),
        (String, theme.text),
        (Number, theme.number),
        (Name.Function, theme.name),
    )
    for kind, ink in inks:
        if token in kind:
            return ink
    return theme.ink


def plain(text: str, theme: Theme) -> list[Spans]:
    """Returns the lines of an output."""
    lines = []
    for line in text.split("\n"):
        span = (line, theme.ink)
        only_span = [span]
        lines.append(only_span)
    return lines


def line_at(spans: Spans, y: float) -> str:
    """Returns a line of text as SVG, of the same width whatever the font is."""
    count = 0
    pieces = ""
    for text, ink in spans:
        count += len(text)
        shown = escape(text, quote=False)
        pieces += f'<tspan fill="{ink}">{shown}</tspan>'
    if count == 0:
        return ""
    width = count * CHARACTER
    room = PANEL_WIDTH - MARGIN
    if width > room:
        raise ValueError(f"a line of {count} characters is too long for a picture")
    x = 2 * MARGIN
    as_written = {"textLength": width, "xml:space": "preserve"}
    return words_at(x, y, pieces, **as_written)


def page(height: float, body: str, words: str, theme: Theme, style: str = "") -> str:
    """Returns a whole picture, with the words that say what it shows."""
    inner_width = WIDTH - 1  # the line around it is a pixel wide
    inner_height = height - 1
    frame = rectangle(
        0.5, 0.5, inner_width, inner_height, rx=8, fill=theme.page, stroke=theme.border
    )
    title = escape(words, quote=False)
    contents = style + frame + body
    return PICTURE.format(
        width=WIDTH,
        height=height,
        font=MONO,
        size=FONT_SIZE,
        title=title,
        contents=contents,
    )


def cell_picture(cell: NotebookNode, words: str, theme: Theme, code: str = "") -> str:
    """Returns a cell with what it printed below it; the last paragraph of an error stands out."""
    shown_code = code or cell.source
    shown_code = shown_code.replace("\n\n\n", "\n\n")
    code_lines = coloured(shown_code, theme)
    code_height = len(code_lines) * LINE
    panel_height = code_height + MARGIN
    code_y = MARGIN + LINE + 3
    body = code_panel(panel_height, theme)
    body += lines_from(code_lines, code_y)

    output = printed(cell)
    output_lines = plain(output, theme)
    panel_bottom = MARGIN + panel_height
    output_y = panel_bottom + LINE + 8
    if errors_of(cell):
        body += verdict_box(output_lines, output_y, theme)
    body += lines_from(output_lines, output_y)

    lines_below_first = len(output_lines) - 1
    height_below_first = lines_below_first * LINE
    last_line_y = output_y + height_below_first
    height = last_line_y + MARGIN + 4
    return page(height, body, words, theme)


def code_panel(height: float, theme: Theme) -> str:
    """Returns the ground that a cell's code stands on."""
    ground = theme.panel
    line = theme.border
    return rectangle(MARGIN, MARGIN, PANEL_WIDTH, height, rx=5, fill=ground, stroke=line)


def lines_from(lines: list[Spans], first_y: float) -> str:
    """Returns lines of text below each other as SVG."""
    drawn = ""
    y = first_y
    for line in lines:
        drawn += line_at(line, y)
        y += LINE
    return drawn


def verdict_box(lines: list[Spans], first_y: float, theme: Theme) -> str:
    """Returns the ground of an error's last paragraph, which says who is guilty."""
    baseline = first_y - LINE
    baseline_before = baseline  # that of the last line above the paragraph
    for line in lines:
        baseline += LINE
        is_blank = not any(text for text, _ in line)
        if is_blank:
            baseline_before = baseline
    top = baseline_before + 3
    height_of_text = baseline - baseline_before
    height = height_of_text + 6
    return rectangle(MARGIN, top, PANEL_WIDTH, height, rx=5, fill=theme.verdict)


def introduces(theme: Theme) -> str:
    """The first launch of chapter 00."""
    cell = cell_with("00_start_here", "def introduce")
    words = "A cell that launches two ranks, and below it what each of them printed."
    return cell_picture(cell, words, theme)


def hangs(theme: Theme) -> str:
    """The hang of chapter 00, with its report."""
    cell = cell_with("00_start_here", "def add_up_but_rank_2_forgets")
    function, _, _ = cell.source.partition("\n\n\n")
    call = re.search(r"launch\(.*\)", cell.source)
    if call is None:
        raise ValueError("the cell with the hang has no launch")
    errors = errors_of(cell)
    only_error = NotebookNode(outputs=errors)
    written_call = call[0]
    code = f"{function}\n\n\n{written_call}"
    words = (
        "A cell in which rank 2 of four skips an all_reduce. The error says where ranks 0, 1 and 3 "
        "wait, that rank 2 has returned, and that it never called all_reduce."
    )
    return cell_picture(only_error, words, theme, code)


def ring(theme: Theme) -> str:
    """The ring of chapter 03, step by step."""
    states, summary = rings_states()
    height, body = ring_picture.steps(states, theme)
    words = ring_picture.words(states, summary)
    return page(height, body, words, theme)


def ring_moving(theme: Theme) -> str:
    """The same in ten seconds."""
    states, summary = rings_states()
    height, body, style = ring_picture.moving(states, summary, theme)
    words = ring_picture.words(states, summary)
    return page(height, body, words, theme, style)


def rings_states() -> tuple[ring_picture.States, str]:
    """Returns what ranks hold after each step, as chapter 03's figure says, and its summary."""
    cell = cell_with("03_collective_primitives", "draw_ring(finished_step)")
    figures = []
    for output in cell.outputs:
        if "data" in output:
            figure = output.data["text/plain"]
            figures.append(figure)
    first_figure = figures[0]
    states = ring_picture.read(first_figure)
    summary = printed(cell)
    return states, summary


PICTURES = {
    "cell": introduces,
    "hang": hangs,
    "ring": ring,
    "ring_moving": ring_moving,
}


def drawn() -> dict[str, str]:
    """Returns all pictures by the names of their files."""
    pictures = {}
    for name, draw in PICTURES.items():
        for theme_name, theme in THEMES.items():
            file_name = f"{name}_{theme_name}.svg"
            pictures[file_name] = draw(theme)
    return pictures


def main(argv: list[str] | None = None) -> int:
    """Writes the pictures, or says which are old; returns the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args(argv)
    old = {}
    pictures = drawn()
    for name, text in pictures.items():
        path = TO / name
        if not has_text(path, text):
            old[path] = text
    if arguments.check:
        names = [path.name for path in old]
        return tell_old(names)
    for path, text in old.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def tell_old(names: list[str]) -> int:
    """Says which pictures are old, if any are; returns the exit status of a check."""
    if not names:
        return 0
    listed = ", ".join(names)
    print(f"source/pictures: {listed}: old; make pictures", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
