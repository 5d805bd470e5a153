"""Writes the course map, notebooks/README.md, from the notebooks themselves.

    python -m course_tools.notebooks.course_map            write it
    python -m course_tools.notebooks.course_map --check    is it what the notebooks say?

Question, minutes and hardware of a chapter come from its first cell. `source/articles.toml` names
what the articles teach; a cell that does it carries the tag `row-ID`.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from course_tools import ROOT

MADE_BY = (
    "<!-- Made by course_tools.notebooks.course_map of the notebooks and of "
    "source/articles.toml. -->"
)
# Rows of four: in one row of twelve nobody could read a name.
WAY = """\
```mermaid
flowchart TB
    subgraph A[How processes talk]
        direction LR
        00[00 start here] --> 02[02 groups, ranks] --> 03[03 collectives]
        00 -.-> 01[01 DataParallel, GIL]
    end
    subgraph B[One model in many processes]
        direction LR
        04[04 DDP] --> 05[05 from scratch] --> 06[06 costs] --> 07[07 data]
        07 -.-> 15[15 numerics]
    end
    subgraph C[When it gets serious]
        direction LR
        08[08 hangs, lies, dies] --> 09[09 machines] --> 10[10 Keras] --> 11[11 capstone]
        08 -.-> 16[16 tests]
    end
    subgraph D[When the network or the memory is the limit]
        direction LR
        12[12 send less] --> 13[13 hold less] --> 14[14 on a GPU]
        13 -.-> 17[17 cut the layer] --> 18[18 cut the stack] --> 19[19 when scaling stops]
    end
    A --> B --> C
    B --> D
```
"""


WORDS = {"B9"}  # advice, which no cell can run


class Tongue(NamedTuple):
    """A language: how a notebook is read in it, and how a text of this file is said."""

    read: Callable[[Path], NotebookNode]
    say: Callable[[str], str]


ENGLISH = Tongue(partial(nbformat.read, as_version=4), str)


class Place(NamedTuple):
    """A cell that does a row: its notebook, the heading above it, its number when run (or 0)."""

    notebook: Path
    heading: str
    count: int


def chapters(root: Path = ROOT, tongue: Tongue = ENGLISH) -> dict[Path, NotebookNode]:
    """Returns the lessons in their order."""
    return {path: tongue.read(path) for path in sorted((root / "notebooks").glob("[0-9]*_*.ipynb"))}


def labs(root: Path = ROOT, tongue: Tongue = ENGLISH) -> dict[Path, NotebookNode]:
    """Returns the solved labs in their order; unsolved ones where learners have no others."""
    solutions = root / "solutions"
    folder = solutions if solutions.exists() else root / "exercises"
    return {path: tongue.read(path) for path in sorted(folder.glob("[0-9]*_*.ipynb"))}


def rows(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Returns what each article teaches: its title, then a line per row."""
    return tomllib.loads((root / "source/articles.toml").read_text(encoding="utf-8"))


def places(notebooks: dict[Path, NotebookNode]) -> Iterator[tuple[str, Place]]:
    """Yields each row that a cell was run for (or told, if in WORDS), with that cell's place."""
    for path, notebook in notebooks.items():
        heading = ""
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                heading = (re.findall(r"^##+ (.*)$", cell.source, re.M) or [heading])[-1]
            for row, count in rows_of(cell):
                yield row, Place(path, heading, count)


def rows_of(cell: NotebookNode) -> Iterator[tuple[str, int]]:
    """Yields each row that a cell was run for (or tells, if in WORDS), and its number (or 0)."""
    count = (cell.get("outputs") and cell.execution_count) or 0
    for tag in cell.metadata.get("tags", []):
        row = tag.removeprefix("row-")
        if row != tag and (count or row in WORDS):
            yield row, count


def missing(root: Path = ROOT) -> list[str]:
    """Returns a line for each row without a cell, and for each tag that names no row."""
    known = {row for article in rows(root).values() for row in article if row != "title"}
    done = {row for row, _ in places(chapters(root) | labs(root))}
    lost = [f"{row}: no cell that was run carries the tag row-{row}" for row in known - done]
    return sorted(lost) + [f"row-{row}: no such row" for row in sorted(done - known)]


FORMS = {
    "title": "# 00 · Start here",
    "question": "**Why?**, a line of its own",
    "minutes": "30 minutes",
    "hardware": "**Hardware:** two cores",
}


def facts(notebook: NotebookNode) -> dict[str, str]:
    """Returns a chapter's title, question, minutes and hardware, read off its first cell.

    Raises:
        ValueError: it does not say one of them; the message shows how to write it.
    """
    text = notebook.cells[0].source
    patterns = {
        "title": r"^# \d+ · (.+)$",
        "question": r"^\*\*([^*]+[?\uff1f])\*\*$",
        "minutes": r"(\d+) (?:minutes|分钟)",
        "hardware": r"\*\*(?:Hardware:|硬件\uff1a)\*\* (.+?)(?: ?\*\*(?:Before|前一章)|$)",
    }
    found = {name: re.search(pattern, text, re.M) for name, pattern in patterns.items()}
    lost = [name for name, match in found.items() if not match]
    if lost:
        heading, *_ = text.splitlines()
        missing_words = ", ".join(f"{name} as in `{FORMS[name]}`" for name in lost)
        raise ValueError(f"the first cell below `{heading}` does not say its {missing_words}")
    return {name: match[1] for name, match in found.items() if match}


