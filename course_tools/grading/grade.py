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
from course_tools.grading.submissions import Copy
from course_tools.notebooks import build
from course_tools.notebooks.cells import BuildError, read_percent

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


def lab(target: build.Target) -> Lab:
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
                exercise = metadata.grade_id.removeprefix("check-")
                points[exercise] = float(metadata.points)
        elif metadata:
            by_hand[metadata.grade_id] = float(metadata.points)
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

    def run(self, cells: list[LabCell], **limits: Any) -> tuple[str, list[dict[str, Any]]]:
        """How it ended, and the verdicts; limits are those of `sandbox.Limits`.

        Raises:
            ChildProcessError: The server itself has failed, twice.
        """
        for _attempt in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                job = Path(folder, "job")
                job.write_text(json.dumps(cells))
                verdicts = Path(folder, "verdicts")
                verdicts.touch()
                end = self._ask(job, verdicts, limits)
                if end:
                    lines = verdicts.read_text().splitlines()
                    return end, list(map(json.loads, lines))
            self.close()
            self.start()
        raise ChildProcessError("the process that judges has failed; what it said stands above")

    def _ask(self, job: Path, verdicts: Path, limits: dict[str, Any]) -> str:
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


def judged(judge: Judge, lab: Lab, cells: list[LabCell], **limits: Any) -> dict[str, Any]:
    """What each check says of a submission, by exercise.

    Where an answer ends even the judge, the lab's own stub takes its place, and what it kept from
    being judged is judged again. So it costs its own points and no others.

    Args:
        judge: Whom to ask.
        lab: The lab.
        cells: Its cells with the learner's answers in them.
        limits: Those of `sandbox.Limits`.
    """
    stubs = {cell["name"]: cell for cell in lab.cells}
    wanted = {cell["name"]: cell for cell in cells}
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
        if end == "done" or last_begun not in wanted:
            break
        kind = wanted[last_begun]["kind"]
        if kind == "answer" and last_begun in stubs:
            wanted[last_begun] = stubs.pop(last_begun)
        else:
            verdicts[last_begun] = {"passed": False, "text": WHY[end]}
            del wanted[last_begun]
    missing = {"passed": False, "text": "the judge never came to it"}
    by_exercise = {}
    for exercise in lab.points:
        by_exercise[exercise] = verdicts.get(f"check-{exercise}", missing)
    return by_exercise


def grade(judge: Judge, lab: Lab, copy: Copy, graded: Path, again: bool) -> str:
    """Grade a learner's copy, and write down what was found; returns a line about it.

    Without `again`, a copy that is as it was when it was graded is not graded: the line is empty.
    """
    begun = time.monotonic()
    folder = graded / copy.student
    path = folder / f"{lab.slug}.json"
    _keep_as_written(lab, copy, graded)
    cells = copy.written.cells
    digest = _digest(cells)
    if not again and path.exists():
        text = path.read_text()
        known = json.loads(text)
        if known["digest"] == digest:
            return ""
    points = {}
    messages = {}
    paragraphs = []
    for exercise, verdict in judged(judge, lab, cells).items():
        most = lab.points[exercise]
        earned = 0.0
        if verdict["passed"]:
            earned = most
        message = verdict["text"]
        points[exercise] = earned
        messages[exercise] = message
        paragraphs.append(f"{exercise}: {earned:g} of {most:g}\n{message}\n")
    result = {"digest": digest, "points": points, "said": messages}
    path.write_text(json.dumps(result, indent=1))
    for_the_learner = path.with_suffix(".txt")
    for_the_learner.write_text("\n".join(paragraphs))
    total = sum(points.values())
    possible = sum(lab.points.values())
    seconds = time.monotonic() - begun
    return f"{copy.student} {lab.slug}: {total:g} of {possible:g} in {seconds:.1f} s"


def _keep_as_written(lab: Lab, copy: Copy, graded: Path) -> None:
    """Write down a copy's answers as Python, which MOSS and JPlag compare, and its conclusion."""
    folder_of_learner = graded / copy.student
    folder_of_answers = graded / "answers" / lab.slug
    for folder in (folder_of_learner, folder_of_answers):
        folder.mkdir(parents=True, exist_ok=True)
    python = folder_of_answers / f"{copy.student}.py"
    answers = "\n\n".join(copy.written.answers.values())
    python.write_text(answers, encoding="utf-8")
    if lab.by_hand:
        conclusion = folder_of_learner / f"{lab.slug}_{BY_HAND}.md"
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
        judge = judges.get()
        try:
            line = grade(judge, labs[copy.lab], copy, graded, again)
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
    print(f"{new} of {len(copies)} graded in {seconds:.0f} s; the rest is as it was.")


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
    chosen = [target.built.stem for target in handout.labs_of(root, args.only)]
    labs = {}
    cells = {}
    possible = {}
    for target in handout.labs_of(root):
        known_lab = lab(target)
        slug = known_lab.slug
        labs[slug] = known_lab
        cells[slug] = known_lab.cells
        possible[slug] = known_lab.possible()
    learners = class_files.read_class(folder / "class.txt")
    rows, copies = submissions.collect(folder / "submitted", learners, cells)
    marks = class_files.read_marks(folder / "marks.csv", learners, possible)
    wanted = _chosen_copies(copies, chosen, args.who)
    if not wanted:
        nothing = "there is nothing"
        if args.who:
            nothing += f" of {args.who}"
        where = f"put each learner's notebooks into {folder}/submitted/NAME/"
        raise BuildError(f"{nothing} to grade: {where}")
    expected_labs = chosen
    if not args.only:
        labs_of_rows = {row.lab for row in rows}
        labs_of_rows.discard("")  # of files that are no copy of a lab
        expected_labs = sorted(labs_of_rows)
    rows += submissions.missing(rows, learners, expected_labs)
    graded = folder / "graded"
    grade_all(wanted, labs, graded, bool(args.who), args.jobs)
    export.write(graded, rows, marks, learners.all(), possible)
    print(f"{graded}: grades.csv, submissions.csv, statistics.csv")
    for row in rows:
        if row.what == submissions.NOT_GRADED:
            print(f"{row.student}: {row.file} is NOT GRADED: {row.why}", file=sys.stderr)


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
