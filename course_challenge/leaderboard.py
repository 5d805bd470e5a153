"""The challenge's leaderboard: files of scores, and one board made from them."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from course_challenge import judging
from course_challenge.leagues import LEAGUES

Row = dict[str, Any]  # a line of a leaderboard
REFERENCE = Path(__file__).with_name("reference.jsonl")  # baselines and the house record


def read(paths: Iterable[Path]) -> list[Row]:
    """The lines of leaderboard files; those that are none are left out, with a word."""
    rows = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                row = _row(line)
                rows.append(row)
            except (ValueError, KeyError, TypeError):
                place = f"{path.name}, line {number}"
                print(f"{place}: no line of a leaderboard", file=sys.stderr)
    return rows


def _row(line: str) -> Row:
    """A line of a leaderboard file.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    row = json.loads(line)
    name = str(row["name"])
    score = float(row["score"])
    short_name = name[:40]
    row |= {"name": short_name, "score": score}
    if row["league"] not in LEAGUES:
        raise ValueError(row)
    if not 0 <= score <= 100:
        raise ValueError(row)
    return row


def merged(rows: Iterable[Row]) -> list[Row]:
    """The best of each name in each league."""
    best = {}  # by name and league
    for row in rows:
        name = row["name"]
        league = row["league"]
        place = (name, league)
        known = best.setdefault(place, row)
        if row["score"] > known["score"]:
            best[place] = row
    return list(best.values())


def board(rows: Iterable[Row] | None = None) -> str:
    """All names in all leagues, best mean first; by default the baselines and the house record."""
    if rows is None:
        rows = read([REFERENCE])
    scores_by_name = {}  # in each league
    for row in merged(rows):
        name = row["name"]
        league = row["league"]
        scores = scores_by_name.setdefault(name, {})
        scores[league] = row["score"]
    totals = {}
    for name, scores in scores_by_name.items():
        points = scores.values()
        totals[name] = sum(points)
    names = sorted(totals)
    names.sort(key=totals.get, reverse=True)
    header = ["percent of the bound", *LEAGUES]
    lines = [header]
    for name in names:
        scores = scores_by_name[name]
        line = [name]
        for league in LEAGUES:
            score = scores.get(league, 0.0)
            rounded = f"{score:.1f}"
            line.append(rounded)
        lines.append(line)
    return judging.table(lines)


def rows_of(score: judging.Score, name: str) -> list[Row]:
    """A score as lines of a leaderboard, with the entry, so that others can judge it again."""
    rows = []
    for league in LEAGUES:
        points = score[league]
        if points:
            row = {"name": name, "league": league, "score": points, "entry": score.text}
            rows.append(row)
    return rows


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes a line for each row."""
    text = ""
    for row in rows:
        row_json = json.dumps(row)
        text += f"{row_json}\n"
    path.write_text(text, encoding="utf-8")


def judged_again(rows: list[Row]) -> list[Row]:
    """The rows that have an entry, with the scores that their entries get here."""
    scores: dict[str, judging.Score] = {}  # by entry
    judged_rows = []
    for row in rows:
        entry = row.get("entry")
        if not entry:
            continue
        if entry not in scores:
            name = row["name"]
            scores[entry] = judging.judged(entry, name)
        score = scores[entry]
        league = row["league"]
        points = score[league]
        judged_row = row | {"score": points}
        judged_rows.append(judged_row)
    return judged_rows
