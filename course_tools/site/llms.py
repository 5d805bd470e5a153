"""`llms.txt`: what there is on the site, in a form that language models read (https://llmstxt.org).

A line for each chapter and each lab, with the page and the notebook behind it. No answer of a lab
is linked; what an assistant may say of an exercise stands at the top.
"""

import re
from pathlib import Path

from course_tools.notebooks import course_map

HEAD = """\
# Distributed data parallel training in PyTorch

> A course in executed notebooks: how several processes train one model, what they say to each
> other, what it costs, and how it goes wrong. Every output was printed by real worker processes.

A cell calls `launch(function, world_size=n)`, which forks n ranks that have joined a process group.
Predictions (`predict`) and exercises are for the reader to answer. Of an exercise, give its hints
in their order, and no more; `check(...)` is the only judge of an answer.
"""
LINE = "- [{title}]({page}): {words}\n"
# Of a lab.
TITLE = re.compile(r"^# (Lab \d\d · .+)$", re.MULTILINE)
QUESTION = re.compile(r"^## \d+ · (.+)$", re.MULTILINE)
ROOMS = {
    "course_testing": "a pytest plugin that runs a test in real ranks",
    "course_lint": "a linter for what only some ranks do",
    "course_museum": "twelve bugs of public projects, each with a check of its cure",
}


def text() -> str:
    """Returns the file's text, with links that start at the site's front page."""
    return f"""{HEAD}
## Chapters

{_chapters()}
## Labs

{_labs()}
## Tools

{_tools()}
## Optional

- [Course map](notebooks/README.html): which cell shows what five articles teach
- [Changelog](CHANGELOG.html): what is new
"""


def _chapters() -> str:
    """A line for each chapter."""
    lines = ""
    for path, notebook in course_map.chapters().items():
        facts = course_map.facts(notebook)
        number = path.stem[:2]
        title = facts["title"]
        lines += LINE.format(
            title=f"{number} {title}",
            page=f"notebooks/{path.stem}.html",
            words=facts["question"],
        )
    return lines


def _labs() -> str:
    """A line for each lab, with the questions of its exercises."""
    lines = ""
    for path, notebook in course_map.labs().items():
        cells = notebook.cells
        first_cell = cells[0]
        title = TITLE.search(first_cell.source)
        questions = []
        for cell in cells:
            questions += QUESTION.findall(cell.source)
        lines += LINE.format(
            title=title[1],
            page=f"exercises/{path.stem}.html",
            words=" ".join(questions),
        )
    return lines


def _tools() -> str:
    """A line for each of the packages that serve outside of the course, too."""
    lines = ""
    for folder, words in ROOMS.items():
        lines += LINE.format(title=folder, page=f"{folder}/README.html", words=words)
    return lines


def write(folder: Path) -> None:
    """Writes llms.txt into a folder that the site takes over as it is."""
    path = folder / "llms.txt"
    all_lines = text()
    path.write_text(all_lines, encoding="utf-8")
