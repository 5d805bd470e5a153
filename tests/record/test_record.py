"""What is recorded of every launch: the starts of the last calls, and never at a call's expense."""

import multiprocessing
import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from deadline import hung
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.launcher import launch as launcher
from course_utils.record import event, frames, hooks, memory
from course_utils.record.event import Log, meetings
from course_utils.record.memory import KEPT
from course_utils.record.record import Record
from course_utils.record.waits import Entry, somebody_has


class Kept(Record):
    """A record whose logs outlive the launch."""

    def on_exit(self) -> None:
        self.found = self.logs()
        super().on_exit()


def logs_of(
    fn, world_size: int = 2, trace: bool = False, timeout_s: float = 60.0, **options
) -> dict[int, Log | None]:
    kept = Kept(trace, timeout_s)
    options = {"backend": "gloo", "world_size": world_size, **options}
    launcher.launch(fn, listeners=[kept], **options)
    return kept.found


def hanging(fn, **options) -> WorkerTimeout:
    return hung(lambda seconds: launch(fn, timeout=seconds, backend="gloo", **options), 0.8)


def waits_alone() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2, 3))


def some_calls() -> None:
    """Messages, collectives of shapes that differ late, in two groups."""
    rank, pair = dist.get_rank(), dist.new_group([0, 1])
    for last in (2, 3):
        dist.all_reduce(torch.ones(1, 1, 1, 1, last))
    if rank == 0:
        dist.isend(torch.ones(4, 5), 1, tag=9).wait()
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(4, 5), tag=9)
        dist.recv(torch.ones(1), 0)
    dist.broadcast(torch.ones(3, dtype=torch.int64), 1, group=pair)


@pytest.fixture(scope="module", params=[False, True], ids=["ring", "whole"])
def logs(request) -> dict[int, Log]:
    return logs_of(some_calls, trace=request.param)


def test_calls_are_numbered_as_they_meet_and_end_with_the_return(logs):
    assert [(e.kind, e.number) for e in logs[0].events] == [
        ("new_group", 1), ("all_reduce", 1), ("all_reduce", 2), ("send", 1), ("send", 1),
        ("broadcast", 1), ("return", 1),
    ]  # fmt: skip
    assert logs[0].complete
    together = meetings((*logs[0].events, *logs[1].events), 2)
    open_ = [(m.key[:4], m.missing) for m in together if m.missing]
    assert open_ == [(("message", 0, 1, 9), [1]), (("message", None, 1, 9), [None])]


def test_a_call_is_read_as_it_was_made(logs):
    made, _, _, tagged, _, last, end = logs[0].events
    assert (made.group, end.line) == ((0, 1), None)
    assert (tagged.peer, tagged.root, tagged.tag, tagged.flags) == (1, None, 9, event.ASYNC)
    assert (tagged.dtype, tagged.shape, tagged.bytes) == ("float32", (4, 5), 80)
    assert (tagged.group, tagged.group_name, tagged.blocking) == ((0, 1), "0", False)
    assert (last.group, last.group_name, last.peer, last.root) == ((0, 1), "1", None, 1)
    first = some_calls.__code__.co_firstlineno
    assert tagged.line == (__file__, first + 6, "some_calls")
    assert tagged.code == "dist.isend(torch.ones(4, 5), 1, tag=9).wait()"


def test_starts_are_on_the_systems_clock_and_in_order(logs):
    starts = [e.start_s for e in logs[1].events]
    assert starts == sorted(starts)
    assert logs[1].events[3].peer is None  # who had sent was not known when it was called


def test_shapes_that_differ_in_the_fifth_dimension_are_told_apart(logs):
    shapes = [e.shape for e in logs[0].events if e.kind == "all_reduce"]
    assert shapes == [(1, 1, 1, 1, 2), (1, 1, 1, 1, 3)]


def test_the_last_calls_are_kept_and_the_first_known_to_be_forgotten():
    def work() -> None:
        for _ in range(KEPT + 5):
            dist.barrier()

    log = logs_of(work, 1)[0]
    assert [e.number for e in log.events] == [*range(7, KEPT + 6), 1]
    assert not log.complete


