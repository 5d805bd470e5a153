"""The challenge's leaderboard: files of scores, and one board made from them."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from course_challenge import judging
from course_challenge.leagues import LEAGUES

REFERENCE = Path(__file__).with_name("reference.jsonl")  # baselines and the house record


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
    for row in merged(read([REFERENCE]) if rows is None else rows):
        scores.setdefault(row["name"], {})[row["league"]] = row["score"]
    order = sorted(scores, key=lambda name: (-sum(scores[name].values()), name))
    lines = [[name, *(f"{scores[name].get(own, 0.0):.1f}" for own in LEAGUES)] for name in order]
    return judging.table([["percent of the bound", *LEAGUES], *lines])


def rows_of(score: judging.Score, name: str) -> list[dict]:
    """A score as lines of a leaderboard, with the entry, so that others can judge it again."""
    every = [{"name": name, "league": own, "score": score[own]} for own in LEAGUES]
    return [row | {"entry": score.text} for row in every if row["score"]]


def write(path: Path, rows: Iterable[dict]) -> None:
    """One line for each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def judged_again(rows: list[dict]) -> list[dict]:
    """The rows that have an entry, with the scores that their entries get here."""
    scores: dict[str, judging.Score] = {}
    judged_rows = []
    for row in rows:
        entry = row.get("entry")
        if not entry:
            continue
        if entry not in scores:
            scores[entry] = judging.judged(entry, row["name"])
        judged_rows.append(row | {"score": scores[entry][row["league"]]})
    return judged_rows
