"""Grades what learners have handed in, each submission in a sandbox of its own: `make grade`.

    python tools/grade.py FOLDER              all that is new or has changed
    python tools/grade.py FOLDER --only 02    one lab
    python tools/grade.py FOLDER --who ada    one learner, again

FOLDER/submitted/NAME/ has a learner's notebooks, in any folders below: as nbgrader released them,
or the learner's own copies. FOLDER/graded/NAME/ gets what each check said, FOLDER/graded/ gets
grades.csv. Of a notebook only the text of the answers' cells is used.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import build
import export
import handout
import sandbox
from cells import BuildError, cut_solution, read_percent
from sealed import bound

LARGEST = 20 << 20  # bytes of a notebook that is read
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
Not graded: {}. The process that judges (judge.py) failed meanwhile; what it said stands above. Run
the same command again.
"""


class Lab(NamedTuple):
    """What the teacher's notebook says: cells for the judge, and how to find answers."""

    slug: str
    cells: list[dict[str, Any]]
    points: dict[str, float]  # by check
    answers: dict[str, str]  # by id of the exercise's cell, the answer's name


class Work(NamedTuple):
    """One lab of one learner."""

    who: str
    lab: Lab
    notebook: Path


def labs_of(root: Path, names: Iterable[str]) -> list[build.Target]:
    """The labs of these numbers, or all."""
    return [t for t in build.targets(root, names) if t.built.parent.name == "solutions"]


def lab(target: build.Target) -> Lab:
    """Read a lab's source."""
    text = target.source.read_text(encoding="utf-8")
    full, stubs = handout.graded(read_percent(text)), read_percent(text, cut=True)
    made = Lab(target.built.stem, [], {}, {})
    for cell, stub in zip(full.cells, stubs.cells, strict=True):
        if cell.cell_type != "code":
            continue
        about = cell.metadata.nbgrader
        one = {"name": about.grade_id, "kind": "other", "text": cell.source}
        if about.solution:
            functions, values = bound(cell.source)
            one |= {"kind": "answer", "functions": functions, "values": values}
            one["text"] = cut_solution(cell.source)
            made.answers[stub.id] = about.grade_id
        elif about.grade:
            one["kind"] = "check"
            made.points[about.grade_id] = float(about.points)
        made.cells.append(one)
    return made


def texts(path: Path, lab: Lab) -> dict[str, str]:
    """The answers in a notebook, by name; whatever else may be in the file.

    Raises:
        ValueError: It is no notebook; the message says why.
    """
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
        raise ValueError(f"{path.name} is no plain file of at most {LARGEST >> 20} MB")
    try:
        cells = json.loads(path.read_bytes())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is no notebook: {type(error).__name__}") from None
    found = {}
    for cell in code:
        meta, source = cell.get("metadata"), cell.get("source", "")
        own = meta.get("nbgrader") if isinstance(meta, dict) else None
        name = (
            own.get("grade_id") if isinstance(own, dict) else lab.answers.get(str(cell.get("id")))
        )
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if name in lab.answers.values():
            found[name] = text
    return found


class JudgeFailed(RuntimeError):
    """The judge's own process has failed, which is no word about a submission."""


