"""The site's two languages: how a notebook is read in each, and the site's own words in Chinese.

Chinese pages are made in memory of the English ones and of the catalogues, as `chinese`
does it; `source/zh/site.po` has what only the site says. A page of the course lies at the same
place in both, below `zh/` in Chinese, so that a link from one page to another holds in both.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import nbformat
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.i18n import catalogues, chinese
from course_tools.notebooks.course_map import Say
from course_tools.texts import read_toml

CATALOGUE = "source/zh/site.po"
TEXTS = (
    "source/site/index.md",
    "source/site/start.md",
    "source/site/plan.md",
    "exercises/README.md",
    "solutions/README.md",
)
SAYS = (  # files whose `say("...")` are translated
    "course_tools/notebooks/predictions.py",
    "course_tools/site/glossary.py",
    "course_tools/site/live_parts.py",
    "course_tools/site/pages.py",
    "course_tools/site/plans.py",
    "course_tools/slides/deck.py",
    "source/site/static/*.js",
)
FILLED = re.compile(r"[A-Z]+")  # stands in a text for what the tools put there
TITLE = re.compile(r"^(?::caption: (.+)|(.+) <[\w/]+>|(make lab.*))$", re.M)  # inside a fence
LABEL = re.compile(
    r"""
    (?<=>) ([^<>$\n]* [a-z] [^<>$\n]*?) (?=\s?<)  # words between two tags
    | (?<=aria-label=") ([^"$]+)                  # or in an attribute, for who hears the page
    """,
    re.VERBOSE,
)
HEADING = re.compile(r"^#{1,3} (.*)$", re.MULTILINE)
SAID = re.compile(r'\bsay\(\s*"(.+?)"')  # in a script
TO_A_TRANSLATION = re.compile(r"\[([^]]+)\]\((README|articles/\w)(?:\.zh)?\.md\)")
TO_A_HEADING = re.compile(r"\(([\w./-]+\.ipynb)#([^)]+)\)")
THEME = (  # words of Sphinx's theme and of MyST-NB that they themselves have in English only
    "Next",
    "Previous",
    "Home",
    "On this page",
    "Back to top",
    "Skip to content",
    "Made with ",
    "Copyright &#169; %(copyright)s",
    "Search",
    "Toggle site navigation sidebar",
    "Toggle table of contents sidebar",
    "Toggle Light / Dark / Auto color theme",
    "content",
    "source",
    "output",
    "outputs",
)
MARK = "> 本页尚未译成中文，以下为英文原文。"


class Tongue(NamedTuple):
    """A language of the site."""

    code: str
    up: str  # from a page in a folder to the root of the whole site
    read: Callable[[Path], NotebookNode]
    document: Callable[[Path], str]
    say: Say


@cache
def english() -> Tongue:
    """Returns the language in which everything is written."""
    read_anew = partial(nbformat.read, as_version=4)
    read = cache(read_anew)
    return Tongue(code="en", up="../", read=read, document=_in_english, say=str)


@cache
def in_chinese(root: Path = ROOT) -> Tongue:
    """Returns the language that is made of English and of catalogues."""
    site_catalogue = catalogue(root)
    known = catalogues.words(site_catalogue)
    say = partial(catalogues.as_far_as_known, known=known)
    read_anew = partial(chinese.in_memory, root=root)
    read = cache(read_anew)
    document = partial(_in_chinese, root=root, say=say)
    return Tongue(code="zh", up="../../", read=read, document=document, say=say)


def _in_english(path: Path) -> str:
    """A document; its links to what is Chinese only lead there."""
    text = path.read_text(encoding="utf-8")
    link = r'<a href="zh/\2.html" hreflang="zh-CN">\1</a>'
    return TO_A_TRANSLATION.sub(link, text)


def _in_chinese(path: Path, root: Path, say: Say) -> str:
    """A document in Chinese, or in English with a mark; its links lead to pages in Chinese."""
    text = _words_in_chinese(path, root, say)
    text = text.replace("](README.zh.md)", "](README.md)")
    return _to_headings(text, path.parent)


def _words_in_chinese(path: Path, root: Path, say: Say) -> str:
    """A document in Chinese, or in English with a mark; its links are as they are written."""
    path_in_course = path.relative_to(root)
    place = path_in_course.as_posix()
    if place in chinese.DOCUMENTS.values():
        return chinese.document(path, root)
    text = path.read_text(encoding="utf-8")
    if place in TEXTS:
        return say(text)
    if path.parent.name == "articles":
        return re.sub("链接通向英文版；.*", "", text)
    title_and_mark = rf"\1\n{MARK}\n"
    return re.sub(r"\A(# .*\n)", title_and_mark, text)


def _to_headings(text: str, folder: Path) -> str:
    """Links to headings of English notebooks become links to the same ones in Chinese."""

    def link(match: re.Match[str]) -> str:
        notebook, english_anchor = match.groups()
        path = folder / notebook
        resolved_path = path.resolve()
        anchors = _headings(resolved_path)
        anchor = anchors[english_anchor]
        return f"({notebook}#{anchor})"

    return TO_A_HEADING.sub(link, text)


@cache
def _headings(path: Path) -> dict[str, str]:
    """The anchors of a notebook's headings in Chinese, by those in English."""
    english_notebook = english().read(path)
    chinese_notebook = in_chinese().read(path)
    english_anchors = slugs(english_notebook)
    chinese_anchors = slugs(chinese_notebook)
    pairs = zip(english_anchors, chinese_anchors, strict=True)
    return dict(pairs)


