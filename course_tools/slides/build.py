"""Slides of every chapter, made of the executed notebooks; nothing is run.

    python -m course_tools.slides.build --to FOLDER          all chapters (`make slides to=FOLDER`)
    python -m course_tools.slides.build --to FOLDER 03 05    these

With COURSE_LANG=zh they are Chinese, and lie in zh/ there. What is on a slide follows from what a
cell is: `deck` has the rule. reveal.js comes from npm, once; slides ask no other host for
anything, and nothing is written into the course. S opens the notes, which are the chapter's text.
"""

import argparse
import html
import os
import shutil
import sys
from pathlib import Path
from string import Template

from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.i18n import site_languages
from course_tools.i18n.site_languages import Tongue
from course_tools.learner import copies
from course_tools.notebooks import course_map
from course_tools.site import npm
from course_tools.site.notebook_pages import pictures_to_files
from course_tools.site.website import PARTS
from course_tools.slides.deck import Deck
from course_tools.slides.markup import COLOURS

SHAPE = ROOT / "source/site/slides.html"
REVEAL = "reveal.js@6.0.2"
INTEGRITY = (  # sha512, as npm publishes it
    "JYIg5D9aoxoaLeb84O+OvAwsKWdIavVgEDScxtYEXFCT6t6TQrhNtSgogcjdCpdLsWglhJn3zyE3fUOwiH5KEg=="
)
NEEDED = "dist/reveal.js", "dist/reveal.css", "dist/reset.css", "dist/plugin/notes.js", "LICENSE"


def kept() -> Path:
    """Where reveal.js is kept: with the course, if this user may write there."""
    if os.access(ROOT, os.W_OK):
        return PARTS
    return Path.home() / ".cache/ddp-course"


def page(chapter: Path, to: Path, tongue: Tongue) -> None:
    """Writes the slides of a chapter, a column for each of its parts."""
    notebook = tongue.read(chapter)
    pictures = to / "_static/pictures"
    pictures_to_files(notebook.cells, pictures, "")
    columns = []
    deck = Deck(notebook.cells, tongue.say)
    for part in deck.parts:
        slides = ""
        for slide in part:
            slides += slide.html()
        columns.append(f"<section>{slides}</section>")
    facts = course_map.facts(notebook)
    fields = {
        "lang": tongue.code,
        "title": html.escape(facts["title"]),
        "colours": COLOURS.get_style_defs("pre"),
        "slides": "\n".join(columns),
    }
    shape = SHAPE.read_text(encoding="utf-8")
    template = Template(shape)
    text = template.substitute(fields)
    path = to / f"{chapter.stem}.html"
    path.write_text(text, encoding="utf-8")


def index(chapters: dict[Path, NotebookNode], to: Path) -> str:
    """The page with a link to the slides of each chapter that are in a folder."""
    items = ""
    for path, notebook in chapters.items():
        page_name = f"{path.stem}.html"
        slides = to / page_name
        if not slides.exists():
            continue
        number = path.stem[:2]
        facts = course_map.facts(notebook)
        title = html.escape(facts["title"])
        link = f'<a href="{page_name}">{title}</a>'
        items += f"<li>{number} {link}</li>"
    return f'<!doctype html><meta charset="utf-8"><title>Slides</title><ul>{items}</ul>'


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    args = command_line().parse_args(argv)
    reveal = npm.fetched(args.parts, REVEAL, INTEGRITY, NEEDED)
    if not reveal:
        print("slides need reveal.js, which npm brings once", file=sys.stderr)
        return 1
    tongue = site_languages.english()
    language = copies.language()
    if language:
        tongue = site_languages.in_chinese()
    to = args.to.expanduser() / language
    pictures = to / "_static/pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    shutil.copytree(reveal, to / "_static/reveal", dirs_exist_ok=True)
    write(to, tongue, args.chapters)
    first_page = to / "index.html"
    print(f"Open {first_page} in a browser; the key S shows the notes.")
    return 0


def command_line() -> argparse.ArgumentParser:
    """What can be asked of this command."""
    parser = parser_of(__doc__)
    parser.add_argument("--to", type=Path, required=True, help="a folder for them")
    parser.add_argument("--parts", type=Path, default=kept(), help="where reveal.js is kept")
    parser.add_argument("chapters", nargs="*", help="such as 03; all if there are none")
    return parser


def write(to: Path, tongue: Tongue, numbers: list[str]) -> None:
    """Writes the slides of the chapters with these numbers, or of all, and the page of links."""
    as_read = course_map.Tongue(tongue.read, str)
    chapters = course_map.chapters(tongue=as_read)
    for path in chapters:
        number = path.stem[:2]
        if not numbers or number in numbers:
            page(path, to, tongue)
    text = index(chapters, to)
    first_page = to / "index.html"
    first_page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
