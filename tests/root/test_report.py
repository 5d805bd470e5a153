"""`report`: numbers on their way from a rank to the panel."""

import math
import os
import sys

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerError, launch, live, notebook, report

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def shown(monkeypatch):
    """The metrics of every rank when the panel was drawn last."""
    seen = {}

    class Recorder(live.Panel):
        def on_poll(self, members, final: bool = False) -> None:
            seen["drawn"] = seen.get("drawn", 0) + 1
            seen.get("at", {}).pop(seen["drawn"], int)()
            seen.update(enumerate(map(live._read, self.memory)), final=final)

    monkeypatch.setattr(notebook, "Panel", Recorder)
    return seen


def test_a_report_outside_of_launch_does_nothing():
    assert report(step=1, loss=torch.tensor(2.0)) is None
    assert live._memory is None


def test_of_a_long_word_its_beginning_arrives_and_too_many_words_harm_nothing(shown):
    def work() -> None:
        report(text="x" * 10**6, loss=math.nan)
        report(**{f"{number}": "x" * 60 for number in range(1000)})

    launch(work, world_size=1, live=True)
    assert shown[0]["text"] == "x" * 60
    assert math.isnan(shown[0]["loss"])


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


def test_numbers_reported_one_by_one_are_kept_together(shown):
    def work() -> None:
        report(step=1)
        report(loss=0.5)
        report(accuracy=0.9)

    launch(work, world_size=1, live=True)
    assert shown[0] == {"step": 1, "loss": 0.5, "accuracy": 0.9}


def test_the_panel_is_drawn_while_ranks_run(shown):
    reading, writing = os.pipe()
    shown["at"] = {4: lambda: os.write(writing, b"..")}
    with open(reading), open(writing):
        launch(os.read, reading, 1, live=True)
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
    panel.on_start(2)
    assert panel.view is None
    assert list(launch(dist.get_rank, live=True, backend="gloo")) == [0, 1]
    assert capfd.readouterr() == ("", "")
