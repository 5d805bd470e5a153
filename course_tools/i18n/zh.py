"""The Chinese edition: catalogues in source/zh are edited, notebooks are built of English and them.

    python -m course_tools.i18n.zh                  take up what changed in English, and build
    python -m course_tools.i18n.zh 03               begin catalogues for a chapter and its lab
    python -m course_tools.i18n.zh --check          what is translated? is it looked at?
    python -m course_tools.i18n.zh --todo 03        what is to be translated, or to be looked at
    python -m course_tools.i18n.zh --right "words"  that paragraph's translation is still right

Nothing is executed: code, outputs and ids of cells are copied from the English notebooks. Built are
the folders zh/, which git ignores, README.zh.md, the pages about the articles, and the catalogue
of what the course says while it runs (see `messages`).
"""

import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import PoFileError

from course_tools.commands import parser_of
from course_tools.i18n import (
    articles,
    catalogues,
    chinese,
    messages,
    proofread,
    site_languages,
)
from course_tools.notebooks import build
from course_tools.notebooks.cells import BuildError
from course_tools.texts import has_text

HOW_TO_MEND = """
to see them:   .venv/bin/python -m course_tools.i18n.zh --todo NAME
to mend one:   edit source/zh/NAME.po; when it is right, take `#, fuzzy` away
still right?   .venv/bin/python -m course_tools.i18n.zh --right "words of the English"
"""


class Source(NamedTuple):
    """An English text: a lesson, a lab, the challenge or a document; and its catalogue."""

    name: str
    file: Path
    catalogue: Path
    notebook: build.Target | None

    def prose(self) -> list[str]:
        """Returns what is to be translated, unit by unit."""
        if self.notebook:
            planned = build.plan(self.notebook)
            return catalogues.prose(planned)
        if self.name == messages.NAME:
            root = self.file.parent
            return messages.prose(root)
        if self.name == chinese.MAP:
            root = self.file.parents[1]
            return chinese.sentences_of_map(root)
        if self.name == "site":
            root = self.file.parents[2]
            return site_languages.sentences(root)
        text = self.file.read_text(encoding="utf-8")
        return catalogues.prose_of(text)

    def known(self) -> dict[str, Message]:
        """Returns the entries of the catalogue by their keys; none if there is no catalogue."""
        catalog = catalogues.read(self.catalogue)
        if self.name == messages.NAME:
            return messages.known(catalog)
        return catalogues.words(catalog)

    def take_up(self) -> None:
        """Writes the catalogue as the English is now."""
        catalog = catalogues.read(self.catalogue)
        if self.name == messages.NAME:
            root = self.file.parent
            ids = messages.ids(root)
            catalog = messages.take_up(catalog, ids)
        else:
            units = self.prose()
            catalog = catalogues.take_up(catalog, units)
        self.write(catalog)

    def write(self, catalog: Catalog) -> None:
        """Writes a catalogue of this text."""
        name = Path(self.name)
        folders = len(name.parts)
        root = self.catalogue.parents[folders + 1]
        file = self.file.relative_to(root)
        place = file.as_posix()
        catalogues.write(catalog, self.catalogue, place)


def sources(root: Path, names: Iterable[str] = ()) -> list[Source]:
    """Returns all of them, or those named: `03` is a chapter with its lab.

    Raises:
        BuildError: Nothing has such a name.
    """
    known = list(_all_sources(root))
    known_names = [source.name for source in known]
    chosen_names: set[str] = set()
    unknown = []
    for start in names:
        matching = [name for name in known_names if _begins(name, start)]
        chosen_names.update(matching)
        if not matching:
            unknown.append(start)
    if unknown:
        not_there = ", ".join(unknown)
        there_are = ", ".join(known_names)
        raise BuildError(f"nothing is called {not_there}; there are: {there_are}")
    if not chosen_names:
        return known
    return [source for source in known if source.name in chosen_names]


def _all_sources(root: Path) -> Iterator[Source]:
    """Yields every English text that has a catalogue, or may have one."""
    catalogue_folder = root / "source/zh"
    for target in build.targets(root):
        if target.cut:  # the same text as its solution
            continue
        place = target.source.relative_to(root / "source")
        name = place.with_suffix("").as_posix()
        catalogue = catalogue_folder / f"{name}.po"
        yield Source(name, target.source, catalogue, target)
    other_texts = {messages.NAME: "course_utils", "site": "source/site/index.md"}
    documents = chinese.DOCUMENTS | other_texts
    for name, place in documents.items():
        file = root / place
        if file.exists():
            catalogue = catalogue_folder / f"{name}.po"
            yield Source(name, file, catalogue, notebook=None)


def _begins(name: str, start: str) -> bool:
    """Whether a name begins so, with its folder or without."""
    if name.startswith(start):
        return True
    _folder, _slash, name_in_folder = name.partition("/")
    return name_in_folder.startswith(start)


