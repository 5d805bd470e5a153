"""The glossary: a page of the site in both languages, and the table of terms in CONTRIBUTING.md.

    python -m course_tools.site.glossary            write the table
    python -m course_tools.site.glossary --check    is it what source/glossary.toml says?

On the site `source/site/conf.py` links the first use of each term on a page to the glossary's page.
"""

import argparse
import re
import sys
from dataclasses import dataclass

from course_tools import ROOT
from course_tools.i18n.site_languages import Tongue
from course_tools.texts import read_toml

SOURCE = ROOT / "source/glossary.toml"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
# Of the page: a heading that one can link to, and what stands below it.
ENTRY = """
({anchor})=

## {heading}

{means} {link}
"""
# The table below the heading, whose rows `table` makes.
_TABLE = re.compile(r"(?<=\n\n)\| term \| here \|\n(?:\|.*\n)+")


@dataclass(frozen=True)
class Term:
    """A term in a language.

    Attributes:
        anchor: the name of its place on the page, the same in both languages.
        title: what it is called.
        words: the forms by which it is found in a text.
        means: its explanation, in Markdown.
        chapter: the two digits of the chapter where it happens first.
    """

    anchor: str
    title: str
    words: tuple[str, ...]
    means: str
    chapter: str


def terms(code: str) -> list[Term]:
    """The glossary's terms in a language, `en` or `zh`, in the order of the English titles."""
    prefix = ""
    if code == "zh":
        prefix = "zh_"
    translated = []
    source = _source()
    for entry in source["terms"]:
        english_title = entry["title"]
        lower_case = english_title.lower()
        place = lower_case.replace(" ", "-")
        title = entry[f"{prefix}title"]
        words = entry.get(f"{prefix}words", [title])
        meaning = entry[f"{prefix}means"]
        term = Term(
            anchor=f"term-{place}",
            title=title,
            words=tuple(words),
            means=meaning,
            chapter=entry["chapter"],
        )
        translated.append(term)
    return translated


def page(tongue: Tongue) -> str:
    """The glossary's page, in Markdown."""
    say = tongue.say
    title = say("Glossary")
    introduction = say("The field's terms, each with the chapter where you see it happen.")
    chapter_word = say("Chapter")
    text = f"# {title}\n\n{introduction}\n"
    in_language = terms(tongue.code)
    in_english = terms("en")
    for term, english in zip(in_language, in_english, strict=True):
        heading = term.title
        if heading != english.title:
            heading = f"{heading} ({english.title})"
        number = term.chapter
        (chapter,) = ROOT.glob(f"notebooks/{number}_*.ipynb")
        link = f"{chapter_word} [{number}](notebooks/{chapter.name})"
        text += ENTRY.format(
            anchor=term.anchor,
            heading=heading,
            means=term.means,
            link=link,
        )
    return text


def table() -> str:
    """What the code means by its terms, as a table in Markdown."""
    rows = "| term | here |\n| --- | --- |\n"
    source = _source()
    for entry in source["code"]:
        title = entry["title"]
        meaning = entry["means"]
        rows += f"| {title} | {meaning} |\n"
    return rows


def _source() -> dict[str, list[dict]]:
    """What glossary.toml says."""
    return read_toml(SOURCE)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write the table of terms in CONTRIBUTING.md.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    arguments = parser.parse_args(argv)
    text = CONTRIBUTING.read_text(encoding="utf-8")
    rows = table()
    wanted = _TABLE.sub(lambda _: rows, text)
    if text == wanted:
        return 0
    if arguments.check:
        print("CONTRIBUTING.md: the table of terms is not what source/glossary.toml says")
        return 1
    CONTRIBUTING.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
