"""Below a picture stands what to look at, in a sentence or two; its numbers are read aloud only."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("notebooks", "exercises", "solutions")
NOTEBOOKS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.ipynb"))
MOST_LETTERS = 180


def captions(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """For each picture all of it in words, and what is seen below it."""
    for cell in notebook.cells:
        for picture, below in pairwise(cell.get("outputs", [])):
            text = picture.get("data", {}).get("text/plain", "")
            if text.startswith("Figure: ") and "text/html" in below.get("data", {}):
                yield text.removeprefix("Figure: "), below.data["text/plain"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_caption_reads_its_picture_aloud(path):
    notebook = nbformat.read(path, as_version=4)
    long = [seen for _, seen in captions(notebook) if len(seen) > MOST_LETTERS]
    assert not long


def test_captions_are_found_so_that_long_ones_would_be():
    notebook = nbformat.read(ROOT / "notebooks/06_what_communication_costs.ipynb", as_version=4)
    found = list(captions(notebook))
    assert len(found) > 10
    assert any(len(text) > MOST_LETTERS > len(seen) for text, seen in found)
