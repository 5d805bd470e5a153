"""Makes a folder in which nbgrader hands out and grades labs: `make handout to=FOLDER`.

    python -m course_tools.grading.handout --to FOLDER                 all labs
    python -m course_tools.grading.handout --to FOLDER 02              one, by its number
    python -m course_tools.grading.handout --to FOLDER --repository    the course without solutions

FOLDER/source/NN_slug/NN_slug.ipynb is a lab as its source says, in nbgrader's form: answers to be
written, checks to be graded, every other code cell locked. Beside it lies AGENTS.md, which says
what an assistant may tell of an exercise. Two tags of a check's cell count:

    points-3       it is worth three points, not one
    hidden-3-7     when graded it also has to pass on 3 and on 7 ranks; the hand-out does not say so
"""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_tools.commands import parser_of
from course_tools.grading.answers_as_text import bound
from course_tools.grading.class_files import called
from course_tools.grading.learner_cells import BY_HAND
from course_tools.learner.copies import ADVICE
from course_tools.notebooks import build
from course_tools.notebooks.cells import BuildError

HIDDEN = """
### BEGIN HIDDEN TESTS
from course_tools.grading.answers_as_text import require

require({more})
### END HIDDEN TESTS"""
# What learners need of the course; notebooks/ has the answers to no graded exercise. Of the tests
# those of the library, with their helpers: `make quick` says whether it works here.
LEARNERS = (
    "course_utils", "course_material", "course_checks", "course_cluster", "course_challenge",
    "course_lessons", "course_lint", "course_museum", "course_testing", "course_tools",
    "notebooks", "exercises",
    "ddp_course.py", "Makefile", "README.md", "README.zh.md", "LICENSE", "CITATION.cff",
    "pyproject.toml", "constraints.txt",
    "environment.yml", ".gitignore", "source/articles.toml", "source/devices.toml", "source/zh",
    "source/pictures",
    "tests/devices", "tests/hang", "tests/launcher", "tests/network", "tests/pictures",
    "tests/record", "tests/root", "tests/conftest.py", "tests/helpers/startup",
    "tests/helpers/census.py", "tests/helpers/circles.py", "tests/helpers/deadline.py",
    "tests/helpers/faults.py", "tests/helpers/faults_around.py", "tests/helpers/faults_kernel.py",
    "tests/helpers/forks.py", "tests/helpers/hangs.py", "tests/helpers/kernels.py",
    "tests/helpers/leavings.py", "tests/helpers/mnist_files.py", "tests/helpers/queues.py",
    "tests/helpers/pretended_driver.c", "tests/helpers/recordings.py", "tests/helpers/spent.py",
    "tests/helpers/second_device.py", "tests/helpers/stalls.py",
    "tests/helpers/warm_kernels.py",
)  # fmt: skip
# What documents, English and Chinese, say of files and commands that learners do not have.
FOR_TEACHERS = re.compile(
    r"make (test|gpu)\b|in `solutions/`|\]\((\.\./)*(teaching|docs|articles|CONTRIBUTING|CHANGELOG)"
)
PIECE = re.compile(
    r"^(?:\||- | {4})[^\n]*\n"  # a row of a table, an item, or a line of code
    r"|[^\n]\S*.*?(?:\.(?=\s)|。|(?=\n\n|\Z))",  # a sentence
    re.MULTILINE | re.DOTALL,
)
LEFT = "__pycache__", ".ipynb_checkpoints", "zh"  # what is built in Chinese is built anew
CONFIG = """\
# Written by course_tools.grading.handout. Add what else nbgrader shall know below.
import pathlib

from course_tools.grading.nbgrader_plugin import configure

configure(get_config(), pathlib.Path(__file__).resolve().parent)
"""


def checked(text: str) -> str:
    """The name of the answer that a cell checks, as `check(answer)` or `check(saving(answer))`."""
    call = re.search(r"^check\(\s*(?P<given>[^,)]*)", text, re.MULTILINE)
    if call is None:
        return ""
    given = call["given"]
    *_around, name = given.split("(")
    if not name.isidentifier():
        raise BuildError(f"check is given {given}, which has no name to grade it by")
    return name


