"""How slow this machine is, and limits that follow it."""

import time

import pytest
from deadline import long_enough, within

from course_utils.launcher import deadlines


def test_a_machine_that_keeps_a_computation_waiting_is_slow(monkeypatch):
    def wait_then_count(count: int) -> range:
        time.sleep(1.0)
        return range(count)

    monkeypatch.setattr(deadlines, "range", wait_then_count, raising=False)
    assert deadlines.slowness() > 20


def test_what_was_measured_recently_is_good_enough_where_that_is_said(monkeypatch):
    monkeypatch.setattr(deadlines, "_measured", [(time.monotonic(), 7)])
    assert deadlines.slowness(recent_s=100.0) == 7
    monkeypatch.setattr(deadlines, "_measured", [(time.monotonic() - 200.0, 10**9)])
    assert deadlines.slowness(recent_s=100.0) < 10**9


def test_a_deadline_is_put_off_on_a_slow_machine(monkeypatch):
    deadline = deadlines.Deadline(0.01)
    time.sleep(0.02)
    monkeypatch.setattr(deadlines, "slowness", lambda *_: 10**6)
    assert not deadline.is_over()
    monkeypatch.setattr(deadlines, "slowness", lambda *_: 1)
    assert deadline.is_over()


def test_nothing_is_measured_before_the_time_is_over(monkeypatch):
    monkeypatch.setattr(deadlines, "slowness", None)
    assert not deadlines.Deadline(1000.0).is_over()


def test_what_runs_within_a_time_may_take_longer_on_a_slow_machine(monkeypatch):
    monkeypatch.setattr(deadlines, "slowness", lambda *_: 10**6)
    with within(0.05):
        time.sleep(0.2)
    monkeypatch.setattr(deadlines, "slowness", lambda *_: 1)
    with pytest.raises(TimeoutError, match="on a quiet machine"), within(0.05):
        time.sleep(60)


def test_a_number_of_seconds_is_a_multiple(monkeypatch):
    monkeypatch.setattr("deadline.slowness", lambda recent_s: 3)
    assert long_enough(20.0) == 60.0
