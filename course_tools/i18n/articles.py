"""A page in Chinese for each of the five articles: what it teaches, where that runs, what to mend.

Rows are those of `source/articles.toml`, in the Chinese of the course map; places are read off the
notebooks. What is wrong or out of date in an article says `source/zh/articles.toml`, by hand.
`make zh` writes articles/A.md to E.md, and `make check` holds them to all three.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Message
from nbformat import NotebookNode

from course_tools.i18n import catalogues, chinese, proofread
from course_tools.notebooks import course_map
from course_tools.texts import read_toml

SENTENCES = "source/zh/articles.toml"
HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)
Texts = dict[str, str]  # by row, or by article


def form_and_sentences(root: Path) -> tuple[str, dict[str, Texts]]:
    """Returns a page's form, and its sentences by article and row; none without the sources."""
    path = root / SENTENCES
    if not path.exists():
        return "", {}
    sentences = read_toml(path)
    form = sentences.pop("page", "")
    return form, sentences


def parts(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yields for each cell the heading it is under (or begins with), and that heading's anchor."""
    anchors: list[str] = []
    current = ("", "")
    for cell in notebook.cells:
        headings = []
        if cell.cell_type == "markdown":
            headings = HEADING.findall(cell.source)
        parts_begun = []
        for heading in headings:
            anchor = catalogues.anchor(heading, anchors)
            anchors.append(anchor)
            part = (heading, anchor)
            parts_begun.append(part)
        if parts_begun:
            current = parts_begun[-1]
            yield parts_begun[0]
        else:
            yield current


def places(root: Path) -> Texts:
    """Returns by row the links to the parts of notebooks whose cells do it, with their numbers."""
    numbers: dict[str, Texts] = {}  # by row, and then by link
    for row, link, count in _rows_with_links(root):
        numbers_of_row = numbers.setdefault(row, {})
        numbers_of_row.setdefault(link, "")
        if count:
            numbers_of_row[link] += f" [{count}]"
    result = {}
    for row, numbers_of_row in numbers.items():
        links = []
        for link, written in numbers_of_row.items():
            link_with_numbers = link + written
            links.append(link_with_numbers)
        result[row] = "；".join(links)
    return result


def _rows_with_links(root: Path) -> Iterator[tuple[str, str, int]]:
    """Yields each row that a cell does, a link to the cell's part, and the cell's number (or 0)."""
    notebooks = course_map.chapters(root)
    notebooks |= course_map.labs(root)
    for path, english in notebooks.items():
        links = _links_of_cells(path, english, root)
        cells_and_links = zip(english.cells, links, strict=True)
        for cell, link in cells_and_links:
            rows = course_map.rows_of(cell)
            for row, count in rows:
                yield row, link, count


def _links_of_cells(path: Path, english: NotebookNode, root: Path) -> Iterator[str]:
    """For each cell of a notebook a link to the part it is in, as the Chinese edition calls it."""
    number = path.name[:2]
    if path.parent.name == "notebooks":
        label = f"第 {number} 章"
        page = f"../notebooks/{path.name}"
    else:
        label = f"实验 {number}"
        page = f"../exercises/{path.name}"
    english_parts = parts(english)
    chinese_notebook = chinese.in_memory(path, root)
    chinese_parts = parts(chinese_notebook)
    pairs = zip(english_parts, chinese_parts, strict=True)
    for english_part, chinese_part in pairs:
        _, anchor = english_part
        heading, _ = chinese_part
        yield f"{label} [{heading}]({page}#{anchor})"


def pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields each page's place and text."""
    form, sentences = form_and_sentences(root)
    if not sentences:
        return
    links = places(root)
    known = course_map.rows(root)
    titles = {}
    for letter, article in known.items():
        english_title = article["title"]
        titles[letter] = chinese.of_map(english_title, root)
    for letter, article in known.items():
        if letter not in sentences:
            continue
        path = root / f"articles/{letter}.md"
        sentences_of_article = sentences[letter]
        text = _page(form, letter, article, sentences_of_article, titles, links, root)
        yield path, text


def _page(
    form: str,
    letter: str,
    article: Texts,
    sentences: Texts,
    titles: Texts,
    links: Texts,
    root: Path,
) -> str:
    """The page about one article.

    Args:
        form: The text with fields.
        letter: The article's.
        article: Its title, and its rows in English.
        sentences: What it teaches, and what is wrong in it, by row.
        titles: Those of all articles in Chinese, by letter.
        links: To the cells that show a row, by row.
        root: The project's folder.
    """
    rows = []
    mends = []
    for row, english in article.items():
        if row == "title":
            continue
        in_chinese = chinese.of_map(english, root)
        links_of_row = links.get(row)
        line = f"| {row} | {in_chinese} | {links_of_row} |"
        rows.append(line)
        if row in sentences:
            sentence = sentences[row]
            mend = sentence.strip()
            brief = _brief(links_of_row)
            item = f"- **{row}。** {mend}（{brief}）"
            mends.append(item)
    others = []
    for other, title in titles.items():
        if other != letter:
            link = f"[《{title}》]({other}.md)"
            others.append(link)
    teaches = sentences["teaches"]
    return form.format(
        title=titles[letter],
        teaches=teaches.strip(),
        rows="\n".join(rows),
        mends="\n".join(mends),
        others="、".join(others),
    )


def _brief(links: str | None) -> str | None:
    """The links of a row, or where they are many, where they stand."""
    if not links:
        return links
    if links.count("；") >= 3:
        return "见上表"
    return links


def faults(root: Path, terms: proofread.Terms) -> Iterator[str]:
    """Yields articles and rows that only one of the two files has, and slips of the Chinese."""
    _, sentences = form_and_sentences(root)
    known = {}
    if sentences:
        known = course_map.rows(root)
    letters_of_one_file = sentences.keys() ^ known.keys()
    for letter in sorted(letters_of_one_file):
        yield f"{SENTENCES}: {letter} is in one of the two files alone"
    for letter, sentences_of_article in sentences.items():
        rows_of_article = known.get(letter, {})
        for row, text in sentences_of_article.items():
            message = Message(text, text)
            for slip in proofread.all_slips(terms, message):
                yield f"{SENTENCES}: {row}: {slip}"
            if row == "teaches":
                continue
            if row not in rows_of_article:
                yield f"{SENTENCES}: {row}: no such row"
