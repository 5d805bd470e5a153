"""CPU seconds of a run of the tests by kind, beside those of an earlier run.

make test seconds=FILE
.venv/bin/python -m course_tools.measure.cpu_seconds FILE [EARLIER] [--top N]
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from course_tools.commands import parser_of

# A kind of tests, and how the names of its tests begin; the first that fits counts.
KINDS = {
    "JupyterLab in a browser": r"tests/lessons/test_browser|tests/site/test_site_in_a_browser",
    "site": r"tests/site/",
    "chapters": r"notebooks/(\d\d)",
    "exercises": r"exercises/(\w\w)",
    "solutions": r"solutions/(\w\w)",
    "tests": r"tests/(\w+)/",
    "workers": r"(collecting|ending)",
}


def kind(name: str) -> tuple[str, str]:
    """Of which kind a test is, and which of that kind, such as `chapters`, `03`."""
    for title, pattern in KINDS.items():
        match = re.match(pattern, name)
        if match:
            part = "".join(match.groups())
            return title, part
    return "other", ""


def read(path: Path) -> list[dict]:
    """The lines that `--seconds` wrote."""
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines]


def summed(lines: Iterable[dict], column: str) -> Counter[tuple[str, str]]:
    """The sum of a column for each kind, and for each that is of that kind."""
    sums = Counter()
    for line in lines:
        title, part = kind(line["name"])
        seconds = line[column]
        sums[title, ""] += seconds
        if part:
            sums[title, part] += seconds
    return sums


def table(lines: list[dict], earlier: list[dict]) -> Iterable[str]:
    """A row for each kind, the costliest first, and below it a row for each of that kind."""
    now = summed(lines, "cpu_s")
    before = summed(earlier, "cpu_s")
    yield f"{'':26}{'before':>8}{'now':>8}"
    larger = now | before  # by kind, the larger of both sums
    parts_by_title = defaultdict(list)
    totals = Counter()
    for title, part in sorted(larger):
        if part:
            parts = parts_by_title[title]
            parts.append(part)
        else:
            totals[title] = larger[title, ""]
    for title, _larger_s in totals.most_common():
        kind_as_a_whole = (title, "")
        yield _row(title, before[kind_as_a_whole], now[kind_as_a_whole])
        for part in parts_by_title[title]:
            key = (title, part)
            yield _row(f"    {part}", before[key], now[key])
    all_before_s = _cpu_s(earlier)
    all_now_s = _cpu_s(lines)
    yield _row("all", all_before_s, all_now_s)


def _cpu_s(lines: list[dict]) -> float:
    """The CPU seconds of all lines."""
    return sum(line["cpu_s"] for line in lines)


def _row(label: str, before_s: float, now_s: float) -> str:
    return f"{label:26}{before_s:8.1f}{now_s:8.1f}"


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("earlier", type=Path, nargs="?")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="the costliest tests")
    chosen = parser.parse_args()
    lines = read(chosen.file)
    earlier = []
    if chosen.earlier:
        earlier = read(chosen.earlier)
    for row in table(lines, earlier):
        print(row)
    lines.sort(key=itemgetter("cpu_s"), reverse=True)
    costliest = lines[: chosen.top]
    for line in costliest:
        print("{cpu_s:8.2f} CPU s {wall_s:8.2f} s  {name}".format(**line))


if __name__ == "__main__":
    main()