class Judge:
    """A server, judge.py, and how to ask it."""

    def __init__(self, contained: bool, slot: int) -> None:
        command = [sys.executable, "-s", str(Path(__file__).parent / "judge.py")]
        clean = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": "/tmp"}
        clean |= {"PYTHONPATH": str(build.HERE), "USER": "nobody"}
        clean |= {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
        self.slot, self.process = slot, subprocess.Popen(
            command + ["--bare"] * (not contained), env=clean, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, cells: list[dict[str, Any]], **limits: Any) -> tuple[str, list[dict[str, Any]]]:
        """How it ended, and the verdicts; limits are those of `sandbox.Limits`."""
        with tempfile.TemporaryDirectory() as folder:
            job, verdicts = Path(folder, "job"), Path(folder, "verdicts")
            job.write_text(json.dumps(cells))
            verdicts.touch()
            asked = {"job": str(job), "verdicts": str(verdicts), "slot": self.slot}
            asked["limits"] = limits
            with contextlib.suppress(BrokenPipeError):  # then nothing comes back
                print(json.dumps(asked), file=self.process.stdin, flush=True)
            ended = (self.process.stdout or io.StringIO()).readline().strip()
            if not ended:
                raise JudgeFailed
            return ended, [json.loads(line) for line in verdicts.read_text().splitlines()]

    def close(self) -> None:
        """End the server."""
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()


def judged(judge: Judge, lab: Lab, answers: dict[str, str], **limits: Any) -> dict[str, Any]:
    """What each check says of a submission.

    Where an answer ends even the judge, it is left out and what it kept from being judged is
    judged again. So it costs its own points and no others.
    """
    answers, found = dict(answers), {}
    for _ in range(2 * len(lab.cells)):
        cells = [cell | {"text": answers.get(cell["name"], cell["text"])} for cell in lab.cells]
        ended, said = judge.run([cell for cell in cells if cell["name"] not in found], **limits)
        found |= {one["check"]: one for one in said if "check" in one}
        if ended == "done":
            break
        last = next((one["begins"] for one in reversed(said) if "begins" in one), "")
        if last in answers:
            del answers[last]
        elif last in lab.points and last not in found:
            found[last] = {"passed": False, "text": WHY[ended]}
        else:
            break
    missing = {"passed": False, "text": "the judge never came to it"}
    return {name: found.get(name, missing) for name in lab.points}


def learners(folder: Path) -> list[Path]:
    """Their folders.

    Raises:
        BuildError: There are none.
    """
    found = sorted(path for path in folder.glob("submitted/*") if path.is_dir())
    if not found:
        raise BuildError(f"put each learner's notebooks into {folder / 'submitted'}/NAME/")
    return found


def _is_of(stem: str, slug: str) -> bool:
    return re.fullmatch(rf"(lab_)?{re.escape(slug)}[\d_-]*", stem) is not None


def left_out(folder: Path, root: Path) -> list[Path]:
    """Notebooks whose names are no lab's, such as what a browser has called `... (1).ipynb`."""
    slugs = {target.built.stem for target in labs_of(root, [])}
    there = (path for own in learners(folder) for path in sorted(own.rglob("*.ipynb")))
    return [
        path.relative_to(folder)
        for path in there
        if ".ipynb_checkpoints" not in path.parts
        and not path.stem.startswith(("lesson_", "challenge"))  # who hands in all of my/
        and not any(_is_of(path.stem, slug) for slug in slugs)
    ]


def submissions(folder: Path, targets: Iterable[build.Target], who: str | None) -> list[Work]:
    """What there is to grade: of each lab the newest notebook of each learner."""
    found: list[Work] = []
    known = {target.built.stem: lab(target) for target in targets}
    for own in learners(folder):
        there = sorted((p.stem.removeprefix("lab_"), p) for p in own.rglob("*.ipynb"))
        if who not in (None, own.name):
            continue
        for slug in known:
            mine = [path for stem, path in there if _is_of(stem, slug)]
            if mine:
                found.append(Work(own.name, known[slug], mine[-1]))
    return found


def grade(judge: Judge, work: Work, folder: Path, again: bool) -> str:
    """Grade a lab of a learner, and write down what was found; returns a line about it."""
    kept = folder / "graded" / work.who / f"{work.lab.slug}.json"
    begun, why = time.monotonic(), ""
    try:
        answers = texts(work.notebook, work.lab)
    except ValueError as error:
        answers, why = {}, str(error)
    told = json.dumps([answers, work.lab.cells, why], sort_keys=True)
    digest = hashlib.sha256(told.encode()).hexdigest()
    if kept.exists() and not again and json.loads(kept.read_text())["digest"] == digest:
        return ""
    nothing = {name: {"passed": False, "text": why} for name in work.lab.points}
    found = nothing if why else judged(judge, work.lab, answers)
    result = {
        "digest": digest,
        "points": {n: p if found[n]["passed"] else 0.0 for n, p in work.lab.points.items()},
        "of": work.lab.points,
        "said": {name: found[name]["text"] for name in work.lab.points},
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result, indent=1))
    words = [f"{export.exercise(n)}: {result['points'][n]:g} of {p:g}\n{result['said'][n]}\n"
             for n, p in work.lab.points.items()]  # fmt: skip
    kept.with_suffix(".txt").write_text("\n".join(words))
    sums = f"{sum(result['points'].values()):g} of {sum(work.lab.points.values()):g}"
    seconds = time.monotonic() - begun
    return f"{work.who} {work.lab.slug}: {sums} in {seconds:.1f} s {why}".rstrip()


def grade_all(
    works: list[Work], folder: Path, again: bool, jobs: int, contained: bool
) -> tuple[int, list[str]]:
    """Grade side by side; returns how many were new, and which could not be graded."""
    judges: SimpleQueue[Judge] = SimpleQueue()
    all_judges, undone = [Judge(contained, slot) for slot in range(min(jobs, len(works)))], []
    for one in all_judges:
        judges.put(one)

    def with_a_judge(work: Work) -> bool:
        judge, line = judges.get(), ""
        try:
            line = grade(judge, work, folder, again)
        except JudgeFailed:  # the others are graded all the same
            undone.append(f"{work.who} {work.lab.slug}")
            judge.close()
            all_judges.append(judge := Judge(contained, judge.slot))
        finally:
            judges.put(judge)
        print(line, end="\n" * bool(line), flush=True)
        return bool(line)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            return sum(pool.map(with_a_judge, works)), undone
    finally:
        for one in all_judges:
            one.close()


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where submitted/ is")
    parser.add_argument("--only", nargs="*", default=[], help="labs, such as 02; all if none")
    parser.add_argument("--who", help="one learner, who is graded again")
    parser.add_argument("--again", action="store_true", help="grade also what has not changed")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 3))
    parser.add_argument("--root", type=Path, default=build.HERE, help="the project's folder")
    args = parser.parse_args(argv)
    folder = args.folder.resolve()
    try:
        targets = labs_of(args.root.resolve(), args.only)
        works = submissions(folder, targets, args.who)
        for path in left_out(folder, args.root.resolve()):
            print(f"{path} is left out: its name is no lab's", file=sys.stderr)
    except (BuildError, OSError) as error:
        print(f"nothing graded: {error}", file=sys.stderr)
        return 1
    if not works:
        whose = f" of {args.who}" * bool(args.who)
        print(f"nothing{whose} to grade in {folder / 'submitted'}", file=sys.stderr)
        return 1
    if why := sandbox.refused():
        print(SENTENCE.format(why), file=sys.stderr)
    begun = time.monotonic()
    again = args.again or bool(args.who)
    new, undone = grade_all(works, folder, again, args.jobs, contained=not why)
    print(
        f"{new} of {len(works)} graded in {time.monotonic() - begun:.0f} s; the rest is as it was."
    )
    print(export.write(folder / "graded"))
    if undone:
        print(UNDONE.format(", ".join(undone)), file=sys.stderr)
    return 1 if undone else 0


if __name__ == "__main__":
    sys.exit(main())
