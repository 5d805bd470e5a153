"""The pages of the site in a language: notebooks, documents, the front page; nothing is run.

`website` calls this for each of the two.
"""

import functools
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from course_tools.i18n import site_languages
from course_tools.i18n.site_languages import ROOT, Tongue
from course_tools.notebooks import course_map
from course_tools.notebooks.predictions import asked_in
from course_tools.site import glossary, live_parts, notebook_pages

SITE = ROOT / "source/site"
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff")
ROOMS = ("course_utils", "course_testing", "course_lint", "course_museum")  # each has a page
BOOKS = ("notebooks", "exercises", "solutions")
ELSEWHERE = {
    "Colab": "https://colab.research.google.com/github/{}/blob/HEAD/{}",
    "Kaggle": "https://kaggle.com/kernels/welcome?src=https://github.com/{}/blob/HEAD/{}",
    "Binder": "https://mybinder.org/v2/gh/{}/HEAD?labpath={}",
}


class Site(NamedTuple):
    """What all pages are made with."""

    pictures: Path  # where figures go
    live: dict[str, tuple[dict[str, str], dict[str, Any], str]]  # see website.live_places
    repository: str  # OWNER/NAME, or nothing
    pdf: bool


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
    for name in (*DOCUMENTS, *more, *(f"{folder}/README.md" for folder in (*BOOKS, *ROOMS))):
        document(ROOT / name, to, tongue)
    for path in (ROOT / "notebooks").glob("*.py"):
        shutil.copy(path, to / "notebooks")
    (to / "glossary.md").write_text(glossary.page(tongue), encoding="utf-8")
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
    notebook_pages.write(
        notebook_pages.page(path, site.pictures, live, head, solved, tongue), to / own
    )
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
        text = text.replace(chart[0], notebook_pages.way(chart[1], predictions(), names))
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
    say, up = tongue.say, tongue.up.removeprefix("../")
    rows = [say("| | chapter | the question |"), "| --- | --- | --- |"]
    for path in course_map.chapters():
        about, where = course_map.facts(tongue.read(path)), f"notebooks/{path.name}"
        rows.append(f"| {path.stem[:2]} | [{about['title']}]({where}) | {about['question']} |")
    said = {
        "FRONT": frame,
        "CHAPTERS": "\n".join(rows),
        "REPOSITORY": site.repository or "OWNER/NAME",
        "PDF": f'<a href="{up}ddp-course.pdf">{say("All of it as one PDF")}</a>' * site.pdf,
        "ARTICLES": "articles/*" * (tongue.code == "zh"),
    }
    for name in ("index.md", "start.md"):
        text = site_languages.titled(say((SITE / name).read_text(encoding="utf-8")), say)
        text = re.sub(f"({'|'.join(said)})\\b", lambda found: said[found[1]], text)
        (to / name).write_text(text, encoding="utf-8")
