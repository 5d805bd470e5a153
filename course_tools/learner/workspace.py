"""A learner's own copies of the lessons and exercises: made where they are missing, never replaced.

    python -m course_tools.learner.workspace             make what is missing, say what has changed
    python -m course_tools.learner.workspace --lab       the same, then open JupyterLab there
    python -m course_tools.learner.workspace --fresh 03  a new copy, with the answers moved over

With --lab, options that it does not know go to JupyterLab. The copies lie in my/, or where the
environment's COURSE_MY says, such as a home on a shared server. With COURSE_LANG=zh they are
Chinese, and lie in zh/ there.
"""

import argparse
import datetime
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from course_material import scores
from course_tools import ROOT
from course_tools.learner import earlier_names
from course_tools.learner.copies import (
    SCORES,
    fresh,
    has_newer_original,
    home,
    language,
    last_used,
    lay_out,
    newest,
    originals,
)

NEWER = "COURSE_NEWER"  # for JupyterLab: names of the copies that have a newer original


def main(args: Iterable[str] | None = None, root: Path = ROOT, again: str = "") -> int:
    """Does what the command line asks and returns its exit status."""
    options, for_jupyterlab = _command_line(args)
    folder = home(root)
    for line in earlier_names.rename(folder):
        print(line, flush=True)
    if options.fresh:
        return make_fresh(root, folder, options.names)
    if not again:
        again = "make fresh only="
        if language():
            again = "make fresh lang=zh only="
    for line in lay_out(root, folder, again):
        print(line, flush=True)
    if options.lab:
        command, environment = lab_command(root, folder)
        command += for_jupyterlab
        os.execve(sys.executable, command, environment)
    return 0


def _command_line(args: Iterable[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and those that only JupyterLab knows."""
    summary, _ = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(description=summary, allow_abbrev=False)
    parser.add_argument("names", nargs="*", help="such as 03 or lab_03; default: all")
    parser.add_argument("--fresh", action="store_true", help="new copies, with your answers")
    parser.add_argument("--lab", action="store_true", help="open JupyterLab on them")
    options, unknown = parser.parse_known_args(args)
    if unknown and not options.lab:
        words = " ".join(unknown)
        parser.error(f"unknown: {words}")
    return options, unknown


def make_fresh(root: Path, folder: Path, beginnings: Iterable[str]) -> int:
    """Makes new copies of those whose names, or numbers, begin so; returns the exit status."""
    known = originals(root)
    chosen = _chosen(known, beginnings)
    if not chosen:
        names = ", ".join(known)
        print(f"no such notebook; there are: {names}", file=sys.stderr)
        return 1
    today = datetime.date.today()
    for name in chosen:
        notice = fresh(root, folder, name, today)
        print(notice)
    return 0


def _chosen(names: Iterable[str], beginnings: Iterable[str]) -> list[str]:
    """The names that begin so, or whose numbers do; all of them if no beginning is given."""
    wanted = tuple(beginnings)
    if not wanted:
        return list(names)
    chosen = []
    for name in names:
        _kind, _, number_and_slug = name.partition("_")
        if name.startswith(wanted) or number_and_slug.startswith(wanted):
            chosen.append(name)
    return chosen


def lab_command(root: Path, folder: Path) -> tuple[list[str], dict[str, str]]:
    """JupyterLab on the copy that was used last, with the course's settings.

    Returns:
        The command, and the environment that it runs in.
    """
    top = folder
    if folder.is_relative_to(root):
        top = root
    opened = last_used(folder) or newest(folder, "chapter_00_start_here") or folder
    place = opened.relative_to(top)
    page = place.as_posix()
    command = [sys.executable, "-m", "jupyterlab"]
    command.append(f"--ServerApp.root_dir={top}")
    command.append(f"--LabApp.default_url=/lab/tree/{page}")
    is_root = hasattr(os, "getuid") and os.getuid() == 0
    if is_root:
        command.append("--allow-root")
    return command, lab_environment(root, folder)


def lab_environment(root: Path, folder: Path) -> dict[str, str]:
    """The environment of JupyterLab, its kernels and its terminals.

    `!python`, `!pip` and `!torchrun` in a cell, and the terminal, are those of this environment,
    as if it had been activated.
    """
    environment = dict(os.environ)
    this_file = Path(__file__).resolve()
    settings = this_file.parent / "jupyterlab"
    programs = Path(sys.executable).parent
    _put_before(environment, "JUPYTER_CONFIG_PATH", settings)
    environment.setdefault("PATH", os.defpath)
    _put_before(environment, "PATH", programs)
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    scores_file = folder / SCORES
    environment[scores.FILE] = str(scores_file)
    # Its default lies in one's home, and would open tabs of another folder of the course.
    workspaces = folder / earlier_names.WORKSPACES
    environment["JUPYTERLAB_WORKSPACES_DIR"] = str(workspaces)
    folder_of_all_languages = folder
    if language():
        folder_of_all_languages = folder.parent
    environment["COURSE_MY"] = str(folder_of_all_languages)
    newer = []
    for name in originals(root):
        if has_newer_original(root, folder, name):
            newer.append(name)
    environment[NEWER] = " ".join(newer)
    return environment


def _put_before(environment: dict[str, str], variable: str, folder: Path) -> None:
    """Puts a folder before those that a variable of the environment lists."""
    folders = str(folder)
    folders_behind = environment.get(variable)
    if folders_behind is not None:
        folders += os.pathsep + folders_behind
    environment[variable] = folders


if __name__ == "__main__":
    sys.exit(main())
