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


def lab(target: build.Target) -> Lab:
    """Read a lab's source."""
    text = target.source.read_text(encoding="utf-8")
    teachers = handout.graded(read_percent(text))
    learners = read_percent(text, cut=True)
    lab = Lab(target.built.stem, [], {}, {})
    for cell, stub in zip(teachers.cells, learners.cells, strict=True):
        metadata = cell.metadata.get("nbgrader")
        if cell.cell_type == "code":
            lab.cells.append(learner_cells.for_the_judge(cell, stub.id))
            if metadata.grade:
                exercise = metadata.grade_id.removeprefix("check-")
                lab.points[exercise] = float(metadata.points)
        elif metadata:
            lab.by_hand[metadata.grade_id] = float(metadata.points)
    return lab


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
                job, verdicts = Path(folder, "job"), Path(folder, "verdicts")
                job.write_text(json.dumps(cells))
                verdicts.touch()
                request = {
                    "job": str(job),
                    "verdicts": str(verdicts),
                    "slot": self.slot,
                    "limits": limits,
                }
                with contextlib.suppress(BrokenPipeError):  # then nothing comes back
                    print(json.dumps(request), file=self.process.stdin, flush=True)
                end = self.process.stdout.readline().strip()
                if end:
                    return end, [json.loads(line) for line in verdicts.read_text().splitlines()]
                self.close()
                self.start()
        raise ChildProcessError("the process that judges has failed; what it said stands above")

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
    verdicts: dict[str, dict[str, Any]] = {}
    while True:
        end, lines = judge.run(list(wanted.values()), **limits)
        last_begun = ""
        for line in lines:
            last_begun = line.get("begins", last_begun)
            if "check" in line:
                verdicts[line["check"]] = line
                del wanted[line["check"]]
        if end == "done" or last_begun not in wanted:
            break
        if wanted[last_begun]["kind"] == "answer" and last_begun in stubs:
            wanted[last_begun] = stubs.pop(last_begun)
        else:
            verdicts[last_begun] = {"passed": False, "text": WHY[end]}
            del wanted[last_begun]
    missing = {"passed": False, "text": "the judge never came to it"}
    return {exercise: verdicts.get(f"check-{exercise}", missing) for exercise in lab.points}


def grade(judge: Judge, lab: Lab, copy: Copy, graded: Path, again: bool) -> str:
    """Grade a learner's copy, and write down what was found; returns a line about it."""
    begun = time.monotonic()
    path = graded / copy.student / f"{lab.slug}.json"
    # MOSS and JPlag compare Python files.
    python = graded / "answers" / lab.slug / f"{copy.student}.py"
    for file in (path, python):
        file.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("\n\n".join(copy.written.answers.values()), encoding="utf-8")
    if lab.by_hand:
        path.with_name(f"{lab.slug}_{BY_HAND}.md").write_text(copy.prose, encoding="utf-8")
    cells = copy.written.cells
    digest = hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()
    if not again and path.exists() and json.loads(path.read_text())["digest"] == digest:
        return ""
    points = {}
    messages = {}
    paragraphs = []
    for exercise, verdict in judged(judge, lab, cells).items():
        most = lab.points[exercise]
        points[exercise] = most if verdict["passed"] else 0.0
        messages[exercise] = verdict["text"]
        paragraphs.append(f"{exercise}: {points[exercise]:g} of {most:g}\n{verdict['text']}\n")
    result = {"digest": digest, "points": points, "said": messages}
    path.write_text(json.dumps(result, indent=1))
    path.with_suffix(".txt").write_text("\n".join(paragraphs))
    sums = f"{sum(points.values()):g} of {sum(lab.points.values()):g}"
    return f"{copy.student} {lab.slug}: {sums} in {time.monotonic() - begun:.1f} s"


def grade_all(
    copies: list[Copy], labs: dict[str, Lab], graded: Path, again: bool, jobs: int
) -> None:
    """Grade side by side, and say how it went."""
    why = sandbox.refused()
    if why:
        print(SENTENCE.format(why), file=sys.stderr)
    begun = time.monotonic()
    judges: SimpleQueue[Judge] = SimpleQueue()
    jobs = min(jobs, len(copies))
    for slot in range(jobs):
        judges.put(Judge(not why, slot))

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
            judges.get().close()
    seconds = time.monotonic() - begun
    print(f"{new} of {len(copies)} graded in {seconds:.0f} s; the rest is as it was.")


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where submitted/ is")
    parser.add_argument("--only", nargs="*", default=[], help="labs, such as 2; all if none")
    parser.add_argument("--who", help="one learner, who is graded again")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 3))
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


def grade_folder(folder: Path, args: argparse.Namespace) -> None:
    """Do what the command line asks.

    Raises:
        BuildError: Something is wrong with the folder; nothing has been graded.
    """
    root = args.root.resolve()
    chosen = [target.built.stem for target in handout.labs_of(root, args.only)]
    labs = {target.built.stem: lab(target) for target in handout.labs_of(root)}
    learners = class_files.read_class(folder / "class.txt")
    cells = {slug: of_slug.cells for slug, of_slug in labs.items()}
    rows, copies = submissions.collect(folder / "submitted", learners, cells)
    possible = {slug: of_slug.points | of_slug.by_hand for slug, of_slug in labs.items()}
    marks = class_files.read_marks(folder / "marks.csv", learners, possible)
    wanted = []
    for copy in sorted(copies):
        if copy.lab in chosen and args.who in (None, copy.student):
            wanted.append(copy)
    if not wanted:
        whose = f" of {args.who}" if args.who else ""
        where = f"put each learner's notebooks into {folder}/submitted/NAME/"
        raise BuildError(f"there is nothing{whose} to grade: {where}")
    begun_labs = {row.lab for row in rows if row.lab}
    rows += submissions.missing(rows, learners, chosen if args.only else sorted(begun_labs))
    graded = folder / "graded"
    grade_all(wanted, labs, graded, bool(args.who), args.jobs)
    export.write(graded, rows, marks, learners.all(), possible)
    print(f"{graded}: grades.csv, submissions.csv, statistics.csv")
    for row in rows:
        if row.what == submissions.NOT_GRADED:
            print(f"{row.student}: {row.file} is NOT GRADED: {row.why}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
