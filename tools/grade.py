"""Grades what learners have handed in, each submission in a sandbox of its own: `make grade`.

    python tools/grade.py FOLDER              all that is new or has changed
    python tools/grade.py FOLDER --only 02    one lab
    python tools/grade.py FOLDER --who ada    one learner, again

FOLDER/submitted/NAME/ has a learner's notebooks, in any folders below: as nbgrader released them,
or the learner's own copies. FOLDER/graded/NAME/ gets what each check said; FOLDER/graded/ gets
grades.csv, canvas.csv and moodle.csv. Of a notebook only the text of the answers' cells is used.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import re
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
import variants
from cells import BuildError, cut_solution, read_percent
from learners_cells import Written, to_judge, written
from sealed import bound

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
    models: dict[str, str]  # by the answer's name, the solution; no judge sees it


class Work(NamedTuple):
    """One lab of one learner."""

    who: str
    lab: Lab
    notebook: Path


def labs_of(root: Path, names: Iterable[str]) -> list[build.Target]:
    """The labs of these numbers, or all."""
    return [t for t in build.targets(root, names) if t.built.parent.name == "solutions"]


def lab(target: build.Target, who: str = "", key: bytes | None = None) -> Lab:
    """Read a lab's source, with a learner's variants in it where there is a secret."""
    slug, text = target.built.stem, target.source.read_text(encoding="utf-8")
    if key:
        root = target.built.parents[1]
        text = variants.varied(root, slug, text, variants.picked(root, slug, who, key))
    full, stubs = handout.graded(read_percent(text)), read_percent(text, cut=True)
    made = Lab(slug, [], {}, {}, {})
    for cell, stub in zip(full.cells, stubs.cells, strict=True):
        if cell.cell_type != "code":
            continue
        about = cell.metadata.nbgrader
        one = {"name": about.grade_id, "kind": "other", "text": cell.source, "id": stub.id}
        if about.solution:
            functions, values = bound(cell.source)
            one |= {"kind": "answer", "functions": functions, "values": values}
            one["text"], made.models[about.grade_id] = cut_solution(cell.source), cell.source
            made.answers[stub.id] = about.grade_id
        elif about.grade:
            one["kind"] = "check"
            made.points[about.grade_id] = float(about.points)
        made.cells.append(one)
    return made


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


def judged(judge: Judge, lab: Lab, learners: Written, **limits: Any) -> dict[str, Any]:
    """What each check says of a submission.

    Where an answer ends even the judge, it is left out and what it kept from being judged is
    judged again. So it costs its own points and no others.
    """
    answers, found = dict(learners.answers), {}
    for _ in range(2 * len(lab.cells)):
        cells = to_judge(lab.cells, learners._replace(answers=answers))
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


def submissions(
    folder: Path, targets: Iterable[build.Target], key: bytes | None, who: str | None
) -> list[Work]:
    """What there is to grade: of each lab the newest notebook of each learner."""
    found, read = [], functools.cache(lab)
    for own in learners(folder):
        there = sorted((p.stem.removeprefix("lab_"), p) for p in own.rglob("*.ipynb"))
        for target in targets if who in (None, own.name) else ():
            if mine := [path for stem, path in there if _is_of(stem, target.built.stem)]:
                found.append(Work(own.name, read(target, own.name if key else "", key), mine[-1]))
    return found


def grade(judge: Judge, work: Work, folder: Path, again: bool) -> str:
    """Grade a lab of a learner, and write down what was found; returns a line about it."""
    kept = folder / "graded" / work.who / f"{work.lab.slug}.json"
    begun, why = time.monotonic(), ""
    try:
        learners = written(work.notebook, work.lab.cells)
        if not learners.answers:
            why = learners.remarks[0]
    except ValueError as error:
        learners, why = Written({}, {}, []), str(error)
    told = json.dumps([learners, work.lab.cells, why], sort_keys=True)
    digest = hashlib.sha256(told.encode()).hexdigest()
    if kept.exists() and not again and json.loads(kept.read_text())["digest"] == digest:
        return ""
    nothing = {name: {"passed": False, "text": why} for name in work.lab.points}
    found = nothing if why else judged(judge, work.lab, learners)
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
    parser.add_argument("--roster", type=Path, help="a class list that Canvas or Moodle exported")
    parser.add_argument("--root", type=Path, default=build.HERE, help="the project's folder")
    args = parser.parse_args(argv)
    folder = args.folder.resolve()
    try:
        targets = labs_of(args.root.resolve(), args.only)
        works = submissions(folder, targets, variants.secret(folder), args.who)
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
    print(*export.write(folder / "graded", args.roster), sep="\n")
    if undone:
        print(UNDONE.format(", ".join(undone)), file=sys.stderr)
    return 1 if undone else 0


if __name__ == "__main__":
    sys.exit(main())
