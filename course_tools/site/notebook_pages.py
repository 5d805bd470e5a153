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
            data = output.get("data", {})
            if "image/png" not in data:
                continue
            png = base64.b64decode(data["image/png"])
            name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
            if not (folder / name).exists():  # both languages show it
                (folder / name).write_bytes(png)
            words = html.escape(data["text/plain"].removeprefix("Figure: "))
            wide, high = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
            width = output.get("metadata", {}).get("image/png", {}).get("width", wide)
            shape = f'width="{width}" height="{round(high * width / wide)}" loading="lazy"'
            source = f'src="{root}_static/pictures/{name}" alt="{words}"'
            output.data = markup(f'<img class="figure" {source} {shape}>').data
            output.metadata = {}


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
        cell.metadata["tags"] = tags = [f"cell-{cell.id}"]
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            tags.append("hide-input")
        if cell.cell_type == "markdown":
            cell.source = re.sub(r'(<a href="[\w./-]+)\.ipynb"', r'\1.html"', cell.source)
            if solution:  # written to stand among the exercises
                cell.source = cell.source.replace("](challenge", "](../exercises/challenge")
    first = notebook.cells[0]
    first.source = re.sub(r"\A(# .*\n)", lambda line: f"{line[1]}\n{head}\n", first.source)
    for text, drawn in live.items():
        (cell,) = (cell for cell in notebook.cells if text in cell.source)
        if re.search(
            r"^(explore|plot_timeline)\(", cell.source, re.M
        ):  # the frame has that picture
            cell.outputs = [output for output in cell.outputs if not _is_drawn(output)]
        cell.outputs.append(markup(drawn))
    chapter = path.stem[:2]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    if path.parent.name == "notebooks":
        fold(notebook.cells, chapter, tongue.say)
    pictures_to_files(notebook.cells, folder, tongue.up)
    notebook.metadata |= {"nosearch": True, "orphan": True} if solution else {}
    return notebook


def _is_drawn(output: NotebookNode) -> bool:
    """Whether this is a picture or the sentence below one."""
    data = output.get("data", {})
    return "image/png" in data or data.get("text/html", "").startswith("<p style")


def way(text: str, counts: dict[str, int], names: dict[str, str]) -> str:
    """The map's chart, which GitHub draws, as rows of links that progress is ticked in."""
    rows = []
    for title, inside in re.findall(r"subgraph \w+\[(.*?)\]\n(.*?)\n +end", text, re.S):
        boxes = dict(re.findall(r"(\d\d)\[\d\d (.*?)\]", inside))
        items = "".join(
            f'<li><a href="{names[chapter]}.html"><b>{chapter}</b> {html.escape(words)}</a>'
            f'<span class="tick" data-chapter="{chapter}" data-of="{counts[chapter]}"></span></li>'
            for chapter, words in sorted(boxes.items())
        )
        rows.append(f"<h2>{html.escape(title)}</h2><ol>{items}</ol>")
    return f'<div class="way">{"".join(rows)}<p class="progress"></p></div>'


def write(notebook: NotebookNode, to: Path) -> None:
    """Writes a page's notebook, whose metadata nbformat would refuse to see as such."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(notebook), encoding="utf-8")
