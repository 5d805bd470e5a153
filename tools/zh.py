"""The Chinese edition: catalogues in source/zh are edited; notebooks are built of them and of English.

    python tools/zh.py                  takes up what has changed in English, builds everything anew
    python tools/zh.py 03               begins catalogues for a chapter and its lab, then the same
    python tools/zh.py --check          what is translated; is there anything nobody has looked at?
    python tools/zh.py --todo 03        what is to be translated, or to be looked at
    python tools/zh.py --right "words"  looked at: the translation of that paragraph is still right

Nothing is executed: code, outputs and ids of cells are copied from the English notebooks. Built are
the folders zh/, which git ignores, and README.zh.md.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.pofile import PoFileError

import chinese
import translation
from cells import BuildError

HERE = Path(__file__).resolve().parents[1]


def update(root: Path, names: list[str]) -> None:
    """Writes the catalogues as the English is now: those that are there, and those named."""
    for source in chinese.sources(root, names):
        if names or source.catalogue.exists():
            catalog = translation.take_up(translation.read(source.catalogue), source.prose())
            translation.write(catalog, source.catalogue, source.file.relative_to(root).as_posix())


def build_all(root: Path) -> int:
    """Writes the whole edition; returns how many files that were."""
    number = 0
    for number, (path, text) in enumerate(chinese.edition(root), start=1):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return number


def begin(text: str) -> str:
    """Returns the first words of a paragraph, to find it by."""
    return translation.key(text)[:70]


def faults(source: chinese.Source, root: Path) -> Iterator[str]:
    """Yields what nobody has looked at in a catalogue, and what a translation has lost."""
    where = source.catalogue.relative_to(root)
    known, wanted = source.known(), {translation.key(unit) for unit in source.prose()}
    new, gone = len(wanted - known.keys()), len(known.keys() - wanted)
    if new or gone:
        yield f"{where}: the English is another now ({new} new, {gone} gone): make zh"
    for message in known.values():
        if message.fuzzy:
            yield f"{where}: changed in English, and nobody has looked: {begin(message.id)}"
        elif message.string:
            for slip in translation.slips(message):
                yield f"{where}: {slip}: {begin(message.id)}"


def check(root: Path) -> int:
    """Prints what is translated and what is not in order; returns the exit status."""
    found, shares = [], []
    for source in chinese.sources(root):
        share = 0
        if source.catalogue.exists():
            known, wanted = source.known(), source.prose()
            have = [known.get(translation.key(unit)) for unit in wanted]
            share = 100 * sum(bool(m and m.string and not m.fuzzy) for m in have) // len(wanted)
            found += faults(source, root)
        shares.append(f"{source.name.removesuffix(source.name.partition('_')[2])} {share} %")
    readme = chinese.readme(root)
    if readme.exists() and readme.read_text("utf-8") != chinese.document(root / "README.md", root):
        found.append("README.zh.md is old: make zh")
    print("in Chinese:", ", ".join(shares))
    print("\n".join(found) or "every translation is of the English as it is now")
    if found:
        print("\nto see them:       .venv/bin/python tools/zh.py --todo NAME")
        print("to mend one:       edit source/zh/NAME.po; when it is right, take `#, fuzzy` away")
        print('still right?       .venv/bin/python tools/zh.py --right "words of the English"')
    return int(bool(found))


def todo(root: Path, names: list[str]) -> None:
    """Prints what has no translation, and what changed in the English of those that have one."""
    for source in chinese.sources(root, names):
        known = source.known()
        for unit in source.prose():
            message = known.get(translation.key(unit))
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
        for source in chinese.sources(root)
        if source.catalogue.exists()
        for message in source.known().values()
        if message.fuzzy and translation.key(text) in translation.key(message.id)
    ]
    if len(found) != 1:
        print(f"{len(found)} changed paragraphs have these words, not one", file=sys.stderr)
        return 1
    source, message = found[0]
    catalog = translation.read(source.catalogue)
    entry = catalog[message.id]
    entry.flags.discard("fuzzy")
    entry.user_comments = []
    translation.write(catalog, source.catalogue, source.file.relative_to(root).as_posix())
    print(f"{source.name}: {begin(message.id)}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="such as 03, labs/03, README; all if none")
    parser.add_argument("--check", action="store_true", help="report, change nothing")
    parser.add_argument("--todo", action="store_true", help="print what is to be done")
    parser.add_argument("--right", metavar="WORDS", help="looked at: it is still right")
    parser.add_argument("--root", type=Path, default=HERE, help="the project's folder")
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
        print(f"{build_all(root)} files in Chinese are built")
        return 0
    except (BuildError, PoFileError) as error:
        print(f"zh failed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
