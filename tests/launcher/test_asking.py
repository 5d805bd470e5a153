"""A rank is asked where it is, and notices nothing: no handler, no sleep, no wait of its own."""

import ctypes
import faulthandler
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from course_utils import launch as launch_as_a_notebook
from course_utils.launcher import stack_writer
from course_utils.launcher.launch import launch
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame, from_dump
from course_utils.launcher.worker_handle import WorkerHandle

pytestmark = pytest.mark.usefixtures("nothing_left")
C = ctypes.CDLL(None, use_errno=True)  # whose functions let other threads run


class Asks(Listener):
    """Asks every rank again and again, as soon as it has answered."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self._first = True

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
        for worker in workers:
            if final or worker.settled:
                continue
            if self._first:
                worker.request_stack()
            elif worker.has_written_stack():
                self.answers.append(worker.read_stack())
                worker.request_stack()
            else:
                worker.ask_again_if_late()
        self._first = False


def asked(work: Callable[[], object]) -> tuple[object, list[str]]:
    """What a rank returned that was asked all the time, and what it answered."""
    asks = Asks()
    results = launch(work, world_size=1, listeners=[asks])
    return results[0], asks.answers


def polls() -> int:
    return C.poll(None, 0, 1500)


def selects() -> bool:
    before = time.monotonic()
    select.select([], [], [], 1.5)
    return time.monotonic() - before >= 1.5


@pytest.mark.parametrize(("waits", "undisturbed"), [(polls, 0), (selects, True)])
def test_a_wait_is_not_interrupted_and_yet_its_line_is_told(waits, undisturbed):
    result, answers = asked(waits)
    assert result == undisturbed
    assert any(f" in {waits.__name__}\n" in answer for answer in answers)


def test_a_wait_for_the_store_does_not_speak_of_an_interrupted_call(capfd):
    def work() -> None:
        with pytest.raises(dist.DistNetworkError):
            dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=timedelta(seconds=2))

    assert asked(work)[1]
    assert "raised from delay" not in capfd.readouterr().out  # its back-off, interrupted


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_learners_handler_is_called_when_the_learner_sends_the_signal_and_only_then(number):
    def work() -> tuple[int, int]:
        calls = []
        signal.signal(number, lambda *_: calls.append(1))
        time.sleep(1.5)
        before = len(calls)
        os.kill(os.getpid(), number)
        return before, len(calls)

    result, answers = asked(work)
    assert result == (0, 1)
    assert answers


def test_a_run_that_saves_and_exits_on_sigusr1_goes_on_in_silence():
    def work() -> str:
        signal.signal(signal.SIGUSR1, lambda *_: exit("requeued by SIGUSR1"))
        dist.all_reduce(torch.ones(1))
        time.sleep(3)  # a rank alone was asked after a second
        return "done"

    assert list(launch_as_a_notebook(work, world_size=1)) == ["done"]


@pytest.fixture
def taken() -> Iterator[tuple[int, int]]:
    """The signals that would be next: one handled in Python, one in C."""
    in_python, in_c = stack_writer.two_unused_signals()
    signal.signal(in_python, lambda *_: None)
    faulthandler.register(in_c, file=2)
    yield in_python, in_c
    faulthandler.unregister(in_c)
    signal.signal(in_python, signal.SIG_DFL)


def test_a_signal_that_somebody_handles_is_left_alone(taken):
    assert not set(taken) & set(stack_writer.two_unused_signals())
    assert len(set(stack_writer.two_unused_signals())) == 2


def test_without_real_time_signals_ranks_answer_as_well(monkeypatch):
    rare = signal.SIGURG, signal.SIGWINCH, signal.SIGIO  # macOS has SIGINFO as the second
    monkeypatch.setattr(stack_writer, "_rare_signals", lambda: rare)
    result, answers = asked(polls)
    assert result == 0
    assert answers


def test_the_thread_that_answers_is_none_of_the_learners():
    import threading

    assert asked(lambda: (time.sleep(0.5), threading.active_count())[1])[0] == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def handles(error: Exception) -> int:
    try:
        raise error
    except Exception:
        return polls()


def test_a_rank_says_which_exception_it_handles_and_where_that_was_raised():
    answers = asked(lambda: handles(ValueError("a\nbad batch")))[1]
    line = handles.__code__.co_firstlineno + 2
    assert any(f'Handles ValueError: a bad batch "{__file__}", line {line}' in a for a in answers)
    frames = next(from_dump(answer) for answer in answers if "Handles" in answer)
    assert frames.handles == ("ValueError: a bad batch", Frame(__file__, line, "handles"))


def test_an_exception_that_cannot_speak_keeps_no_answer_back():
    result, answers = asked(lambda: handles(Unspeakable()))
    assert result == 0
    assert answers
