"""Writes source/challenge.jsonl, what stands on every board: baselines and the house record.

    python tools/given.py

Virtual times do not depend on the computer, and a test compares that file with what is judged.
"""

import sys
from pathlib import Path

import torch.distributed as dist

import challenge
from baselines import BASELINES

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/helpers"))


def torchs_own(x, league):
    """A collective, whose time the model tells: the best of its ring, tree and direct."""
    dist.all_reduce(x)
    return x


def scores() -> dict[str, challenge.Score]:
    """All that is given, judged."""
    from house_record import all_reduce

    points = [case for case in challenge.cases() if case.size]
    found = {name: challenge.judge(fn, name, cases=points) for name, fn in BASELINES.items()}
    found["house record"] = challenge.judge(all_reduce, "house record")
    own = challenge.Score("torch's own")
    own.percents = challenge.percents(
        challenge.tried(torchs_own, cases=points), ("ring", "tree", "direct")
    )
    return found | {own.name: own}


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
