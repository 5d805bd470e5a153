"""Builds the site in build/site/html: the executed notebooks as pages, with sliders that move.

    python tools/website.py                          build it (`make site`)
    python tools/website.py --repository OWNER/NAME  with links that open chapters elsewhere
    python tools/website.py --pdf                    also print all of it into one PDF

Nothing is executed but `live.py`, which draws the first picture of each slider. Pyodide comes from
the npm package `pyodide`, by `npm`, once; where it cannot be had, the pictures stay still.
"""

import argparse
import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

import course_map
import live_parts
import pages
import tongues
from asked import asked_in
from tongues import Tongue

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "source/site"
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
PARTS = Path(os.environ.get("COURSE_SITE_PARTS", ROOT / ".venv/site"))
BOOKS = ("notebooks", "exercises", "solutions")
ELSEWHERE = {
    "Colab": "https://colab.research.google.com/github/{}/blob/HEAD/{}",
    "Kaggle": "https://kaggle.com/kernels/welcome?src=https://github.com/{}/blob/HEAD/{}",
    "Binder": "https://mybinder.org/v2/gh/{}/HEAD?labpath={}",
}


class Site(NamedTuple):
    """What all pages are made with."""

    pictures: Path  # where figures go
    live: dict[str, tuple[dict[str, str], dict[str, Any], str]]  # see live_places
    repository: str  # OWNER/NAME, or nothing
    pdf: bool


def stage(to: Path, parts: Path, repository: str, pdf: bool) -> Site:
    """Writes all that Sphinx reads: pages, pictures, downloads, and what the sliders need."""
    english = tongues.english()
    begin(to, english)
    site = Site(to / "_static/pictures", live_places(to), repository, pdf)
    site.pictures.mkdir()
    if found := live_parts.pyodide(parts):
        shutil.copytree(found, to / "extra/live/pyodide")
    write_pages(to, site, english)
    return site


def stage_chinese(to: Path, site: Site) -> None:
    """Writes the same pages in Chinese; figures and recordings are those of the English ones."""
    chinese = tongues.in_chinese()
    begin(to, chinese)
    tongues.write_theme(to)
    for path in sorted((ROOT / "articles").glob("*.md")):
        document(path, to, chinese)
    write_pages(to, site, chinese)


def begin(to: Path, tongue: Tongue) -> None:
    """Writes settings, scripts and styles."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(SITE / "static", to / "_static")
    shutil.copytree(SITE / "templates", to / "templates")
    worker, say = to / "_static/worker.js", to / "_static/say.js"
    worker.write_text(worker.read_text(encoding="utf-8").replace("WHEEL", live_parts.WHEEL))
    say.write_text(tongues.for_scripts(tongue, say.read_text(encoding="utf-8")), encoding="utf-8")
    (to / "extra/download").mkdir(parents=True)
    settings = (SITE / "conf.py").read_text(encoding="utf-8")
    (to / "conf.py").write_text(f'TONGUE = "{tongue.code}"\n{settings}', encoding="utf-8")


def live_places(to: Path) -> dict[str, tuple[dict[str, str], dict[str, Any], str]]:
    """Packs what moves; returns each place as places.toml tells of it, drawn, and recorded."""
    (to / "extra/live/recordings").mkdir(parents=True)
    packed = live_parts.wheel(to / "extra/live" / live_parts.WHEEL)
    texts, told = live_parts.recordings(), live_parts.places()
    for place, text in texts.items():
        (to / f"extra/live/recordings/{place}.json").write_text(text, encoding="utf-8")
    drawn = map(json.loads, live_parts.redrawn(packed, [(place, {}) for place in texts]))
    return {
        place: (told[place], own, texts[place]) for place, own in zip(texts, drawn, strict=True)
    }


def write_pages(to: Path, site: Site, tongue: Tongue) -> None:
    """Writes all pages that there are in both languages."""
    frames = {
        place: live_parts.block(place, told, drawn, text, tongue.say)
        for place, (told, drawn, text) in site.live.items()
    }
    for path in books():
        own = path.relative_to(ROOT)
        live = {
            told["after"]: frames[place]
            for place, (told, *_) in site.live.items()
            if told["notebook"] == str(own) and place != "front"
        }
        write_book(path, to, live, site, tongue)
    more = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "teaching").glob("*.md"))
    for name in (*DOCUMENTS, *more, *(f"{book}/README.md" for book in BOOKS)):
        document(ROOT / name, to, tongue)
    for path in (ROOT / "notebooks").glob("*.py"):
        shutil.copy(path, to / "notebooks")
    front(to, frames["front"], site, tongue)


def books() -> list[Path]:
    """Returns every executed notebook."""
    return [path for book in BOOKS for path in sorted((ROOT / book).glob("*.ipynb"))]


def write_book(path: Path, to: Path, live: dict[str, str], site: Site, tongue: Tongue) -> None:
    """Writes a notebook's page, and the notebook itself as a download."""
    own, say = path.relative_to(ROOT), tongue.say
    name = f"{'lab_' * (own.parts[0] == 'exercises')}{path.name}"
    links = [say("Only the sliders run here.")] if own.parts[0] == "notebooks" else []
    download, start = say("Download this notebook"), say("Start anywhere")
    links.append(f'<a href="../download/{name}" download>{download}</a>')
    links.append(f'<a href="../start.html">{start}</a>')
    links += [
        f'<a href="{address.format(site.repository, own)}">{say("Open in {0}").format(service)}</a>'
        for service, address in ELSEWHERE.items()
        if site.repository
    ]
    solved = own.parts[0] == "solutions"
    head = "" if solved else f'<p class="elsewhere">{" · ".join(links)}</p>\n'
    pages.write(pages.page(path, site.pictures, live, head, solved, tongue), to / own)
    if solved:
        return
    if tongue.code == "en":
        shutil.copy(path, to / "extra/download" / name)
    else:
        nbformat.write(tongue.read(path), to / "extra/download" / name)


