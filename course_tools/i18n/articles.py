"""A page in Chinese for each of the five articles: what it teaches, where that runs, what to mend.

Rows are those of `source/articles.toml`, in the Chinese of the course map; places are read off the
notebooks. What is wrong or out of date in an article says `source/zh/articles.toml`, by hand.
`make zh` writes articles/A.md to E.md, and `make check` holds them to all three.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Message
from nbformat import NotebookNode

from course_tools.i18n import chinese, proofread
from course_tools.notebooks import course_map

SENTENCES = "source/zh/articles.toml"


def said(root: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """Returns a page's form, and its sentences by article and row; none without the sources."""
    path = root / SENTENCES
    found = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found.pop("page", ""), found


def parts(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yields for each cell the heading it is under (or begins with), and that heading's anchor."""
    seen: list[str] = []
    last = ("", "")
    for cell in notebook.cells:
        prose, own = cell.source if cell.cell_type == "markdown" else "", []
        for text in re.findall(r"^##+ (.*)$", prose, re.M):
            slug = re.sub(r"[^\w\- ]", "", text.lower().replace(" ", "-"))  # as MyST makes it
            own.append((text, slug + f"-{seen.count(slug)}" * (slug in seen)))
            seen.append(slug)
        yield (own or [last])[0]
        last = (own or [last])[-1]


def places(root: Path) -> dict[str, str]:
    """Returns by row the links to the parts of notebooks whose cells do it, with their numbers."""
    found: dict[str, dict[str, str]] = {}
    for path, english in (course_map.chapters(root) | course_map.labs(root)).items():
        lesson = path.parent.name == "notebooks"
        kind, book = ("第 {} 章", "notebooks") if lesson else ("实验 {}", "exercises")
        own = parts(chinese.in_memory(path, root))
        for cell, (_, anchor), (heading, _) in zip(english.cells, parts(english), own, strict=True):
            link = f"{kind.format(path.name[:2])} [{heading}](../{book}/{path.name}#{anchor})"
            for row, count in course_map.rows_of(cell):
                links = found.setdefault(row, {})
                links[link] = links.get(link, "") + f" [{count}]" * bool(count)
    return {row: "；".join(map("".join, links.items())) for row, links in found.items()}


def pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields each page's place and text."""
    form, sentences = said(root)
    if not sentences:
        return
    where, known = places(root), course_map.rows(root)
    brief = {row: links if links.count("；") < 3 else "见上表" for row, links in where.items()}
    title = {letter: chinese.of_map(article["title"], root) for letter, article in known.items()}
    for letter in filter(sentences.get, known):
        own, rows = sentences[letter], [row for row in known[letter] if row != "title"]
        what = {row: chinese.of_map(known[letter][row], root) for row in rows}
        text = form.format(
            title=title[letter],
            teaches=own["teaches"].strip(),
            rows="\n".join(f"| {row} | {what[row]} | {where.get(row)} |" for row in rows),
            mends="\n".join(
                f"- **{r}。** {own[r].strip()}（{brief.get(r)}）" for r in rows if r in own
            ),
            others="、".join(f"[《{title[o]}》]({o}.md)" for o in known if o != letter),
        )
        yield root / "articles" / f"{letter}.md", text


def faults(root: Path, terms: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yields articles and rows that only one of the two files has, and slips of the Chinese."""
    _, sentences = said(root)
    known = course_map.rows(root) if sentences else {}
    for letter in sorted(sentences.keys() ^ known.keys()):
        yield f"{SENTENCES}: {letter} is in one of the two files alone"
    for letter, own in sentences.items():
        for row, text in own.items():
            message, lost = Message(text, text), {row} - {"teaches", *known.get(letter, {})}
            slips = (*proofread.slips(message), *proofread.terms_at_odds(terms, message))
            yield from (
                f"{SENTENCES}: {row}: {slip}" for slip in (*slips, *["no such row"] * len(lost))
            )