def slugs(notebook: NotebookNode) -> list[str]:
    """Returns the anchors that MyST makes of a notebook's headings."""
    anchors: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        headings = HEADING.findall(cell.source)
        for heading in headings:
            anchor = catalogues.anchor(heading, anchors)
            anchors.append(anchor)
    return anchors


def sentences(root: Path) -> list[str]:
    """Returns all that the site says beside the course's own texts, each once."""
    parts = (_of_documents, _of_places, _of_tasks, _of_frames, _of_scripts)
    each_once: dict[str, None] = {}
    for sentences_of_part in parts:
        each_once |= dict.fromkeys(sentences_of_part(root))
    each_once |= dict.fromkeys(THEME)
    return list(each_once)


def _of_documents(root: Path) -> Iterator[str]:
    """Yields what the documents of the site say, with the titles of their toctrees."""
    for name in TEXTS:
        path = root / name
        text = path.read_text(encoding="utf-8")
        for unit in catalogues.prose_of(text):
            if not FILLED.fullmatch(unit):
                yield unit
        for groups in TITLE.findall(text):
            yield "".join(groups)


def _of_places(root: Path) -> Iterator[str]:
    """Yields what stands around the sliders, and what their recordings compare."""
    site = root / "source/site"
    places = read_toml(site / "places.toml")
    for place in places.values():
        yield place["title"]
        yield place["text"]
    folder = site / "recordings"
    recordings = folder.glob("*.json")
    for path in sorted(recordings):
        text = path.read_text("utf-8")
        recording = json.loads(text)
        for choice in recording["choices"]:
            if choice.islower():
                yield choice


def _of_tasks(root: Path) -> Iterator[str]:
    """Yields the tasks of the page with plans, and their hints."""
    written = read_toml(root / "source/site/tasks.toml")
    for task in written["tasks"]:
        yield task["text"]
        yield from task["hints"]


def _of_frames(root: Path) -> Iterator[str]:
    """Yields the words of the frames around sliders."""
    for name in ("live.html", "plan.html"):
        path = root / "source/site" / name
        text = path.read_text("utf-8")
        for groups in LABEL.findall(text):
            yield "".join(groups)


def _of_scripts(root: Path) -> Iterator[str]:
    """Yields what Python and JavaScript say."""
    scripts: list[Path] = []
    for pattern in SAYS:
        scripts += root.glob(pattern)
    for path in sorted(scripts):
        text = path.read_text(encoding="utf-8")
        yield from SAID.findall(text)


def labelled(text: str, say: Say) -> str:
    """Returns a piece of HTML with its words in a language."""

    def translated(match: re.Match[str]) -> str:
        return say(match[0])

    return LABEL.sub(translated, text)


def titled(text: str, say: Say) -> str:
    """Returns a text with the titles of its toctrees, and its commands, in a language."""

    def translated(match: re.Match[str]) -> str:
        title = "".join(match.groups(default=""))  # one of the groups has it
        line = match[0]
        return line.replace(title, say(title))

    return TITLE.sub(translated, text)


def catalogue(root: Path = ROOT) -> Catalog:
    """Returns the site's catalogue."""
    return catalogues.read(root / CATALOGUE)


def write_theme(to: Path) -> None:
    """Writes the words of the theme where Sphinx looks for them."""
    catalog = catalogue()
    folder = to / "locale/zh_CN/LC_MESSAGES"
    folder.mkdir(parents=True)
    path = folder / "sphinx.mo"
    with path.open("wb") as file:
        write_mo(file, catalog)


def for_scripts(tongue: Tongue, script: str) -> str:
    """Returns the script that speaks for the others, with its words in a language."""
    words = {}
    if tongue.code == "zh":
        for message in catalogue():
            if message.id and message.string:
                english_words = str(message.id)
                words[english_words] = message.string
    written = json.dumps(words, ensure_ascii=False)
    return script.replace("{}", written, 1)
