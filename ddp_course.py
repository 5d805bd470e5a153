"""`ddp-course`: the course from any folder, such as one installation that many learners share.

    ddp-course                JupyterLab on your own copies, in ~/ddp-course or --my FOLDER;
                              options that it does not know, such as --no-browser, go to JupyterLab
    ddp-course --lang zh      the same in Chinese, in the folder zh there; and so for what follows
    ddp-course fresh 03       a new copy beside the old one, with your answers
    ddp-course progress 03    which of your exercises pass
    ddp-course challenge Ada  what your all-reduce is worth, and the board
    ddp-course doctor         what is wrong with this installation

Nothing is written into the course's own folder, and nobody else can read yours. The course has to
be installed from a checkout that stays, as `make lab` does: `pip install -e .`.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent / "tools"


def __getattr__(name: str) -> Any:
    """`from ddp_course import slurm`, or what else a notebook in any folder needs of tools/."""
    if name not in ("challenge", "doctor", "slurm", "two_hosts"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    sys.path.insert(0, str(TOOLS))
    try:
        module = importlib.import_module(name)
        return getattr(module, name, module)  # `two_hosts` is the function, the others are modules
    finally:
        sys.path.remove(str(TOOLS))  # a learner's own modules may have the names of these


def main(args: Sequence[str] | None = None) -> int:
    """Does what the command line asks and returns its exit status."""
    default = os.environ.get("COURSE_MY") or "~/ddp-course"
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ddp-course", description=__doc__, formatter_class=form)
    parser.add_argument("--my", metavar="FOLDER", default=default, help="where your copies are")
    parser.add_argument("--lang", choices=("en", "zh"), help="English or Chinese")
    parser.add_argument(
        "what",
        nargs="?",
        choices=("lab", "fresh", "progress", "challenge", "doctor"),
        default="lab",
    )
    parser.add_argument("names", nargs="*", metavar="NN", help="such as 03; default: all")
    asked, more = parser.parse_known_args(args)
    if not TOOLS.is_dir():
        parser.error("the course's folder is not here: install it from there, pip install -e .")
    if more and asked.what != "lab":
        parser.error(f"unknown: {' '.join(more)}")
    if asked.what == "doctor":
        os.environ["COURSE_MY"] = asked.my
        return __getattr__("doctor").main()
    Path(asked.my).expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["COURSE_MY"] = asked.my
    if asked.lang:
        os.environ["COURSE_LANG"] = asked.lang
    sys.path.insert(0, str(TOOLS))
    import my
    import progress

    if asked.what == "challenge":
        return __getattr__("challenge").main([f"--name={name}" for name in asked.names[:1]])
    if asked.what == "progress":
        return progress.main(asked.names)
    elsewhere = f"--my {asked.my} " * (asked.my != default)
    elsewhere += f"--lang {asked.lang} " * bool(asked.lang)
    what = [f"--{asked.what}", *asked.names, *more]
    return my.main(what, again=f"ddp-course {elsewhere}fresh ")


if __name__ == "__main__":
    sys.exit(main())
