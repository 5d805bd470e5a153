"""What is your all-reduce worth? Judges the saved entry, or merges the boards of a class.

    python -m course_tools.learner.challenge --name Ada
    python -m course_tools.learner.challenge --merge FOLDER
    python -m course_tools.learner.challenge --merge FOLDER --again

The first judges the entry in my/challenge.ipynb, as saved, and keeps your best; without a name it
keeps nothing. The second prints one board of all *.jsonl files in a folder. The third judges their
entries again before it does so.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from course_challenge import judging, leaderboard
from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.learner import copies

FILE = "challenge.jsonl"


def saved_entry(path: Path) -> str:
    """The last cell of a notebook that defines `all_reduce`; an empty string if there is none."""
    definition = f"def {judging.NAME}("
    entry = ""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if definition in cell.source:
            entry = cell.source
    return entry


def merged_boards(folder: Path, judge_again: bool) -> str:
    """One board of all files in a folder, below the baselines and the house record."""
    boards = sorted(folder.glob("*.jsonl"))
    rows = leaderboard.read(boards)
    if judge_again:
        best = leaderboard.merged(rows)
        rows = leaderboard.judged_again(best)
    return _board_below_reference(rows)


def _board_below_reference(rows: list[dict]) -> str:
    """A board of rows, below the baselines and the house record."""
    reference = leaderboard.read([leaderboard.REFERENCE])
    return leaderboard.board([*reference, *rows])


def judge_saved(folder: Path, name: str | None) -> int:
    """Judges the entry in a learner's folder and prints the board; returns the exit status."""
    entry = ""
    notebook = copies.newest(folder, "challenge")
    if notebook is not None:
        entry = saved_entry(notebook)
    if not entry:
        missing = f"no {judging.NAME} in a challenge.ipynb of yours"
        print(f"{missing}: `make lab` or `ddp-course` copies it", file=sys.stderr)
        return 1
    name_on_board = name or "your entry"
    score = judging.judged(entry, name_on_board)
    print(score, end="\n\n")
    rows = []
    kept = folder / FILE
    if kept.exists():
        rows += leaderboard.read([kept])
    rows += leaderboard.rows_of(score, score.name)
    best = leaderboard.merged(rows)
    advice = "Nothing is kept without a name: make challenge name=Ada"
    if name:
        leaderboard.write(kept, best)
        advice = f"Your best is kept in {kept.name}: give that file to merge."
    board = _board_below_reference(best)
    print(board)
    print(f"\n{advice}")
    if score.why:
        return 1
    return 0


def main(args: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Does what the command line asks and returns its exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--name", help="as it is to stand on the board", default=None)
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="a folder of *.jsonl files")
    parser.add_argument("--again", action="store_true", help="judge the merged entries again")
    chosen = parser.parse_args(args)
    if chosen.merge:
        board = merged_boards(chosen.merge, chosen.again)
        print(board)
        return 0
    folder = copies.home(root)
    return judge_saved(folder, chosen.name)


if __name__ == "__main__":
    sys.exit(main())
