"""The files of the Chinese edition: which English texts have a catalogue, and what is built of both.

No file is written here; zh.py does that. `copies.py` makes a learner's copies from `in_memory`.
"""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
from babel.messages.catalog import Message
from nbformat import NotebookNode

import build
import translation
from cells import BuildError

README, MAP = "README", "course_map"
DOCUMENTS = {README: "README.md", MAP: "notebooks/README.md"}


class Source(NamedTuple):
    """An English text: a lesson, a lab, the challenge or a document; and its catalogue."""

    name: str
    file: Path
    catalogue: Path
    notebook: build.Target | None

    def prose(self) -> list[str]:
        """Returns what is to be translated, unit by unit."""
        if self.notebook:
            return translation.prose(build.plan(self.notebook))
        return translation.prose_of(self.file.read_text(encoding="utf-8"))

    def known(self) -> dict[str, Message]:
        """Returns the entries of the catalogue by their keys; none if there is no catalogue."""
        return translation.words(translation.read(self.catalogue))


def sources(root: Path, names: Iterable[str] = ()) -> list[Source]:
    """Returns all of them, or those named: `03` is a chapter with its lab.

    Raises:
        BuildError: Nothing has such a name.
    """
    found = {t.source: t for t in build.targets(root) if not t.cut}
    files = {
        file.relative_to(root / "source").with_suffix("").as_posix(): (file, target)
        for file, target in found.items()
    }
    files |= {n: (root / f, None) for n, f in DOCUMENTS.items() if (root / f).exists()}
    asked = {start: [n for n in files if _begins(n, start)] for start in names}
    if lost := [start for start, matches in asked.items() if not matches]:
        raise BuildError(f"nothing is called {', '.join(lost)}; there are: {', '.join(files)}")
    chosen = [n for n in files if any(n in matches for matches in asked.values())]
    return [
        Source(name, files[name][0], root / "source/zh" / f"{name}.po", files[name][1])
        for name in (chosen if asked else files)
    ]


def _begins(name: str, start: str) -> bool:
    return name.startswith(start) or name.partition("/")[2].startswith(start)


@functools.cache
def _known(catalogue: Path) -> dict[str, Message]:
    return translation.words(translation.read(catalogue))


def catalogue_of(original: Path, root: Path) -> Path:
    """Returns where the catalogue of a built notebook or a document lies."""
    name = original.relative_to(root).with_suffix("").as_posix()
    kind = {"notebooks": "lessons/", "exercises": "labs/", "solutions": "labs/"}
    if original.suffix == ".md":
        name = next(n for n, file in DOCUMENTS.items() if root / file == original)
    elif original.stem == "challenge":
        name = original.stem
    else:
        name = kind[original.parent.name] + original.stem
    return root / "source/zh" / f"{name}.po"


def in_memory(original: Path, root: Path) -> NotebookNode:
    """Returns a built notebook in Chinese, with links that hold where the English one lies."""
    english = nbformat.read(original, as_version=4)
    return translation.translated(english, _known(catalogue_of(original, root)))


def document(original: Path, root: Path) -> str:
    """Returns a document in Chinese, with links that hold where the English one lies."""
    text = original.read_text(encoding="utf-8")
    return translation.in_chinese(text, _known(catalogue_of(original, root)))[0]


def edition(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields every file of the Chinese edition with its text."""
    notebooks = [target.built for target in build.targets(root) if target.built.exists()]
    there = {path.relative_to(root).as_posix() for path in notebooks} | {DOCUMENTS[MAP]}
    for path in notebooks:
        chinese, folder = in_memory(path, root), path.parent.name
        for cell in chinese.cells:
            if cell.cell_type == "markdown":
                cell.source = translation.deeper(cell.source, folder, there)
        yield path.parent / "zh" / path.name, nbformat.writes(chinese) + "\n"
    for name, file in DOCUMENTS.items():
        if (root / file).exists():
            text = document(root / file, root)
            if name == MAP:
                text = translation.deeper(text, "notebooks", there)
            yield (root / "notebooks/zh/README.md" if name == MAP else readme(root)), text


def readme(root: Path) -> Path:
    """Returns the one built file that git keeps: what a Chinese reader finds first."""
    return root / "README.zh.md"
