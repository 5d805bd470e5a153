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
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from course_tools import PACKAGES
from course_tools.grading import class_files, export, handout, learner_cells, sandbox, submissions
from course_tools.grading.learner_cells import Written, to_judge
from course_tools.learner import copies
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
UNDONE = """\
Not graded: {}. The process that judges failed meanwhile; what it said stands above. Run the same
command again.
"""


class Lab(NamedTuple):
    """What the teacher's notebook says: cells for the judge, and how to find answers."""

    slug: str
    cells: list[dict[str, Any]]
    points: dict[str, float]  # by check
    by_hand: dict[str, float]  # points that a person gives, by exercise
    prose: str  # the id of the cell that a person reads

    def possible(self) -> dict[str, float]:
        """The points of each exercise, and of what a person reads."""
        points = {export.exercise(check): most for check, most in self.points.items()}
        return points | self.by_hand


class Work(NamedTuple):
    """One lab of one learner."""

    who: str
    lab: Lab
    notebook: Path


def lab(target: build.Target) -> Lab:
    """Read a lab's source."""
    text = target.source.read_text(encoding="utf-8")
    teachers = handout.graded(read_percent(text))
    learners = read_percent(text, cut=True)
    cells: list[dict[str, Any]] = []
    points: dict[str, float] = {}
    by_hand: dict[str, float] = {}
    prose = ""
    for cell, stub in zip(teachers.cells, learners.cells, strict=True):
        metadata = cell.metadata.get("nbgrader")
        if cell.cell_type == "code":
            cells.append(learner_cells.for_the_judge(cell, stub.id))
            if metadata.grade:
                points[metadata.grade_id] = float(metadata.points)
        elif metadata:
            by_hand[metadata.grade_id] = float(metadata.points)
            prose = stub.id
    return Lab(target.built.stem, cells, points, by_hand, prose)


def prose_of(path: Path, lab: Lab) -> str:
    """What a person is to read in a notebook: the cell of that id or of that tag."""
    for cell in learner_cells.read(path).get("cells", []):
        has_tag = handout.BY_HAND in str(cell.get("metadata"))
        if has_tag or cell.get("id") == lab.prose:
            return "".join(map(str, cell.get("source", "")))
    return ""


class JudgeFailed(RuntimeError):
    """The judge's own process has failed, which is no word about a submission."""


class Judge:
    """The server of `judge`, and how to ask it."""

    def __init__(self, contained: bool, slot: int) -> None:
        self.slot = slot
        command = [sys.executable, "-s", "-m", "course_tools.grading.judge"]
        if not contained:
            command.append("--bare")
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
            command, env=environment, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, cells: list[dict[str, Any]], **limits: Any) -> tuple[str, list[dict[str, Any]]]:
        """How it ended, and the verdicts; limits are those of `sandbox.Limits`."""
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
            end = (self.process.stdout or io.StringIO()).readline().strip()
            if not end:
                raise JudgeFailed
            return end, [json.loads(line) for line in verdicts.read_text().splitlines()]

    def close(self) -> None:
        """End the server."""
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()


def judged(judge: Judge, lab: Lab, learners: Written, **limits: Any) -> dict[str, Any]:
    """What each check says of a submission.

    Where an answer ends even the judge, it is left out and what it kept from being judged is
    judged again. So it costs its own points and no others.
    """
    answers = dict(learners.answers)
    verdicts: dict[str, dict[str, Any]] = {}
    for _ in range(2 * len(lab.cells)):
        submission = learners._replace(answers=answers)
        cells = [cell for cell in to_judge(lab.cells, submission) if cell["name"] not in verdicts]
        end, lines = judge.run(cells, **limits)
        last_begun = ""
        for line in lines:
            if "check" in line:
                verdicts[line["check"]] = line
            last_begun = line.get("begins", last_begun)
        if end == "done":
            break
        if last_begun in answers:
            del answers[last_begun]
        elif last_begun in lab.points and last_begun not in verdicts:
            verdicts[last_begun] = {"passed": False, "text": WHY[end]}
        else:
            break
    missing = {"passed": False, "text": "the judge never came to it"}
    return {name: verdicts.get(name, missing) for name in lab.points}


