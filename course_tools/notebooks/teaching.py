"""Writes the computed pages of the instructor's book: teaching/plans.md and teaching/lessons.md.

    python -m course_tools.notebooks.teaching            write them
    python -m course_tools.notebooks.teaching --check    are they what notebooks and plans say?

`teaching/plans.toml` says what is done in which session, and `teaching/run_times.toml` how long
cells run. The minutes of each part are counted (Minutes), and what a session has left is for talk.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.notebooks import course_map
from course_tools.notebooks.predictions import Question, questions
from course_tools.texts import has_text, read_toml

LEAST = 0.1  # of a session, for talk
MOST = 0.4
RUN_TIMES = "teaching/run_times.toml"
WORDS_PER_MINUTE = 150
LINES_PER_MINUTE = 6
RUNS_OF_A_LAB = 3
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
MARKUP = re.compile(r"<[^>]+>|\]\([^)]*\)")
WORD = re.compile(r"\w[\w'’-]*")
STATED = re.compile(r"(?:[●○], |[●○] · |\*About |\*\*Write\*\* \()(\d+) minutes")
LINES_TO_WRITE = re.compile(r"NotImplementedError\(\"about (\d+) lines?")
DEFINITION = re.compile(r"^(?:def|class) (\w+)", re.MULTILINE)
CHECKED = re.compile(r"check\(\s*(?:[\w.]+\()*(\w+)")
PREDICTION = re.compile(r'predict\(\s*"|^predicted_\w+ =', re.MULTILINE)
LINK_IN_HTML = re.compile(r'<a href="([\w-]+\.ipynb)">(.*?)</a>')
LINK_FROM_LESSON = re.compile(r"\]\((?=[\w-]+\.ipynb|README)")  # up to where the file begins
CHECKPOINT = re.compile(
    r"\*\*Check yourself\.\*\*(.+?)"
    r"<details><summary>Answer</summary>(.+?)</details>",
    re.DOTALL,
)
WHERE = re.compile(
    r"""
    (?P<name>(?:lab\ )?\d\d)  # `02` or `lab 02`
    (?:\ (?P<first>\d+)(?:-(?P<last>\d+))?)?  # its parts, such as ` 1` or ` 1-3`
    """,
    re.VERBOSE,
)
DONE = (
    "<!-- Made by course_tools.notebooks.teaching of the notebooks and of teaching/plans.toml. -->"
)


class Minutes(NamedTuple):
    """What a part takes, counted rather than guessed."""

    read: float  # words at 150 a minute, given lines that are not folded at 6, a prediction in 1
    write: float  # a line that the learner writes takes 1, with thinking and looking up
    run: float  # as measured; what a lab runs counts three times, since a check often fails first

    def plus(self, other: "Minutes") -> "Minutes":
        """What two parts take."""
        return Minutes(
            read=self.read + other.read,
            write=self.write + other.write,
            run=self.run + other.run,
        )

    def total(self) -> float:
        """All of it."""
        return sum(self)


class Part(NamedTuple):
    """A part of a lesson or lab, from its heading to the next."""

    title: str
    minutes: Minutes
    predictions: list[Question]
    written: list[str]  # functions that learners write
    questions: list[tuple[str, str]]  # checkpoint questions and their answers


def parts(notebook: NotebookNode, run_s: Sequence[float] = ()) -> list[Part]:
    """The parts of a lesson or lab; what stands before the first heading belongs to the first.

    Args:
        notebook: A lesson, or a lab whose answers are missing.
        run_s: The seconds that each part runs, as often as it is run; none if they do not matter.

    Raises:
        ValueError: There are seconds of more parts, or of fewer.
    """
    cells = cells_of_parts(notebook)
    if run_s and len(run_s) != len(cells):
        raise ValueError(f"{len(cells)} parts, and {len(run_s)} in {RUN_TIMES}: measure them again")
    times_s = run_s or [0.0] * len(cells)
    result = []
    for number, cells_of_part in enumerate(cells):
        cells_to_write_in = cells_of_part
        if number == 0:  # its first cell says what all of it takes, which counts for no part
            cells_to_write_in = cells_of_part[1:]
        part = _part(cells_of_part, cells_to_write_in, times_s[number])
        result.append(part)
    return result


def chapter(root: Path, name: str) -> tuple[Path, list[Part]]:
    """The file and the parts of `03`, or of `lab 03`."""
    folder = root / "notebooks"
    times_run = 1
    if name.startswith("lab"):
        folder = root / "exercises"
        times_run = RUNS_OF_A_LAB
    number = name[-2:]
    (path,) = folder.glob(f"{number}_*.ipynb")
    seconds_of_parts = run_times(root)[name]
    run_s = [times_run * seconds for seconds in seconds_of_parts]
    notebook = nbformat.read(path, as_version=4)
    return path, parts(notebook, run_s)


def cells_of_parts(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """The cells of each part."""
    cells: list[list[NotebookNode]] = [[]]
    has_heading = False  # the part that is being filled
    for cell in notebook.cells:
        if _headings(cell):
            if has_heading:
                cells.append([])
            has_heading = True
        cells[-1].append(cell)
    return cells


def run_times(root: Path) -> dict[str, list[int]]:
    """The seconds that each part runs, by `03` or `lab 03`; nothing if nobody has measured yet."""
    path = root / RUN_TIMES
    if not path.exists():
        return {}
    return read_toml(path)


def _headings(cell: NotebookNode) -> list[str]:
    """The headings that begin a part in this cell."""
    if cell.cell_type != "markdown":
        return []
    return HEADING.findall(cell.source)


def _part(cells: list[NotebookNode], cells_to_write_in: list[NotebookNode], run_s: float) -> Part:
    """A part of these cells, which run for so many seconds."""
    headings = []
    prose_cells = []
    shown_code = []
    stubs = []
    for cell in cells:
        headings += _headings(cell)
        if cell.cell_type == "markdown":
            prose_cells.append(cell.source)
        elif not _is_folded(cell):
            shown_code.append(cell.source)
            if "raise NotImplementedError" in cell.source:
                stubs.append(cell.source)
    title = ""
    if headings:
        title = headings[0]
    prose = "\n\n".join(prose_cells)
    code = "\n".join(shown_code)
    minutes = Minutes(
        read=_reading(prose, code),
        write=_writing(cells_to_write_in),
        run=run_s / 60,
    )
    predictions = [question for _cell, question in questions(cells)]
    return Part(
        title=title,
        minutes=minutes,
        predictions=predictions,
        written=_written(code, stubs),
        questions=_checkpoints(prose),
    )


def _is_folded(cell: NotebookNode) -> bool:
    """Whether a code cell's code is out of sight."""
    jupyter = cell.metadata.get("jupyter", {})
    return jupyter.get("source_hidden", False)


