"""The command: `python -m course_utils.flight FOLDER` says who is guilty of a hang."""

import argparse
import sys
from collections.abc import Sequence

from course_utils.flight import report
from course_utils.flight.explanation import explain_dumps
from course_utils.launcher.language import _

_NOT_KNOWN = 4


def main(args: Sequence[str] | None = None) -> int:
    """Print the report; return 0 if somebody is guilty, 3 if nothing hangs, 4 if not known."""
    parser = argparse.ArgumentParser("ddp-course hang", description=explain_dumps.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", metavar="FOLDER", help="where the dumps are")
    parser.add_argument("--json", action="store_true", help="an object instead of words")
    asked = parser.parse_args(args)
    try:
        explanation = explain_dumps(asked.folder)
    except NotADirectoryError:
        print(_(report.NO_FOLDER, folder=asked.folder), file=sys.stderr)
        return _NOT_KNOWN
    print(explanation.as_json() if asked.json else explanation)
    return explanation.exit_status


if __name__ == "__main__":
    sys.exit(main())
