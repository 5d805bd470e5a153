"""A notebook or a document of the course in Chinese, made in memory of English and a catalogue.

Learners' copies need no more than this. What is checked and built stands in `zh`.
"""

import functools
from pathlib import Path

import nbformat
from babel.messages.catalog import Message
from nbformat import NotebookNode

from course_tools.i18n import catalogues
from course_tools.notebooks import course_map

MAP = "course_map"
DOCUMENTS = {"README": "README.md", MAP: "notebooks/README.md"}
KINDS = {"notebooks": "lessons/", "exercises": "labs/", "solutions": "labs/"}


def catalogue_of(original: Path, root: Path) -> Path:
    """Returns where the catalogue of an English notebook or document lies, if there is one."""
    place = original.relative_to(root).as_posix()
    name = next((name for name, file in DOCUMENTS.items() if file == place), None)
    lesson = original.stem[0].isdigit()  # the challenge is neither lesson nor lab
    name = name or KINDS[original.parent.name] * lesson + original.stem
    return root / "source/zh" / f"{name}.po"


@functools.cache
def _known(catalogue: Path) -> dict[str, Message]:
    return catalogues.words(catalogues.read(catalogue))


def in_memory(original: Path, root: Path) -> NotebookNode:
    """Returns a notebook in Chinese, with links that hold where the English one lies."""
    english = nbformat.read(original, as_version=4)
    return catalogues.translated(english, _known(catalogue_of(original, root)))


def document(original: Path, root: Path) -> str:
    """Returns a document in Chinese, with links that hold where the English one lies."""
    known = _known(catalogue_of(original, root))
    if original == root / DOCUMENTS[MAP]:  # made anew of the Chinese notebooks
        read = functools.partial(in_memory, root=root)
        tongue = course_map.Tongue(read, lambda text: catalogues.in_chinese(text, known)[0])
        return course_map.text(root, tongue)
    return catalogues.in_chinese(original.read_text(encoding="utf-8"), known)[0]


def of_map(text: str, root: Path) -> str:
    """Returns a sentence of the course map in Chinese; in English where nobody has said it."""
    return catalogues.in_chinese(text, _known(root / "source/zh" / f"{MAP}.po"))[0]


def sentences_of_map(root: Path) -> list[str]:
    """Returns what the course map says beside what it reads off the notebooks."""
    said: list[str] = []

    def note(text: str) -> str:
        said.append(text)
        return text

    course_map.text(root, course_map.Tongue(course_map.ENGLISH.read, note))
    return list(dict.fromkeys(said))
