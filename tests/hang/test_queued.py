"""Calls that return when they are queued, as under NCCL: the record tells what stacks cannot."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from deadline import hung
from hangs import CONTROLS, PATTERNS, QUEUES, SETUP, Hang, reports
from kernels import Kernel
from stalls import at, call, explained, inside
from test_hangs import judge

from course_utils import launch, plot_timeline
from course_utils.hang.whereabouts import Whereabouts
from course_utils.record.event import ASYNC, QUEUED

# What is no hang there, or what the group for tests cannot do.
OTHERS = {
    "groups in another order": "each group has a queue of its own",
    "an exception that a call in a `finally:` keeps back": "that call does not wait",
    "a tag that differs": "NCCL looks at no tag",
    "a sharded model's whole state, on one rank": "not made",
    "a sharded model's forward pass, on one rank": "not made",
    "a receive from any rank, of which nothing is known": "not made",
    "a barrier of another kind on one rank": "only gloo has it",
    "a group for calls of functions that is larger than the number of ranks": "not made",
    "a message sent by isend, for which nobody waits before the end": "it arrives there",
    "a call in a thread whose end one rank waits for": "that call has no line of the learner's",
}
# Where sends may wait for each other on a GPU, the record cannot prove it.
_UNPROVEN = {
    "two ranks that send first",
    "a ring in which everybody sends first",
    "two ranks that receive first",
}
_SAYS = {  # instead of the call that it stands in
    "an uneven number of batches under DDP": ("rank 0: has queued all_reduce and is at cell",),
    "a wait for a call that nobody joins": ("rank 0: has queued all_reduce and is at cell",),
    "a wrong peer": ("rank 2 never sent message #1 to rank 1",),
    # Where a rank stands is not where it called, so the loops that lead there cannot be compared.
    "early stopping by what one rank has measured": ("is barrier (cell [N], line 16) on rank 0",),
    # The main thread stands still as well, and waits for the same ranks.
    "a call in a thread that asyncio waits for on one rank": ("rank 1 never called all_reduce in",),
}
_PATTERN = {
    "a wrong peer": "returned",
    "early stopping by what one rank has measured": "order",
    "a call in a thread that asyncio waits for on one rank": "returned",
}


def on_a_gpu(hang: Hang) -> Hang:
    """What the report must make of a pattern there."""
    if hang.name in _UNPROVEN:
        says = ("No call is seen to lack its partner", "use dist.batch_isend_irecv")
        unmarked = hang.body.replace("# <-", "")
        return replace(hang.queued, body=unmarked, pattern=None, says=says)
    says, pattern = _SAYS.get(hang.name, hang.says), _PATTERN.get(hang.name, hang.pattern)
    return replace(hang.queued, says=says, pattern=pattern)


QUEUED_HANGS = [
    on_a_gpu(hang) for hang in PATTERNS + CONTROLS if hang.backend and hang.name not in OTHERS
]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel(is_warm=True)
    for cell in (SETUP, QUEUES):
        assert not kernel.run(cell, 60).errors
    yield kernel
    kernel.close()


@pytest.mark.slow
def test_every_hang_is_explained(kernel: Kernel, subtests: pytest.Subtests) -> None:
    for hang, (pattern, text) in zip(QUEUED_HANGS, reports(kernel, QUEUED_HANGS), strict=True):
        with subtests.test(hang.name):
            judge(hang, pattern, text)


def test_the_page_that_shows_both_reports_has_every_pattern():
    page = Path(__file__).parents[2].joinpath("docs/hangs-queued.md").read_text()
    for hang in PATTERNS + CONTROLS:
        if hang.backend:
            there = on_a_gpu(hang).pattern or "-" if hang.name not in OTHERS else ""
            assert f"\n| {hang.name} | {hang.pattern or '-'} | {there} | " in page


def queued(rank: int, number: int, kind: str = "all_reduce", flags: int = 0, **more):
    return call(rank, kind, number, number, flags=QUEUED | flags, **more)


def told(*calls, stands=None) -> tuple[str | None, str]:
    """The report of ranks of which no stack shows a call of torch.distributed."""
    error = explained(stands or dict.fromkeys(range(len(calls)), at(30)), *calls)
    return error.pattern, str(error)


def test_who_has_called_it_who_has_not_and_where_the_result_is_needed():
    pattern, text = told([queued(0, 1)], [], stands={0: at(30), 1: None})
    assert pattern == "returned"
    assert "rank 0: has queued all_reduce and is at train.py, line 30, in train: " in text
    assert "collective #1, float32 of shape (1,), queued at train.py, line 1, in train: " in text
    assert "Rank 0 waited for rank 1, which never arrived" in text
    assert "A call on a GPU returns as soon as it is queued" in text


def test_a_rank_that_stands_in_no_line_of_the_learners_is_told_in_whole_words():
    place = Whereabouts(0, "running")
    place.mark_waiting_for(queued(0, 1))
    assert place.row((0, 1)) == "has queued all_reduce and is outside of your code"


def test_calls_that_all_ranks_have_queued_alike_stop_nobody():
    both = [[queued(rank, number) for number in (1, 2, 3)] for rank in (0, 1)]
    pattern, text = told(*both)
    assert (pattern, "returns as soon as it is queued" in text) == ("running", False)


def test_calls_in_another_order_are_told_although_all_ranks_have_made_as_many():
    pattern, text = told(
        [queued(0, 1), queued(0, 2, "broadcast", root=0)],
        [queued(1, 1, "broadcast", root=0), queued(1, 2)],
    )
    assert pattern == "order"
    assert "Collective #1 is all_reduce (train.py, line 1) on rank 0, broadcast (train.py" in text


def test_groups_in_another_order_stop_the_queue_of_a_stream():
    first, second = {"group_name": "1"}, {"group_name": "2"}
    crossed = [
        [replace(queued(0, 1, **first), index=0), replace(queued(0, 1, **second), index=1)],
        [replace(queued(1, 1, **second), index=0), replace(queued(1, 1, **first), index=1)],
    ]
    assert told(*crossed)[0] == "groups"
    apart = [[replace(its, flags=QUEUED | ASYNC) for its in calls] for calls in crossed]
    assert told(*apart)[0] == "running"  # each group has a stream of its own then


def barrier(rank: int, number: int, index: int):
    """A barrier in line 5: under NCCL too it holds its caller, and is not queued."""
    return replace(call(rank, "barrier", number, 5), index=index, dtype=None)


@pytest.mark.parametrize("returned", [False, True])
def test_a_barrier_that_all_have_reached_waits_for_what_a_rank_has_queued_before_it(returned):
    of_some = {"group_name": "1"}
    calls = [queued(0, 1, **of_some), barrier(0, 1, 1)], [barrier(1, 1, 0)]
    stands = {0: inside("barrier", line=5), 1: None if returned else at(30)}
    pattern, text = told(*calls, stands=stands)
    assert pattern == ("returned" if returned else "missing")
    assert "rank 0: has queued all_reduce and is at train.py, line 5, in train: " in text
    assert "Rank 0 waited for rank 1, which never arrived" in text


def test_a_barrier_that_somebody_has_not_reached_is_told_as_such():
    calls = [queued(0, 1), barrier(0, 2, 1)], []
    _, text = told(*calls, stands={0: inside("barrier", line=5), 1: at(30)})
    assert "rank 0: waiting in barrier at train.py, line 5, in train: " in text


def test_a_call_that_blocks_is_told_as_before():
    assert told([call(0)], [])[0] == "running"


def test_a_message_that_is_received_stops_nobody():
    calls = [queued(0, 1, "send", peer=1)], [queued(1, 1, "recv", peer=0)]
    assert told(*calls)[0] is None
    assert "Rank 1 waited for rank 0" in told([], calls[1])[1]


def test_a_hang_is_explained_while_a_trace_records_waits(queues):
    def work() -> None:
        dist.init_process_group("queues")
        x = torch.ones(2)
        dist.all_reduce(x, async_op=True).wait()
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        x[0].item()

    error = hung(lambda seconds: launch(work, backend=None, trace=True, timeout=seconds), 1.5)
    assert (error.pattern, getattr(error, "__notes__", [])) == ("returned", [])


def recorded(backend: str):
    """The recording of a run whose ranks call, wait and need the result."""

    def work() -> float:
        dist.init_process_group(backend)
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        return x[0].item()

    results = launch(work, backend=None, trace=True)
    assert list(results) == [4.0, 4.0]
    return results.trace


@pytest.fixture(scope="module")
def queues() -> Iterator[None]:
    item = torch.Tensor.item
    exec(QUEUES, {})
    yield
    torch.Tensor.item = item


def test_an_event_says_whether_its_end_is_that_of_the_work_or_of_the_queueing(queues):
    kinds = [(event.kind, event.queued) for event in recorded("queues").of_rank(0)]
    assert kinds == [("all_reduce", True), ("all_reduce", True), ("wait", True)]
    kinds = [(event.kind, event.queued) for event in recorded("gloo").of_rank(0)]
    assert kinds == [("all_reduce", False), ("all_reduce", False), ("wait", False)]


def test_a_barrier_holds_its_caller_under_nccl_too_unless_it_is_asynchronous(queues, tmp_path):
    has_come = tmp_path / "rank 0 has come"

    def work() -> bool:
        dist.init_process_group("queues")
        if dist.get_rank() == 0:
            time.sleep(0.5)
            has_come.touch()
        dist.barrier()
        dist.barrier(async_op=True)
        return has_come.exists()

    results = launch(work, backend=None, trace=True)
    assert results[1]
    kinds = [(event.kind, event.queued) for event in results.trace.of_rank(0)]
    assert kinds == [("barrier", False), ("barrier", True)]


def test_a_timeline_says_that_calls_ended_when_they_were_queued(queues, monkeypatch):
    texts = []

    def show(figure, text, caption="") -> None:
        texts.append(text)
        plt.close(figure)

    monkeypatch.setattr("course_utils.pictures.timeline.show", show)
    plot_timeline(recorded("queues"))
    plot_timeline(recorded("gloo"))
    assert "A call ends here when it was queued on the GPU" in texts[0]
    assert "queued" not in texts[1]
