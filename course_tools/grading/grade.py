"""Grades what learners have handed in, each submission in a sandbox of its own: `make grade`.

    python -m course_tools.grading.grade FOLDER              all that is new or has changed
    python -m course_tools.grading.grade FOLDER --only 02    one lab
    python -m course_tools.grading.grade FOLDER --who ada    one learner, again

FOLDER/submitted/NAME/ has a learner's notebooks, in any folders below: as nbgrader released them,
or the learner's own copies; FOLDER/submitted/ may have what Canvas or Moodle pack of a class.
FOLDER/class.txt and FOLDER/marks.csv are the teacher's (class_files), if they are there.
FOLDER/graded/NAME/ gets what each check said, FOLDER/graded/ gets tables (export). Of a notebook
only the text of the answers' cells is used. Nobody but the owner can look into FOLDER afterwards.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from course_tools import PACKAGES
from course_tools.commands import parser_of
from course_tools.grading import class_files, export, handout, learner_cells, sandbox, submissions
from course_tools.grading.learner_cells import BY_HAND, LabCell
from course_tools.grading.submissions import Copy, Row
from course_tools.notebooks import build
from course_tools.notebooks.cells import BuildError, read_percent

Json = dict[str, Any]
WHY = {
    "time": "it was not done in time, and was stopped",
    "memory": "it took more memory than there is, and was stopped",
    "died": "the process that judges came to an end",
}
SENTENCE = """\
This system lets nobody make a sandbox ({}). So answers run as you, on your machine: with limits on
memory and time, but they could reach your files and the network. Grade what you would run yourself.
"""


class Lab(NamedTuple):
    """What the teacher's notebook says."""

    slug: str
    cells: list[LabCell]
    points: dict[str, float]  # that a check gives, by exercise
    by_hand: dict[str, float]  # that a person gives

    def possible(self) -> dict[str, float]:
        """The most points of each exercise and conclusion."""
        return self.points | self.by_hand


def read_lab(target: build.Target) -> Lab:
    """Read a lab's source."""
    slug = target.built.stem
    text = target.source.read_text(encoding="utf-8")
    solved = read_percent(text)
    teachers = handout.graded(solved)
    learners = read_percent(text, cut=True)
    lab_cells = []
    points = {}
    by_hand = {}
    for cell, stub in zip(teachers.cells, learners.cells, strict=True):
        metadata = cell.metadata.get("nbgrader")
        if cell.cell_type == "code":
            lab_cell = learner_cells.for_the_judge(cell, stub.id)
            lab_cells.append(lab_cell)
            if metadata.grade:
                check = metadata.grade_id
                exercise = check.removeprefix("check-")
                points[exercise] = float(metadata.points)
        elif metadata:
            conclusion = metadata.grade_id
            by_hand[conclusion] = float(metadata.points)
    return Lab(slug, lab_cells, points, by_hand)


