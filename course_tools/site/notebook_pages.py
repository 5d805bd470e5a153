"""Executed notebooks as pages: what a reader predicts first is folded, pictures become files.

Nothing is run: a page shows what `notebooks.build` has saved. `website` calls this.
"""

import base64
import copy
import hashlib
import html
import json
import re
from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from course_tools.i18n.site_languages import Tongue
from course_tools.notebooks.predictions import fold, markup


def pictures_to_files(cells: Iterable[NotebookNode], folder: Path, root: str) -> None:
    """Writes each picture into a folder and shows the file, with its words as alternative text."""
    for cell in cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                image = _picture_as_file(output, folder, root)
                output.data = markup(image).data
                output.metadata = {}


def _picture_as_file(output: NotebookNode, folder: Path, root: str) -> str:
    """Writes a picture, unless the other language has done so; returns the HTML that shows it."""
    png = base64.b64decode(output.data["image/png"])
    name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
    if not (folder / name).exists():
        (folder / name).write_bytes(png)
    words = html.escape(output.data["text/plain"].removeprefix("Figure: "))
    pixels_wide = int.from_bytes(png[16:20], "big")  # in the header of every PNG
    pixels_high = int.from_bytes(png[20:24], "big")
    shown = output.get("metadata", {}).get("image/png", {})
    width = shown.get("width", pixels_wide)
    height = round(pixels_high * width / pixels_wide)
    source = f'src="{root}_static/pictures/{name}" alt="{words}"'
    shape = f'width="{width}" height="{height}" loading="lazy"'
    return f'<img class="figure" {source} {shape}>'


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
    notebook = copy.deepcopy(tongue.read(path))
    for cell in notebook.cells:
        cell.metadata["tags"] = [f"cell-{cell.id}"]
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"].append("hide-input")
        if cell.cell_type == "markdown":
            cell.source = re.sub(r'(<a href="[\w./-]+)\.ipynb"', r'\1.html"', cell.source)
            if solution:  # written to stand among the exercises
                cell.source = cell.source.replace("](challenge", "](../exercises/challenge")
    first = notebook.cells[0]
    first.source = re.sub(r"\A(# .*\n)", lambda line: f"{line[1]}\n{head}\n", first.source)
    for text, frame in live.items():
        (cell,) = (cell for cell in notebook.cells if text in cell.source)
        # The frame has the picture that these draw.
        if re.search(r"^(explore|plot_timeline)\(", cell.source, re.MULTILINE):
            cell.outputs = [output for output in cell.outputs if not _is_drawn(output)]
        cell.outputs.append(markup(frame))
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    if path.parent.name == "notebooks":
        chapter = path.stem[:2]
        fold(notebook.cells, chapter, tongue.say)
    pictures_to_files(notebook.cells, folder, tongue.up)
    if solution:
        notebook.metadata |= {"nosearch": True, "orphan": True}
    return notebook


def _is_drawn(output: NotebookNode) -> bool:
    """Whether this is a picture or the sentence below one."""
    data = output.get("data", {})
    return "image/png" in data or data.get("text/html", "").startswith("<p style")


def chart_as_links(text: str, counts: dict[str, int], names: dict[str, str]) -> str:
    """The map's chart, which GitHub draws, as rows of links that progress is ticked in.

    Args:
        text: The chart's.
        counts: By chapter, how many predictions it asks for.
        names: By chapter, the name of its page.
    """
    parts = []
    for title, inside in re.findall(r"subgraph \w+\[(.*?)\]\n(.*?)\n +end", text, re.DOTALL):
        parts.append(f"<h2>{html.escape(title)}</h2><ol>")
        boxes = dict(re.findall(r"(\d\d)\[\d\d (.*?)\]", inside))
        for chapter, words in sorted(boxes.items()):
            page_name = f"{names[chapter]}.html"
            link = f'<a href="{page_name}"><b>{chapter}</b> {html.escape(words)}</a>'
            progress = f'data-chapter="{chapter}" data-of="{counts[chapter]}"'
            parts.append(f'<li>{link}<span class="tick" {progress}></span></li>')
        parts.append("</ol>")
    return f'<div class="way">{"".join(parts)}<p class="progress"></p></div>'


def write(notebook: NotebookNode, to: Path) -> None:
    """Writes a page's notebook, whose metadata nbformat would refuse to see as such."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(notebook), encoding="utf-8")
