"""Writes how long the parts of lessons and labs run, teaching/run_times.toml, which plans count.

    make test seconds=FILE
    .venv/bin/python -m course_tools.measure.run_times FILE

`make test` runs five notebooks at once. On two cores that is about as crowded as a server with one
core for every three learners, so it's the time that passes there, and a laptop needs less of it.
"""

import re
from collections import defaultdict
from pathlib import Path

import nbformat

from course_tools import ROOT
from course_tools.commands import parser_of
from course_tools.measure import cpu_seconds
from course_tools.notebooks import teaching

CELL = re.compile(r"((?:notebooks|solutions)/\d\d_\w+)\.ipynb::Cell (\d+)")


def seconds_of_cells(path: Path) -> dict[str, dict[int, float]]:
    """By notebook, such as `notebooks/03_name`, the seconds of each code cell, from 0."""
    seconds: dict[str, dict[int, float]] = defaultdict(dict)
    for line in cpu_seconds.read(path):
        match = CELL.fullmatch(line["name"])
        if match is None:
            continue
        notebook, digits = match.groups()
        number = int(digits)
        cells = seconds[notebook]
        cells[number] = line["wall_s"]
    return seconds


def seconds_of_parts(root: Path, name: str, cells: dict[int, float]) -> list[int]:
    """The seconds of each part of a notebook."""
    notebook = nbformat.read(root / f"{name}.ipynb", as_version=4)
    number = 0
    parts = []
    for cells_of_part in teaching.cells_of_parts(notebook):
        seconds = 0
        for cell in cells_of_part:
            if cell.cell_type == "code":
                seconds += cells.get(number, 0)
                number += 1
        parts.append(round(seconds))
    return parts


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("seconds", type=Path, help="what `make test seconds=FILE` has written")
    chosen = parser.parse_args()
    known = teaching.run_times(ROOT)
    by_notebook = seconds_of_cells(chosen.seconds)
    for name, cells in by_notebook.items():
        folder, slug = name.split("/")
        title = slug[:2]
        if folder == "solutions":
            title = f"lab {title}"
        known[title] = seconds_of_parts(ROOT, name, cells)
    text = "# By course_tools.measure.run_times: seconds of each part in `make test`, two cores\n"
    for title, seconds in sorted(known.items()):
        text += f'"{title}" = {seconds}\n'
    path = ROOT / teaching.RUN_TIMES
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