class Judge:
    """The server of `judge`, and how to ask it."""

    def __init__(self, contained: bool, slot: int) -> None:
        self.slot = slot
        self.command = [sys.executable, "-s", "-m", "course_tools.grading.judge"]
        if not contained:
            self.command.append("--bare")
        self.start()

    def start(self) -> None:
        """Begin, or begin anew."""
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
            "HOME": "/tmp",
            "PYTHONPATH": str(PACKAGES),
            "USER": "nobody",
            "CUDA_VISIBLE_DEVICES": "",
            "MPLBACKEND": "agg",
        }
        self.process = subprocess.Popen(
            self.command, env=environment, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, cells: list[LabCell], **limits: Any) -> tuple[str, list[Json]]:
        """How it ended, and the verdicts; limits are those of `sandbox.Limits`.

        Raises:
            ChildProcessError: The server itself has failed, twice.
        """
        cells_json = json.dumps(cells)
        for _attempt in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                job = Path(folder, "job")
                job.write_text(cells_json)
                verdicts = Path(folder, "verdicts")
                verdicts.touch()
                end = self._ask(job, verdicts, limits)
                if end:
                    lines = verdicts.read_text().splitlines()
                    return end, list(map(json.loads, lines))
            self.close()
            self.start()
        raise ChildProcessError("the process that judges has failed; what it said stands above")

    def _ask(self, job: Path, verdicts: Path, limits: Json) -> str:
        """How a job has ended; empty if the server has failed."""
        request = {
            "job": str(job),
            "verdicts": str(verdicts),
            "limits": limits,
            "slot": self.slot,
        }
        line = json.dumps(request)
        with contextlib.suppress(BrokenPipeError):  # then nothing comes back
            print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        return answer.strip()

    def close(self) -> None:
        """End the server."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def judged(judge: Judge, lab: Lab, cells: list[LabCell], **limits: Any) -> dict[str, Json]:
    """What each check says of a submission, by exercise.

    Where an answer ends even the judge, the lab's own stub takes its place, and what it kept from
    being judged is judged again. So it costs its own points and no others.

    Args:
        judge: Whom to ask.
        lab: The lab.
        cells: Its cells with the learner's answers in them.
        limits: Those of `sandbox.Limits`.
    """
    stubs = _by_name(lab.cells)
    wanted = _by_name(cells)
    verdicts = {}  # by the name of a check
    while True:
        wanted_cells = list(wanted.values())
        end, lines = judge.run(wanted_cells, **limits)
        last_begun = ""
        for line in lines:
            last_begun = line.get("begins", last_begun)
            check = line.get("check")
            if check is not None:
                verdicts[check] = line
                del wanted[check]
        if end == "done":
            break
        if last_begun not in wanted:
            break
        cell = wanted[last_begun]
        if cell["kind"] == "answer" and last_begun in stubs:
            wanted[last_begun] = stubs.pop(last_begun)
        else:
            verdicts[last_begun] = {"passed": False, "text": WHY[end]}
            del wanted[last_begun]
    missing = {"passed": False, "text": "the judge never came to it"}
    by_exercise = {}
    for exercise in lab.points:
        check = f"check-{exercise}"
        by_exercise[exercise] = verdicts.get(check, missing)
    return by_exercise


def _by_name(cells: list[LabCell]) -> dict[str, LabCell]:
    """Cells by their names, in their order."""
    by_name = {}
    for cell in cells:
        name = cell["name"]
        by_name[name] = cell
    return by_name


def grade(judge: Judge, lab: Lab, copy: Copy, graded: Path, again: bool) -> str:
    """Grade a learner's copy, and write down what was found; returns a line about it.

    Without `again`, a copy that is as it was when it was graded is not graded: the line is empty.
    """
    begun = time.monotonic()
    student = copy.student
    slug = lab.slug
    path = graded / f"{student}/{slug}.json"
    _keep_as_written(lab, copy, graded)
    cells = copy.written.cells
    digest = _digest(cells)
    if not again and digest == _known_digest(path):
        return ""
    points = {}
    messages = {}
    paragraphs = []
    verdicts = judged(judge, lab, cells)
    for exercise, verdict in verdicts.items():
        most = lab.points[exercise]
        earned = 0.0
        if verdict["passed"]:
            earned = most
        message = verdict["text"]
        points[exercise] = earned
        messages[exercise] = message
        heading = f"{exercise}: {earned:g} of {most:g}"
        paragraphs.append(f"{heading}\n{message}\n")
    result = {"digest": digest, "points": points, "said": messages}
    result_json = json.dumps(result, indent=1)
    path.write_text(result_json)
    for_the_learner = path.with_suffix(".txt")
    for_the_learner.write_text("\n".join(paragraphs))
    total = sum(points.values())
    possible = sum(lab.points.values())
    seconds = time.monotonic() - begun
    score = f"{total:g} of {possible:g}"
    return f"{student} {slug}: {score} in {seconds:.1f} s"


def _known_digest(path: Path) -> str:
    """The digest of the copy that a result was written for; empty if there is no result."""
    if not path.exists():
        return ""
    text = path.read_text()
    result = json.loads(text)
    return result["digest"]


def _keep_as_written(lab: Lab, copy: Copy, graded: Path) -> None:
    """Write down a copy's answers as Python, which MOSS and JPlag compare, and its conclusion."""
    slug = lab.slug
    student = copy.student
    folder_of_learner = graded / student
    folder_of_answers = graded / "answers" / slug
    for folder in (folder_of_learner, folder_of_answers):
        folder.mkdir(parents=True, exist_ok=True)
    python = folder_of_answers / f"{student}.py"
    answers = copy.written.answers.values()
    text = "\n\n".join(answers)
    python.write_text(text, encoding="utf-8")
    if lab.by_hand:
        conclusion = folder_of_learner / f"{slug}_{BY_HAND}.md"
        conclusion.write_text(copy.prose, encoding="utf-8")