def chapter_table(root: Path, tongue: Tongue = ENGLISH) -> Iterator[str]:
    """Yields the table of chapters and labs."""
    yield tongue.say("| | chapter | the question | minutes | hardware | lab |")
    yield "| --- | --- | --- | --- | --- | --- |"
    total, unit = 0, tongue.say("minutes")
    solved = {path.name: lab for path, lab in labs(root).items()}
    for path, notebook in chapters(root, tongue).items():
        about, number = facts(notebook), path.name[:2]
        total += int(about["minutes"])
        row = f"| {number} | [{about['title']}]({path.name}) | {about['question']} "
        row += f"| {about['minutes']} | {about['hardware']} | "
        lab = solved.get(path.name)
        if lab:
            minutes = int(re.search(r"(\d+) minutes", lab.cells[0].source)[1])
            total += minutes
            row += f"[{minutes} {unit}](../exercises/{path.name}) |"
        yield row + ("" if lab else "|")
    yield "\n" + tongue.say("All of it: about {hours} hours.").format(hours=round(total / 60))


def launches(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Returns the worker and the backend of each `launch` in the cells, as they are written."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "launch":
            options = {option.arg: option.value for option in node.keywords}
            backend = options.get("backend", ast.Constant("auto"))
            found.append((ast.unparse(node.args[0]), ast.literal_eval(backend) or "own"))
    return found


def reasons(root: Path = ROOT) -> dict[str, str]:
    """Returns why launches of a chapter use gloo on the CPU, by the chapter's number."""
    return tomllib.loads((root / "source/devices.toml").read_text(encoding="utf-8"))["why"]


def device_table(root: Path, tongue: Tongue = ENGLISH) -> Iterator[str]:
    """Yields the table of what runs on GPUs where there are, and what does not, and why."""
    yield tongue.say("| | launches that take GPUs | by gloo on the CPU | why by gloo |")
    yield "| --- | ---: | ---: | --- |"
    why, total = reasons(root), Counter()
    for path, notebook in chapters(root).items():
        number = path.name[:2]
        backends = Counter(backend for _, backend in launches(notebook))
        total += backends
        reason = tongue.say(why[number]) if backends["gloo"] else ""
        yield f"| {number} | {backends['auto']} | {backends['gloo']} | {reason} |"
    yield f"| | {total['auto']} | {total['gloo']} | |"


def row_tables(root: Path, tongue: Tongue = ENGLISH) -> Iterator[str]:
    """Yields a table per article: what it teaches, and the cells that do it."""
    found: dict[str, list[Place]] = {}
    for row, place in places(chapters(root, tongue) | labs(root, tongue)):
        found.setdefault(row, []).append(place)
    for letter, article in rows(root).items():
        head = tongue.say("| | what | where |")
        yield f"\n### {letter} · {tongue.say(article['title'])}\n\n{head}\n| --- | --- | --- |"
        for row, what in article.items():
            if row != "title":
                links = "; ".join(map(link, merged(found.get(row, []))))
                yield f"| {row} | {tongue.say(what)} | {links} |"


def merged(found: list[Place]) -> Iterator[tuple[Place, list[int]]]:
    """Yields each part of a notebook once, with the numbers of all its cells."""
    for part in dict.fromkeys(place[:2] for place in found):
        same = [place for place in found if place[:2] == part]
        yield same[0], sorted(place.count for place in same)


def link(part: tuple[Place, list[int]]) -> str:
    """Returns a link to a notebook, with the heading and numbers of cells."""
    place, counts = part
    folder = place.notebook.parent.name
    name = place.notebook.name[:2] if folder == "notebooks" else f"lab {place.notebook.name[:2]}"
    to = place.notebook.name if folder == "notebooks" else f"../exercises/{place.notebook.name}"
    return f"[{name}]({to}) {place.heading} " + " ".join(f"[{count}]" for count in counts if count)


def text(root: Path = ROOT, tongue: Tongue = ENGLISH) -> str:
    """Returns the whole map."""
    say = tongue.say
    parts = [
        say("# The way through the course"),
        MADE_BY,
        say(
            "The whole way follows the numbers. **The short way takes a day**: 00, 02, 03 as far\n"
            "as the ring, 04, and the first half of 08. 01 is a detour that nothing else needs; 12 "
            "to\n14 are read after 06, with a GPU or without, 15 after 07, 16 after 08, 17 "
            "after 13,\nand 18 and 19 after 17. Minutes are counted: words, lines of code, "
            "predictions, what you write and what runs."
        ),
        say(WAY.rstrip("\n")) + "\n",
        "\n".join(chapter_table(root, tongue)),
        say("## On GPUs, or on the CPU"),
        say(
            "A launch that names no backend uses GPUs where there is one for each rank, through "
            "NCCL, and its\nfunctions put models and data there. Where the matter is gloo's or "
            "the CPU's, it says so. Chapter 02\nmakes some groups itself, which are not counted."
        ),
        "\n".join(device_table(root, tongue)),
        say("## What the articles teach, and where it runs"),
        say(
            "The course grew out of five published articles. Each thing that one of them teaches "
            "runs here in\nreal workers: in the numbered cells of these notebooks."
        )
        + "\n"
        + "\n".join(row_tables(root, tongue)),
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="report drift, change nothing")
    check = parser.parse_args(argv).check
    problems, path = missing(), ROOT / "notebooks/README.md"
    try:
        new = text()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not check:
        path.write_text(new, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != new:
        problems.append("notebooks/README.md is old: make notebooks")
    print("\n".join(problems) or "every row of the articles has its cell")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
