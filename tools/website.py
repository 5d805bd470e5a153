"""Builds the site in build/site/html: the executed notebooks as pages, with sliders that move.

    python tools/website.py                          build it (`make site`)
    python tools/website.py --repository OWNER/NAME  with links that open chapters elsewhere
    python tools/website.py --pdf                    also print all of it into one PDF

Nothing is executed but `live.py`, which draws the first picture of each slider. Pyodide comes from
the npm package `pyodide`, by `npm`, once; where it cannot be had, the pictures stay still.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import course_map
import live_parts
import pages
from asked import asked_in

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "source/site"
DOCUMENTS = ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
PARTS = Path(os.environ.get("COURSE_SITE_PARTS", ROOT / ".venv/site"))
FOLDERS = ("teaching", "articles")
BOOKS = ("notebooks", "exercises", "solutions")
ELSEWHERE = {
    "Colab": "https://colab.research.google.com/github/{}/blob/HEAD/{}",
    "Kaggle": "https://kaggle.com/kernels/welcome?src=https://github.com/{}/blob/HEAD/{}",
    "Binder": "https://mybinder.org/v2/gh/{}/HEAD?labpath={}",
}


def stage(to: Path, parts: Path, repository: str, pdf: bool) -> None:
    """Writes all that Sphinx reads: pages, pictures, downloads, and what the sliders need."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(SITE / "static", to / "_static")
    (to / "_static/pictures").mkdir()
    worker = to / "_static/worker.js"
    worker.write_text(worker.read_text(encoding="utf-8").replace("WHEEL", live_parts.WHEEL))
    (to / "extra/live/recordings").mkdir(parents=True)
    (to / "extra/download").mkdir()
    if found := live_parts.pyodide(parts):
        shutil.copytree(found, to / "extra/live/pyodide")
    shutil.copy(SITE / "conf.py", to)
    drawn = live_places(to)
    for path in books():
        write_book(path, to, drawn, repository)
    more = sorted(str(p.relative_to(ROOT)) for f in FOLDERS for p in (ROOT / f).glob("*.md"))
    for name in (*DOCUMENTS, *more, *(f"{book}/README.md" for book in BOOKS)):
        document((ROOT / name).read_text(encoding="utf-8"), to / name)
    for path in (ROOT / "notebooks").glob("*.py"):
        shutil.copy(path, to / "notebooks")
    front(to, drawn["front"][1], repository, pdf)


def live_places(to: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Packs what moves; returns each place as places.toml tells of it, and its frame."""
    packed = live_parts.wheel(to / "extra/live" / live_parts.WHEEL)
    texts, told = live_parts.recordings(), live_parts.places()
    for place, text in texts.items():
        (to / f"extra/live/recordings/{place}.json").write_text(text, encoding="utf-8")
    drawn = map(json.loads, live_parts.redrawn(packed, [(place, {}) for place in texts]))
    return {
        place: (told[place], live_parts.block(place, told[place], own, texts[place]))
        for place, own in zip(texts, drawn, strict=True)
    }


def books() -> list[Path]:
    """Returns every executed notebook."""
    return [path for book in BOOKS for path in sorted((ROOT / book).glob("*.ipynb"))]


def write_book(path: Path, to: Path, drawn: dict, repository: str) -> None:
    """Writes a notebook's page, and the notebook itself as a download."""
    own = path.relative_to(ROOT)
    live = {
        told["after"]: frame
        for place, (told, frame) in drawn.items()
        if told["notebook"] == str(own) and place != "front"
    }
    name = f"{'lab_' * (own.parts[0] == 'exercises')}{path.name}"
    links = ["Only the sliders run here."] if own.parts[0] == "notebooks" else []
    links += [f'<a href="../download/{name}" download>Download this notebook</a>']
    links.append('<a href="../start.html">Start anywhere</a>')
    links += [
        f'<a href="{address.format(repository, own)}">Open in {service}</a>'
        for service, address in ELSEWHERE.items()
        if repository
    ]
    solved = own.parts[0] == "solutions"
    head = "" if solved else f'<p class="elsewhere">{" · ".join(links)}</p>\n'
    pages.write(pages.page(path, to / "_static/pictures", live, head, solved), to / own)
    if not solved:
        shutil.copy(path, to / "extra/download" / name)


def document(text: str, to: Path) -> None:
    """Writes a document; the map's chart, which GitHub draws, becomes links."""
    if "```mermaid" in text:
        chapters = course_map.chapters()
        names = {path.stem[:2]: path.stem for path in chapters}
        counts = {path.stem[:2]: asked_in(path) for path in chapters}
        chart = re.search(r"```mermaid\n(.*?)```", text, re.S)
        text = text.replace(chart[0], pages.way(chart[1], counts, names))
    if to.parent.name == "solutions":
        text = f"---\norphan: true\nnosearch: true\n---\n{text}"
    to.parent.mkdir(exist_ok=True)
    to.write_text(text, encoding="utf-8")


def front(to: Path, frame: str, repository: str, pdf: bool) -> None:
    """Writes the front page, and the one that tells where else the course runs."""
    rows = ["| | chapter | the question |", "| --- | --- | --- |"]
    for path, notebook in course_map.chapters().items():
        about, where = course_map.facts(notebook), f"notebooks/{path.name}"
        rows.append(f"| {path.stem[:2]} | [{about['title']}]({where}) | {about['question']} |")
    said = {
        "FRONT": frame,
        "CHAPTERS": "\n".join(rows),
        "REPOSITORY": repository or "OWNER/NAME",
        "PDF": ' <a href="ddp-course.pdf">All of it as one PDF</a>.' * pdf,
    }
    for name in ("index.md", "start.md"):
        text = (SITE / name).read_text(encoding="utf-8")
        text = re.sub(f"({'|'.join(said)})\\b", lambda found: said[found[1]], text)
        (to / name).write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build/site", help="a folder for it")
    parser.add_argument("--parts", type=Path, default=PARTS, help="where Pyodide is kept")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub")
    parser.add_argument("--pdf", action="store_true", help="print it, by Chromium (minutes)")
    args = parser.parse_args(argv)
    source, built = args.to / "pages", args.to / "html"
    stage(source, args.parts, args.repository, args.pdf)
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(args.to / "cache")]
    done = subprocess.run([sys.executable, *command, str(source), str(built)])
    if args.pdf and done.returncode == 0:
        from print_site import printed

        printed(args.to)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
