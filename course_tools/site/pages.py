"""The pages of the site in a language: notebooks, documents, the front page; nothing is run.

`website` calls this for each of the two.
"""

import functools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat

from course_tools.i18n import site_languages
from course_tools.i18n.site_languages import ROOT, Tongue
from course_tools.notebooks import course_map
from course_tools.notebooks.course_map import Say
from course_tools.notebooks.predictions import asked_in
from course_tools.site import glossary, live_parts, notebook_pages, plans
from course_tools.site.live_parts import Place, site_text

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "CITATION.cff",
    "docs/gpu-report.md",
    "docs/hangs-queued.md",
)
ROOMS = ("course_utils", "course_testing", "course_lint", "course_museum")  # each has a page
BOOKS = ("notebooks", "exercises", "solutions")
NOT_SEARCHED = "---\norphan: true\nnosearch: true\n---\n"
CHART = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)  # which GitHub draws
ELSEWHERE = {
    "Colab": "https://colab.research.google.com/github/{}/blob/HEAD/{}",
    "Kaggle": "https://kaggle.com/kernels/welcome?src=https://github.com/{}/blob/HEAD/{}",
    "Binder": "https://mybinder.org/v2/gh/{}/HEAD?labpath={}",
}


Frames = dict[str, str]  # with sliders, as HTML


class Site(NamedTuple):
    """What all pages are made with."""

    pictures: Path  # where figures go
    live: dict[str, Place]  # by its name in places.toml
    repository: str  # OWNER/NAME, or nothing
    pdf: bool


def write_pages(to: Path, site: Site, tongue: Tongue) -> None:
    """Writes all pages that there are in both languages."""
    say = tongue.say
    frames: Frames = {}
    for name, place in site.live.items():
        frames[name] = live_parts.block(name, place, say)
    for path in books():
        live = _frames_below_cells(path, frames, site)
        write_book(path, to, live, site, tongue)
    for path in documents():
        document(path, to, tongue)
    notebooks = ROOT / "notebooks"
    scripts = notebooks.glob("*.py")
    folder = to / "notebooks"
    for script in scripts:
        shutil.copy(script, folder)
    glossary_page = to / "glossary.md"
    glossary_text = glossary.page(tongue)
    glossary_page.write_text(glossary_text, encoding="utf-8")
    frame = frames["front"]
    front(to, frame, site, tongue)


def _frames_below_cells(path: Path, frames: Frames, site: Site) -> Frames:
    """The frames of a notebook, by a text of the cell that each of them stands below."""
    place_of_notebook = path.relative_to(ROOT)
    notebook = str(place_of_notebook)
    by_text: Frames = {}
    for name, place in site.live.items():
        if name == "front":
            continue
        entry = place.entry
        if entry["notebook"] == notebook:
            text = entry["after"]
            by_text[text] = frames[name]
    return by_text


def books() -> list[Path]:
    """Returns every executed notebook."""
    paths: list[Path] = []
    for book in BOOKS:
        folder = ROOT / book
        notebooks = folder.glob("*.ipynb")
        paths += sorted(notebooks)
    return paths


def documents() -> list[Path]:
    """Returns every document that is a page in both languages."""
    paths = [ROOT / name for name in DOCUMENTS]
    teaching = ROOT / "teaching"
    for_teachers = teaching.glob("*.md")
    paths += sorted(for_teachers)
    for name in (*BOOKS, *ROOMS):
        folder = ROOT / name
        paths.append(folder / "README.md")
    return paths


def write_book(path: Path, to: Path, live: Frames, site: Site, tongue: Tongue) -> None:
    """Writes a notebook's page, and the notebook itself as a download.

    Args:
        path: The executed notebook.
        to: Where pages go.
        live: By a text of a cell, the frame with sliders below it.
        site: What all pages are made with.
        tongue: The language.
    """
    place = path.relative_to(ROOT)
    book = place.parts[0]
    is_solution = book == "solutions"
    name = path.name
    if book == "exercises":
        name = f"lab_{name}"
    head = ""
    if not is_solution:
        links = _links(place, name, site.repository, tongue.say)
        joined_links = " · ".join(links)
        head = f'<p class="elsewhere">{joined_links}</p>\n'
    page = notebook_pages.page(path, site.pictures, live, head, is_solution, tongue)
    target = to / place
    notebook_pages.write(page, target)
    if is_solution:
        return
    downloads = to / "extra/download"
    download = downloads / name
    if tongue.code == "en":
        shutil.copy(path, download)
    else:
        notebook = tongue.read(path)
        nbformat.write(notebook, download)


