"""What a rank notes of its calls: the last ones, at little cost, and never at a call's expense."""

import pytest
import torch
import torch.distributed as dist

from course_utils import WorkerTimeout, launch
from course_utils.launcher.stacks import Frame
from course_utils.record import notes, observer
from course_utils.record.notes import KEPT, Notes


@pytest.fixture
def made():
    made = Notes()
    yield made
    made.close()


def hanging(fn, **options) -> WorkerTimeout:
    with pytest.raises(WorkerTimeout) as caught:
        launch(fn, timeout=0.8, backend="gloo", **options)
    return caught.value


def waits_alone() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2, 3))


def test_a_call_is_read_as_it_was_noted(made):
    group, line = made.id("0", 0, 1), made.id("a b.py", 7, "train")
    made.add("send", 3, line, notes.ASYNC, group, 1, 9, [torch.ones(4, 5)])
    made.add("broadcast", 1, notes.NONE, 0, group, 1)
    log = made.read()
    sent, second = log.calls
    assert (sent.kind, sent.number, sent.peer, sent.root, sent.tag) == ("send", 3, 1, None, 9)
    assert (sent.dtype, sent.shape, sent.bytes) == ("float32", (4, 5), 80)
    assert (sent.group, sent.group_name, sent.line) == ((0, 1), "0", Frame("a b.py", 7, "train"))
    assert (second.peer, second.root, second.line, second.shape) == (None, 1, None, ())
    assert log.complete


def test_the_last_calls_are_kept_and_the_first_known_to_be_forgotten(made):
    for number in range(KEPT + 5):
        made.add("barrier", number, notes.NONE)
    log = made.read()
    assert [call.number for call in log.calls] == list(range(5, KEPT + 5))
    assert not log.complete


def test_notes_that_were_given_up_say_nothing(made):
    made.add("barrier", 1, notes.NONE)
    made.give_up()
    assert made.read() is None


def test_a_table_that_is_full_ends_the_notes_and_no_call():
    def work() -> float:
        x = torch.ones(1)
        for number in range(3000):
            exec(compile("dist.all_reduce(x)", f"cell {number:09}", "exec"))
        return x.item() > 0

    assert list(launch(work, world_size=1, backend="gloo")) == [True]


def test_a_note_that_fails_ends_the_notes_and_no_call(monkeypatch):
    monkeypatch.setattr(observer, "_line", None)
    assert list(launch(lambda: dist.barrier() or 5, backend="gloo")) == [5, 5]
    told = hanging(waits_alone)
    assert "Rank 0 waited for rank 1, which never arrived: every rank" in str(told)
    assert told.pattern == "missing"


def test_an_older_torch_is_reported_by_its_stacks_alone(monkeypatch):
    monkeypatch.setattr(observer, "refusal", lambda: "torch is too old")
    told = hanging(lambda: dist.send(torch.ones(1), 1 - dist.get_rank()))
    assert "Every rank waits in a point-to-point call" in str(told)
    assert told.pattern is None


def test_where_every_rank_is_can_be_asked_of_the_error():
    told = hanging(waits_alone, world_size=3)
    first, second = told.waiting[0], told.waiting[1]
    assert (first.state, first.what, first.line.name) == ("waiting", "all_reduce", "waits_alone")
    assert (first.call.kind, first.call.number, first.call.shape) == ("all_reduce", 1, (2, 3))
    assert (second.state, second.call, told.absent, told.pattern) == (
        "returned", None, [1, 2], "returned",
    )  # fmt: skip


def test_a_wait_in_another_group_has_its_name():
    def work() -> None:
        pair = dist.new_group([0, 2])
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=pair)

    told = str(hanging(work, world_size=3))
    assert "collective #1 of group 1 (ranks 0 and 2), float32 of shape (1,)" in told
    assert "Rank 0 waited for rank 2, which never arrived" in told


def test_a_bucket_hook_of_ddp_written_in_python_meets_no_lock():
    def work() -> float:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))

        def average(group, bucket):
            done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return done.then(lambda future: future.value()[0] / 2)

        model.register_comm_hook(None, average)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        return model.module.weight.grad.sum().item()

    assert list(launch(work, backend="gloo")) == [6.0, 6.0]
