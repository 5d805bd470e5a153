"""Writes the computed pages of the instructor's book: teaching/plans.md and teaching/lessons.md.

    python -m course_tools.notebooks.teaching            write them
    python -m course_tools.notebooks.teaching --check    are they what notebooks and plans say?

`teaching/plans.toml` says what is done in which session; the minutes of every part of a lesson are
counted as those of the course map are, and what a session has left is for talking about it.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.notebooks import course_map
from course_tools.notebooks.predictions import questions

LEAST, MOST = 0.1, 0.4  # of a session, for talk
DONE = (
    "<!-- Made by course_tools.notebooks.teaching of the notebooks and of teaching/plans.toml. -->"
)


class Part(NamedTuple):
    """A part of a lesson or lab, from its heading to the next."""

    title: str
    minutes: float
    predictions: list[tuple[str, list[str]]]  # what is asked, and the choices if there are any
    written: list[str]  # functions that learners write
    questions: list[tuple[str, str]]  # checkpoint questions and their answers


def parts(notebook: NotebookNode) -> list[Part]:
    """The parts of a lesson; what stands before the first heading belongs to the first."""
    cells: list[list[NotebookNode]] = [[]]
    for cell in notebook.cells:
        if _headings(cell) and any(map(_headings, cells[-1])):
            cells.append([])
        cells[-1].append(cell)
    return [_part(own, first=not number) for number, own in enumerate(cells)]


def _headings(cell: NotebookNode) -> list[str]:
    return re.findall(r"^## (.+)$", cell.source, re.M) if cell.cell_type == "markdown" else []


def _part(cells: list[NotebookNode], first: bool) -> Part:
    prose = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    shown = [cell for cell in cells if not cell.metadata.get("jupyter", {}).get("source_hidden")]
    code = "\n".join(cell.source for cell in shown if cell.cell_type == "code")
    stubs = [cell.source for cell in shown if "raise NotImplementedError" in cell.source]
    to_write = re.findall(r"^(?:def|class) (\w+)", "\n".join(stubs), re.M)
    checked = re.findall(r"check\(\s*(?:[\w.]+\()*(\w+)", code)  # finished forms are as well
    none = [] if first else [nbformat.v4.new_markdown_cell()]
    minutes = course_map.minutes(nbformat.v4.new_notebook(cells=[*none, *cells]))
    found = re.findall(
        r"\*\*Check yourself\.\*\*(.+?)<details><summary>Answer</summary>(.+?)</details>",
        prose, re.S,
    )  # fmt: skip
    return Part(
        (re.findall(r"^## (.+)$", prose, re.M) or [""])[0],
        minutes,
        [(question.text, question.choices) for _, question in questions(cells)],
        [name for name in checked if name in to_write],
        [(_plain(question), _plain(answer)) for question, answer in found],
    )


def _plain(text: str) -> str:
    """On one line; what is linked from a lesson is found from teaching/ too."""
    text = re.sub(r'<a href="([\w-]+\.ipynb)">(.*?)</a>', r"[\2](\1)", " ".join(text.split()))
    return re.sub(r"\]\((?=[\w-]+\.ipynb|README)", "](../notebooks/", text)


def minutes_of(root: Path, where: str) -> float:
    """The minutes of `02 1-3`, parts of a lesson; of `02`, all of it; of `lab 02 1-2`."""
    kind, number, first, last = re.fullmatch(r"(lab )?(\d\d)(?: (\d+)(?:-(\d+))?)?", where).groups()  # type: ignore[union-attr]
    folder = "solutions" if kind else "notebooks"
    (path,) = (root / folder).glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    if kind:
        cells = notebook.cells[1:]  # its first one says what all of it takes
        texts = [cell.source for cell in cells if _headings(cell)]
        found = [re.search(r"(\d+) minutes", text) for text in texts]
        all_ = [float(match[1]) for match in found if match]
    else:
        all_ = [part.minutes for part in parts(notebook)]
    begin, end = int(first or 1), int(last or first or len(all_))
    if not 1 <= begin <= end <= len(all_):
        raise ValueError(f"{where}: there are {len(all_)} parts")
    return sum(all_[begin - 1 : end])


def plans(root: Path = ROOT) -> dict[str, dict]:
    """What teaching/plans.toml says."""
    return tomllib.loads((root / "teaching/plans.toml").read_text(encoding="utf-8"))


def session_lines(root: Path, session: dict) -> Iterator[tuple[str, int]]:
    """What is done in a session, with minutes that add up to its length."""
    left = session["minutes"]
    for where, how in session["do"]:
        minutes = how if isinstance(how, int) else round(minutes_of(root, where))
        left -= minutes
        yield where if isinstance(how, int) else f"{_link(root, where)} {how}", minutes
    yield "talk: predictions against measurements, checkpoint questions", left


def _link(root: Path, where: str) -> str:
    number = re.search(r"\d\d", where)[0]  # type: ignore[index]
    folder = "exercises" if where.startswith("lab") else "notebooks"
    (path,) = (root / folder).glob(f"{number}_*.ipynb")
    return f"[{where}](../{folder}/{path.name})"


def plan_text(root: Path = ROOT) -> str:
    """The page of plans."""
    lines = ["# Plans", DONE, _plain(
        """Minutes are counted from the notebooks: words, lines of code in sight, predictions and
        exercises. `03 1-3` are parts 1 to 3 of chapter 03; `lab 02 1` is the first exercise of
        lab 02. Home work is not in the minutes."""
    )]  # fmt: skip
    for plan in plans(root).values():
        lines += [f"## {plan['title']}", plan["for"].strip()]
        for session in plan["sessions"]:
            table = ["| what | minutes |", "| --- | --- |"]
            table += [f"| {what} | {minutes} |" for what, minutes in session_lines(root, session)]
            table += [f"| **together** | **{session['minutes']}** |"]
            home = [f"At home: {session['home']}"] if "home" in session else []
            lines += [f"### {session['title']}", "\n".join(table), *home]
    return "\n\n".join(lines) + "\n"


def lesson_text(root: Path = ROOT) -> str:
    """The page of lessons: where to predict, vote, work in pairs and discuss; and all answers."""
    lines = ["# Lesson by lesson", DONE, _plain(
        """**Predict:** everybody writes a number down before the cell runs. **Vote:** hands up for
        each choice, then two of different minds explain, then the cell runs. **Pairs:** one
        types, one reads the check's table aloud; change at each exercise. **Discuss:** the
        checkpoint question, for two minutes between neighbours, before anybody opens the answer."""
    )]  # fmt: skip
    for path, notebook in course_map.chapters(root).items():
        title = course_map.facts(notebook)["title"]
        lines.append(f"## [{path.name[:2]} · {title}](../notebooks/{path.name})")
        table, answers = ["| part | minutes | do |", "| --- | --- | --- |"], []
        for part in parts(notebook):
            table.append(f"| {part.title} | {part.minutes:.0f} | {_do(part)} |")
            answers += [f"- *{question}* {answer}" for question, answer in part.questions]
        lines += ["\n".join(table), "\n".join(answers)]
    return "\n\n".join(filter(None, lines)) + "\n"


def _do(part: Part) -> str:
    votes = [f"**vote:** {what} ({', '.join(named)})" for what, named in part.predictions if named]
    guesses = [f"**predict:** {what}" for what, named in part.predictions if not named]
    pairs = [f"**pairs:** write `{name}`" for name in dict.fromkeys(part.written)]
    count = len(part.questions)
    talk = ["**discuss**" + f", {count} questions" * (count > 1)] * (count > 0)
    return "; ".join(guesses + votes + pairs + talk)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="report drift, change nothing")
    check, status = parser.parse_args(argv).check, 0
    for name, text in (("plans", plan_text()), ("lessons", lesson_text())):
        path = ROOT / "teaching" / f"{name}.md"
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"teaching/{name}.md is old: make notebooks")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
