"""The law of launch, lines 7 and 8: the stop button, and a kernel that dies."""

import _thread
import contextlib
import ctypes
import errno
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist
from census import gone_within
from torch.utils.data import DataLoader, Dataset

from course_utils import launch
from course_utils.launcher import descendants
from course_utils.launcher import launch as launcher
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.listener import Listener
from course_utils.launcher.stop_button import Stopped
from course_utils.launcher.worker_group import WorkerGroup, remove_segments

pytestmark = pytest.mark.usefixtures("nothing_left", "the_stop_button")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")


@pytest.fixture
def the_stop_button():
    """Works as in a kernel, also where the tests run in the background of a shell."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


class Kernel:
    """A process that launches, forked from this one, so that it need not import torch again."""

    def __init__(self, fn: Callable[[int], object]) -> None:
        self.told, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(tell, 1)
            os.dup2(tell, 2)
            try:
                fn(tell)
            except BaseException as error:
                os.write(tell, repr(error).encode())
            finally:
                os._exit(0)
        os.close(tell)

    def pids(self, count: int) -> set[int]:
        """Process ids that have been written in brackets, once there are so many."""
        seen: set[int] = set()
        while len(seen) < count and (text := os.read(self.told, 4096).decode()):
            seen |= {int(number) for number in re.findall(r"<(\d+)>", text)}
        assert len(seen) >= count, "it ended before all had said who they are"
        return seen

    def rest(self) -> str:
        """What it says from now on to its end."""
        with open(self.told, closefd=False) as file:
            return file.read()

    def family(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.pid).children(recursive=True)}

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def kernel() -> Iterator[Callable[[Callable], Kernel]]:
    """Starts kernels that end with the test."""
    started: list[Kernel] = []
    yield lambda fn: started.append(Kernel(fn)) or started[-1]
    for one in started:
        with contextlib.suppress(OSError):
            one.end()
        os.close(one.told)


def say_pid(tell: int) -> None:
    os.write(tell, f"<{os.getpid()}>".encode())


@pytest.mark.parametrize("presses", [1, 2, 5])
def test_law_7_the_stop_button_stops_the_ranks_at_once(kernel, presses):
    def work(tell: int) -> None:
        say_pid(tell)
        time.sleep(10_000)

    def interrupted(tell: int) -> None:
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(Stopped):
            launch(work, tell, world_size=3)
        os.write(tell, b"restored" if signal.getsignal(signal.SIGINT) is before else b"changed")
        os.write(tell, str(launch(dist.get_rank, world_size=3)).encode())

    stopped = kernel(interrupted)
    workers = stopped.pids(3)
    for _ in range(presses):
        os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does
    assert gone_within(workers, 60)
    assert stopped.rest() == "restored[0, 1, 2]"


def test_law_7_ranks_do_not_see_the_signal(kernel):
    reading, writing = os.pipe()

    def work(tell: int) -> str:
        say_pid(tell)
        os.read(reading, 1)
        return "undisturbed"

    def launching_from_a_thread(tell: int) -> None:
        signal.signal(signal.SIGINT, lambda *_: None)
        with ThreadPoolExecutor(1) as pool:
            results = pool.submit(launch, work, tell).result()
        os.write(tell, str(results).encode())

    with open(reading), open(writing, "wb", 0) as go_on:
        running = kernel(launching_from_a_thread)
        running.pids(2)
        os.killpg(running.pid, signal.SIGINT)
        go_on.write(b"..")
    assert running.rest() == "['undisturbed', 'undisturbed']"


@pytest.mark.parametrize("interrupt", [_thread.interrupt_main, partial(signal.raise_signal, 2)])
def test_a_watchdog_of_a_rank_can_interrupt_it(interrupt):
    def work() -> str:
        threading.Timer(0.1, interrupt).start()
        try:
            for _ in range(3000):
                time.sleep(0.01)
        except KeyboardInterrupt:
            return "interrupted"
        return "nothing happened"

    assert launch(work) == ["interrupted", "interrupted"]


def test_law_7_a_stop_while_the_ranks_start_is_obeyed():
    def press_and_launch(delay: float) -> None:
        timer = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        timer.start()
        try:
            launch(time.sleep, 100, world_size=4)
        finally:
            timer.join()

    launch(dist.get_rank)  # the first one in a kernel asks for its GPUs, in a process of its own
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04):
        with pytest.raises(KeyboardInterrupt):
            press_and_launch(delay)


def test_law_7_a_press_after_all_functions_have_returned_loses_no_result():
    class PressesAtTheEnd(Listener):
        def on_exit(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped) as caught:
        launcher.launch(dist.get_rank, listeners=[PressesAtTheEnd()])
    assert list(caught.value.results) == [0, 1]
    assert caught.value.unfinished == []
    assert signal.getsignal(signal.SIGINT) is before


def test_law_7_a_press_while_an_error_is_put_together_leaves_the_error():
    class PressesAtTheError(Listener):
        def on_error(self, stacks, error) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        launcher.launch(lambda: 1 / 0, listeners=[PressesAtTheError()])
    assert signal.getsignal(signal.SIGINT) is before
    assert launch(dist.get_rank) == [0, 1]


class Reconnects:
    """Waits, where it is rebuilt, for a server that doesn't answer."""

    def __init__(self) -> None:
        self.address = "db"

    def __setstate__(self, state: dict) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(600)


