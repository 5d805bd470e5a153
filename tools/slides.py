"""Slides of every chapter in build/slides, made of the executed notebooks; nothing is run.

    python tools/slides.py          all chapters (`make slides`)
    python tools/slides.py 03 05    these

What is on a slide follows from what a cell is: `deck.py` has the rule. reveal.js comes from npm,
once; slides ask no other host for anything. S opens the notes, which are the chapter's text.
"""

import argparse
import html
import shutil
import sys
from pathlib import Path
from string import Template

import course_map
import from_npm
from deck import Deck
from pages import pictures_to_files
from slide import COLOURS
from website import PARTS

ROOT = Path(__file__).resolve().parents[1]
SHAPE = ROOT / "source/site/slides.html"
REVEAL = "reveal.js@6.0.2"
INTEGRITY = (  # sha512, as npm publishes it
    "JYIg5D9aoxoaLeb84O+OvAwsKWdIavVgEDScxtYEXFCT6t6TQrhNtSgogcjdCpdLsWglhJn3zyE3fUOwiH5KEg=="
)
NEEDED = "dist/reveal.js", "dist/reveal.css", "dist/reset.css", "dist/plugin/notes.js", "LICENSE"


def page(chapter: Path, to: Path) -> None:
    """Writes the slides of a chapter, a column for each of its parts."""
    notebook = course_map.ENGLISH.read(chapter)
    pictures_to_files(notebook.cells, to / "_static/pictures", "")
    columns = [[slide.html() for slide in part] for part in Deck(notebook.cells).parts]
    said = {
        "title": html.escape(course_map.facts(notebook)["title"]),
        "colours": COLOURS.get_style_defs("pre"),
        "slides": "\n".join(f"<section>{''.join(own)}</section>" for own in columns),
    }
    text = Template(SHAPE.read_text(encoding="utf-8")).substitute(said)
    (to / f"{chapter.stem}.html").write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build/slides", help="a folder for them")
    parser.add_argument("--parts", type=Path, default=PARTS, help="where reveal.js is kept")
    parser.add_argument("chapters", nargs="*", help="such as 03; all if there are none")
    args = parser.parse_args(argv)
    if not (reveal := from_npm.fetched(args.parts, REVEAL, INTEGRITY, NEEDED)):
        print("slides need reveal.js, which npm brings once", file=sys.stderr)
        return 1
    rows: list[str] = []
    (args.to / "_static/pictures").mkdir(parents=True, exist_ok=True)
    shutil.copytree(reveal, args.to / "_static/reveal", dirs_exist_ok=True)
    for path, notebook in course_map.chapters().items():
        if path.name[:2] in (args.chapters or path.name):
            page(path, args.to)
        if (args.to / f"{path.stem}.html").exists():
            title = html.escape(course_map.facts(notebook)["title"])
            rows.append(f'<li>{path.name[:2]} <a href="{path.stem}.html">{title}</a></li>')
    first = f'<!doctype html><meta charset="utf-8"><title>Slides</title><ul>{"".join(rows)}</ul>'
    (args.to / "index.html").write_text(first, encoding="utf-8")
    print(f"Open {args.to / 'index.html'} in a browser; the key S shows the notes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
