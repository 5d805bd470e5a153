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
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("names", nargs="*", help="such as 03 or lab_03; default: all")
    parser.add_argument("--fresh", action="store_true", help="new copies, with your answers")
    parser.add_argument("--lab", action="store_true", help="open JupyterLab on them")
    options, unknown = parser.parse_known_args(args)
    if unknown and not options.lab:
        parser.error(f"unknown: {' '.join(unknown)}")
    folder = home(root)
    if options.fresh:
        return make_fresh(root, folder, options.names)
    in_this_language = "lang=zh " if language() else ""
    again = again or f"make fresh {in_this_language}only="
    for line in lay_out(root, folder, again):
        print(line, flush=True)
    if options.lab:
        command, environment = lab_command(root, folder)
        os.execve(sys.executable, command + unknown, environment)
    return 0


def make_fresh(root: Path, folder: Path, beginnings: Iterable[str]) -> int:
    """Makes new copies of those whose names, or numbers, begin so; returns the exit status."""
    wanted = tuple(beginnings) or ("",)
    known = originals(root)
    chosen = []
    for name in known:
        number_and_slug = name.partition("_")[2]
        if name.startswith(wanted) or number_and_slug.startswith(wanted):
            chosen.append(name)
    if not chosen:
        print("no such notebook; there are: " + ", ".join(known), file=sys.stderr)
        return 1
    for name in chosen:
        print(fresh(root, folder, name, datetime.date.today()))
    return 0


def lab_command(root: Path, folder: Path) -> tuple[list[str], dict[str, str]]:
    """JupyterLab on the copy that was used last, with the course's settings.

    Returns:
        The command, and the environment that it runs in.
    """
    top = root if folder.is_relative_to(root) else folder
    opened = last_used(folder) or newest(folder, "lesson_00_start_here") or folder
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={top}"]
    command.append(f"--LabApp.default_url=/lab/tree/{opened.relative_to(top).as_posix()}")
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
    settings = [str(Path(__file__).resolve().parent / "jupyterlab")]
    if "JUPYTER_CONFIG_PATH" in environment:
        settings.append(environment["JUPYTER_CONFIG_PATH"])
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(settings)
    programs = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    environment["PATH"] = os.pathsep.join(programs)
    if sys.prefix != sys.base_prefix:
        environment["VIRTUAL_ENV"] = sys.prefix
    environment[scores.FILE] = str(folder / SCORES)
    environment["COURSE_MY"] = str(folder.parent if language() else folder)
    newer = [name for name in originals(root) if has_newer_original(root, folder, name)]
    environment[NEWER] = " ".join(newer)
    return environment


if __name__ == "__main__":
    sys.exit(main())
