"""CPU seconds of a run of the tests by kind, beside those of an earlier run.

make test seconds=FILE
.venv/bin/python -m course_tools.measure.cpu_seconds FILE [EARLIER] [--top N]
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

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
            return title, "".join(match.groups())
    return "other", ""


def read(path: Path) -> list[dict]:
    """The lines that `--seconds` wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def summed(lines: Iterable[dict], column: str) -> Counter[tuple[str, str]]:
    """The sum of a column for each kind, and for each that is of that kind."""
    sums = Counter()
    for line in lines:
        title, which = kind(line["name"])
        seconds = line[column]
        sums[title, ""] += seconds
        if which:
            sums[title, which] += seconds
    return sums


def table(lines: list[dict], earlier: list[dict]) -> Iterable[str]:
    """A row for each kind, the costliest first, and below it a row for each of that kind."""
    now = summed(lines, "cpu_s")
    before = summed(earlier, "cpu_s")
    yield f"{'':26}{'before':>8}{'now':>8}"
    larger = now | before  # by kind, the larger of both sums
    parts_of = defaultdict(list)
    for title, which in sorted(larger):
        if which:
            parts_of[title].append(which)
    totals = Counter()
    for title, which in sorted(larger):
        if not which:
            totals[title] = larger[title, ""]
    for title, _larger_s in totals.most_common():
        yield _row(title, before[title, ""], now[title, ""])
        for which in parts_of[title]:
            part = title, which
            yield _row(f"    {which}", before[part], now[part])
    all_before = sum(line["cpu_s"] for line in earlier)
    all_now = sum(line["cpu_s"] for line in lines)
    yield _row("all", all_before, all_now)


def _row(label: str, before_s: float, now_s: float) -> str:
    return f"{label:26}{before_s:8.1f}{now_s:8.1f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file", type=Path)
    arguments.add_argument("earlier", type=Path, nargs="?")
    arguments.add_argument("--top", type=int, default=0, metavar="N", help="the costliest tests")
    chosen = arguments.parse_args()
    lines = read(chosen.file)
    earlier = read(chosen.earlier) if chosen.earlier else []
    print(*table(lines, earlier), sep="\n")
    costliest_first = sorted(lines, key=itemgetter("cpu_s"), reverse=True)
    for line in costliest_first[: chosen.top]:
        print("{cpu_s:8.2f} CPU s {wall_s:8.2f} s  {name}".format(**line))


if __name__ == "__main__":
    main()
