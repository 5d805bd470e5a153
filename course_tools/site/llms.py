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
ROOMS = {
    "course_testing": "a pytest plugin that runs a test in real ranks",
    "course_lint": "a linter for what only some ranks do",
    "course_museum": "twelve bugs of public projects, each with a check of its cure",
}


def text() -> str:
    """Returns the file's text, with links that start at the site's front page."""
    parts = [HEAD, "## Chapters\n", *_chapters(), "\n## Labs\n", *_labs(), "\n## Tools\n"]
    for folder, words in ROOMS.items():
        parts.append(f"- [{folder}]({folder}/README.html): {words}")
    parts += [
        "\n## Optional\n",
        "- [Course map](notebooks/README.html): which cell shows what five articles teach",
        "- [Changelog](CHANGELOG.html): what is new",
    ]
    return "\n".join(parts) + "\n"


def _chapters() -> list[str]:
    """A line for each chapter."""
    lines = []
    for path, notebook in course_map.chapters().items():
        about = course_map.facts(notebook)
        number = path.stem[:2]
        link = f"[{number} {about['title']}](notebooks/{path.stem}.html)"
        lines.append(f"- {link}: {about['question']}")
    return lines


def _labs() -> list[str]:
    """A line for each lab, with the questions of its exercises."""
    lines = []
    for path, notebook in course_map.labs().items():
        first_cell = notebook.cells[0]
        title = re.search(r"^# (Lab \d\d · .+)$", first_cell.source, re.M)[1]
        questions = []
        for cell in notebook.cells:
            questions += re.findall(r"^## \d+ · (.+)$", cell.source, re.M)
        link = f"[{title}](exercises/{path.stem}.html)"
        lines.append(f"- {link}: {' '.join(questions)}")
    return lines


def write(folder: Path) -> None:
    """Writes llms.txt into a folder that the site takes over as it is."""
    (folder / "llms.txt").write_text(text(), encoding="utf-8")