def _written(code: str, stubs: list[str]) -> list[str]:
    """The functions and classes that learners write: those of stubs which the code checks."""
    code_of_stubs = "\n".join(stubs)
    to_write = DEFINITION.findall(code_of_stubs)
    checked = CHECKED.findall(code)  # finished forms are as well
    return [name for name in checked if name in to_write]


def _checkpoints(prose: str) -> list[tuple[str, str]]:
    """The questions of the checkpoints, each with its answer."""
    checkpoints = []
    for question, answer in CHECKPOINT.findall(prose):
        checkpoint = (_plain(question), _plain(answer))
        checkpoints.append(checkpoint)
    return checkpoints


def _reading(prose: str, code: str) -> float:
    """By words and lines of code; a prediction takes a minute."""
    without_markup = MARKUP.sub(" ", prose)
    words = WORD.findall(without_markup)
    prose_minutes = len(words) / WORDS_PER_MINUTE
    count_of_lines = 0
    for line in code.splitlines():
        if line.strip():
            count_of_lines += 1
    code_minutes = count_of_lines / LINES_PER_MINUTE
    predictions = PREDICTION.findall(code)
    prediction_minutes = len(predictions)
    return prose_minutes + code_minutes + prediction_minutes


def _writing(cells: list[NotebookNode]) -> float:
    """By the lines that a stub asks for; where no line is asked for, what the text itself says."""
    minutes = 0
    stated = 0  # by the text above, for what asks for no line so far
    for cell in cells:
        if cell.cell_type == "markdown":
            prose = MARKUP.sub(" ", cell.source)
            numbers = STATED.findall(prose)
            for number in numbers:
                minutes += stated
                stated = int(number)
        elif cell.cell_type == "code":
            numbers = LINES_TO_WRITE.findall(cell.source)
            for number in numbers:
                minutes += int(number)
                stated = 0
    return minutes + stated


