"""The challenge: who writes the fastest all-reduce for a given network?

    python tools/challenge.py --name Ada        judges the entry in my/challenge.ipynb, as saved,
                                                and keeps the best; without a name it keeps nothing
    python tools/challenge.py --merge FOLDER    prints one board of all *.jsonl files in a folder
    python tools/challenge.py --merge FOLDER --again    the same; judges their entries again

An entry runs in real workers, a recording of its messages on a virtual clock, which is the same on
every computer. Its score in a league is the mean, over sizes and numbers of ranks, of the time that
no all-reduce can beat as a percentage of the time that the entry takes.
"""

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import torch

import copies
from course_checks.edited import overtaken
from course_checks.outcome import Outcome
from course_utils import check
from course_utils.network.trace import Trace
from fence import Entry, Refused
from leagues import LEAGUES, SIZES, WORLD_SIZES

NAME, FILE = "all_reduce", "challenge.jsonl"
GIVEN = Path(__file__).resolve().parents[1] / "source/challenge.jsonl"  # baselines, house record
_TOO_FAST = (
    "{}: done after {:.6g} µs, and {:.6g} µs is the least that is possible. Either the judge has "
    "a hole or the proof has: please open an issue. Until then it does not count."
)


class Case(NamedTuple):
    """What an entry is called with; only the sizes of the challenge give points."""

    league: str
    numbers: int
    size: str = ""

    def __str__(self) -> str:
        return f"{self.league}, {self.size or f'{self.numbers} numbers'}"


@dataclass(repr=False)
class Score:
    """What an entry is worth; without points it says why.

    Attributes:
        percents: By league, world size and size: the bound as a percentage of the entry's time.
    """

    name: str
    why: str = ""
    percents: dict[tuple[str, int, str], float] = field(default_factory=dict)
    text: str = ""

    def __getitem__(self, league: str) -> float:
        own = [percent for key, percent in self.percents.items() if key[0] == league]
        return round(sum(own) / len(own), 1) if own else 0.0

    def __repr__(self) -> str:
        if self.why:
            return f"{self.name} scores 0.\n\n{self.why}"
        rows = [
            [f"{n} ranks, {size}", *(f"{self.percents[own, n, size]:.1f}" for own in LEAGUES)]
            for n in WORLD_SIZES
            for size in SIZES
        ]
        total = [f"{self.name} scores", *(f"{self[own]:.1f}" for own in LEAGUES)]
        return table([["percent of the bound", *LEAGUES], *rows, total])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of one width, the first to the left."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]) for row in rows
    )


