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
    return root / "source/zh" / f"{_catalogue_name(original, root)}.po"


def _catalogue_name(original: Path, root: Path) -> str:
    place = original.relative_to(root).as_posix()
    for name, file in DOCUMENTS.items():
        if file == place:
            return name
    folder = KINDS[original.parent.name]
    is_lesson_or_lab = original.stem[0].isdigit()  # the challenge is neither
    return folder + original.stem if is_lesson_or_lab else original.stem


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

    def say(text: str) -> str:
        return catalogues.in_chinese(text, known)[0]

    if original == root / DOCUMENTS[MAP]:  # made anew from the Chinese notebooks
        read = functools.partial(in_memory, root=root)
        return course_map.text(root, course_map.Tongue(read, say))
    return say(original.read_text(encoding="utf-8"))


def of_map(text: str, root: Path) -> str:
    """Returns a sentence of the course map in Chinese; in English where it has no translation."""
    known = _known(root / "source/zh" / f"{MAP}.po")
    return catalogues.in_chinese(text, known)[0]


def sentences_of_map(root: Path) -> list[str]:
    """Returns what the course map says beside what it reads off the notebooks."""
    sentences: dict[str, None] = {}

    def note(text: str) -> str:
        sentences[text] = None
        return text

    listener = course_map.Tongue(course_map.ENGLISH.read, note)
    course_map.text(root, listener)
    return list(sentences)
