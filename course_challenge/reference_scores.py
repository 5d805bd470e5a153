"""Writes reference.jsonl, what stands on every board: baselines and the house record.

    python -m course_challenge.reference_scores

Virtual times do not depend on the computer, and a test compares that file with what is judged. The
house record is read as text, as any entry is, from a file that learners' copies leave out.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from course_challenge import judging, leaderboard
from course_challenge.baselines import BASELINES
from course_challenge.leagues import LEAGUES

_ROOT = Path(__file__).resolve().parents[1]
HOUSE_RECORD = _ROOT / "source/challenge_house_record.py"


def torchs_own(x, league):
    """A collective, whose time the model tells: the best of its ring, tree and direct."""
    dist.all_reduce(x)
    return x


NAMES = *BASELINES, "house record", "torch's own"
Scores = dict[str, judging.Score]  # by name


def scores(names: Iterable[str] = NAMES) -> Scores:
    """What is given, judged, or some of it."""
    scores_by_name = {}
    for name in names:
        scores_by_name[name] = _judged(name)
    return scores_by_name


def _judged(name: str) -> judging.Score:
    if name == "house record":
        text = HOUSE_RECORD.read_text(encoding="utf-8")
        return judging.judged(text, name)
    if name == "torch's own":
        return _everywhere(name, torchs_own, ("ring", "tree", "direct"))
    baseline = BASELINES[name]
    return _everywhere(name, baseline, ("ring",))


def _everywhere(name: str, fn: Callable, algorithms: tuple[str, ...]) -> judging.Score:
    """The score of what sends the same in each league: recorded once, and timed in all of them."""
    each_size_once = []
    for case in judging.cases():
        if case.size and case.league == "flat":
            each_size_once.append(case)
    outcome = judging.tried(fn, cases=each_size_once)
    traces = []
    for league in LEAGUES:
        for n, case, trace in outcome.traces:
            case_of_league = case._replace(league=league)
            traces.append((n, case_of_league, trace))
    everywhere = replace(outcome, traces=traces)
    percents = judging.percents(everywhere, algorithms)
    return judging.Score(name, percents=percents)


def rows(scores_by_name: Scores) -> list[dict]:
    """As they stand in the file: without the entries."""
    without_entries = []
    for name, score in scores_by_name.items():
        without_entries += leaderboard.rows_of(score, name)
    for row in without_entries:
        del row["entry"]
    return without_entries


if __name__ == "__main__":
    judged = scores()
    for score in judged.values():
        print(score, end="\n\n")
    judged_rows = rows(judged)
    leaderboard.write(leaderboard.REFERENCE, judged_rows)
    print(leaderboard.board())
