"""A training that explains its own hangs, without a line changed in it.

    torchrun --nproc-per-node=4 -m course_utils.watch train.py --epochs=3

It is `explain_hangs()` and then the script, as Python would run it.
"""

import runpy
import sys
from pathlib import Path

from course_utils.flight.live import explain_hangs
from course_utils.launcher.language import N_, _

USAGE = N_("Name the script to run: python -m course_utils.watch train.py ...")


def main() -> None:
    """Run the script that the command line names, watched."""
    if len(sys.argv) < 2:
        sys.exit(_(USAGE))
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as Python does for a script
    explain_hangs()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
