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
# A marked solution: its indentation, what a learner sees instead, and the solution itself.
SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION[ \t]*(.*)\n"
    r"((?:.*\n)*?)"
    r"[ \t]*### END SOLUTION[ \t]*$",
    re.MULTILINE,
)
MARKER = re.compile(r"### (BEGIN|END) SOLUTION")


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
    kept = ",".join(KEPT)
    filters = {
        "notebook_metadata_filter": "-all",
        "cell_metadata_filter": f"{kept},-all",
    }
    metadata = {"jupytext": filters}
    bare = nbformat.v4.new_notebook(cells=notebook.cells, metadata=metadata)
    text = jupytext.writes(bare, fmt="py:percent")
    read_again = read_percent(text)
    lost = "; ".join(differences(notebook, read_again))
    if lost:
        raise BuildError(f"percent text cannot hold this notebook: {lost}")
    return text


def cut_solution(text: str) -> str:
    """Returns a code cell's text with every marked solution replaced by its stub."""
    is_nested = False
    for _indent, _instead, body in SOLUTION.findall(text):
        is_nested |= "### BEGIN SOLUTION" in body
    result = SOLUTION.sub(_stub, text)
    if is_nested or MARKER.search(result):
        raise BuildError(f"a solution's markers do not pair up in the cell:\n{text}")
    return result


def _stub(solution: re.Match[str]) -> str:
    """What a learner sees instead of a marked solution."""
    indent, instead, body = solution.groups()
    if instead and not instead.startswith("#"):  # code, and no comment
        return indent + instead
    count = _code_lines(body)
    unit = "lines"
    if count == 1:
        unit = "line"
    stub = f'{indent}raise NotImplementedError("about {count} {unit}")'
    if instead:
        return f"{indent}{instead}\n{stub}"
    return stub


def _code_lines(text: str) -> int:
    """How many lines are neither blank nor a comment."""
    count = 0
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            count += 1
    return count


def compose(cells: Iterable[NotebookNode]) -> NotebookNode:
    """Returns an unexecuted notebook of these cells, with ids that depend on their text alone."""
    metadata = nbformat.from_dict(METADATA)
    notebook = nbformat.v4.new_notebook(metadata=metadata, nbformat_minor=5)
    seen: Counter[str] = Counter()
    for cell in cells:
        text = cell.source.strip("\n")
        key = f"{cell.cell_type}\n{text}"
        seen[key] += 1  # equal cells still need ids of their own
        cell_id = _id_of(f"{key}\n{seen[key]}")
        kept = _kept_metadata(cell)
        new_cell = getattr(nbformat.v4, f"new_{cell.cell_type}_cell")
        new = new_cell(text, id=cell_id, metadata=kept)
        if cell.get("attachments"):
            new.attachments = cell.attachments
        notebook.cells.append(new)
    return notebook


def _id_of(text: str) -> str:
    """An id for a cell, by its text."""
    encoded = text.encode()
    hashed = hashlib.sha256(encoded)
    digits = hashed.hexdigest()
    return digits[:12]


def _kept_metadata(cell: NotebookNode) -> dict[str, Any]:
    """What is carried over of a cell's metadata."""
    kept = {}
    for name in KEPT:
        if name in cell.metadata:
            kept[name] = cell.metadata[name]
    return kept


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Returns the executed notebook without what differs from run to run or from Lab to Lab."""
    clean = compose(notebook.cells)
    pairs = zip(clean.cells, notebook.cells, strict=True)
    for cell, old in pairs:
        if cell.cell_type != "code":
            continue
        cell.execution_count = old.execution_count
        cell.outputs = _tidy_outputs(old.outputs)
    return clean


def _tidy_outputs(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Outputs without views of widgets; what was printed piece by piece is one text again."""
    tidied: list[NotebookNode] = []
    for output in map(NotebookNode, outputs):
        if "data" in output:
            data = dict(output.data)
            data.pop(WIDGET_VIEW, None)  # without its model it shows as "model not found"
            if not data:
                continue
            output.data = data
        if tidied and _goes_on(tidied[-1], output):
            tidied[-1].text += output.text
        else:
            tidied.append(output)
    return tidied


def _goes_on(earlier: NotebookNode, output: NotebookNode) -> bool:
    """Whether an output is more of what the earlier one has printed, to the same stream."""
    if output.output_type != "stream":
        return False
    return output.name == earlier.get("name")


def strings(value: Any) -> Iterator[str]:
    """Yields every text inside an output, but not the bytes of pictures."""
    if isinstance(value, str):
        yield ANSI.sub("", value)
    elif isinstance(value, dict):
        for key, item in value.items():
            is_picture = key.startswith("image/")
            is_text = key.endswith("xml")
            if is_text or not is_picture:
                yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def faults(notebook: NotebookNode, root: Path) -> Iterator[str]:
    """Yields what must not be committed: unrun cells, errors, and paths of this machine."""
    path_here = _paths_of_this_machine(root)
    run = 0
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        run += 1
        if cell.execution_count is None:
            yield f"cell {number} was never run"
        elif cell.execution_count != run:
            yield f"cell {number} was run out of order: [{cell.execution_count}], not [{run}]"
        tags = cell.metadata.get("tags", [])
        may_fail = "raises-exception" in tags
        for output in cell.outputs:
            has_failed = output.output_type == "error"
            if has_failed and not may_fail:
                yield f"cell {number} ends in {output.ename} without the tag raises-exception"
            shown = "\n".join(strings(output))
            for match in path_here.finditer(shown):
                yield f"cell {number} shows a path of this machine: {match[0]}"


def _paths_of_this_machine(root: Path) -> re.Pattern[str]:
    """What matches a path below a folder that only this machine has."""
    home = Path.home()
    temporary = tempfile.gettempdir()
    folders = {str(root), str(home), sys.prefix, temporary}
    folders.discard("/")
    longest_first = sorted(folders, key=len, reverse=True)
    escaped = map(re.escape, longest_first)
    folder = "|".join(escaped)
    below_it = r"[^\s'\",;:)]*"
    return re.compile(rf"(?<![\w.])(?:{folder})(?![\w.-]){below_it}")


def essence(cell: NotebookNode) -> dict[str, Any]:
    """Returns what a source says of a cell, by name."""
    _tags, *other_keys = KEPT
    metadata = {key: cell.metadata.get(key) for key in other_keys}
    return {
        "type": cell.cell_type,
        "text": cell.source,
        "tags": cell.metadata.get("tags", []),
        "metadata": metadata,
        "attachments": cell.get("attachments", {}),
        "id": cell.id,
    }


def differences(wanted: NotebookNode, got: NotebookNode) -> Iterator[str]:
    """Yields in what cells of `got` are not those of `wanted`."""
    wanted_count = len(wanted.cells)
    count = len(got.cells)
    if count != wanted_count:
        yield f"has {count} cells, its source {wanted_count}"
    pairs = zip(wanted.cells, got.cells, strict=False)
    for number, (cell, built) in enumerate(pairs):
        planned = essence(cell)
        present = essence(built)
        parts = [part for part in planned if planned[part] != present[part]]
        if not parts:
            continue
        names = ", ".join(parts)
        yield f"cell {number} differs from its source in: {names}"
        if count != wanted_count:
            return  # the cells that follow have only moved
