"""The law of launch, line 6: too long, and the error says who waits, where, and for whom."""

import ctypes
import os
import re
import signal
import subprocess
import time

import pytest
import torch
import torch.distributed as dist
from deadline import hung, within
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import WorkerTimeout, launch, life, notebook
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.rendezvous import Rendezvous
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.record.record import Record

pytestmark = pytest.mark.usefixtures("nothing_left")
HERE = os.path.basename(__file__)


def hanging(fn, n: int = 2, backend: str | None = "gloo", timeout: float = 1.5) -> str:
    """What the error says, which comes soon after the deadline."""
    tried = []

    def launching(seconds: float) -> None:
        tried.append(seconds)
        launch(fn, world_size=n, timeout=seconds, backend=backend)

    with within(90):
        error = hung(launching, timeout)
    assert re.match(rf"ranks? .* not done after {tried[-1]:g} s\.\n", str(error))
    return str(error)


def line_of(fn, text: str) -> str:
    """Such as `test_x.py, line 5, in fn: dist.barrier()`."""
    import inspect

    rows, first = inspect.getsourcelines(fn)
    number = next(i for i, row in enumerate(rows) if text in row)
    return f"{HERE}, line {first + number}, in {fn.__name__}: {rows[number].strip()}"


def test_law_6_a_hang_names_the_rank_that_never_arrived():
    def work() -> None:
        if dist.get_rank() == 1:
            time.sleep(10_000)
        dist.barrier()

    told = hanging(work, 3)
    barrier, sleep = line_of(work, "barrier"), line_of(work, "sleep")
    assert f"  rank 0: waiting in barrier at {barrier}\n" in told
    assert f"  rank 1: running at {sleep}\n" in told
    assert f"  rank 2: waiting in barrier at {barrier}\n" in told
    assert "Ranks 0 and 2 waited for rank 1, which never arrived" in told


def test_law_6_a_rank_that_has_returned_never_arrives():
    def work() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    told = hanging(work)
    assert told.startswith("rank 0 was not done")
    assert "  rank 1: its function has returned" in told
    assert "Rank 0 waited for rank 1, which never arrived" in told


def test_law_6_two_ranks_that_send_to_each_other_are_told_so():
    def work() -> None:
        dist.send(torch.ones(1), 1 - dist.get_rank())

    told = hanging(work)
    assert told.count(f"waiting in send at {line_of(work, 'dist.send')}") == 2
    assert "Let one side receive first, or use isend and irecv" in told


def test_law_6_two_ranks_that_receive_from_each_other_are_told_so():
    told = hanging(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()))
    assert told.count("waiting in recv at") == 2
    assert "Ranks 0 and 1 all receive, and none sends" in told


def test_law_6_an_endless_loop_in_python_is_shown():
    def work() -> None:
        while True:
            pass

    told = hanging(work)
    assert re.search(rf"rank 0: running at {HERE}, line \d+, in work: (while True:|pass)", told)
    assert "No rank waits for another: ranks 0 and 1 only needed longer" in told


def test_law_6_an_endless_loop_in_c_is_shown():
    def work() -> None:
        if dist.get_rank() == 0:
            ctypes.PyDLL(None).sleep(10_000)  # holds the interpreter's lock; a signal wakes it
            ctypes.PyDLL(None).pause()
        dist.barrier()

    told = hanging(work)
    assert re.search(rf"rank 0: running at {HERE}, line \d+, in work: ctypes", told)
    assert "Rank 1 waited for rank 0" in told


def test_law_6_different_collectives_are_told_apart():
    def work() -> None:
        if dist.get_rank() == 0:
            dist.barrier()
        else:
            dist.broadcast(torch.ones(10), 0)
            dist.broadcast(torch.ones(10), 0)

    told = hanging(work)
    assert "waiting in barrier" in told
    assert "waiting in broadcast" in told
    assert "Collective #1 is barrier (test_law_timeouts.py, line " in told
    assert ") on rank 0, broadcast (test_law_timeouts.py, line " in told