def graded(notebook: NotebookNode) -> NotebookNode:
    """Return a lab's notebook with nbgrader's metadata and hidden checks.

    Raises:
        BuildError: It cannot be graded; the message says why.
    """
    grade_ids = set()
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        points = _numbers("points", tags)
        if cell.cell_type != "code":
            if BY_HAND in tags:
                cell.metadata.nbgrader = _metadata(BY_HAND, solution=True, points=sum(points))
            continue
        cell.metadata.pop("tags", None)
        name = checked(cell.source)
        if "### BEGIN SOLUTION" in cell.source:
            functions, values = bound(cell.source)
            first_name = (values or functions)[0]
            cell.metadata.nbgrader = _metadata(f"answer-{first_name}", solution=True)
        elif name:
            cell.metadata.nbgrader = _metadata(f"check-{name}", points=sum(points or [1]))
            more = ""
            sizes = tuple(_numbers("hidden", tags))
            if sizes:
                more = f"world_sizes={sizes}"
            cell.source += HIDDEN.format(more=more)
        elif points:
            where = f"belongs to the cell with the check, not to\n{cell.source}"
            raise BuildError(f"points-{points[0]} {where}")
        else:
            cell.metadata.nbgrader = _metadata(f"cell-{cell.id}")
        grade_id = cell.metadata.nbgrader["grade_id"]
        if grade_id in grade_ids:
            raise BuildError(f"there are two cells {grade_id}")
        grade_ids.add(grade_id)
    return notebook


def _metadata(grade_id: str, solution: bool = False, points: int | None = None) -> dict[str, Any]:
    """nbgrader's metadata of a cell: an answer, what has points, both, or one nobody changes."""
    metadata = {
        "schema_version": 3,
        "grade_id": grade_id,
        "grade": points is not None,
        "solution": solution,
        "locked": not solution,
        "task": False,
    }
    if points is not None:
        metadata["points"] = points
    return metadata


def _numbers(kind: str, tags: list[str]) -> list[int]:
    """Those of the tag `kind-1-2-3`."""
    for tag in tags:
        name, *numbers = tag.split("-")
        if name == kind:
            return [int(number) for number in numbers]
    return []


def labs_of(root: Path, names: Sequence[str] = ()) -> list[build.Target]:
    """The labs of these numbers, or all.

    Raises:
        BuildError: There is no such lab.
    """
    labs = {}
    for target in build.targets(root):
        if target.built.parent.name == "solutions":
            labs[target.built.stem] = target
    chosen = []
    for name in names:
        slugs = called(name, labs)
        if not slugs:
            known = ", ".join(labs)
            raise BuildError(f"no lab is called {name}; there are: {known}")
        chosen += [labs[slug] for slug in slugs]
    return chosen or list(labs.values())


def hand_out(folder: Path, names: list[str], root: Path) -> list[str]:
    """Write the labs' sources and the configuration; returns the labs' names."""
    targets = labs_of(root, names)
    for target in targets:
        try:
            notebook = build.plan(target)
            notebook = graded(notebook)
        except BuildError as error:
            source = target.source.relative_to(root)
            raise BuildError(f"{source}: {error}") from None
        folder_of_lab = folder / "source" / target.built.stem
        folder_of_lab.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder_of_lab / target.built.name)
        shutil.copy(ADVICE, folder_of_lab)
    config = folder / "nbgrader_config.py"
    if not config.exists():
        config.write_text(CONFIG)
    return [target.built.stem for target in targets]


@contextlib.contextmanager
def private(folder: Path) -> Iterator[None]:
    """What is written meanwhile, and all of the folder, is for its owner only."""
    before = os.umask(0o077)
    try:
        if folder.exists() and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
            print(f"{folder} is now for you only: it has solutions, answers or grades.")
        yield
    finally:
        os.umask(before)


def withheld(root: Path, folder: Path) -> None:
    """Copy what learners need of the course, and no solutions."""
    if folder.exists():
        raise BuildError(f"{folder} is there already: name a folder that is not")
    for name in LEARNERS:
        path = root / name
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            left = shutil.ignore_patterns(*LEFT)
            shutil.copytree(path, copy, ignore=left)
        else:
            shutil.copy(path, copy)
    shutil.copy(ADVICE, folder)
    for path in folder.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        text = PIECE.sub(_for_learners, text)
        path.write_text(text, encoding="utf-8")
    for path in (folder, *folder.rglob("*")):  # others are to read it, whatever the umask is
        mode = 0o644
        if path.is_dir() or path.stat().st_mode & 0o100:
            mode = 0o755
        path.chmod(mode)


def _for_learners(piece: re.Match[str]) -> str:
    """A piece of a document, or nothing if it is about what only teachers have."""
    text = piece[0]
    if FOR_TEACHERS.search(text):
        return ""
    return text


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="labs, such as 02_process_groups; all if none")
    parser.add_argument("--to", type=Path, required=True, help="the folder to make or to renew")
    parser.add_argument("--root", type=Path, default=build.ROOT, help="the project's folder")
    parser.add_argument("--repository", action="store_true", help="the course, without solutions")
    args = parser.parse_args(argv)
    to = args.to.expanduser().resolve()
    root = args.root.resolve()
    try:
        if args.repository:
            withheld(root, to)
            print(f"{args.to}: the course without its solutions; learners run `make lab` there.")
        else:
            with private(to):
                labs = hand_out(to, args.names, root)
            names = ", ".join(labs)
            print(f"{args.to}: {names}; teaching/README.md says what to do there.")
    except (BuildError, OSError) as error:
        print(f"nothing handed out: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