def cases() -> list[Case]:
    """For each league all sizes, fewer numbers than ranks, and a length that nobody knows."""
    lengths = {nbytes // 4: name for name, nbytes in SIZES.items()} | {5: ""}
    lengths.setdefault(1001 + secrets.randbelow(4000), "")
    return [Case(league, *own) for own in lengths.items() for league in LEAGUES]


def spec(tensors: list[torch.Tensor], leagues: list[str]) -> list[torch.Tensor]:
    """What an all-reduce is."""
    return [sum(tensors)] * len(tensors)


def inputs(rank: int, world_size: int, case: Case) -> tuple[torch.Tensor, str]:
    """Whole numbers of 32 bits, any of them, so that nothing smaller can say what they are.

    Their sums wrap around, and do not depend on the order.
    """
    return torch.randint(-(2**31), 2**31, (case.numbers,), dtype=torch.int32), case.league


def judge(entry: Callable, name: str = "", **options: Any) -> Score:
    """Judge an entry, a function of a cell or an `Entry`; `options` go to `check`."""
    score = Score(name or getattr(entry, "__name__", "the entry"))
    try:
        if not isinstance(entry, Entry):
            if stale := callable(entry) and overtaken(entry):
                raise Refused(stale)
            entry = Entry.of(entry)
        score.text = entry.text
        outcome = tried(entry, forbid=("collectives",), **options)
        score.percents = percents(outcome, ("ring",))
    except Refused as refused:
        score.why = str(refused)
    return score


def tried(entry: Callable, **options: Any) -> Outcome:
    """The entry in real workers; raises Refused if a sum is wrong or a rule broken."""
    world_sizes = {"world_sizes": WORLD_SIZES, "cases": cases(), "timeout": 120.0} | options
    outcome = check(entry, spec=spec, inputs=inputs, **world_sizes)
    if not outcome:
        raise Refused(str(outcome))
    return outcome


def percents(outcome: Outcome, algorithms: Iterable[str]) -> dict[tuple[str, int, str], float]:
    """By league, world size and size, of the slowest of its runs; raises Refused."""
    times_us: dict[tuple[str, int, str], float] = {}
    for n, case, trace in outcome.traces:
        if case.size:
            _refuse_uneven(trace)
            league, key = LEAGUES[case.league], (case.league, n, case.size)
            ways = [replace(league.network, algorithm=one) for one in algorithms]
            time_us = min(league._replace(network=way).time_us(trace) for way in ways)
            times_us[key] = max(time_us, times_us.get(key, 0.0))
    found = {}
    for (league, n, size), time_us in times_us.items():
        bound_us = LEAGUES[league].bound_us(n, SIZES[size])
        if time_us < bound_us * (1 - 1e-9):
            raise Refused(_TOO_FAST.format(f"{league}, {n} ranks, {size}", time_us, bound_us))
        found[league, n, size] = 100 * bound_us / time_us
    return found


def _refuse_uneven(trace: Trace) -> None:
    for message in trace.schedule("ring").messages:
        sent, taken = message.sent, message.taken
        if sent.kind == "send" and sent.bytes != taken.bytes:
            raise Refused(f"{sent!r}: rank {taken.rank} is ready for {taken.bytes} bytes there.")


def bounds() -> str:
    """The least time, in microseconds, by league, number of ranks and size."""
    rows = [
        [f"{n} ranks, {size}", *(f"{own.bound_us(n, SIZES[size]):.2f}" for own in LEAGUES.values())]
        for n in WORLD_SIZES
        for size in SIZES
    ]
    return table([["least µs", *LEAGUES], *rows])


# The board.


def read(paths: Iterable[Path]) -> list[dict]:
    """The lines of leaderboard files; those that are none are left out, with a word."""
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                row = {**row, "name": str(row["name"])[:40], "score": float(row["score"])}
                if row["league"] not in LEAGUES or not 0 <= row["score"] <= 100:
                    raise ValueError(row)
                found.append(row)
            except (ValueError, KeyError, TypeError):
                print(f"{path.name}, line {number}: no line of a leaderboard", file=sys.stderr)
    return found


def merged(rows: Iterable[dict]) -> list[dict]:
    """The best of each name in each league."""
    best: dict[tuple[str, str], dict] = {}
    for row in rows:
        known = best.setdefault((row["name"], row["league"]), row)
        if row["score"] > known["score"]:
            best[row["name"], row["league"]] = row
    return list(best.values())


def board(rows: Iterable[dict] | None = None) -> str:
    """All names in all leagues, best mean first; by default the baselines and the house record."""
    scores: dict[str, dict[str, float]] = {}
    for row in merged(read([GIVEN]) if rows is None else rows):
        scores.setdefault(row["name"], {})[row["league"]] = row["score"]
    order = sorted(scores, key=lambda name: (-sum(scores[name].values()), name))
    lines = [[name, *(f"{scores[name].get(own, 0.0):.1f}" for own in LEAGUES)] for name in order]
    return table([["percent of the bound", *LEAGUES], *lines])


def rows_of(score: Score, name: str) -> list[dict]:
    """A score as lines of a leaderboard, with the entry, so that others can judge it again."""
    every = [{"name": name, "league": own, "score": score[own]} for own in LEAGUES]
    return [row | {"entry": score.text} for row in every if row["score"]]


def write(path: Path, rows: Iterable[dict]) -> None:
    """One line for each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def again(rows: list[dict]) -> list[dict]:
    """The same entries, judged here."""
    texts = {row["entry"]: row["name"] for row in rows if row.get("entry")}
    scores = {text: judged(text, name) for text, name in texts.items()}
    return [
        row | {"score": scores[row["entry"]][row["league"]]} for row in rows if row.get("entry")
    ]


def judged(text: str, name: str) -> Score:
    """An entry that is a text."""
    try:
        return judge(Entry(NAME, text, f"<{NAME} of {name}>"), name)
    except Refused as refused:
        return Score(name, str(refused))


def saved_entry(path: Path) -> str:
    """The last cell of a notebook that defines `all_reduce`; an empty string if there is none."""
    cells = nbformat.read(path, as_version=4).cells
    found = [c.source for c in cells if c.cell_type == "code" and f"def {NAME}(" in c.source]
    return found[-1] if found else ""


def main(args: Sequence[str] | None = None, root: Path = copies.HERE) -> int:
    """Does what the command line asks and returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--name", help="as it shall stand on the board", default=None)
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="a folder of *.jsonl files")
    parser.add_argument("--again", action="store_true", help="judge the merged entries again")
    asked = parser.parse_args(args)
    given = read([GIVEN])
    if asked.merge:
        rows = read(sorted(asked.merge.glob("*.jsonl")))
        print(board([*given, *(again(merged(rows)) if asked.again else rows)]))
        return 0
    folder = copies.home(root)
    path, own = copies.newest(folder, "challenge"), folder / FILE
    text = saved_entry(path) if path else ""
    if not text:
        print(f"no {NAME} in a challenge.ipynb of yours: `make lab` copies it", file=sys.stderr)
        return 1
    score = judged(text, asked.name or "your entry")
    print(score, end="\n\n")
    rows = merged([*(read([own]) if own.exists() else []), *rows_of(score, score.name)])
    told = "Nothing is kept without a name: make challenge name=Ada"
    if asked.name:
        write(own, rows)
        told = f"Your best is kept in {own.name}: give that file to merge."
    print(f"{board([*given, *rows])}\n\n{told}")
    return int(bool(score.why))


if __name__ == "__main__":
    sys.exit(main())