def test_law_6_different_groups_are_hinted_at():
    def work() -> None:
        one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
        dist.barrier(group=(one, two)[dist.get_rank()])

    assert "wait for each other in different groups" in hanging(work)


def test_law_6_a_missing_backward_is_seen_inside_ddp():
    def work() -> None:
        model = DistributedDataParallel(nn.Linear(2, 2))
        loss = model(torch.ones(1, 2)).sum()
        if dist.get_rank() == 0:
            loss.backward()
        time.sleep(10_000)

    told = hanging(work)
    assert "rank 0: waiting in backward at " in told
    assert "Rank 0 waited for rank 1" in told


def test_law_6_a_model_wrapped_by_one_rank_only_is_seen():
    def work() -> None:
        if dist.get_rank() == 0:
            DistributedDataParallel(nn.Linear(2, 2))

    assert "rank 0: waiting in DDP(model) at " in hanging(work)


def test_law_6_a_wait_for_an_asynchronous_call_is_seen():
    def work() -> None:
        if dist.get_rank() == 0:
            handle = dist.all_reduce(torch.ones(1), async_op=True)
            handle.wait()

    assert "rank 0: waiting in wait at " in hanging(work)


def test_law_6_a_rank_that_never_joins_is_seen():
    def work() -> None:
        if os.environ["RANK"] == "0":
            dist.init_process_group("gloo")
        time.sleep(10_000)

    told = hanging(work, backend=None)
    assert "rank 0: waiting in init_process_group at " in told
    assert "Rank 0 waited for rank 1" in told


def test_law_6_a_rank_that_is_stopped_by_a_signal_is_told_of():
    def work() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    told = hanging(work)
    assert "rank 1: gives no answer" in told
    assert "Rank 0 waited for rank 1" in told


def test_law_6_a_rank_that_is_gone_is_asked_and_gives_no_answer():
    """In a kernel that ignores SIGCHLD nobody is left there to be signalled."""
    worker = WorkerHandle(0)
    worker.open()
    gone = subprocess.Popen(["true"])
    worker.pid = gone.pid
    gone.wait()
    worker.request_stack()
    worker._answer_deadline = long_ago = Deadline(-1)  # so it is asked once more, in the other way
    assert not worker.has_written_stack()
    worker.ask_again_if_late()
    assert (worker.read_stack(), worker._answer_deadline is not long_ago) == ("", True)
    worker.close()


def test_law_6_a_rank_that_was_asked_before_answers_from_the_beginning():
    """Both share one offset into the file: else an answer stands behind zeros, at last unseen."""
    worker = WorkerHandle(0)
    worker.open()
    worker.pid = os.getpid()
    old = [signal.signal(number, lambda *_: None) for number in worker.stack_signals]
    try:
        for _ in range(3):
            worker.request_stack()
            row = '  File "a.py", line 3 in _run_function\n'
            os.write(worker.stack_file.fileno(), row.encode())  # as a rank does
            assert worker.read_stack() == row
    finally:
        for number, handler in zip(worker.stack_signals, old, strict=True):
            signal.signal(number, handler)
        worker.close()


def test_law_6_a_name_that_is_not_ascii_is_told_as_it_is():
    def 训练() -> None:
        time.sleep(10_000)

    assert f"rank 0: running at {line_of(训练, 'time.sleep')}" in hanging(训练, 1)


def test_law_6_in_a_deep_recursion_the_line_is_told():
    def deeper(n: int) -> None:
        deeper(n - 1) if n else time.sleep(10_000)

    assert f"rank 0: running at {line_of(deeper, 'time.sleep')}" in hanging(lambda: deeper(300), 1)


def test_law_6_a_rank_that_ignores_every_signal_is_stopped():
    def work() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(10_000)

    assert "ranks 0 and 1 were not done" in hanging(work)


