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
    rows = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                rows.append(_row(line))
            except (ValueError, KeyError, TypeError):
                print(f"{path.name}, line {number}: no line of a leaderboard", file=sys.stderr)
    return rows


def _row(line: str) -> dict:
    """A line of a leaderboard file.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    row = json.loads(line)
    name = str(row["name"])[:40]
    score = float(row["score"])
    row = {**row, "name": name, "score": score}
    if row["league"] not in LEAGUES:
        raise ValueError(row)
    if not 0 <= score <= 100:
        raise ValueError(row)
    return row


def merged(rows: Iterable[dict]) -> list[dict]:
    """The best of each name in each league."""
    best = {}  # by name and league
    for row in rows:
        place = row["name"], row["league"]
        known = best.setdefault(place, row)
        if row["score"] > known["score"]:
            best[place] = row
    return list(best.values())


def board(rows: Iterable[dict] | None = None) -> str:
    """All names in all leagues, best mean first; by default the baselines and the house record."""
    if rows is None:
        rows = read([REFERENCE])
    scores_by_name = {}  # in each league
    for row in merged(rows):
        scores = scores_by_name.setdefault(row["name"], {})
        scores[row["league"]] = row["score"]
    totals = {}
    for name, scores in scores_by_name.items():
        totals[name] = sum(scores.values())
    names = sorted(totals)
    names.sort(key=totals.get, reverse=True)
    lines = [["percent of the bound", *LEAGUES]]
    for name in names:
        scores = scores_by_name[name]
        line = [name]
        for league in LEAGUES:
            score = scores.get(league, 0.0)
            line.append(f"{score:.1f}")
        lines.append(line)
    return judging.table(lines)


def rows_of(score: judging.Score, name: str) -> list[dict]:
    """A score as lines of a leaderboard, with the entry, so that others can judge it again."""
    rows = []
    for league in LEAGUES:
        points = score[league]
        if points:
            row = {"name": name, "league": league, "score": points, "entry": score.text}
            rows.append(row)
    return rows


def write(path: Path, rows: Iterable[dict]) -> None:
    """Writes a line for each row."""
    text = ""
    for row in rows:
        text += json.dumps(row) + "\n"
    path.write_text(text, encoding="utf-8")


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
        league = row["league"]
        score = scores[entry][league]
        judged_rows.append(row | {"score": score})
    return judged_rows
