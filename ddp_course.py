"""`ddp-course`: the course from any folder, such as one installation that many learners share.

    ddp-course                JupyterLab on your own copies, in ~/ddp-course or --my FOLDER;
                              options that it does not know, such as --no-browser, go to JupyterLab
    ddp-course --lang zh      the same in Chinese, in the folder zh there; and so for what follows
    ddp-course fresh 03       a new copy beside the old one, with your answers
    ddp-course progress 03    which of your exercises pass
    ddp-course challenge Ada  what your all-reduce is worth, and the board
    ddp-course doctor         what is wrong with this installation
    ddp-course hang FOLDER    who is guilty of a hang, by the flight recorder's dumps in a folder;
                              --json: as an object. It ends with 0, or with 3 if nothing hangs,
                              or with 4 if it is not known
    ddp-course lint train.py  what some ranks do and others don't, in a training script
    ddp-course grade FOLDER   for teachers: grades what lies in FOLDER/submitted, in sandboxes

Nothing is written into the course's own folder, and nobody else can read yours. It works from a
wheel, which brings lessons and labs with it, and from a checkout that stays, which `pip install -e
'.[lab]'` installs. hang and lint need no more than the wheel; the others need its extras, lab or
grade.
"""

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_tools import ROOT  # which imports nothing else

NOTEBOOKS = ROOT / "notebooks"
# By command, the package without which it cannot begin, and the extra that brings it.
NEEDED = {
    "lab": ("jupyterlab", "lab"),
    "fresh": ("nbformat", "lab"),
    "progress": ("nbclient", "lab"),
    "challenge": ("nbformat", "lab"),
    "grade": ("jupytext", "grade"),
}
# Copies of notebooks that learners made earlier import these names from here.
MOVED = {
    "challenge": "course_challenge",
    "slurm": "course_cluster.slurm",
    "two_hosts": "course_cluster.hosts",
}


def __getattr__(name: str) -> Any:
    """Finds `from ddp_course import slurm` and its like in the packages where they are now."""
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(MOVED[name])
    if name == "two_hosts":  # which is a function
        return module.two_hosts
    return module


def main(args: Sequence[str] | None = None) -> int:
    """Does what the command line asks and returns its exit status."""
    words = sys.argv[1:]
    if args is not None:
        words = list(args)
    parser, default = command_line()
    front, own_command = own_options(words)
    if front.lang:
        os.environ["COURSE_LANG"] = front.lang
    if own_command[:1] == ["hang"]:
        from course_utils.flight.__main__ import main as hang  # no copies, no notebooks

        return hang(own_command[1:])
    if own_command[:1] == ["grade"]:
        refuse_without_its_package("grade", parser)
        from course_tools.grading import grade

        return grade.main(own_command[1:])
    asked, more = parser.parse_known_args(words)
    if asked.what == "lint":
        from course_lint import command

        return command.main([*asked.names, *more])
    if not NOTEBOOKS.is_dir():
        parser.error(
            "the course's folder is no longer where it was installed from: install it again, "
            "pip install -e '.[lab]', or take the wheel, which needs no such folder"
        )
    if more and asked.what != "lab":
        unknown = " ".join(more)
        parser.error(f"unknown: {unknown}")
    os.environ["COURSE_MY"] = asked.my
    if asked.what == "doctor":
        from course_tools.learner import doctor  # which needs no package to be installed

        return doctor.main()
    refuse_without_its_package(asked.what, parser)
    Path(asked.my).expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
    if asked.lang:  # which may stand behind the command, too
        os.environ["COURSE_LANG"] = asked.lang
    if asked.what == "challenge":
        from course_tools.learner import challenge

        options = []
        if asked.names:
            options.append(f"--name={asked.names[0]}")
        return challenge.main(options)
    if asked.what == "progress":
        from course_tools.learner import progress

        return progress.main(asked.names)
    from course_tools.learner import workspace

    again = "ddp-course "
    if asked.my != default:
        again += f"--my {asked.my} "
    if asked.lang:
        again += f"--lang {asked.lang} "
    again += "fresh "
    command = [f"--{asked.what}", *asked.names, *more]
    return workspace.main(command, again=again)


def own_options(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options in front of a command, and the command with all that follows."""
    parser = argparse.ArgumentParser("ddp-course", add_help=False)
    parser.add_argument("--my", metavar="FOLDER")
    parser.add_argument("--lang", choices=("en", "zh"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    front, _ = parser.parse_known_args(words)
    return front, front.command


def refuse_without_its_package(command: str, parser: argparse.ArgumentParser) -> None:
    """Ends, and says what to install, where a package is missing that a command needs.

    Raises:
        SystemExit: it is missing.
    """
    package, extra = NEEDED[command]
    if importlib.util.find_spec(package) is None:
        text = (
            f"`ddp-course {command}` needs {package}, which is not installed: "
            f"pip install 'ddp-course[{extra}]', or -e '.[{extra}]' in the course's own folder\n"
        )
        parser.exit(2, text)


def command_line() -> tuple[argparse.ArgumentParser, str]:
    """Returns the parser, and where a learner's copies are if nothing else is said."""
    default = os.environ.get("COURSE_MY") or "~/ddp-course"
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ddp-course", description=__doc__, formatter_class=form)
    parser.add_argument("--my", metavar="FOLDER", default=default, help="where your copies are")
    parser.add_argument("--lang", choices=("en", "zh"), help="English or Chinese")
    parser.add_argument(
        "what",
        nargs="?",
        choices=("lab", "fresh", "progress", "challenge", "doctor", "hang", "lint", "grade"),
        default="lab",
    )
    parser.add_argument("names", nargs="*", metavar="NN", help="such as 03; default: all")
    return parser, default


if __name__ == "__main__":
    sys.exit(main())