def test_law_6_the_words_are_the_same_in_every_run():
    def work() -> None:
        print("about to wait")
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    told = set()
    for _ in range(2):
        # Long enough that both have joined, on a busy machine as well; the first line says it.
        _seconds, words = hanging(work, timeout=4.0).split("\n", 1)
        told.add(words)
    assert len(told) == 1


def test_law_6_a_run_that_is_just_in_time_is_no_timeout():
    assert list(launch(time.sleep, 0.5, timeout=5)) == [None, None]


def test_law_6_a_function_of_a_library_is_said_to_be_outside_of_your_code():
    with pytest.raises(WorkerTimeout, match="rank 0: running, outside of your code"):
        launch(time.sleep, 100, timeout=4.0, world_size=1)


def test_law_6_ranks_that_are_still_starting_are_told_so(monkeypatch):
    join = Rendezvous.join

    def late(meet: Rendezvous, backend: str, rank: int) -> None:
        if rank == 1:
            time.sleep(600)
        join(meet, backend, rank)

    monkeypatch.setattr(Rendezvous, "join", late)
    with pytest.raises(WorkerTimeout) as caught:
        launch(dist.barrier, timeout=4.0)
    text = str(caught.value)
    assert "  rank 0: starting, before your function\n  rank 1: starting, before" in text
    assert "Ranks 0 and 1 were still starting: launch makes the group before it calls" in text
    assert caught.value.pattern == "starting"


def test_who_names_no_timeout_has_as_many_times_more_as_the_machine_is_slow(monkeypatch):
    monkeypatch.setattr(notebook, "_LONG_SILENCE_S", 1.0)
    monkeypatch.setattr(life, "slowness", lambda: 60)
    assert list(launch(time.sleep, 2.0, world_size=1)) == [None]
    with pytest.raises(WorkerTimeout, match="not done after 1 s"):
        launch(time.sleep, 100, world_size=1, timeout=1.0)


def test_on_a_quick_machine_silence_ends_a_launch(monkeypatch):
    monkeypatch.setattr(notebook, "_LONG_SILENCE_S", 1.0)
    monkeypatch.setattr(life, "slowness", lambda: 1)
    with pytest.raises(WorkerTimeout, match=r"not done after [2-9] s") as caught:
        launch(time.sleep, 100, world_size=1)
    assert "No rank made a call or printed anything in the last 1 s." in str(caught.value)


def prints(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        print("alive")
        time.sleep(0.05)
    return "done"


def adds_up(seconds: float) -> str:
    waited = torch.zeros(1)
    while waited < seconds:  # all ranks leave the loop after the same round
        time.sleep(0.05)
        waited += 0.05
        dist.all_reduce(torch.ones(1))
    return "done"


@pytest.mark.parametrize("work", [prints, adds_up])
def test_ranks_that_go_on_are_not_ended_where_nobody_said_how_long_they_may_take(monkeypatch, work):
    monkeypatch.setattr(notebook, "_LONG_SILENCE_S", 2.0)
    assert list(launch(work, 6.0)) == ["done", "done"]


@pytest.mark.parametrize("work", [prints, adds_up])
def test_a_timeout_that_somebody_names_bounds_the_whole_launch(work):
    with pytest.raises(WorkerTimeout, match="not done after 2 s"):
        launch(work, 600.0, timeout=2.0)


def test_ranks_that_fell_silent_after_a_while_are_ended(monkeypatch):
    monkeypatch.setattr(notebook, "_LONG_SILENCE_S", 1.0)
    monkeypatch.setattr(life, "slowness", lambda: 1)

    def falls_silent() -> None:
        prints(2.0)
        time.sleep(600)

    with pytest.raises(WorkerTimeout) as caught:
        launch(falls_silent)
    assert "running at" in str(caught.value)
    assert "printed anything in the last 1 s" in str(caught.value)


def test_a_hang_that_is_proven_before_is_not_told_as_silence():
    silence = life.SilenceTimeout(Record(), 60.0)
    silence.on_start(1)
    error = WorkerTimeout(["Rank 0 would never be done."])
    silence.on_error({}, error)
    assert error.parts == ["Rank 0 would never be done."]
