"""The load test: what it counts as crossed or unfair, and two kernels for real."""

import json
import threading

import pytest
import warm_kernels

from course_tools.measure import server_load
from course_tools.measure.server_load import Round


@pytest.mark.slow
def test_two_kernels_at_once_cross_nothing(capsys, monkeypatch):
    monkeypatch.setattr(server_load, "FAIR", 1000.0)  # other tests run beside it
    own, one_by_one = warm_kernels.NURSERY.start, threading.Lock()  # its two threads ask at once

    def start(command, **how):
        with one_by_one:
            return own(command, **how)

    monkeypatch.setattr(warm_kernels.NURSERY, "start", start)
    with warm_kernels.warm():
        assert server_load.main(["--learners", "2", "--rounds", "1"]) == 0
    assert "crossed or failed: 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ([Round(1, True)] * 3, 0, "slowest / median: 1.0"),
        ([Round(1, True)] * 3 + [Round(5, True)], 1, "slowest / median: 5.0"),
        ([Round(1, True)] * 3 + [Round(1, False)], 1, "crossed or failed: 1"),
    ],
)
def test_unfair_or_crossed_rounds_are_a_failure(monkeypatch, capsys, found, status, said):
    monkeypatch.setattr(server_load, "measure", lambda learners, rounds: (found, 8e9))
    assert server_load.main(["--learners", "8"]) == status
    told = capsys.readouterr().out
    assert said in told
    assert "memory per learner: 1.00 GB" in told


@pytest.mark.parametrize(
    ("sums", "passed", "right"),
    [([28] * 4, True, True), ([28, 28, 28, 32], True, False), ([28] * 4, False, False)],
)
def test_a_sum_that_is_another_learners_is_noticed(monkeypatch, sums, passed, right):
    monkeypatch.setattr(
        server_load, "run", lambda client, text: "\n" + json.dumps([1.0, sums, passed])
    )
    assert server_load.one_round(None, 7) == Round(1.0, right)
