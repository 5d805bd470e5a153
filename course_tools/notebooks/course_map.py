"""Writes the course map, notebooks/README.md, from the notebooks themselves.

    python -m course_tools.notebooks.course_map            write it
    python -m course_tools.notebooks.course_map --check    is it what the notebooks say?

Question, minutes and hardware of a chapter come from its first cell. `source/articles.toml` names
what the articles teach; a cell that does it carries the tag `row-ID`.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.texts import has_text, read_toml

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
HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)


Say = Callable[[str], str]  # says an English text in a language


class Tongue(NamedTuple):
    """A language: how a notebook is read in it, and how a text of this file is said."""

    read: Callable[[Path], NotebookNode]
    say: Say


ENGLISH = Tongue(partial(nbformat.read, as_version=4), str)


class Place(NamedTuple):
    """A cell that does a row: its notebook, the heading above it, its number when run (or 0)."""

    notebook: Path
    heading: str
    count: int


def chapters(root: Path = ROOT, tongue: Tongue = ENGLISH) -> dict[Path, NotebookNode]:
    """Returns the lessons in their order."""
    return _numbered(root / "notebooks", tongue)


def labs(root: Path = ROOT, tongue: Tongue = ENGLISH) -> dict[Path, NotebookNode]:
    """Returns the solved labs in their order; unsolved ones where learners have no others."""
    folder = root / "solutions"
    if not folder.exists():
        folder = root / "exercises"
    return _numbered(folder, tongue)


def _numbered(folder: Path, tongue: Tongue) -> dict[Path, NotebookNode]:
    """The notebooks of a folder that have a number."""
    paths = sorted(folder.glob("[0-9]*_*.ipynb"))
    return {path: tongue.read(path) for path in paths}


def rows(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Returns what each article teaches: its title, then a line per row."""
    return read_toml(root / "source/articles.toml")


def places(notebooks: dict[Path, NotebookNode]) -> Iterator[tuple[str, Place]]:
    """Yields each row that a cell was run for (or told, if in WORDS), with that cell's place."""
    for path, notebook in notebooks.items():
        heading = ""
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                headings = HEADING.findall(cell.source)
                if headings:
                    heading = headings[-1]
            for row, count in rows_of(cell):
                place = Place(path, heading, count)
                yield row, place


def rows_of(cell: NotebookNode) -> Iterator[tuple[str, int]]:
    """Yields each row that a cell was run for (or tells, if in WORDS), and its number (or 0)."""
    count = 0
    if cell.get("outputs"):
        count = cell.execution_count or 0
    tags = cell.metadata.get("tags", [])
    for tag in tags:
        row = tag.removeprefix("row-")
        names_row = row != tag
        if names_row and (count or row in WORDS):
            yield row, count


def missing(root: Path = ROOT) -> list[str]:
    """Returns a line for each row without a cell, and for each tag that names no row."""
    known: set[str] = set()
    for article in rows(root).values():
        known.update(article)
    known.discard("title")
    notebooks = chapters(root) | labs(root)
    done = {row for row, _place in places(notebooks)}
    without_cell = known - done
    unknown = done - known
    problems = []
    for row in sorted(without_cell):
        problems.append(f"{row}: no cell that was run carries the tag row-{row}")
    for row in sorted(unknown):
        problems.append(f"row-{row}: no such row")
    return problems


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
    read = {}
    examples = []
    for name, pattern in patterns.items():
        match = re.search(pattern, text, re.MULTILINE)
        if match:
            read[name] = match[1]
        else:
            examples.append(f"{name} as in `{FORMS[name]}`")
    if examples:
        heading, *_ = text.splitlines()
        missing_words = ", ".join(examples)
        raise ValueError(f"the first cell below `{heading}` does not say its {missing_words}")
    return read


def chapter_table(root: Path, tongue: Tongue = ENGLISH) -> Iterator[str]:
    """Yields the table of chapters and labs."""
    yield tongue.say("| | chapter | the question | minutes | hardware | lab |")
    yield "| --- | --- | --- | --- | --- | --- |"
    unit = tongue.say("minutes")
    total_minutes = 0
    solved = {path.name: notebook for path, notebook in labs(root).items()}
    for path, notebook in chapters(root, tongue).items():
        number = path.name[:2]
        about = facts(notebook)
        total_minutes += int(about["minutes"])
        lab_link = ""
        lab = solved.get(path.name)
        if lab is not None:
            minutes = _lab_minutes(lab)
            total_minutes += minutes
            lab_link = f"[{minutes} {unit}](../exercises/{path.name}) "
        link = f"[{about['title']}]({path.name})"
        yield (
            f"| {number} | {link} | {about['question']} "
            f"| {about['minutes']} | {about['hardware']} | {lab_link}|"
        )
    hours = round(total_minutes / 60)
    sentence = tongue.say("All of it: about {hours} hours.")
    yield "\n" + sentence.format(hours=hours)


