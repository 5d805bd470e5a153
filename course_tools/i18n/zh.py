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

import argparse
import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import PoFileError

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


class Source(NamedTuple):
    """An English text: a lesson, a lab, the challenge or a document; and its catalogue."""

    name: str
    file: Path
    catalogue: Path
    notebook: build.Target | None

    def prose(self) -> list[str]:
        """Returns what is to be translated, unit by unit."""
        if self.notebook:
            return catalogues.prose(build.plan(self.notebook))
        if self.name == messages.NAME:
            return messages.prose(self.file.parent)
        if self.name == chinese.MAP:
            return chinese.sentences_of_map(self.file.parents[1])
        if self.name == "site":
            return site_languages.sentences(self.file.parents[2])
        return catalogues.prose_of(self.file.read_text(encoding="utf-8"))

    def known(self) -> dict[str, Message]:
        """Returns the entries of the catalogue by their keys; none if there is no catalogue."""
        catalog = catalogues.read(self.catalogue)
        return messages.known(catalog) if self.name == messages.NAME else catalogues.words(catalog)

    def take_up(self) -> None:
        """Writes the catalogue as the English is now."""
        catalog = catalogues.read(self.catalogue)
        if self.name == messages.NAME:
            catalog = messages.take_up(catalog, messages.ids(self.file.parent))
        else:
            catalog = catalogues.take_up(catalog, self.prose())
        self.write(catalog)

    def write(self, catalog: Catalog) -> None:
        """Writes a catalogue of this text."""
        root = self.catalogue.parents[len(Path(self.name).parts) + 1]
        catalogues.write(catalog, self.catalogue, self.file.relative_to(root).as_posix())


def sources(root: Path, names: Iterable[str] = ()) -> list[Source]:
    """Returns all of them, or those named: `03` is a chapter with its lab.

    Raises:
        BuildError: Nothing has such a name.
    """
    texts = {target.source: target for target in build.targets(root) if not target.cut}
    files = {
        file.relative_to(root / "source").with_suffix("").as_posix(): (file, target)
        for file, target in texts.items()
    }
    documents = {name: root / file for name, file in chinese.DOCUMENTS.items()}
    documents[messages.NAME] = root / "course_utils"
    documents["site"] = root / "source/site/index.md"
    files |= {name: (file, None) for name, file in documents.items() if file.exists()}
    chosen = {start: [n for n in files if _begins(n, start)] for start in names}
    if lost := [start for start, found in chosen.items() if not found]:
        raise BuildError(f"nothing is called {', '.join(lost)}; there are: {', '.join(files)}")
    return [
        Source(name, file, root / "source/zh" / f"{name}.po", target)
        for name, (file, target) in files.items()
        if not chosen or any(name in found for found in chosen.values())
    ]


def _begins(name: str, start: str) -> bool:
    return name.startswith(start) or name.partition("/")[2].startswith(start)


def edition(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields every file of the Chinese edition with its text."""
    notebooks = [target.built for target in build.targets(root) if target.built.exists()]
    documents = {name: root / file for name, file in chinese.DOCUMENTS.items()}
    there = {path.relative_to(root).as_posix() for path in [*notebooks, *documents.values()]}
    for path in notebooks:
        notebook, folder = chinese.in_memory(path, root), path.parent.name
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = catalogues.deeper(cell.source, folder, there)
        yield path.parent / "zh" / path.name, nbformat.writes(notebook) + "\n"
    for file in filter(Path.exists, documents.values()):
        text, folder = chinese.document(file, root), file.parent
        if folder == root:
            yield root / "README.zh.md", text
        else:
            yield folder / "zh" / file.name, catalogues.deeper(text, folder.name, there)
    yield from articles.pages(root)


def update(root: Path, names: list[str]) -> None:
    """Writes the catalogues as the English is now: those that are there, and those named."""
    for source in sources(root, names):
        if names or source.catalogue.exists():
            source.take_up()


def check(root: Path) -> int:
    """Prints what is translated and what is not in order; returns the exit status."""
    found, shares, terms = [], [], proofread.glossary(root)
    for source in sources(root):
        share, number = 0, source.name.partition("_")[0]
        if source.catalogue.exists():
            known, wanted = source.known(), source.prose()
            have = [known.get(catalogues.key(unit)) for unit in wanted]
            share = 100 * sum(bool(m and m.string and not m.fuzzy) for m in have) // len(wanted)
            where = source.catalogue.relative_to(root)
            found += [f"{where}: {fault}" for fault in proofread.faults(known, wanted, terms)]
            if source.name == messages.NAME:
                found += [f"{where}: {fault}" for fault in messages.faults(root)]
        shares.append(f"{number if '/' in number else source.name} {share} %")
    found += articles.faults(root, terms)
    readme, english = root / "README.zh.md", root / "README.md"
    kept = {readme: chinese.document(english, root)} if readme.exists() else {}
    for path, text in (kept | dict(articles.pages(root))).items():
        if not path.exists() or path.read_text("utf-8") != text:
            found.append(f"{path.relative_to(root)} is old: make zh")
    print("in Chinese:", ", ".join(shares))
    print("\n".join(found) or "every translation is of the English as it is now")
    if found:
        print("\nto see them:   .venv/bin/python -m course_tools.i18n.zh --todo NAME")
        print("to mend one:   edit source/zh/NAME.po; when it is right, take `#, fuzzy` away")
        print(
            'still right?   .venv/bin/python -m course_tools.i18n.zh --right "words of the English"'
        )
    return int(bool(found))


def todo(root: Path, names: list[str]) -> None:
    """Prints what has no translation, and what changed in the English of those that have one."""
    for source in sources(root, names):
        known = source.known()
        for unit in source.prose():
            message = known.get(catalogues.key(unit))
            if not (message and message.string):
                print(f"--- {source.name}: no translation\n{unit}\n")
            elif message.fuzzy:
                was = " ".join(message.user_comments).removeprefix("was: ").split()
                pieces = difflib.ndiff(was, unit.split())
                changes = " ".join(p.replace(" ", "", 1) for p in pieces if p[0] in "+-")
                print(f"--- {source.name}: changed\n{unit}\n{changes}\n{message.string}\n")


def right(root: Path, text: str) -> int:
    """Marks the one changed translation whose English has these words as looked at."""
    found = [
        (source, message)
        for source in sources(root)
        if source.catalogue.exists()
        for message in source.known().values()
        if message.fuzzy and catalogues.key(text) in catalogues.key(message.id)
    ]
    if len(found) != 1:
        print(f"{len(found)} changed paragraphs have these words, not one", file=sys.stderr)
        return 1
    source, message = found[0]
    catalog = catalogues.read(source.catalogue)
    catalog[message.id].flags.discard("fuzzy")
    catalog[message.id].user_comments = []
    source.write(catalog)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
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
            return todo(root, args.names) or 0
        update(root, args.names)
        files = dict(edition(root))
        for path, text in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if (root / messages.CATALOGUE).exists():
            messages.write(root)
        print(f"{len(files)} files in Chinese are built")
        return 0
    except (BuildError, PoFileError) as error:
        print(f"zh failed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
