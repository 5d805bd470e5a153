"""When the work of calls that are only queued began and ended: by CUDA's events, here pretended.

The process group queues (tests/helpers/queues.py); an event is over when all that was queued before
it is. Nothing here asserts a duration: what must come before what is known.
"""

import threading
import time

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from hangs import QUEUES

from course_utils import WorkerTimeout, launch, plot_timeline
from course_utils.devices.placement import gpu_count
from course_utils.record import cuda_times


class PretendedEvent:
    """As torch.cuda.Event: queued in the stream, over when the stream has come to it."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_s = None

    def record(self) -> None:
        work = [end for end in queue["_ends"] if end.locked()]
        threading.Thread(target=self._reach, args=(work,), daemon=True).start()

    def _reach(self, work: list) -> None:
        for end in work:
            queue["_wait_for"](end)
        self.at_s = time.monotonic()

    def query(self) -> bool:
        return self.at_s is not None

    def elapsed_time(self, other: "PretendedEvent") -> float:
        return 1000 * (other.at_s - self.at_s)


queue: dict = {}  # the names of the queueing process group


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose collectives queue, with CUDA's events."""
    item = torch.Tensor.item
    exec(QUEUES, {})
    queue.update(torch.Tensor.item.__globals__)
    monkeypatch.setattr(torch.cuda, "Event", PretendedEvent)
    monkeypatch.setattr(cuda_times, "usable", lambda device: True)
    yield
    torch.Tensor.item = item


def late(async_op: bool, needs_result: bool = True):
    """Rank 1 comes late; rank 0 has long queued its call by then."""

    def work() -> None:
        dist.init_process_group("queues")
        store = dist.distributed_c10d._get_default_store()
        x = torch.ones(2)
        if dist.get_rank() == 1:
            store.wait(["queued"])
        began = dist.all_reduce(x, async_op=async_op)
        if async_op:
            began.wait()
        store.set("queued", "")
        if needs_result:
            x.sum().item()

    return work


@pytest.mark.parametrize("async_op", [False, True])
def test_the_work_is_done_after_all_have_come_though_the_call_was_over_before(gpu, async_op):
    trace = launch(late(async_op), backend=None, trace=True).trace
    first, last = (trace.of_rank(rank)[0] for rank in (0, 1))
    assert first.queued
    assert first.end_s < last.start_s < first.done_s
    assert first.start_s <= first.began_s < first.done_s
    assert last.done_s > last.start_s


def test_what_does_not_queue_has_no_such_times(gpu):
    def work() -> None:
        dist.all_reduce(torch.ones(2))

    trace = launch(work, backend="gloo", trace=True).trace
    assert [(event.queued, event.done_s) for event in trace] == [(False, None)] * 2


def test_a_wait_has_none_and_a_recording_keeps_them(gpu, tmp_path):
    trace = launch(late(True), backend=None, trace=True).trace
    assert [event.done_s for event in trace.of_rank(0) if event.kind == "wait"] == [None]
    trace.save(tmp_path / "trace.json")
    again = type(trace).load(tmp_path / "trace.json")
    assert [event.done_s for event in again] == [event.done_s for event in trace]


def test_work_that_never_ends_leaves_the_times_out_and_the_rank_goes_on(gpu, monkeypatch):
    monkeypatch.setattr(cuda_times, "_PATIENCE_S", 0.01)

    def work() -> int:
        dist.init_process_group("queues")
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(2))
        return 7

    try:
        events = launch(work, backend=None, trace=True, timeout=5).trace.of_rank(0)
    except WorkerTimeout as error:  # a hang is told, as without events
        events = error.trace.of_rank(0)
    assert [event.done_s for event in events] == [None]


def test_a_timeline_draws_the_work_and_says_so(gpu, monkeypatch):
    texts = []

    def show(figure, text, caption="") -> None:
        texts.append(text)
        plt.close(figure)

    monkeypatch.setattr("course_utils.pictures.timeline.show", show)
    plot_timeline(launch(late(False), backend=None, trace=True).trace)
    assert "as long as its work did on the GPU, by CUDA's events" in texts[0]


@pytest.mark.gpu
@pytest.mark.nccl
@pytest.mark.skipif(not gpu_count(), reason="no GPU on this machine")
def test_on_a_gpu_the_work_is_done_after_all_have_come():
    def work() -> None:
        x = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        if dist.get_rank() == 1:
            time.sleep(0.3)
        dist.all_reduce(x)
        x.sum().item()

    how = {"backend": "nccl", "share_gpus": gpu_count() < 2}
    trace = launch(work, trace=True, **how).trace
    first, last = (trace.of_rank(rank)[1] for rank in (0, 1))
    assert first.queued
    assert first.end_s < last.start_s < first.done_s
