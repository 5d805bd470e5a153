"""A learner's own copies of the lessons and exercises: made where they are missing, never replaced.

    python tools/my.py               makes what is missing, says what has changed since
    python tools/my.py --lab         the same, then opens JupyterLab there
    python tools/my.py --fresh 03    a new copy beside the old one, with the answers moved over

The copies lie in my/, or where the environment's COURSE_MY says, such as a home on a shared server.
A copy has no outputs. It knows its original: the notebook's metadata holds, for every cell, the
digest of the text that was copied, so a cell that the learner has edited is known by its text.
"""

import argparse
import datetime
import hashlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parents[1]
FOLDERS = {"lesson": "notebooks", "lab": "exercises"}
LINK = re.compile(r"\]\((?:\.\./(notebooks|exercises|solutions)/)?([0-9]+_\w+\.ipynb|README\.md)")


def home(root: Path) -> Path:
    """The folder of the copies."""
    return Path(os.environ.get("COURSE_MY") or root / "my").expanduser().resolve()


def originals(root: Path) -> dict[str, Path]:
    """The original of every copy, by the copy's name: `lesson_03_...` and `lab_03_...`."""
    return {
        f"{kind}_{path.stem}": path
        for kind, folder in FOLDERS.items()
        for path in sorted((root / folder).glob("[0-9]*_*.ipynb"))
    }


def newest(folder: Path, name: str) -> Path | None:
    """The youngest copy of that name; fresh ones have a date, and perhaps a number, behind it."""
    copies = [
        p for p in folder.glob(f"{name}*.ipynb") if re.fullmatch(r"[\d_-]*", p.stem[len(name) :])
    ]
    return max(copies, key=lambda path: path.stem, default=None)


def copied(original: Path, root: Path, folder: Path) -> NotebookNode:
    """Returns a notebook without outputs, whose links lead to the other copies."""
    notebook = nbformat.read(original, as_version=4)

    def link(match: re.Match[str]) -> str:
        where, file = match[1] or original.parent.name, match[2]
        kind = next((kind for kind, name in FOLDERS.items() if name == where), None)
        if kind and file != "README.md":
            return f"]({kind}_{file}"
        return f"]({Path(os.path.relpath(root / where / file, folder)).as_posix()}"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(link, cell.source)
        else:
            cell.outputs, cell.execution_count = [], None
    texts = {cell.id: _digest(cell.source) for cell in notebook.cells}
    notebook.metadata["course"] = {"original": original.name, "texts": texts}
    return notebook


def merged(old: NotebookNode, new: NotebookNode) -> int:
    """Moves what the learner wrote in `old` into `new`; returns how many cells that were.

    An edited cell takes the place of its original. Where that has changed as well, or where the
    learner added a cell, it stands before the cell that it stood before: behind the new stub.
    """
    texts, moved, at = old.metadata["course"]["texts"], 0, len(new.cells)
    for cell in reversed(old.cells):
        known = next((i for i, other in enumerate(new.cells) if other.id == cell.id), None)
        at = at if known is None else known
        if not cell.source.strip() or texts.get(cell.id) == _digest(cell.source):
            continue
        moved += 1
        if known is None:
            new.cells.insert(at, NotebookNode(cell, id=f"mine-{cell.id}"[:64]))
        else:
            new.cells[at].source = cell.source
        if cell.cell_type == "code":
            new.cells[at].outputs, new.cells[at].execution_count = [], None
    return moved


def lay_out(root: Path, folder: Path) -> list[str]:
    """Makes the copies that are missing; returns what there is to say."""
    said, made = [], 0
    for name, original in originals(root).items():
        wanted = copied(original, root, folder)
        if copy := newest(folder, name):
            if _cells_of_original(_read(copy)) != _cells_of_original(wanted):
                said.append(f"{copy.name} has a newer original: make fresh only={name}")
        else:
            _write(wanted, folder / f"{name}.ipynb")
            made += 1
    if made:
        said.insert(0, f"{made} notebooks of your own are in {folder.name}/: write there.")
    return said


def fresh(root: Path, folder: Path, name: str, today: datetime.date) -> str:
    """Puts a new copy, dated, beside the newest one, with the learner's answers in it."""
    original, old = originals(root)[name], newest(folder, name)
    notebook, path = copied(original, root, folder), folder / f"{name}.ipynb"
    number, moved = 1, 0
    while path.exists():
        path = folder / (f"{name}_{today}" + f"_{number}" * (number > 1) + ".ipynb")
        number += 1
    mine = _read(old) if old else None
    if mine and "course" in mine.metadata:
        moved = merged(mine, notebook)
    _write(notebook, path)
    unread = "" if mine else "could not be read, and "
    kept = f" Your {old.name} {unread}is as it was." if old else ""
    return f"New: {path.name}, with {moved} cell{'s' * (moved != 1)} that you wrote.{kept}"


def _cells_of_original(copy: NotebookNode | None) -> set[str]:
    """The ids of the cells from which a copy was made; an id is the hash of its cell's text."""
    return set(copy.metadata.get("course", {}).get("texts", {})) if copy else set()


def _read(path: Path) -> NotebookNode | None:
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError):  # such as a file with a merge's marks in it
        return None


def _write(notebook: NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:  # never over a file that is there
        file.write(nbformat.writes(notebook) + "\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main(args: Iterable[str] | None = None, root: Path = HERE) -> int:
    """Does what the command line asks and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="such as 03 or lab_03; default: all")
    parser.add_argument("--fresh", action="store_true", help="new copies, with your answers")
    parser.add_argument("--lab", action="store_true", help="open JupyterLab on them")
    asked, folder, known = parser.parse_args(args), home(root), originals(root)
    if not asked.fresh:
        print(*lay_out(root, folder), sep="\n")
        if asked.lab:
            os.execv(sys.executable, lab_command(root, folder))
        return 0
    names = tuple(asked.names) or ("",)  # the name, or its number, or how these begin
    chosen = [n for n in known if n.startswith(names) or n.partition("_")[2].startswith(names)]
    for name in chosen:
        print(fresh(root, folder, name, datetime.date.today()))
    if not chosen:
        print("no such notebook; there are: " + ", ".join(known), file=sys.stderr)
    return int(not chosen)


def lab_command(root: Path, folder: Path) -> list[str]:
    """JupyterLab on the first copy: this machine only, with a token, with the course's settings."""
    top = root if folder.is_relative_to(root) else folder
    first = (newest(folder, "lesson_00_start_here") or folder).relative_to(top).as_posix()
    command = [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", f"--ServerApp.root_dir={top}"]
    command += [f"--LabApp.default_url=/lab/tree/{first}"]
    command += ["--ContentsManager.pre_save_hook=course_utils.saving.keep_pictures"]
    command += [f"--LabApp.app_settings_dir={root / 'tools' / 'jupyterlab'}"]
    return command + ["--allow-root"] * (hasattr(os, "getuid") and os.getuid() == 0)


if __name__ == "__main__":
    sys.exit(main())