def grade(judge: Judge, work: Work, folder: Path, again: bool) -> str:
    """Grade a lab of a learner, and write down what was found; returns a line about it."""
    begun = time.monotonic()
    path = folder / "graded" / work.who / f"{work.lab.slug}.json"
    learners = learner_cells.written(work.notebook, work.lab.cells)
    _write_texts(work, learners.answers, folder / "graded")
    judged_text = json.dumps([learners, work.lab.cells], sort_keys=True)
    digest = hashlib.sha256(judged_text.encode()).hexdigest()
    if not again and path.exists() and json.loads(path.read_text())["digest"] == digest:
        return ""
    verdicts = judged(judge, work.lab, learners)
    points = _write_verdicts(path, digest, work.lab, verdicts)
    sums = f"{points:g} of {sum(work.lab.points.values()):g}"
    seconds = time.monotonic() - begun
    return f"{work.who} {work.lab.slug}: {sums} in {seconds:.1f} s"


def _write_verdicts(
    path: Path, digest: str, lab: Lab, verdicts: dict[str, dict[str, Any]]
) -> float:
    """Write what was found, for the tables as JSON and for a person as text; returns the points."""
    points = {}
    texts = {}
    paragraphs = []
    for check, most in lab.points.items():
        verdict = verdicts[check]
        points[check] = most if verdict["passed"] else 0.0
        texts[check] = verdict["text"]
        headline = f"{export.exercise(check)}: {points[check]:g} of {most:g}"
        paragraphs.append(f"{headline}\n{texts[check]}\n")
    result = {
        "digest": digest,
        "points": points,
        "of": lab.points,
        "by_hand": lab.by_hand,
        "said": texts,
    }
    path.write_text(json.dumps(result, indent=1))
    path.with_suffix(".txt").write_text("\n".join(paragraphs))
    return sum(points.values())


def _write_texts(work: Work, answers: dict[str, str], graded: Path) -> None:
    """What a person reads, and what other programs compare: MOSS and JPlag take Python files."""
    python = graded / "answers" / work.lab.slug / f"{work.who}.py"
    prose = graded / work.who / f"{work.lab.slug}_{handout.BY_HAND}.md"
    for path in (python, prose):
        path.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("\n\n".join(answers.values()), encoding="utf-8")
    if work.lab.prose:
        prose.write_text(prose_of(work.notebook, work.lab), encoding="utf-8")


def grade_all(
    works: list[Work], folder: Path, again: bool, jobs: int, contained: bool
) -> tuple[int, list[str]]:
    """Grade side by side; returns how many were new, and which could not be graded."""
    judges = [Judge(contained, slot) for slot in range(min(jobs, len(works)))]
    idle: SimpleQueue[Judge] = SimpleQueue()
    undone: list[str] = []
    for judge in judges:
        idle.put(judge)

    def with_a_judge(work: Work) -> bool:
        """Whether it was new."""
        judge, line = idle.get(), ""
        try:
            line = grade(judge, work, folder, again)
        except JudgeFailed:  # the others are graded all the same
            undone.append(f"{work.who} {work.lab.slug}")
            judge.close()
            judge = Judge(contained, judge.slot)
            judges.append(judge)
        finally:
            idle.put(judge)
        if line:
            print(line, flush=True)
        return bool(line)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            return sum(pool.map(with_a_judge, works)), undone
    finally:
        for judge in judges:
            judge.close()


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where submitted/ is")
    parser.add_argument("--only", nargs="*", default=[], help="labs, such as 2; all if none")
    parser.add_argument("--who", help="one learner, who is graded again")
    parser.add_argument("--again", action="store_true", help="grade also what has not changed")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 3))
    parser.add_argument("--root", type=Path, default=build.ROOT, help="the project's folder")
    args = parser.parse_args(argv)
    args.folder = args.folder.expanduser()
    try:
        with handout.private(args.folder):
            return grade_folder(args)
    except (BuildError, OSError) as error:
        print(f"nothing graded: {error}", file=sys.stderr)
        return 1


