"""A rank that gloo ended: the shapes that differ are named, and no other abort speaks of shapes."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from stalls import call

from course_utils import WorkerError, launch
from course_utils.hang.report import HangReport, why_aborted
from course_utils.launcher.errors import Failure
from course_utils.record.event import JOINS, Log

GLOO = "what(): [enforce fail] Received data size doesn't match expected size."


def failing(work, world_size: int = 2) -> str:
    with pytest.raises(WorkerError) as caught:
        launch(work, world_size=world_size, backend="gloo", timeout=10)
    return str(caught.value)


def log(rank: int, *shapes: tuple[int, ...], kind: str = "all_reduce", n: int = 2) -> Log:
    """A rank's calls, made at lines 1, 2 and so on."""
    calls = [
        call(rank, kind, number, number, shape=shape, group=tuple(range(n)))
        for number, shape in enumerate(shapes, 1)
    ]
    return Log(tuple(calls), True)


def test_shapes_that_differ_are_named_with_rank_and_line():
    def work() -> None:
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(4))
        else:
            dist.all_reduce(torch.ones(6))

    text, first = failing(work), work.__code__.co_firstlineno
    where = "at test_aborts.py, line {}, in work: dist.all_reduce(torch.ones({}))"
    assert "Gloo ended it, because collective #2 is not the same on all ranks:" in text
    assert f"\n  rank 0: all_reduce, float32 of shape (4,), {where.format(first + 3, 4)}\n" in text
    assert f"\n  rank 1: all_reduce, float32 of shape (6,), {where.format(first + 5, 6)}\n" in text


def test_an_abort_after_the_return_of_the_function_is_explained_as_well():
    logs = {rank: log(rank, (2,), (4 + rank,)) for rank in (0, 1)}
    ended = call(1, "return", index=2, line=9, dtype=None)
    logs[1] = Log((*logs[1].events, ended), True)
    text = why_aborted(1, logs, ["", GLOO])
    assert "Gloo ended it, because collective #2 is not the same on all ranks:" in text


def test_dtypes_that_differ_are_named():
    def work() -> None:
        dtype = torch.float64 if dist.get_rank() else torch.float32
        dist.all_reduce(torch.ones(3, dtype=dtype))

    text = failing(work)
    assert "rank 0: all_reduce, float32 of shape (3,)" in text
    assert "rank 1: all_reduce, float64 of shape (3,)" in text


def test_an_abort_in_a_group_names_the_group():
    def work() -> None:
        group = dist.new_group([1, 2])
        if dist.get_rank():
            dist.all_reduce(torch.ones(3 * dist.get_rank()), group=group)
        else:
            dist.barrier()

    text = failing(work, world_size=3)
    assert "collective #1 of group 1 (ranks 1 and 2) is not the same on all ranks" in text


def test_an_abort_of_its_own_says_nothing_of_shapes():
    def work() -> None:
        dist.all_reduce(torch.ones(2))
        if dist.get_rank() == 0:
            os.abort()
        dist.all_reduce(torch.ones(6))

    text = failing(work)
    assert "the process died of SIGABRT" in text
    assert "shape" not in text


def test_ranks_that_agree_share_a_row_and_the_first_difference_counts():
    logs = {
        0: log(0, (2,), (4,), n=3),
        1: log(1, (2,), (6,), (5,), n=3),
        2: log(2, (2,), (6,), n=3),
    }
    rows = why_aborted(0, logs, [GLOO, "", ""]).splitlines()
    assert rows[0] == "Gloo ended it, because collective #2 is not the same on all ranks:"
    assert [row.split(",")[0] for row in rows[1:3]] == [
        "  rank 0: all_reduce",
        "  ranks 1 and 2: all_reduce",
    ]
    assert rows[3] == "Hand in the same shape and dtype on every rank."


def test_an_abort_is_known_in_any_language():
    logs = {rank: log(rank, (4 + rank,)) for rank in (0, 1)}
    failure = Failure(
        1, 0.0, "SIGABRT beendete den Prozess", died=True, in_english="the process died of SIGABRT"
    )
    error = WorkerError(["", ""], ["", GLOO], [failure])
    HangReport(SimpleNamespace(logs=lambda: logs)).on_error({}, error)
    assert "Gloo ended it, because collective #1 is not the same on all ranks:" in error.parts[1]


def test_calls_in_another_order_are_told_as_such():
    text = why_aborted(0, {0: log(0, (2,)), 1: log(1, (6,), kind="broadcast")}, [GLOO, ""])
    assert "rank 1: broadcast, float32 of shape (6,)" in text
    assert text.endswith("in the same order, as often as the others.")


def test_a_call_that_met_the_end_of_join_is_named():
    joins, later = call(0, flags=JOINS), call(0, number=2, shape=(2,), flags=JOINS)
    mine = call(1), call(1, number=2, shape=(4,))
    text = why_aborted(0, {0: Log((joins, later), True), 1: Log(mine, True)}, [GLOO, ""])
    assert "Rank 0 has no inputs left: at the end of join" in text
    assert "all_reduce (train.py, line 7) of rank 1 is none of these" in text


@pytest.mark.parametrize(
    "logs",
    [{}, {0: None, 1: log(1, (2,))}, {0: log(0, (2,)), 1: log(1, (2,))}, {0: log(0), 1: log(1)}],
)
def test_where_the_notes_show_no_difference_the_likely_reason_is_said(logs):
    assert "different shapes or dtypes" in why_aborted(0, logs, [GLOO, ""])
    assert why_aborted(0, logs, ["", GLOO]) is None