def test_law_7_a_press_while_a_result_is_rebuilt_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped, match=r"^Stopped while the result of rank [01] was rebuilt; noth"):
        launch(Reconnects)
    assert signal.getsignal(signal.SIGINT) is before
    assert launch(dist.get_rank) == [0, 1]


def test_law_7_a_launch_from_a_thread_leaves_the_handlers_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def one() -> None:
        launch(dist.get_rank)
        seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=one)
    thread.start()
    thread.join()
    assert seen == [before]


def test_law_7_a_stop_amid_the_forks_of_a_thread_stops_none_of_its_ranks(monkeypatch):
    become, found = WorkerGroup._become_rank, []

    def pressed_and_become(*own) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # it goes to the whole group of the kernel
        become(*own)

    monkeypatch.setattr(WorkerGroup, "_become_rank", pressed_and_become)
    thread = threading.Thread(target=lambda: found.extend(launch(dist.get_rank)))
    thread.start()
    thread.join()
    assert found == [0, 1]


class Slow(Dataset):
    """Says which process works on it."""

    def __init__(self, tell: int) -> None:
        self.tell = tell

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        say_pid(self.tell)
        time.sleep(0.05)
        return index


def sleeping(tell: int) -> None:
    say_pid(tell)
    time.sleep(10_000)


def in_c(tell: int) -> None:
    say_pid(tell)
    ctypes.PyDLL(None).sleep(10_000)  # keeps the interpreter's lock


def loading(tell: int) -> None:
    say_pid(tell)
    for _ in DataLoader(Slow(tell), num_workers=2):
        pass


@linux
@pytest.mark.parametrize(("work", "count"), [(sleeping, 3), (in_c, 3), (loading, 9)])
def test_law_8_every_worker_is_gone_a_second_after_the_kernel(kernel, work, count, nothing_left):
    killed = kernel(lambda tell: launch(work, tell, world_size=3))
    told, family = killed.pids(count), killed.family()
    assert told == family
    killed.end()
    assert gone_within(family, 60)
    # Of DataLoaders, killed with all who could tidy up: sockets, and a tensor on its way, if any.
    for folder in nothing_left.glob("ddp-*"):
        shutil.rmtree(folder)
    remove_segments(family)


def running_a_program(tell: int) -> None:
    program = subprocess.Popen(["sleep", "600"])
    os.write(tell, f"<{program.pid}>".encode())
    sleeping(tell)


def running_in_a_shell(tell: int) -> None:
    os.set_inheritable(tell, True)  # else the shell could say nothing
    os.system(f"sh -c 'echo \"<$$>\" > /proc/self/fd/{tell}; exec sleep 600' &")
    sleeping(tell)


def forking_in_a_thread(tell: int) -> None:
    process = multiprocessing.get_context("fork").Process(target=sleeping, args=(tell,))
    thread = threading.Thread(target=process.start)
    thread.start()
    thread.join()
    sleeping(tell)


@linux
@pytest.mark.parametrize("work", [running_a_program, running_in_a_shell, forking_in_a_thread])
def test_law_8_what_a_rank_has_started_is_gone_as_well(kernel, work):
    killed = kernel(lambda tell: launch(work, os.dup(tell), world_size=2))
    started = killed.pids(4)
    killed.end()
    assert gone_within(started, 60)


def test_law_8_a_helper_threads_fork_is_its_own_while_the_main_thread_forks(monkeypatch):
    of_rank, tied = descendants.Descendants(None), []
    guard_starts, main_has_forked = threading.Event(), threading.Event()

    def start_guard() -> None:
        guard_starts.set()
        main_has_forked.wait(60)

    def fork() -> None:
        of_rank._before_fork()
        of_rank._in_child()

    monkeypatch.setattr(of_rank, "_start_guard", start_guard)
    monkeypatch.setattr(of_rank, "_note", lambda pid: None)
    monkeypatch.setattr(
        descendants, "die_with_parent", lambda: tied.append(threading.current_thread())
    )
    helper = threading.Thread(target=fork)
    helper.start()
    guard_starts.wait(60)
    fork()
    main_has_forked.set()
    helper.join()
    assert tied == [threading.main_thread()]


def test_law_8_a_guard_that_could_not_start_is_tried_again(monkeypatch):
    of_rank = descendants.Descendants(None)
    of_rank._rank_pid = os.getpid()

    def no_process(*_arguments, **_options) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    of_rank._start_guard()
    assert of_rank._lifeline is None

    started = []

    def shell(command, **_options) -> SimpleNamespace:
        of_rank._start_guard()  # as `Popen` does in a rank
        started.append(command)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", shell)
    of_rank._start_guard()
    of_rank._start_guard()
    assert len(started) == 1
    os.close(of_rank._lifeline)


@linux
@pytest.mark.parametrize("delay", [0.0, 0.005, 0.01, 0.02, 0.04, 0.08])
def test_law_8_ranks_that_are_just_being_forked_do_not_survive_either(kernel, delay):
    def launching(tell: int) -> None:
        say_pid(tell)
        launch(time.sleep, 100, world_size=8)

    killed = kernel(launching)
    killed.pids(1)
    time.sleep(delay)
    family = killed.family()
    killed.end()
    assert gone_within(family, 60)


def test_law_9_a_handler_set_by_compiled_code_is_there_afterwards():
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    theirs = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    address = ctypes.cast(theirs, ctypes.c_void_p).value
    pythons = libc.signal(signal.SIGINT, address)
    launch(int, world_size=1, backend="gloo")
    assert libc.signal(signal.SIGINT, pythons) == address
