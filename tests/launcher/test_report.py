"""`report`: numbers on their way from a rank to the panel."""

import sys
import time

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch, live, notebook, report
from course_utils.launcher import parcel, rank

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def shown(monkeypatch):
    """The metrics of every rank when the panel was drawn last."""
    seen = {}

    class Recorder(live.Panel):
        def before(self, world_size: int) -> None:
            seen["drawn"] = 0

        def tick(self, members, final: bool = False) -> None:
            seen["drawn"] += 1
            seen.update({member.rank: member.metrics for member in members}, final=final)

    monkeypatch.setattr(notebook, "Panel", Recorder)
    return seen


def test_a_report_outside_of_launch_does_nothing():
    assert report(step=1, loss=torch.tensor(2.0)) is None
    assert rank.me is None


def test_a_large_report_arrives_like_a_small_one(shown):
    launch(lambda: report(text="x" * 10**6), world_size=1, live=True)
    assert shown[0] == {"text": "x" * 10**6}


def test_the_last_numbers_always_arrive(shown):
    def work() -> None:
        for step in range(1000):
            report(step=step, steps=1000, loss=torch.tensor(1.0 / (step + 1)))

    launch(work, live=True)
    for number in (0, 1):
        assert shown[number]["step"] == 999
        assert shown[number]["loss"] == pytest.approx(0.001)
        assert shown[number]["steps"] == 1000
    assert shown["final"] is True


def test_the_last_numbers_of_a_rank_that_fails_arrive(shown):
    def work() -> None:
        for step in range(5):
            report(step=step)
        raise ValueError

    with pytest.raises(WorkerError):
        launch(work, world_size=1, live=True)
    assert shown[0]["step"] == 4


def test_reports_are_sent_at_most_twenty_times_a_second():
    def work() -> int:
        sent, send = [], parcel.send
        parcel.send = lambda *what: sent.append(what) or send(*what)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            report(step=1)
        return len(sent)

    for count in launch(work, live=True):
        assert 2 <= count <= 0.5 * 20 + 2


def test_numbers_reported_one_by_one_are_kept_together(shown):
    def work() -> None:
        report(step=1)
        report(loss=0.5)
        report(accuracy=0.9)

    launch(work, world_size=1, live=True)
    assert shown[0] == {"step": 1, "loss": 0.5, "accuracy": 0.9}


def test_the_panel_is_drawn_while_ranks_run(shown):
    launch(time.sleep, 0.5, live=True)
    assert shown["drawn"] >= 4


def test_reports_without_a_panel_are_free_of_charge():
    def work() -> int:
        for step in range(100):
            report(step=step)
        return dist.get_rank()

    assert list(launch(work)) == [0, 1]


def test_there_is_no_panel_outside_of_a_notebook(capfd, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    panel = live.Panel()
    panel.before(2)
    assert panel.view is None
    assert list(launch(dist.get_rank, live=True, backend="gloo")) == [0, 1]
    assert capfd.readouterr() == ("", "")