def _digest(cells: list[LabCell]) -> str:
    """What tells whether a copy is as it was when it was graded."""
    text = json.dumps(cells, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def grade_all(
    copies: list[Copy], labs: dict[str, Lab], graded: Path, again: bool, jobs: int
) -> None:
    """Grade side by side, and say how it went."""
    why_bare = sandbox.refused()
    if why_bare:
        warning = SENTENCE.format(why_bare)
        print(warning, file=sys.stderr)
    is_contained = not why_bare
    begun = time.monotonic()
    judges = SimpleQueue()
    jobs = min(jobs, len(copies))
    for slot in range(jobs):
        judge = Judge(is_contained, slot)
        judges.put(judge)

    def grade_one(copy: Copy) -> bool:
        """Whether it was new."""
        lab = labs[copy.lab]
        judge = judges.get()
        try:
            line = grade(judge, lab, copy, graded, again)
        finally:
            judges.put(judge)
        if line:
            print(line, flush=True)
        return bool(line)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            new = sum(pool.map(grade_one, copies))
    finally:
        for _ in range(jobs):
            judge = judges.get()
            judge.close()
    seconds = time.monotonic() - begun
    count = f"{new} of {len(copies)}"
    print(f"{count} graded in {seconds:.0f} s; the rest is as it was.")


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="where submitted/ is")
    parser.add_argument("--only", nargs="*", default=[], help="labs, such as 2; all if none")
    parser.add_argument("--who", help="one learner, who is graded again")
    parser.add_argument("--jobs", type=int, default=_default_jobs())
    parser.add_argument("--root", type=Path, default=build.ROOT, help="the project's folder")
    args = parser.parse_args(argv)
    folder = args.folder.expanduser().resolve()
    try:
        with handout.private(folder):
            grade_folder(folder, args)
    except (BuildError, OSError) as error:
        print(f"not graded: {error}", file=sys.stderr)
        return 1
    return 0


def _default_jobs() -> int:
    """How many are graded side by side: three cores for each."""
    cores = os.cpu_count() or 1
    return max(1, cores // 3)


def grade_folder(folder: Path, args: argparse.Namespace) -> None:
    """Do what the command line asks.

    Raises:
        BuildError: Something is wrong with the folder; nothing has been graded.
    """
    root = args.root.resolve()
    targets = handout.labs_of(root, args.only)
    chosen = [target.built.stem for target in targets]
    labs = {}
    cells = {}
    possible = {}
    for target in handout.labs_of(root):
        known_lab = read_lab(target)
        slug = known_lab.slug
        labs[slug] = known_lab
        cells[slug] = known_lab.cells
        possible[slug] = known_lab.possible()
    submitted = folder / "submitted"
    learners = class_files.read_class(folder / "class.txt")
    rows, copies = submissions.collect(submitted, learners, cells)
    marks = class_files.read_marks(folder / "marks.csv", learners, possible)
    wanted = _chosen_copies(copies, chosen, args.who)
    if not wanted:
        nothing = "there is nothing"
        if args.who:
            nothing += f" of {args.who}"
        where = f"put each learner's notebooks into {submitted}/NAME/"
        raise BuildError(f"{nothing} to grade: {where}")
    expected_labs = chosen
    if not args.only:
        expected_labs = _labs_of(rows)
    rows += submissions.missing(rows, learners, expected_labs)
    graded = folder / "graded"
    again = bool(args.who)
    grade_all(wanted, labs, graded, again, args.jobs)
    students = learners.all()
    export.write(graded, rows, marks, students, possible)
    print(f"{graded}: grades.csv, submissions.csv, statistics.csv")
    for student, _lab, file, became, why in rows:
        if became == submissions.NOT_GRADED:
            print(f"{student}: {file} is NOT GRADED: {why}", file=sys.stderr)


def _labs_of(rows: list[Row]) -> list[str]:
    """The labs of which anybody has handed something in."""
    labs = {row.lab for row in rows}
    labs.discard("")  # of files that are no copy of a lab
    return sorted(labs)


def _chosen_copies(copies: list[Copy], labs: list[str], student: str | None) -> list[Copy]:
    """The copies of these labs, by one learner or by all."""
    chosen = []
    for copy in sorted(copies):
        if copy.lab not in labs:
            continue
        if student in (None, copy.student):
            chosen.append(copy)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
