"""The course as a learner has it: a clone, which `git pull` updates; and an update to pull."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copyfile

import nbformat

from course_tools.notebooks import build

ROOT = Path(__file__).resolve().parents[2]
NAMED = ["-c", "user.name=course", "-c", "user.email=course@localhost"]
STUB = "def place_of(processes):\n"
NEW_STUB = f"{STUB}    # count through the nodes\n"


def git(folder: Path, *command: str) -> str:
    """What git prints, in that folder."""
    return subprocess.run(
        ["git", *NAMED, *command], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def published(folder: Path) -> Path:
    """A repository of the working tree as it is, also of what is not committed yet."""
    for name in git(ROOT, "ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    _commit(folder)
    return folder


def cloned(upstream: Path, folder: Path) -> Path:
    """A clone in which `make` finds the environment of these tests installed and up to date."""
    git(upstream, "clone", "--quiet", ".", str(folder))
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        (folder / ".venv" / path.name).symlink_to(path)
    for name in (".ready", ".teach", ".extras"):
        (folder / ".venv" / name).unlink(missing_ok=True)
        (folder / ".venv" / name).touch()
    return folder


def make(folder: Path, *words: str, **more: str) -> tuple[list[str], dict[str, str]]:
    """A command of `make` and its environment, whoever runs these tests."""
    outer = ("MAKE", "MFLAGS", "COURSE_MY")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return ["make", *words], inherited | {"PYTHONPATH": str(folder)} | more


def improve_a_stub(upstream: Path) -> None:
    """Commit what a teacher would: in lab 02 a stub says more; outputs are as they were."""
    source = upstream / "source/labs/02_process_groups.py"
    text = source.read_text(encoding="utf-8")
    assert STUB in text
    source.write_text(text.replace(STUB, NEW_STUB), encoding="utf-8")
    for target in build.targets(upstream, ["02_process_groups"]):
        new, old = build.plan(target), nbformat.read(target.built, as_version=4)
        for cell, before in zip(new.cells, old.cells, strict=True):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = before.outputs, before.execution_count
        target.built.write_text(nbformat.writes(new) + "\n", encoding="utf-8")
    _commit(upstream)


def _commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=The course")
