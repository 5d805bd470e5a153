"""The panel: it says where every rank is, and nothing that a rank reports can break a launch."""

import math
import mmap
from html.parser import HTMLParser

import pytest

from course_checks import outcome
from course_utils import live
from course_utils.launcher.errors import Failure
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.live import render
from course_utils.pictures.curve import curves, note


def member(rank=0, text=""):
    made = WorkerHandle(rank)
    made.output.add(text.encode())
    return made


def words(panel):
    """What a reader sees of it."""
    parser, seen = HTMLParser(), []
    parser.handle_data = seen.append
    parser.feed(panel)
    return " ".join(" ".join(seen).split())


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1.0, 0, 10**30, None, "3", [1, 2], True, "<b>", 1 + 2j]
)
@pytest.mark.parametrize("name", ["loss", "step", "steps", "other"])
def test_whatever_a_rank_reports_can_be_shown(name, value):
    metrics = {"step": 2, "steps": 4, "loss": 0.5}
    metrics[name] = value
    assert "rank 0" in words(render([member()], [metrics], 1.0))


def test_what_a_rank_prints_or_reports_is_text_and_never_markup():
    panel = render([member(text="<script>")], [{"<i>": "<u>"}], 1.0)
    assert "&lt;script&gt;" in panel
    assert not {"<script>", "<i>", "<u>"} & set(panel.replace(">", "> ").split())


def test_a_rank_that_reports_nothing_has_an_empty_bar_and_its_last_line():
    panel = render([member(text="first\nsecond\n")], [{}], 2.0)
    assert 'aria-valuenow="0"' in panel
    assert words(panel) == "1 rank · 2.0 s ● rank 0 running second"


def test_progress_and_numbers_of_every_rank_are_shown():
    told = [{"step": 1, "steps": 4, "loss": 2e-7}, {"step": 4, "steps": 4, "loss": 0.25}]
    done = member(1)
    done.result = None
    panel = render([member(0), done], told, 1.0)
    assert 'aria-valuenow="25"' in panel
    assert "step 1 / 4 loss 2e-07 running" in words(panel)
    assert "step 4 / 4 loss 0.2500 ✓ done" in words(panel)


def test_nothing_is_drawn_in_black_since_dark_themes_hide_it():
    assert "#000000" not in render([member(6)], [{"loss": 0.5}], 1.0)


def test_a_rank_that_was_stopped_is_not_told_as_running():
    assert words(render([member()], [{}], 1.0, "stopped")) == "1 rank · 1.0 s ● rank 0 stopped"


def test_a_rank_that_failed_has_the_colour_of_a_wrong_answer():
    failed = member()
    failed.failure = Failure(0, 0.0, "ValueError: no")
    panel = render([failed], [{}], 1.0, "stopped")
    assert f'<span style="color:{outcome._RED}">✗ failed</span>' in panel


def test_a_rank_that_reports_steps_and_losses_has_a_curve_and_one_that_does_not_has_none():
    points = []
    for step, loss in [(1, 2.0), (1, 2.0), (2, math.nan), (3, 1.0), ("4", 0.5), (None, 0.1)]:
        note(points, {"step": step, "loss": loss})
    assert points == [(1, 2.0), (3, 1.0)]
    panel = render([member(), member(1)], [{}, {}], 1.0, losses=[points, []])
    assert panel.count("<polyline") == 2
    assert "2 0 loss step 1 3" in words(panel)


@pytest.mark.parametrize("points", [[], [(1, 0.5)], [(1, 0.0), (2, 0.0)], [(1, -1.0), (2, -2.0)]])
def test_there_is_no_curve_where_there_is_no_line_to_draw(points):
    assert curves([points]) == ""


def test_a_long_training_is_drawn_with_few_points_from_its_first_to_its_last():
    points = []
    for step in range(10_000):
        note(points, {"step": step, "loss": 1.0})
    assert len(points) <= 400
    assert (points[0][0], points[-1][0]) == (0, 9_999)


def test_the_curve_has_the_first_steps_although_nobody_has_looked_meanwhile(monkeypatch):
    monkeypatch.setattr(live, "_memory", mmap.mmap(-1, live._MEMORY_BYTES + live._CURVE_BYTES))
    monkeypatch.setattr(live, "_reported", {})
    monkeypatch.setattr(live, "_curve", [])
    for step in range(1000):
        live.report(step=step, loss=2.0 / (step + 1))
    live.report(step=10**400, loss=0.0)  # no float can hold it
    points = live._read_curve(live._memory)
    assert points[0] == (0, 2.0)
    assert points[-1] == (999, 0.002)
    assert len(points) <= 400
