"""A notebook or a document of the course in Chinese, made in memory of English and a catalogue.

Learners' copies need no more than this. What is checked and built stands in `zh`.
"""

import functools
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_tools.i18n import catalogues
from course_tools.notebooks import course_map

MAP = "course_map"
DOCUMENTS = {"README": "README.md", MAP: "notebooks/README.md"}
KINDS = {"notebooks": "lessons/", "exercises": "labs/", "solutions": "labs/"}


def catalogue_of(original: Path, root: Path) -> Path:
    """Returns where the catalogue of an English notebook or document lies, if there is one."""
    name = _catalogue_name(original, root)
    return root / f"source/zh/{name}.po"


def _catalogue_name(original: Path, root: Path) -> str:
    """What a catalogue is called, with its folder, as the text's source is."""
    path = original.relative_to(root)
    place = path.as_posix()
    for name, file in DOCUMENTS.items():
        if file == place:
            return name
    folder = KINDS[original.parent.name]
    is_lesson_or_lab = original.stem[0].isdigit()  # the challenge is neither
    if is_lesson_or_lab:
        return folder + original.stem
    return original.stem


@functools.cache
def _known(catalogue: Path) -> catalogues.Entries:
    """The entries of a catalogue by their keys, read once."""
    catalog = catalogues.read(catalogue)
    return catalogues.words(catalog)


def in_memory(original: Path, root: Path) -> NotebookNode:
    """Returns a notebook in Chinese, with links that hold where the English one lies."""
    english = nbformat.read(original, as_version=4)
    catalogue = catalogue_of(original, root)
    known = _known(catalogue)
    return catalogues.translated(english, known)


def document(original: Path, root: Path) -> str:
    """Returns a document in Chinese, with links that hold where the English one lies."""
    catalogue = catalogue_of(original, root)
    known = _known(catalogue)
    say = functools.partial(catalogues.as_far_as_known, known=known)
    course_map_file = root / DOCUMENTS[MAP]
    if original == course_map_file:  # made anew from the Chinese notebooks
        read = functools.partial(in_memory, root=root)
        in_chinese = course_map.Tongue(read, say)
        return course_map.text(root, in_chinese)
    english = original.read_text(encoding="utf-8")
    return say(english)


def of_map(text: str, root: Path) -> str:
    """Returns a sentence of the course map in Chinese; in English where it has no translation."""
    catalogue = root / f"source/zh/{MAP}.po"
    known = _known(catalogue)
    return catalogues.as_far_as_known(text, known)


def sentences_of_map(root: Path) -> list[str]:
    """Returns what the course map says beside what it reads off the notebooks."""
    sentences: dict[str, None] = {}

    def note(text: str) -> str:
        sentences[text] = None
        return text

    listener = course_map.Tongue(course_map.ENGLISH.read, note)
    course_map.text(root, listener)
    return list(sentences)
