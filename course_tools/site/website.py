"""Builds the site in build/site/html: the executed notebooks as pages, with sliders that move.

    python -m course_tools.site.website                            build it (`make site`)
    python -m course_tools.site.website --repository OWNER/NAME    with links to Colab and the like
    python -m course_tools.site.website --pdf                      also print all of it into one PDF

Nothing is executed but `live.py`, which draws the first picture of each slider. Pyodide comes from
the npm package `pyodide`, by `npm`, once; where it cannot be had, the pictures stay still.
"""

import argparse
import functools
import gc
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.i18n import site_languages
from course_tools.i18n.site_languages import Tongue
from course_tools.site import live_parts, llms, pages, plans
from course_tools.site.live_parts import SITE, Place, site_text
from course_tools.site.pages import Site

PARTS = Path(os.environ.get("COURSE_SITE_PARTS", ROOT / ".venv/site"))
Highlight = Callable[..., str]


def stage(to: Path, parts: Path, repository: str, pdf: bool) -> Site:
    """Writes all that Sphinx reads: pages, pictures, downloads, and what the sliders need."""
    english = site_languages.english()
    begin(to, english)
    pictures = to / "_static/pictures"
    pictures.mkdir()
    live = live_places(to)
    site = Site(pictures, live, repository, pdf)
    pyodide = live_parts.pyodide(parts)
    extra = to / "extra"
    if pyodide:
        shutil.copytree(pyodide, extra / "live/pyodide")
    pages.write_pages(to, site, english)
    llms.write(extra)
    return site


def stage_chinese(to: Path, site: Site) -> None:
    """Writes the same pages in Chinese; figures and recordings are those of the English ones."""
    chinese = site_languages.in_chinese()
    begin(to, chinese)
    site_languages.write_theme(to)
    folder = ROOT / "articles"
    articles = folder.glob("*.md")
    for path in sorted(articles):
        pages.document(path, to, chinese)
    pages.write_pages(to, site, chinese)


def begin(to: Path, tongue: Tongue) -> None:
    """Writes settings, scripts and styles."""
    static = to / "_static"
    extra = to / "extra"
    downloads = extra / "download"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(SITE / "static", static)
    shutil.copytree(SITE / "templates", to / "templates")
    table_of_plans = static / "plans.js"
    plans.write_table(table_of_plans)
    downloads.mkdir(parents=True)
    pictures = "source/pictures"
    shutil.copytree(ROOT / pictures, extra / pictures)

    worker = static / "worker.js"
    script = worker.read_text(encoding="utf-8")
    script = script.replace("WHEEL", live_parts.WHEEL)
    worker.write_text(script, encoding="utf-8")

    say = static / "say.js"
    script = say.read_text(encoding="utf-8")
    script = site_languages.for_scripts(tongue, script)
    say.write_text(script, encoding="utf-8")

    conf = to / "conf.py"
    settings = site_text("conf.py")
    settings = f'TONGUE = "{tongue.code}"\n{settings}'
    conf.write_text(settings, encoding="utf-8")


def live_places(to: Path) -> dict[str, Place]:
    """Packs what moves; returns each place as places.toml tells of it, drawn, and recorded."""
    live = to / "extra/live"
    folder = live / "recordings"
    folder.mkdir(parents=True)
    wheel = live / live_parts.WHEEL
    packed = live_parts.wheel(wheel)
    entries = live_parts.places()
    recordings = live_parts.recordings()
    without_settings = [(name, {}) for name in recordings]
    unmoved = live_parts.redrawn(packed, without_settings)
    places = {}
    for name, drawn_json in zip(recordings, unmoved, strict=True):
        entry = entries[name]
        drawn = json.loads(drawn_json)
        recording = recordings[name]
        path = folder / f"{name}.json"
        path.write_text(recording, encoding="utf-8")
        places[name] = Place(entry, drawn, recording)
    return places


def remembered(highlight: Highlight) -> Highlight:
    """Returns Sphinx's highlighter that does a cell once: code is the same in both languages."""
    if hasattr(highlight, "known"):
        return highlight
    known: dict[str, str] = {}

    def again(self: Any, source: str, lang: str, location: Any = None, **options: Any) -> str:
        asked = (source, lang, options)
        key = repr(asked)
        if key not in known:
            highlighted = highlight(self, source, lang, location=location, **options)
            known[key] = highlighted
        return known[key]

    again.known = known
    return again


def built(folder: Path, source: str, to: str) -> int:
    """Lets Sphinx make HTML of pages; returns how it went. Warnings are errors."""
    from sphinx.cmd.build import main as sphinx  # costs a second
    from sphinx.highlighting import PygmentsBridge
    from sphinx.search.en import SearchEnglish

    # Sphinx forgets stems after each page.
    is_remembered = hasattr(SearchEnglish.stem, "cache_info")
    if not is_remembered:
        SearchEnglish.stem = functools.cache(SearchEnglish.stem)
    PygmentsBridge.highlight_block = remembered(PygmentsBridge.highlight_block)
    cache = folder / f"cache-{source}"
    pages_folder = folder / source
    html_folder = folder / to
    arguments = ["-q", "-W", "--keep-going"]
    arguments += ["-d", str(cache)]
    arguments += [str(pages_folder), str(html_folder)]
    return sphinx(arguments)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = command_line()
    args = parser.parse_args(argv)
    gc.set_threshold(50_000)  # most of Sphinx's many nodes stay: looking for others takes a tenth
    english_pages = args.to / "pages"
    chinese_pages = args.to / "pages-zh"
    site = stage(english_pages, args.parts, args.repository, args.pdf)
    stage_chinese(chinese_pages, site)
    faults = built(args.to, english_pages.name, "html")
    if faults:
        return faults
    faults = built(args.to, chinese_pages.name, "html/zh")
    if faults:
        return faults
    if args.pdf:
        from course_tools.site.pdf import printed

        printed(args.to)
    return 0


def command_line() -> argparse.ArgumentParser:
    """Returns what can be asked of this command."""
    parser = parser_of(__doc__)
    default_folder = ROOT / "build/site"
    parser.add_argument("--to", type=Path, default=default_folder, help="a folder for it")
    parser.add_argument("--parts", type=Path, default=PARTS, help="where Pyodide is kept")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub")
    parser.add_argument("--pdf", action="store_true", help="print it, by Chromium (minutes)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
