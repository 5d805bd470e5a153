"""Executed notebooks as pages: what a reader predicts first is folded, pictures become files.

Nothing is run: a page shows what `notebooks.build` has saved. `website` calls this.
"""

import base64
import copy
import hashlib
import html
import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from course_tools.i18n.site_languages import Tongue
from course_tools.notebooks.predictions import fold, markup

LINK_TO_NOTEBOOK = re.compile(r'(<a href="[\w./-]+)\.ipynb"')
DRAWS = re.compile(r"^(explore|plot_timeline)\(", re.MULTILINE)
# In the map's chart: a part with its title, and in it a chapter with its number and its words.
PART = re.compile(r"subgraph \w+\[(.*?)\]\n(.*?)\n +end", re.DOTALL)
CHAPTER = re.compile(r"(\d\d)\[\d\d (.*?)\]")
# The same as HTML.
PART_AS_HTML = "<h2>{title}</h2><ol>{items}</ol>"
CHAPTER_AS_HTML = (
    '<li><a href="{page}"><b>{chapter}</b> {words}</a>'
    '<span class="tick" data-chapter="{chapter}" data-of="{count}"></span></li>'
)
PICTURE_AS_HTML = (
    '<img class="figure" src="{source}" alt="{words}" '
    'width="{width}" height="{height}" loading="lazy">'
)


def pictures_to_files(cells: Iterable[NotebookNode], folder: Path, root: str) -> None:
    """Writes each picture into a folder and shows the file, with its words as alternative text."""
    for cell in cells:
        outputs = cell.get("outputs", [])
        for output in outputs:
            data = output.get("data", {})
            if "image/png" not in data:
                continue
            image = _picture_as_file(output, folder, root)
            shown = markup(image)
            output.data = shown.data
            output.metadata = {}


def _picture_as_file(output: NotebookNode, folder: Path, root: str) -> str:
    """Writes a picture, unless the other language has done so; returns the HTML that shows it."""
    encoded = output.data["image/png"]
    png = base64.b64decode(encoded)
    digest = hashlib.sha256(png).hexdigest()
    beginning = digest[:16]
    name = f"{beginning}.png"
    path = folder / name
    if not path.exists():
        path.write_bytes(png)
    caption = output.data["text/plain"]
    words = caption.removeprefix("Figure: ")
    width, height = _size(output, png)
    return PICTURE_AS_HTML.format(
        source=f"{root}_static/pictures/{name}",
        words=html.escape(words),
        width=width,
        height=height,
    )


def _size(output: NotebookNode, png: bytes) -> tuple[int, int]:
    """How wide and how high a picture is shown."""
    size_in_header = png[16:24]  # of every PNG: two numbers of 32 bits
    pixels_wide, pixels_high = struct.unpack(">II", size_in_header)
    metadata = output.get("metadata", {})
    size = metadata.get("image/png", {})
    width = size.get("width", pixels_wide)
    exact_height = pixels_high * width / pixels_wide
    height = round(exact_height)
    return width, height


def page(
    path: Path, folder: Path, live: dict[str, str], head: str, solution: bool, tongue: Tongue
) -> NotebookNode:
    """Returns a notebook as a page; of its cells' ids become anchors, in both languages the same.

    Args:
        path: The executed notebook.
        folder: Where its pictures go.
        live: By a text of a cell: a frame with sliders, which takes the place of its timeline.
        head: Markdown that follows the first heading.
        solution: Whether it is kept out of the search.
        tongue: The language it is read in.
    """
    as_read = tongue.read(path)  # and kept for the next who reads it
    notebook = copy.deepcopy(as_read)
    cells = notebook.cells
    title_of_plans = tongue.say("# Choose a plan")  # a page that only the site has
    plan = title_of_plans.removeprefix("# ")
    for cell in cells:
        cell.metadata["tags"] = _tags(cell)
        if cell.cell_type == "markdown":
            cell.source = _with_links_of_the_site(cell.source, solution, plan)
    first_cell = cells[0]
    _add_below_title(first_cell, head)
    for text, frame in live.items():
        _add_frame(cells, text, frame)
    kernel = notebook.metadata["kernelspec"]
    notebook.metadata = {"kernelspec": kernel}
    if path.parent.name == "notebooks":
        chapter = path.stem[:2]
        fold(cells, chapter, tongue.say)
    pictures_to_files(cells, folder, tongue.up)
    if solution:
        notebook.metadata |= {"nosearch": True, "orphan": True}
    return notebook


def _with_links_of_the_site(text: str, solution: bool, plan: str) -> str:
    """Markdown whose links lead to pages instead of notebooks, and to the page with plans."""
    text = LINK_TO_NOTEBOOK.sub(r'\1.html"', text)
    if solution:  # written to stand among the exercises
        text = text.replace("](challenge", "](../exercises/challenge")
    link_to_plans = f"[{plan}](../plan.md)"
    return text.replace(f"*{plan}*", link_to_plans)


def _add_below_title(cell: NotebookNode, head: str) -> None:
    """Adds Markdown below the title, if the cell begins with one and goes on after it."""
    heading, *lines = cell.source.split("\n")
    is_title = heading.startswith("# ")
    if lines and is_title:
        parts = [heading, "", head, *lines]
        cell.source = "\n".join(parts)


def _tags(cell: NotebookNode) -> list[str]:
    """The tags that a page needs: of a cell's id becomes its anchor."""
    tags = [f"cell-{cell.id}"]
    jupyter = cell.metadata.get("jupyter", {})
    if jupyter.get("source_hidden"):
        tags.append("hide-input")
    return tags


def _add_frame(cells: list[NotebookNode], text: str, frame: str) -> None:
    """Shows a frame with sliders below the one cell with this text; the frame has its picture."""
    matching = []
    for cell in cells:
        if text in cell.source:
            matching.append(cell)
    (only_match,) = matching
    draws = DRAWS.search(only_match.source)
    outputs = []
    for output in only_match.outputs:
        if draws and _is_drawn(output):
            continue
        outputs.append(output)
    output_with_frame = markup(frame)
    outputs.append(output_with_frame)
    only_match.outputs = outputs


def _is_drawn(output: NotebookNode) -> bool:
    """Whether this is a picture or the sentence below one."""
    data = output.get("data", {})
    if "image/png" in data:
        return True
    shown = data.get("text/html", "")
    return shown.startswith("<p style")


def chart_as_links(text: str, counts: dict[str, int], names: dict[str, str]) -> str:
    """The map's chart, which GitHub draws, as rows of links that progress is ticked in.

    Args:
        text: The chart's.
        counts: By chapter, how many predictions it asks for.
        names: By chapter, the name of its page.
    """
    parts = ""
    for title, chapters in PART.findall(text):
        items = ""
        chapters_and_words = CHAPTER.findall(chapters)
        for chapter, words in sorted(chapters_and_words):
            name = names[chapter]
            items += CHAPTER_AS_HTML.format(
                page=f"{name}.html",
                chapter=chapter,
                words=html.escape(words),
                count=counts[chapter],
            )
        heading = html.escape(title)
        parts += PART_AS_HTML.format(title=heading, items=items)
    return f'<div class="way">{parts}<p class="progress"></p></div>'


def write(notebook: NotebookNode, to: Path) -> None:
    """Writes a page's notebook, whose metadata nbformat would refuse to see as such."""
    to.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(notebook)
    to.write_text(text, encoding="utf-8")
