"""Notebooks in memory: made from percent text, cut, tidied, searched for faults, compared.

No file is read or written here and no kernel runs; `build` does both.
"""

import hashlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

KEPT = ("tags", "jupyter", "title")  # "jupyter" folds bulky code: {"source_hidden": true}
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION[ \t]*(.*)\n((?:.*\n)*?)[ \t]*### END SOLUTION[ \t]*$", re.M
)


class BuildError(Exception):
    """A source that cannot become a notebook, or a notebook that cannot become a source."""


def read_percent(text: str, cut: bool = False) -> NotebookNode:
    """Returns the unexecuted notebook that percent text describes, solutions cut out if asked."""
    cells = jupytext.reads(text, fmt="py:percent").cells
    for cell in cells:
        if cut and cell.cell_type == "code":
            cell.source = cut_solution(cell.source)
    return compose(cells)


def write_percent(notebook: NotebookNode) -> str:
    """Returns the percent text of a notebook.

    Raises:
        BuildError: A cell holds what percent text cannot say, such as an attached picture.
    """
    filters = {"notebook_metadata_filter": "-all", "cell_metadata_filter": ",".join(KEPT) + ",-all"}
    bare = nbformat.v4.new_notebook(cells=notebook.cells, metadata={"jupytext": filters})
    text = jupytext.writes(bare, fmt="py:percent")
    lost = list(differences(notebook, read_percent(text)))
    if lost:
        raise BuildError("percent text cannot hold this notebook: " + "; ".join(lost))
    return text


def cut_solution(text: str) -> str:
    """Returns a code cell's text with every marked solution replaced by its stub."""

    def stub(match: re.Match[str]) -> str:
        indent, instead, body = match.groups()
        code = [line for line in body.splitlines() if line.strip() and line.strip()[0] != "#"]
        count = f"about {len(code)} line" + "s" * (len(code) != 1)
        lines = [instead] if instead else []
        if not instead or instead.startswith("#"):
            lines.append(f'raise NotImplementedError("{count}")')
        return "\n".join(indent + line for line in lines)

    nested = any("### BEGIN SOLUTION" in match[3] for match in SOLUTION.finditer(text))
    result = SOLUTION.sub(stub, text)
    if nested or re.search("### (BEGIN|END) SOLUTION", result):
        raise BuildError(f"a solution's markers do not pair up in the cell:\n{text}")
    return result


def compose(cells: Iterable[NotebookNode]) -> NotebookNode:
    """Returns an unexecuted notebook of these cells, with ids that depend on their text alone."""
    notebook = nbformat.v4.new_notebook(metadata=nbformat.from_dict(METADATA), nbformat_minor=5)
    seen: Counter[str] = Counter()
    for cell in cells:
        text = cell.source.strip("\n")
        key = f"{cell.cell_type}\n{text}"
        seen[key] += 1  # equal cells still need ids of their own
        digest = hashlib.sha256(f"{key}\n{seen[key]}".encode()).hexdigest()[:12]
        make = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")
        kept = {name: cell.metadata[name] for name in KEPT if name in cell.metadata}
        new = make(text, id=digest, metadata=kept)
        if cell.get("attachments"):
            new.attachments = cell.attachments
        notebook.cells.append(new)
    return notebook


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Returns the executed notebook without what differs from run to run or from Lab to Lab."""
    clean = compose(notebook.cells)
    for cell, old in zip(clean.cells, notebook.cells, strict=True):
        if cell.cell_type != "code":
            continue
        cell.execution_count = old.execution_count
        for output in map(NotebookNode, old.outputs):
            last = cell.outputs[-1] if cell.outputs else {}
            if "data" in output:  # a view without its model shows as "model not found"
                output.data = {k: v for k, v in output.data.items() if k != WIDGET_VIEW}
            if output.output_type == "stream" and last.get("name") == output.name:
                cell.outputs[-1] = NotebookNode(last, text=last.text + output.text)
            elif output.get("data") != {}:
                cell.outputs.append(output)
    return clean


def strings(value: Any) -> Iterator[str]:
    """Yields every text inside an output, but not the bytes of pictures."""
    if isinstance(value, str):
        yield ANSI.sub("", value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not key.startswith("image/") or key.endswith("xml"):
                yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def faults(notebook: NotebookNode, root: Path) -> Iterator[str]:
    """Yields what must not be committed: unrun cells, errors, and paths of this machine."""
    places = {str(root), str(Path.home()), sys.prefix, tempfile.gettempdir()} - {"/"}
    paths = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
    path = re.compile(rf"(?<![\w.])(?:{paths})(?![\w.-])[^\s'\",;:)]*")
    run = 0
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        run += 1
        if cell.execution_count is None:
            yield f"cell {number} was never run"
        elif cell.execution_count != run:
            yield f"cell {number} was run out of order: [{cell.execution_count}], not [{run}]"
        expected = "raises-exception" in cell.metadata.get("tags", [])
        for output in cell.outputs:
            if output.output_type == "error" and not expected:
                yield f"cell {number} ends in {output.ename} without the tag raises-exception"
            for match in path.finditer("\n".join(strings(output))):
                yield f"cell {number} shows a path of this machine: {match[0]}"


def essence(cell: NotebookNode) -> dict[str, Any]:
    """Returns what a source says of a cell, by name."""
    return {
        "type": cell.cell_type,
        "text": cell.source,
        "tags": cell.metadata.get("tags", []),
        "metadata": {key: cell.metadata.get(key) for key in KEPT[1:]},
        "attachments": cell.get("attachments", {}),
        "id": cell.id,
    }


def differences(wanted: NotebookNode, got: NotebookNode) -> Iterator[str]:
    """Yields in what cells of `got` are not those of `wanted`."""
    is_longer_or_shorter = len(wanted.cells) != len(got.cells)
    if is_longer_or_shorter:
        yield f"has {len(got.cells)} cells, its source {len(wanted.cells)}"
    for number, (cell, built) in enumerate(zip(wanted.cells, got.cells, strict=False)):
        planned, present = essence(cell), essence(built)
        parts = [part for part in planned if planned[part] != present[part]]
        if parts:
            yield f"cell {number} differs from its source in: {', '.join(parts)}"
            if is_longer_or_shorter:
                return  # the cells that follow have only moved
