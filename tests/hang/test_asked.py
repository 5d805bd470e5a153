"""When a launch asks its ranks where they are: after some silence, unless nobody can be waiting."""

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from stalls import call

from course_utils.hang.report import HangReport
from course_utils.record.event import Event, Log


class Asked(SimpleNamespace):
    """A rank that runs; it counts how often it is asked."""

    settled, asked = False, 0

    def request_stack(self) -> None:
        self.asked += 1


def asked_after_silence(*logs: Iterable[Event]) -> list[int]:
    """How often each rank of a launch is asked that is silent for longer than it may be."""
    known = {rank: Log(tuple(calls), True) for rank, calls in enumerate(logs)}
    record = SimpleNamespace(logs=lambda: known, counts=lambda: [len(calls) for calls in logs])
    report, ranks = HangReport(record, quiet_s=0.0), [Asked() for _ in logs]
    report.on_start(len(logs))
    for _ in range(4):
        report.on_poll(ranks)
    return [rank.asked for rank in ranks]


@pytest.fixture(autouse=True)
def silent_ranks(monkeypatch):
    monkeypatch.setattr(Asked, "has_written_stack", lambda self: False, raising=False)
    monkeypatch.setattr(Asked, "ask_again_if_late", lambda self: None, raising=False)


@pytest.mark.parametrize("calls", [[], [call(0, group=(0,))], [call(0, "barrier", group=(0,))]])
def test_a_rank_alone_that_waits_for_no_message_is_left_alone(calls):
    assert asked_after_silence(calls) == [0]


def test_a_rank_alone_that_receives_is_asked():
    assert asked_after_silence([call(0, "recv", group=(0,))]) == [1]


def test_ranks_that_can_wait_for_each_other_are_asked_once():
    assert asked_after_silence([], []) == [1, 1]