def _plain(text: str) -> str:
    """On one line; what is linked from a lesson is found from teaching/ too."""
    words = text.split()
    line = " ".join(words)
    line = LINK_IN_HTML.sub(r"[\2](\1)", line)
    return LINK_FROM_LESSON.sub("](../notebooks/", line)


def minutes_of(root: Path, where: str) -> Minutes:
    """The minutes of `02 1-3`, parts of a lesson; of `02`, all of it; of `lab 02 1-2`."""
    asked = WHERE.fullmatch(where)
    name = asked["name"]
    _path, known = chapter(root, name)
    if where.startswith("lab"):
        known = _exercises(known)
    first = 1
    last = len(known)
    if asked["first"]:
        first = int(asked["first"])
        last = int(asked["last"] or first)
    if not 1 <= first <= last <= len(known):
        raise ValueError(f"{where}: there are {len(known)} parts")
    minutes = Minutes(0, 0, 0)
    wanted = known[first - 1 : last]
    for part in wanted:
        minutes = minutes.plus(part.minutes)
    return minutes


def _exercises(known: list[Part]) -> list[Part]:
    """The parts of a lab that have a number; its bonus has none."""
    return [part for part in known if part.title[0].isdigit()]


def plans(root: Path = ROOT) -> dict[str, dict]:
    """What teaching/plans.toml says."""
    return read_toml(root / "teaching/plans.toml")


def session_rows(root: Path, session: dict) -> Iterator[list[str]]:
    """What is done in a session, and its minutes by COUNTED; the last add up to its length."""
    left = session["minutes"]
    for where, minutes_or_manner in session["do"]:
        if isinstance(minutes_or_manner, int):
            row = [where, *NOT_COUNTED, str(minutes_or_manner)]
        else:
            link = _link(root, where)
            minutes = minutes_of(root, where)
            counted = _counted(minutes)
            row = [f"{link} {minutes_or_manner}", *counted]
        total = row[-1]
        left -= int(total)
        yield row
    talk = "talk: predictions against measurements, checkpoint questions"
    yield [talk, *NOT_COUNTED, str(left)]