def grade_folder(args: argparse.Namespace) -> int:
    """Do what the command line asks; returns the exit status.

    Raises:
        BuildError: Something is wrong with the folder; nothing has been graded.
    """
    folder, root = args.folder.resolve(), args.root.resolve()
    chosen = [target.built.stem for target in handout.labs_of(root, args.only)]
    labs = {target.built.stem: lab(target) for target in handout.labs_of(root)}
    learners = class_files.read_class(folder / "class.txt")
    rows = handed_in(folder, root, learners, labs)
    possible = {slug: known.possible() for slug, known in labs.items()}
    marks = class_files.read_marks(folder / "marks.csv", learners, possible)
    works = []
    for row in rows:
        is_wanted = row.lab in chosen and args.who in (None, row.student)
        if row.what == submissions.GRADED and is_wanted:
            works.append(Work(row.student, labs[row.lab], folder / "submitted" / row.file))
    begun_labs = {row.lab for row in rows if row.lab}
    rows += submissions.missing(rows, learners, chosen if args.only else sorted(begun_labs))
    if not works:
        whose = f" of {args.who}" if args.who else ""
        raise BuildError(f"there is nothing{whose} in {folder / 'submitted'}")
    undone = grade_works(works, folder, args)
    export.write(folder / "graded", rows, marks, learners.all())
    print(f"{folder / 'graded'}: grades.csv, submissions.csv, statistics.csv")
    print(*strays(rows), sep="\n", file=sys.stderr)
    if undone:
        print(UNDONE.format(", ".join(undone)), file=sys.stderr)
    return 1 if undone else 0


def handed_in(
    folder: Path, root: Path, learners: class_files.Learners, labs: dict[str, Lab]
) -> list[submissions.Row]:
    """What learners have handed in, and what becomes of each file."""

    def find(path: Path, slug: str) -> Written:
        return learner_cells.written(path, labs[slug].cells)

    of_the_course = {path.name for path in (root / "notebooks").rglob("*")}
    known = of_the_course | {copies.MY_MAP}
    return submissions.collect(submitted(folder), learners, list(labs), find=find, known=known)


def grade_works(works: list[Work], folder: Path, args: argparse.Namespace) -> list[str]:
    """Grade what is new, and say how it went; returns what could not be graded."""
    why = sandbox.refused()
    if why:
        print(SENTENCE.format(why), file=sys.stderr)
    begun = time.monotonic()
    again = args.again or bool(args.who)
    new, undone = grade_all(works, folder, again, args.jobs, contained=not why)
    seconds = time.monotonic() - begun
    print(f"{new} of {len(works)} graded in {seconds:.0f} s; the rest is as it was.")
    return undone


def submitted(folder: Path) -> Path:
    """Where learners' files are.

    Raises:
        BuildError: There are none.
    """
    path = folder / "submitted"
    if not path.is_dir() or not any(path.iterdir()):
        raise BuildError(f"put each learner's notebooks into {path}/NAME/")
    return path


def strays(rows: list[submissions.Row]) -> Iterator[str]:
    """What a teacher has to look at: what is not graded, and how much is missing or ignored."""
    counted = Counter(row.what for row in rows)
    for row in rows:
        if row.what == submissions.NOT_GRADED:
            yield f"{row.student}: {row.file} is NOT GRADED: {row.why}"
    for what in (submissions.IGNORED, submissions.MISSING):
        if counted[what]:
            yield f"{counted[what]} {what}: submissions.csv says which and why"


if __name__ == "__main__":
    sys.exit(main())