def test_descriptions_that_are_too_many_are_forgotten_and_no_call_is_harmed(monkeypatch):
    def work() -> None:
        for number in range(100):
            exec(compile("dist.barrier()", f"cell {number:09}", "exec"))

    monkeypatch.setattr(memory, "_DESC_BYTES", 8192)
    log = logs_of(work, 1)[0]
    assert not log.complete
    assert 5 < len(log.events) < 90
    assert [e.number for e in log.events] == [*range(102 - len(log.events), 101), 1]
    assert log.events[-2].line[0] == "cell 000000099"


def test_what_fails_in_the_record_ends_the_record_and_no_call(monkeypatch):
    monkeypatch.setattr(frames, "is_learners", None)
    assert logs_of(lambda: dist.barrier() or 5) == {0: None, 1: None}
    told = hanging(waits_alone)
    assert "Rank 0 waited for rank 1, which never arrived: every rank" in str(told)
    assert told.pattern == "missing"


def test_tags_without_end_need_no_memory_without_end_and_no_count_begins_again(monkeypatch):
    monkeypatch.setattr(memory, "_MAX_COUNTS", 20)
    part = memory.make_parts(1, keep_all=False)[0]
    for tag in range(20):
        part.write({"kind": "send", "tag": tag}, None, ("send", 1, tag))
    part.write({"kind": "send", "tag": 3}, None, ("send", 1, 3))
    rows, _complete = part.read()
    assert rows[-1][1].number == 2
    for tag in range(20, 200):
        part.write({"kind": "send", "tag": tag}, None, ("send", 1, tag))
    assert len(part._counts) <= 20
    with pytest.raises(ValueError, match="other descriptions, or none"):
        part.read()


def test_where_torch_cannot_be_listened_to_a_hang_is_reported_by_its_stacks_alone(monkeypatch):
    monkeypatch.setattr(hooks.Recorder, "listen", None)
    assert logs_of(dist.barrier) == {0: None, 1: None}
    told = hanging(lambda: dist.send(torch.ones(1), 1 - dist.get_rank()))
    assert "The ranks wait in send, and what they called before is not known" in str(told)
    assert told.pattern is None


def test_a_wait_in_another_group_has_its_name():
    def work() -> None:
        pair = dist.new_group([0, 2])
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=pair)

    told = str(hanging(work, world_size=3))
    assert "collective #1 of group 1 (ranks 0 and 2), float32 of shape (1,)" in told
    assert "Rank 0 waited for rank 2, which never arrived" in told


def test_groups_of_one_name_that_only_their_members_make_keep_their_members():
    def work() -> None:
        dist.all_reduce(torch.ones(1), group=dist.new_group([dist.get_rank()]))

    found = [e for log in logs_of(work).values() for e in log.events if e.kind == "all_reduce"]
    assert [(e.group_name, e.group) for e in found] == [("1", (0,)), ("1", (1,))]
    assert [(m.members, m.missing) for m in meetings(found, 2)] == [((0,), []), ((1,), [])]


def alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))


def forks_two_that_add_alone() -> tuple[int, int]:
    if not (pid := os.fork()):
        alone()
        os._exit(0)
    other = multiprocessing.get_context("fork").Process(target=alone)
    other.start()
    other.join()
    return os.waitpid(pid, 0)[1], other.exitcode


@pytest.mark.parametrize("trace", [False, True])
def test_what_a_rank_forks_writes_nothing_into_its_rows(trace):
    def work() -> None:
        assert forks_two_that_add_alone() == (0, 0)

    log = logs_of(work, 1, trace, backend=None)[0]
    assert [e.kind for e in log.events] == ["return"]


def test_rows_that_were_written_anew_while_they_were_read_are_read_again(monkeypatch):
    part = memory.make_parts(1, keep_all=False)[0]
    for _ in range(3):
        part.write({"kind": "barrier"}, None)
    head = memory._Head(rows_written=3, desc_bytes=part.head.desc_bytes)
    much_later = memory._Head(rows_written=3 + 2 * KEPT, desc_bytes=part.head.desc_bytes)
    heads = iter([head, much_later, head, head])
    monkeypatch.setattr(memory._Head, "from_buffer_copy", lambda _: next(heads))
    record = Record()
    record._parts, record.unread = [part], {}
    rows, _ = record._read(0)
    assert len(rows) == 3


def test_a_work_that_stands_in_its_entry_alone_is_nobodys():
    entry = Entry(object(), None)
    assert not somebody_has(entry)
    work = entry.work
    assert somebody_has(entry)
    del work
    assert not somebody_has(entry)


