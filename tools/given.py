"""Writes source/challenge.jsonl, what stands on every board: baselines and the house record.

    python tools/given.py

Virtual times do not depend on the computer, and a test compares that file with what is judged.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

import challenge
from baselines import BASELINES
from leagues import LEAGUES

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/helpers"))


def torchs_own(x, league):
    """A collective, whose time the model tells: the best of its ring, tree and direct."""
    dist.all_reduce(x)
    return x


NAMES = *BASELINES, "house record", "torch's own"


def scores(names: Iterable[str] = NAMES) -> dict[str, challenge.Score]:
    """What is given, judged, or some of it."""
    return {name: _judged(name) for name in names}


def _judged(name: str) -> challenge.Score:
    from house_record import all_reduce

    if name == "house record":
        return challenge.judge(all_reduce, name)
    if name == "torch's own":
        return _everywhere(name, torchs_own, ("ring", "tree", "direct"))
    return _everywhere(name, BASELINES[name], ("ring",))


def _everywhere(name: str, fn: Callable, algorithms: tuple[str, ...]) -> challenge.Score:
    """The score of what sends the same in each league: recorded once, and timed in all of them."""
    once = [case for case in challenge.cases() if case.size and case.league == "flat"]
    outcome = challenge.tried(fn, cases=once)
    traces = [
        (n, case._replace(league=league), trace)
        for league in LEAGUES
        for n, case, trace in outcome.traces
    ]
    everywhere = replace(outcome, traces=traces)
    return challenge.Score(name, percents=challenge.percents(everywhere, algorithms))


def rows(found: dict[str, challenge.Score]) -> list[dict]:
    """As they stand in the file: without the entries."""
    every = [row for name, score in found.items() for row in challenge.rows_of(score, name)]
    return [{key: row[key] for key in ("name", "league", "score")} for row in every]


if __name__ == "__main__":
    judged = scores()
    for one in judged.values():
        print(one, end="\n\n")
    challenge.write(challenge.GIVEN, rows(judged))
    print(challenge.board())