def edition(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields every file of the Chinese edition with its text."""
    notebooks = []
    for target in build.targets(root):
        if target.built.exists():
            notebooks.append(target.built)
    documents = []
    for place in chinese.DOCUMENTS.values():
        documents.append(root / place)
    translations = set()
    for path in notebooks + documents:
        place = path.relative_to(root)
        translations.add(place.as_posix())
    for path in notebooks:
        target = _in_its_folder(path)
        text = _notebook_text(path, root, translations)
        yield target, text
    for path in documents:
        if not path.exists():
            continue
        text = chinese.document(path, root)
        if path.parent == root:
            target = root / "README.zh.md"
        else:
            target = _in_its_folder(path)
            text = catalogues.deeper(text, path.parent.name, translations)
        yield target, text
    yield from articles.pages(root)


def _in_its_folder(path: Path) -> Path:
    """Where the Chinese form of a file lies."""
    return path.parent / "zh" / path.name


def _notebook_text(path: Path, root: Path, translations: set[str]) -> str:
    """A notebook in Chinese as it is written, with links that hold in its folder."""
    notebook = chinese.in_memory(path, root)
    folder = path.parent.name
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = catalogues.deeper(cell.source, folder, translations)
    text = nbformat.writes(notebook)
    return f"{text}\n"


def update(root: Path, names: list[str]) -> None:
    """Writes the catalogues as the English is now: those that are there, and those named."""
    for source in sources(root, names):
        if names or source.catalogue.exists():
            source.take_up()


def check(root: Path) -> int:
    """Prints what is translated and what is not in order; returns the exit status."""
    terms = proofread.glossary(root)
    shares = []
    problems = []
    for source in sources(root):
        percent = 0
        if source.catalogue.exists():
            known = source.known()
            units = source.prose()
            percent = share(known, units)
            faults = list(proofread.faults(known, units, terms))
            if source.name == messages.NAME:
                faults += messages.faults(root)
            place = source.catalogue.relative_to(root)
            for fault in faults:
                problem = f"{place}: {fault}"
                problems.append(problem)
        label = _label(source.name)
        share_of_source = f"{label} {percent} %"
        shares.append(share_of_source)
    problems += articles.faults(root, terms)
    problems += old_files(root)
    all_shares = ", ".join(shares)
    print(f"in Chinese: {all_shares}")
    if not problems:
        print("every translation is of the English as it is now")
        return 0
    all_problems = "\n".join(problems)
    print(all_problems)
    print(HOW_TO_MEND, end="")
    return 1


def _label(name: str) -> str:
    """A source's name in short: of a lesson or a lab its folder and number."""
    number, _, _ = name.partition("_")
    if "/" in number:
        return number
    return name


def share(known: dict[str, Message], units: list[str]) -> int:
    """Returns how many per cent of the units have a translation that holds."""
    translated = 0
    for unit in units:
        key = catalogues.key(unit)
        message = known.get(key)
        if catalogues.holds(message):
            translated += 1
    count = len(units)
    return 100 * translated // count


def old_files(root: Path) -> Iterator[str]:
    """Yields those files of the edition that git keeps and that are not as they would be built."""
    kept = {}
    readme = root / "README.zh.md"
    if readme.exists():
        english = root / "README.md"
        kept[readme] = chinese.document(english, root)
    kept |= dict(articles.pages(root))
    for path, text in kept.items():
        if has_text(path, text):
            continue
        place = path.relative_to(root)
        yield f"{place} is old: make zh"


def todo(root: Path, names: list[str]) -> None:
    """Prints what has no translation, and what changed in the English of those that have one."""
    for source in sources(root, names):
        known = source.known()
        for unit in source.prose():
            key = catalogues.key(unit)
            message = known.get(key)
            if not message or not message.string:
                print(f"--- {source.name}: no translation")
                print(unit, end="\n\n")
            elif message.fuzzy:
                changes = _changes(message, unit)
                print(f"--- {source.name}: changed")
                print(unit)
                print(changes)
                print(message.string, end="\n\n")


def _changes(message: Message, unit: str) -> str:
    """The words that came (`+`) or went (`-`) since a fuzzy message was translated."""
    comment = " ".join(message.user_comments)
    former_words = comment.removeprefix("was: ").split()
    words = unit.split()
    changes = []
    for line in difflib.ndiff(former_words, words):
        if line.startswith(("+", "-")):
            change = line.replace(" ", "", 1)
            changes.append(change)
    return " ".join(changes)


def right(root: Path, text: str) -> int:
    """Marks the one changed translation whose English has these words as looked at."""
    words = catalogues.key(text)
    matching = list(_changed_with(root, words))
    count = len(matching)
    if count != 1:
        print(f"{count} changed paragraphs have these words, not one", file=sys.stderr)
        return 1
    source, message = matching[0]
    catalog = catalogues.read(source.catalogue)
    entry = catalog[message.id]
    entry.flags.discard("fuzzy")
    entry.user_comments = []
    source.write(catalog)
    print(f"{source.name}: it is right; `make zh` takes it up")
    return 0


def _changed_with(root: Path, words: str) -> Iterator[tuple[Source, Message]]:
    """Yields the changed translations whose English has these words, each with its source."""
    for source in sources(root):
        if not source.catalogue.exists():
            continue
        known = source.known()
        for key, message in known.items():
            if message.fuzzy and words in key:
                yield source, message


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="such as 03, labs/03, README; all if none")
    parser.add_argument("--check", action="store_true", help="report, change nothing")
    parser.add_argument("--todo", action="store_true", help="print what is to be done")
    parser.add_argument("--right", metavar="WORDS", help="looked at: it is still right")
    parser.add_argument("--root", type=Path, default=build.ROOT, help="the project's folder")
    args = parser.parse_args(argv)
    root = args.root.resolve()
    try:
        if args.check:
            return check(root)
        if args.right:
            return right(root, args.right)
        if args.todo:
            todo(root, args.names)
            return 0
        update(root, args.names)
        write(root)
    except (BuildError, PoFileError) as error:
        print(f"zh failed: {error}", file=sys.stderr)
        return 1
    return 0


def write(root: Path) -> None:
    """Writes the Chinese edition, and the catalogue of messages that is installed."""
    files = dict(edition(root))
    for path, text in files.items():
        folder = path.parent
        folder.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    catalogue_of_messages = root / messages.CATALOGUE
    if catalogue_of_messages.exists():
        messages.write(root)
    count = len(files)
    print(f"{count} files in Chinese are built")


if __name__ == "__main__":
    sys.exit(main())