def document(path: Path, to: Path, tongue: Tongue) -> None:
    """Writes a document; the map's chart, which GitHub draws, becomes links."""
    own, text = path.relative_to(ROOT), tongue.document(path)
    if "```mermaid" in text:
        chapters = course_map.chapters()
        names = {path.stem[:2]: path.stem for path in chapters}
        chart = re.search(r"```mermaid\n(.*?)```", text, re.S)
        text = text.replace(chart[0], pages.way(chart[1], predictions(), names))
    if own.parts[0] == "solutions":
        text = f"---\norphan: true\nnosearch: true\n---\n{text}"
    (to / own).parent.mkdir(exist_ok=True)
    (to / own).write_text(text, encoding="utf-8")


@functools.cache
def predictions() -> dict[str, int]:
    """Returns how many predictions each chapter asks for."""
    return {path.stem[:2]: asked_in(path) for path in course_map.chapters()}


def front(to: Path, frame: str, site: Site, tongue: Tongue) -> None:
    """Writes the front page, and the one that tells where else the course runs."""
    say = tongue.say
    rows = [say("| | chapter | the question |"), "| --- | --- | --- |"]
    for path in course_map.chapters():
        about, where = course_map.facts(tongue.read(path)), f"notebooks/{path.name}"
        rows.append(f"| {path.stem[:2]} | [{about['title']}]({where}) | {about['question']} |")
    said = {
        "FRONT": frame,
        "CHAPTERS": "\n".join(rows),
        "REPOSITORY": site.repository or "OWNER/NAME",
        "PDF": f' <a href="ddp-course.pdf">{say("All of it as one PDF")}</a>' * site.pdf,
        "ARTICLES": "articles/*" * (tongue.code == "zh"),
    }
    for name in ("index.md", "start.md"):
        text = tongues.titled(say((SITE / name).read_text(encoding="utf-8")), say)
        text = re.sub(f"({'|'.join(said)})\\b", lambda found: said[found[1]], text)
        (to / name).write_text(text, encoding="utf-8")


def remembered(highlight: Callable[..., str]) -> Callable[..., str]:
    """Returns Sphinx's highlighter that does a cell once: code is the same in both languages."""
    if hasattr(highlight, "known"):
        return highlight
    known: dict[str, str] = {}

    def again(self: Any, source: str, lang: str, location: Any = None, **options: Any) -> str:
        key = repr((source, lang, options))
        if key not in known:
            known[key] = highlight(self, source, lang, location=location, **options)
        return known[key]

    again.known = known
    return again


def built(folder: Path, source: str, to: str) -> int:
    """Lets Sphinx make HTML of pages; returns how it went. Warnings are errors."""
    from sphinx.cmd.build import main as sphinx  # costs a second
    from sphinx.highlighting import PygmentsBridge

    PygmentsBridge.highlight_block = remembered(PygmentsBridge.highlight_block)
    options = ["-q", "-W", "--keep-going", "-d", str(folder / f"cache-{source}")]
    return sphinx([*options, str(folder / source), str(folder / to)])


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build/site", help="a folder for it")
    parser.add_argument("--parts", type=Path, default=PARTS, help="where Pyodide is kept")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub")
    parser.add_argument("--pdf", action="store_true", help="print it, by Chromium (minutes)")
    args = parser.parse_args(argv)
    site = stage(args.to / "pages", args.parts, args.repository, args.pdf)
    stage_chinese(args.to / "pages-zh", site)
    faults = built(args.to, "pages", "html") or built(args.to, "pages-zh", "html/zh")
    if args.pdf and not faults:
        from print_site import printed

        printed(args.to)
    return faults


if __name__ == "__main__":
    sys.exit(main())