def _counted(minutes: Minutes) -> list[str]:
    """The cells of a row, by COUNTED."""
    numbers = [*minutes, minutes.total()]
    return [f"{number:.0f}" for number in numbers]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; what is counted stands on the right of its column."""
    rule = []
    for name in head:
        if name in COUNTED:
            rule.append("---:")
        else:
            rule.append("---")
    lines = []
    for row in (head, rule, *rows):
        cells = " | ".join(row)
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def _link(root: Path, where: str) -> str:
    """A link to the notebook of `02 1-3`."""
    match = WHERE.match(where)
    name = match["name"]
    path, _parts = chapter(root, name)
    folder = path.parent.name
    return f"[{where}](../{folder}/{path.name})"


MODEL = _plain(
    """Minutes are counted, by a simple model. **Read:** 150 words of text or six given lines of
    code a minute, and a minute for each prediction. **Write:** a minute for each line that a
    learner writes, with the thinking; what asks for no line takes what its text says. **Run:** the
    seconds that its cells took while five notebooks shared two cores, and three times as many in
    labs, where a check often fails before it passes. The minutes that an exercise names are our
    estimate of the same. No class has been timed: expect some learners to need half of it, and
    others twice as much."""
)
ABOUT_PLANS = _plain(
    """`03 1-3` are parts 1 to 3 of chapter 03; `lab 02 1` is the first exercise of lab 02. For a
    slot of 50 minutes, add up the parts that you want, from [lesson by lesson](lessons.md), and
    leave ten for talk."""
)
ABOUT_LESSONS = _plain(
    """**Predict:** everybody writes a number down before the cell runs. **Vote:** hands up for
    each choice, then two of different minds explain, then the cell runs. **Pairs:** one types, one
    reads the check's table aloud; change at each exercise. **Discuss:** the checkpoint question,
    for two minutes between neighbours, before anybody opens the answer."""
)
COUNTED = "read", "write", "run", "minutes"
NOT_COUNTED = "", "", ""


def plan_text(root: Path = ROOT) -> str:
    """The page of plans."""
    blocks = ["# Plans", DONE, MODEL, ABOUT_PLANS]
    for plan in plans(root).values():
        heading = f"## {plan['title']}"
        purpose = plan["for"].strip()
        blocks += [heading, purpose]
        for session in plan["sessions"]:
            blocks += _session(root, session)
    return "\n\n".join(blocks) + "\n"


def _session(root: Path, session: dict) -> list[str]:
    """The heading of a session, the table of what is done in it, and what is left for home."""
    heading = f"### {session['title']}"
    length = f"**{session['minutes']}**"
    rows = list(session_rows(root, session))
    last_row = ["**together**", *NOT_COUNTED, length]
    rows.append(last_row)
    head = ["what", *COUNTED]
    table = _table(head, rows)
    at_home = _at_home(root, session)
    return [heading, table, at_home]


def home_minutes(root: Path, session: dict) -> int:
    """What learners do alone takes."""
    total = 0.0
    for where in session["home"]:
        minutes = minutes_of(root, where)
        total += minutes.total()
    return round(total)


def _at_home(root: Path, session: dict) -> str:
    """What learners do alone after a session."""
    minutes = home_minutes(root, session)
    links = [_link(root, where) for where in session["home"]]
    places = ", ".join(links)
    sentence = f"At home, {minutes} minutes: {places}."
    if "note" in session:
        sentence += f" {session['note']}"
    return sentence


def lesson_text(root: Path = ROOT) -> str:
    """The page of lessons: where to predict, vote, work in pairs and discuss; and all answers."""
    blocks = ["# Lesson by lesson", DONE, ABOUT_LESSONS, MODEL]
    names_of_labs = {path.name for path in course_map.labs(root)}
    for path, notebook in course_map.chapters(root).items():
        number = path.name[:2]
        facts = course_map.facts(notebook)
        title = facts["title"]
        blocks.append(f"## [{number} · {title}](../notebooks/{path.name})")
        _path, known = chapter(root, number)
        lesson_table = _lesson_table(known)
        blocks.append(lesson_table)
        answers = _answers(known)
        if answers:
            blocks.append(answers)
        if path.name in names_of_labs:
            lab_table = _lab_table(root, number)
            blocks.append(lab_table)
    return "\n\n".join(blocks) + "\n"


def _lesson_table(known: list[Part]) -> str:
    """The parts of a lesson with their minutes, and what a class does in each."""
    rows = []
    for part in known:
        counted = _counted(part.minutes)
        row = [part.title, *counted, _do(part)]
        rows.append(row)
    head = ["part", *COUNTED, "do"]
    return _table(head, rows)


def _answers(known: list[Part]) -> str:
    """The questions of a lesson's checkpoints with their answers, as a list."""
    items = []
    for part in known:
        for question, answer in part.questions:
            items.append(f"- *{question}* {answer}")
    return "\n".join(items)


def _lab_table(root: Path, number: str) -> str:
    """The exercises of a lab with their minutes."""
    name = f"lab {number}"
    path, known = chapter(root, name)
    rows = []
    for part in _exercises(known):
        counted = _counted(part.minutes)
        row = [part.title, *counted]
        rows.append(row)
    minutes_together = minutes_of(root, name)
    counted_together = _counted(minutes_together)
    last_row = ["**together**", *counted_together]
    rows.append(last_row)
    link = f"[{name}](../exercises/{path.name})"
    head = [link, *COUNTED]
    return _table(head, rows)


def _do(part: Part) -> str:
    """What a class does in a part."""
    guesses = []
    votes = []
    for question in part.predictions:
        if question.choices:
            choices = ", ".join(question.choices)
            votes.append(f"**vote:** {question.text} ({choices})")
        else:
            guesses.append(f"**predict:** {question.text}")
    each_once = dict.fromkeys(part.written)
    pairs = [f"**pairs:** write `{name}`" for name in each_once]
    talk = []
    count = len(part.questions)
    if count == 1:
        talk = ["**discuss**"]
    elif count > 1:
        talk = [f"**discuss**, {count} questions"]
    return "; ".join(guesses + votes + pairs + talk)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="report drift, change nothing")
    arguments = parser.parse_args(argv)
    pages = {"plans": plan_text(), "lessons": lesson_text()}
    status = 0
    for name, text in pages.items():
        path = ROOT / "teaching" / f"{name}.md"
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif not has_text(path, text):
            print(f"teaching/{name}.md is old: make notebooks")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