class Averaged(list):
    """Data whose samples are averaged, where a DataLoader asks for them."""

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.ones(1) * dist.get_rank()
        dist.all_reduce(sample)
        return sample


def test_a_collective_in_a_worker_of_a_dataloader_is_an_error_and_no_hang():
    def work() -> None:
        list(DataLoader(Averaged([0, 1]), num_workers=1, multiprocessing_context="fork"))

    with pytest.raises(WorkerError) as caught:
        launch(work, backend="gloo")
    text = str(caught.value)
    assert "a DataLoader worker of rank 0 called all_reduce (test_record.py, line " in text
    assert "in __getitem__): only the rank itself can." in text


def test_a_collective_in_a_process_of_a_rank_is_an_error_and_the_rank_goes_on():
    def work() -> tuple[int, int]:
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=dist.all_reduce, args=(torch.ones(1),))
        process.start()
        process.join()
        total = torch.ones(1)
        dist.all_reduce(total)
        return process.exitcode, int(total)

    results = launch(work, backend="gloo")
    assert list(results) == [(1, 2), (1, 2)]
    assert "a process that rank 1 started called all_reduce (test_record" in results.output[1]


def test_a_bucket_hook_of_ddp_written_in_python_meets_no_lock():
    def work() -> float:
        model = DistributedDataParallel(torch.nn.Linear(2, 1))

        def average(group, bucket):
            done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return done.then(lambda future: future.value()[0] / 2)

        model.register_comm_hook(None, average)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        return model.module.weight.grad.sum().item()

    assert list(launch(work, backend="gloo")) == [6.0, 6.0]


def test_what_ddp_has_to_do_with_a_call_is_known():
    def work() -> None:
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.ones(1, 2)).sum().backward()

    calls = [e for e in logs_of(work)[0].events if e.kind != "return"]
    assert {e.flags & ~event.ASYNC for e in calls[:-1]} == {event.DDP_INIT}
    assert calls[-1].flags & event.BACKWARD


@pytest.mark.slow
def test_torch_compile_says_nothing_about_the_recorder():
    def work() -> None:
        model = torch.compile(DistributedDataParallel(torch.nn.Linear(2, 2)), backend="eager")
        for _ in range(2):
            model(torch.ones(2)).sum().backward()

    output = "".join(launch(work).output)
    assert "course_utils" not in output
    assert "hooks.py" not in output


@pytest.mark.parametrize(
    ("launch_s", "timer_s", "may_time_out"),
    [
        (60, 30, True),
        (60, 300, False),
        (3600, 300, True),
        (10, 30, False),
        (3600, None, False),  # torch's own, for which nobody has asked
    ],
)
def test_a_timer_of_a_group_may_end_a_wait_if_it_is_shorter_than_the_launch(
    launch_s, timer_s, may_time_out
):
    timer = None if timer_s is None else timedelta(seconds=timer_s)
    found = logs_of(lambda: dist.barrier(dist.new_group([0, 1], timer)), timeout_s=launch_s)
    barrier = found[0].events[1]
    assert bool(barrier.flags & event.MAY_TIME_OUT) == may_time_out


@pytest.mark.parametrize(("timer_s", "may_time_out"), [(30, True), (1e5, False)])
def test_the_timer_of_a_group_that_only_nccl_serves_is_known(timer_s, may_time_out):
    options = SimpleNamespace(_timeout=timedelta(seconds=timer_s))

    def get_backend(device: torch.device) -> SimpleNamespace:
        if device.type == "cpu":
            raise RuntimeError("no backend type associated with device type cpu")
        return SimpleNamespace(options=options)

    group = SimpleNamespace(_get_backend=get_backend)
    assert hooks._has_short_timeout(group, 60.0) == may_time_out


def test_a_backward_pass_that_ddp_did_not_average_is_known_at_the_return():
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x)

    def work() -> None:
        model = DistributedDataParallel(Half())
        dist.barrier()
        model(torch.ones(1, 2)).sum().backward()

    assert logs_of(work)[0].events[-1].flags == event.UNFINISHED


def test_a_head_that_cannot_be_is_refused_before_gigabytes_are_copied():
    (part,) = memory.make_parts(1, keep_all=True)
    part.head.rows_written = part.head.desc_bytes = 2**60
    with pytest.raises(ValueError, match="more descriptions than there is room for"):
        part.read()