def _lab_minutes(lab: NotebookNode) -> int:
    """How long a lab takes, as its first cell says."""
    text = lab.cells[0].source
    stated = re.search(r"(\d+) minutes", text)
    return int(stated[1])


def launches(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Returns the worker and the backend of each `launch` in the cells, as they are written."""
    code = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            code += f"{cell.source}\n"
    tree = ast.parse(code)
    calls = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function_name = getattr(node.func, "id", "")
        if function_name != "launch":
            continue
        worker = ast.unparse(node.args[0])
        backend = "auto"
        for option in node.keywords:
            if option.arg == "backend":
                backend = ast.literal_eval(option.value) or "own"
        calls.append((worker, backend))
    return calls


def reasons(root: Path = ROOT) -> dict[str, str]:
    """Returns why launches of a chapter use gloo on the CPU, by the chapter's number."""
    return read_toml(root / "source/devices.toml")["why"]


def device_table(root: Path, tongue: Tongue = ENGLISH) -> Iterator[str]:
    """Yields the table of what runs on GPUs where there are, and what does not, and why."""
    yield tongue.say("| | launches that take GPUs | by gloo on the CPU | why by gloo |")
    yield "| --- | ---: | ---: | --- |"
    why = reasons(root)
    total: Counter[str] = Counter()
    for path, notebook in chapters(root).items():
        number = path.name[:2]
        calls = launches(notebook)
        backends = Counter(backend for _worker, backend in calls)
        total += backends
        by_gloo = backends["gloo"]
        reason = ""
        if by_gloo:
            reason = tongue.say(why[number])
        yield f"| {number} | {backends['auto']} | {by_gloo} | {reason} |"
    yield f"| | {total['auto']} | {total['gloo']} | |"


def row_tables(root: Path, tongue: Tongue = ENGLISH) -> Iterator[str]:
    """Yields a table per article: what it teaches, and the cells that do it."""
    places_of: dict[str, list[Place]] = {}  # by row
    notebooks = chapters(root, tongue) | labs(root, tongue)
    for row, place in places(notebooks):
        places_of_row = places_of.setdefault(row, [])
        places_of_row.append(place)
    head = tongue.say("| | what | where |")
    for letter, article in rows(root).items():
        title = tongue.say(article["title"])
        yield f"\n### {letter} · {title}\n\n{head}\n| --- | --- | --- |"
        for row, english in article.items():
            if row == "title":
                continue
            taught = tongue.say(english)
            places_of_row = places_of.get(row, [])
            links = "; ".join(_links(places_of_row))
            yield f"| {row} | {taught} | {links} |"


def _links(places_of_row: list[Place]) -> Iterator[str]:
    """A link to each part of a notebook, with the numbers of all its cells that do a row."""
    counts: dict[tuple[Path, str], list[int]] = {}  # by notebook and heading
    for place in places_of_row:
        part = (place.notebook, place.heading)
        counts_of_part = counts.setdefault(part, [])
        if place.count:
            counts_of_part.append(place.count)
    for (notebook, heading), counts_of_part in counts.items():
        link = _link(notebook)
        in_order = sorted(counts_of_part)
        in_brackets = [f"[{count}]" for count in in_order]
        numbers = " ".join(in_brackets)
        yield f"{link} {heading} {numbers}"


def _link(notebook: Path) -> str:
    """A link to a notebook from the map."""
    number = notebook.name[:2]
    if notebook.parent.name == "notebooks":
        return f"[{number}]({notebook.name})"
    return f"[lab {number}](../exercises/{notebook.name})"


def text(root: Path = ROOT, tongue: Tongue = ENGLISH) -> str:
    """Returns the whole map."""
    say = tongue.say
    parts = [
        say("# The way through the course"),
        MADE_BY,
        say(
            "The whole way follows the numbers. **The short way takes a day**: 00, 02, 03 as far\n"
            "as the ring, 04, and the first half of 08. 01 is a detour that nothing else needs; 12 "
            "and\n13 are read after 06, 14 after 05, with a GPU or without, 15 after 07, 16 after "
            "08, 17 after 13,\nand 18 and 19 after 17. A chapter's minutes are counted: words, "
            "lines of code, predictions, what you write and what runs. A lab's are our estimate."
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
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="report drift, change nothing")
    arguments = parser.parse_args(argv)
    problems = missing()
    path = ROOT / "notebooks/README.md"
    try:
        new = text()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not arguments.check:
        path.write_text(new, encoding="utf-8")
    elif not has_text(path, new):
        problems.append("notebooks/README.md is old: make notebooks")
    if problems:
        print("\n".join(problems))
        return 1
    print("every row of the articles has its cell")
    return 0


if __name__ == "__main__":
    sys.exit(main())