def _links(place: Path, download: str, repository: str, say: Say) -> Iterator[str]:
    """What stands below the title of a notebook: where it runs, and its file."""
    if place.parts[0] == "notebooks":
        yield say("Only the sliders run here.")
    words = say("Download this notebook")
    yield f'<a href="../download/{download}" download>{words}</a>'
    words = say("Start anywhere")
    yield f'<a href="../start.html">{words}</a>'
    if not repository:
        return
    form = say("Open in {0}")
    for service, address in ELSEWHERE.items():
        url = address.format(repository, place)
        words = form.format(service)
        yield f'<a href="{url}">{words}</a>'


def document(path: Path, to: Path, tongue: Tongue) -> None:
    """Writes a document; the map's chart becomes links."""
    place = path.relative_to(ROOT)
    text = tongue.document(path)
    text = CHART.sub(_chart_as_links, text)
    if place.parts[0] == "solutions":
        text = NOT_SEARCHED + text
    page = to / place
    page.parent.mkdir(exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _chart_as_links(chart: re.Match[str]) -> str:
    """The map's chart as links to the chapters."""
    names = {}
    for path in course_map.chapters():
        name = path.stem
        chapter = name[:2]
        names[chapter] = name
    text = chart[1]
    counts = predictions()
    return notebook_pages.chart_as_links(text, counts, names)


@functools.cache
def predictions() -> dict[str, int]:
    """Returns how many predictions each chapter asks for."""
    counts = {}
    for path in course_map.chapters():
        chapter = path.stem[:2]
        counts[chapter] = asked_in(path)
    return counts


def front(to: Path, frame: str, site: Site, tongue: Tongue) -> None:
    """Writes the front page, the one with plans, and the one that tells where else it runs."""
    say = tongue.say
    articles = ""
    if tongue.code == "zh":
        articles = "articles/*"
    link_to_pdf = ""
    if site.pdf:
        link_to_pdf = _link_to_pdf(tongue)
    fields = {
        "FRONT": frame,
        "PLAN": plans.block(say),
        "CHAPTERS": _table_of_chapters(tongue),
        "REPOSITORY": site.repository or "OWNER/NAME",
        "PDF": link_to_pdf,
        "ARTICLES": articles,
    }
    names_of_fields = "|".join(fields)
    field_name = re.compile(rf"({names_of_fields})\b")

    def filled(field: re.Match[str]) -> str:
        name = field[1]
        return fields[name]

    for name in ("index.md", "start.md", "plan.md"):
        english_text = site_text(name)
        text = say(english_text)
        text = site_languages.titled(text, say)
        text = field_name.sub(filled, text)
        page = to / name
        page.write_text(text, encoding="utf-8")


def _table_of_chapters(tongue: Tongue) -> str:
    """A table in Markdown: each chapter with its question."""
    header = tongue.say("| | chapter | the question |")
    rows = [header, "| --- | --- | --- |"]
    for path in course_map.chapters():
        number = path.stem[:2]
        notebook = tongue.read(path)
        facts = course_map.facts(notebook)
        title = facts["title"]
        question = facts["question"]
        link = f"[{title}](notebooks/{path.name})"
        row = f"| {number} | {link} | {question} |"
        rows.append(row)
    return "\n".join(rows)


def _link_to_pdf(tongue: Tongue) -> str:
    """A link to the one PDF, which lies with the English pages."""
    to_root = tongue.up.removeprefix("../")
    words = tongue.say("All of it as one PDF")
    return f'<a href="{to_root}ddp-course.pdf">{words}</a>'
