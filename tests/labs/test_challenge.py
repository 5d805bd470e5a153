"""The challenge: what entries are worth, which are refused, and boards put together."""

import contextlib
import io
import json
import os
import re
from types import SimpleNamespace
from unittest import mock

import challengers
import nbformat
import pytest
import torch
from labs import CHECK

from course_challenge import judging, leaderboard, reference_scores
from course_challenge.baselines import BASELINES, ring
from course_challenge.fence import Entry, Refused
from course_challenge.leagues import LEAGUES, SIZES, WORLD_SIZES
from course_tools import ROOT
from course_tools.learner import challenge

GIVEN = [json.loads(line) for line in leaderboard.REFERENCE.read_text().splitlines()]
HOUSE_RECORD = reference_scores.HOUSE_RECORD.read_text()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What `make challenge name=Ada` makes of a saved notebook whose last entry is ours.

    It takes seven seconds to judge, so whoever wants its score takes it from here. Its cases come
    with fresh numbers alone, where ranks come late too: in virtual time the others score the same.
    """
    plan = CHECK.plan

    def fresh(*of, **options):
        return [(n, [run for run in runs if run.fresh]) for n, runs in plan(*of, **options)]

    folder, out, judged = tmp_path_factory.mktemp("my"), io.StringIO(), []
    notebook = nbformat.read(ROOT / "exercises/challenge.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(HOUSE_RECORD))
    nbformat.write(notebook, folder / "challenge.ipynb")
    leaderboard.write(folder / challenge.FILE, [row("Ada", 100.0), row("Ada", 1.0, "slow link")])
    judge = judging.judged
    with (
        mock.patch.dict(os.environ, COURSE_MY=str(folder)),
        mock.patch.object(judging, "judged", lambda *of: judged.append(judge(*of)) or judged[0]),
        mock.patch.object(CHECK, "plan", fresh),
        contextlib.redirect_stdout(out),
    ):
        assert challenge.main(["--name", "Ada"]) == 0
    return SimpleNamespace(score=judged[0], file=folder / challenge.FILE, said=out.getvalue())


@pytest.fixture(scope="module")
def scores(saved):
    """By name, in the order of the file; the notebook itself judges the ring."""
    return {"house record": saved.score} | reference_scores.scores(["torch's own"])


@pytest.mark.parametrize("cheat", challengers.OUTSIDE)
def test_an_entry_that_leads_out_of_messages_is_refused_with_its_line(cheat):
    text, said = challengers.OUTSIDE[cheat]
    score = judging.judged(text, cheat)
    assert score.why.startswith(said)
    assert leaderboard.rows_of(score, cheat) == []


@pytest.mark.slow
@pytest.mark.parametrize("cheat", challengers.WRONG)
def test_messages_that_are_no_all_reduce_score_nothing_and_hear_why(cheat):
    text, said = challengers.WRONG[cheat]
    few = [one for one in judging.cases() if one.league == "flat" and one.numbers < 5000]
    entry = Entry("all_reduce", text, f"<{cheat}>")
    score = judging.judge(entry, world_sizes=(4,), cases=few)
    assert said in score.why
    assert [score[league] for league in LEAGUES] == [0.0] * 4
    assert repr(score).startswith("all_reduce scores 0.")


@pytest.mark.slow
def test_what_is_given_scores_what_its_file_says(scores):
    """In virtual time, so on every computer; `reference_scores` writes the file."""
    assert reference_scores.rows(scores) == [row for row in GIVEN if row["name"] in scores]
    notebook = (ROOT / "exercises/challenge.ipynb").read_text()
    (ring,) = re.findall(r"all_reduce scores +(\S.*\d)", notebook)
    assert [*map(float, ring.split())] == [r["score"] for r in GIVEN if r["name"] == "ring"]


@pytest.mark.soak
def test_all_that_is_given_scores_what_its_file_says():
    assert reference_scores.rows(reference_scores.scores()) == GIVEN


@pytest.mark.slow
def test_no_bound_is_beaten_and_the_house_record_leads_in_every_league(scores):
    for score in scores.values():
        assert len(score.percents) == len(LEAGUES) * len(SIZES) * len(WORLD_SIZES)
        assert max(score.percents.values()) <= 100 + 1e-6
    for league in LEAGUES:
        best = max((row for row in GIVEN if row["league"] == league), key=lambda row: row["score"])
        assert best["name"] == "house record", league


@pytest.mark.parametrize("league", LEAGUES)
def test_a_bound_grows_with_the_tensor_and_allows_at_least_one_message(league):
    for n in WORLD_SIZES:
        bounds = [LEAGUES[league].bound_us(n, size) for size in range(0, 2**21, 2**12)]
        assert bounds == sorted(bounds)
        assert bounds[0] >= 2.0


def test_whatever_is_faster_than_the_bound_does_not_count(monkeypatch):
    league = LEAGUES["flat"]
    impossible = league._replace(bound_us=lambda n, size: 1e9)
    outcome = judging.tried(Entry.of(ring), world_sizes=(4,), cases=judging.cases()[:1])
    monkeypatch.setitem(LEAGUES, "flat", impossible)
    with pytest.raises(Refused, match="the proof has"):
        judging.percents(outcome, ("ring",))


def test_a_message_that_is_longer_at_one_end_is_refused():
    outcome = judging.tried(Entry.of(ring), world_sizes=(4,), cases=judging.cases()[:1])
    ((_, _, trace), *_) = outcome.traces
    taken = next(event for event in trace if event.kind == "recv")
    object.__setattr__(taken, "bytes", 4)
    with pytest.raises(Refused, match="is ready for 4 bytes there"):
        judging.percents(outcome, ("ring",))


def test_inputs_need_all_their_bits():
    x, league = judging.inputs(0, 4, judging.Case("flat", 2**16))
    assert (x.dtype, league) == (torch.int32, "flat")
    assert len(x.unique()) > 65_000
    assert abs(x.double().mean()) < 2**25


def test_a_text_that_is_no_python_is_told_so():
    assert judging.judged("def all_reduce(x, league:\n    pass", "x").why.startswith("Line 1: ")
    assert "There is no function called all_reduce" in judging.judged("a = 1", "x").why
    assert "A function is wanted" in judging.judge(3).why


@pytest.mark.parametrize("baseline", BASELINES)
def test_what_a_learner_may_write_is_not_refused(baseline):
    assert Entry.of(BASELINES[baseline]).text


def row(name, score, league="flat"):
    return {"name": name, "league": league, "score": score}


def test_the_best_of_each_name_in_each_league_is_kept():
    rows = [row("Ada", 50.0), row("Ada", 70.0), row("Bob", 60.0), row("Ada", 40.0, "slow link")]
    assert leaderboard.merged(rows) == [rows[1], rows[2], rows[3]]


def test_a_board_has_the_best_mean_first():
    said = leaderboard.board([row("Ada", 50.0), row("Bob", 60.0), row("Ada", 20.0, "late rank")])
    assert [line.split()[0] for line in said.splitlines()[1:]] == ["Ada", "Bob"]


def test_a_class_merges_a_folder_of_files_and_a_line_that_is_none_is_left_out(tmp_path, capsys):
    leaderboard.write(tmp_path / "ada.jsonl", [row("Ada", 99.9)])
    lines = [json.dumps(row("Bob", 101.0)), "{", json.dumps(row("Bob", 12.3)), "[]"]
    (tmp_path / "bob.jsonl").write_text("\n".join(lines))
    assert challenge.main(["--merge", str(tmp_path)]) == 0
    said, errors = capsys.readouterr()
    assert "Ada                   99.9" in said
    assert "Bob                   12.3" in said
    assert "house record" in said
    assert errors.count("no line of a leaderboard") == 3


def test_merged_entries_can_be_judged_again(tmp_path, capsys):
    wrong = {"entry": "def all_reduce(x, league):\n    return dist.all_reduce(x)\n"}
    leaderboard.write(tmp_path / "eve.jsonl", [row("Eve", 100.0) | wrong, row("Eve", 99.0)])
    assert challenge.main(["--merge", str(tmp_path), "--again"]) == 0
    said = capsys.readouterr().out
    assert "Eve                    0.0" in said
    assert "100.0" not in said


def test_without_a_name_nothing_is_kept_nor_who_is_logged_in_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ada-lovelace")
    monkeypatch.setattr(challenge, "saved_entry", lambda path: "an entry")
    monkeypatch.setattr(judging, "judged", lambda text, name: judging.Score(name, "not run"))
    (tmp_path / "challenge.ipynb").write_text("{}")
    assert challenge.main([]) == 1
    said = capsys.readouterr().out
    assert "your entry scores 0" in said
    assert "name=Ada" in said
    assert "lovelace" not in said
    assert not (tmp_path / challenge.FILE).exists()


@pytest.mark.slow
def test_a_saved_notebook_is_judged_and_its_best_is_kept(saved):
    assert "Ada scores" in saved.said
    kept = leaderboard.read([saved.file])
    found = {one["league"]: one["score"] for one in kept}
    assert found == {league: saved.score[league] for league in LEAGUES} | {"flat": 100.0}
    assert "entry" not in kept[0]
    assert [one["entry"] for one in kept[1:]] == [HOUSE_RECORD] * 3


def test_who_has_saved_no_entry_is_told_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    assert challenge.main([]) == 1
    assert "no all_reduce in a challenge.ipynb of yours" in capsys.readouterr().err
