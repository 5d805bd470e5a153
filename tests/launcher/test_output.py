"""What ranks print: captured at the level of descriptors, told in rank order."""

import ctypes
import io
import itertools
import logging.handlers
import os
import pdb
import queue
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist
from deadline import within

from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.launcher.captured_output import KEPT_BYTES, MARK, CapturedOutput
from course_utils.launcher.worker_handle import WorkerHandle

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def printed(capfd):
    """What the kernel has printed since it was asked last, without what `launch` itself says."""

    def since() -> list[str]:
        lines = capfd.readouterr().out.splitlines()
        return [line for line in lines if not line.startswith("launch: ")]

    return since


def rank() -> int:
    return dist.get_rank()


def test_the_output_of_a_failed_run_is_printed_before_the_error(printed):
    def work() -> None:
        print("reached", rank())
        dist.barrier()
        if rank() == 1:
            raise ValueError

    with pytest.raises(WorkerError) as caught:
        launch(work)
    assert printed() == ["[rank 0] reached 0", "[rank 1] reached 1"]
    assert caught.value.output == ["reached 0\n", "reached 1\n"]


def test_the_output_of_a_run_that_is_too_long_is_printed(printed):
    def work() -> None:
        sys.stdout.write("no end of line")
        sys.stdout.flush()
        time.sleep(10_000)

    with pytest.raises(WorkerTimeout):
        launch(work, timeout=3)
    assert printed() == ["[rank 0] no end of line", "[rank 1] no end of line"]


def test_the_last_words_of_a_rank_that_dies_are_kept(printed):
    def work() -> None:
        os.write(2, b"last words")
        os._exit(1)

    with pytest.raises(WorkerError):
        launch(work, world_size=1)
    assert printed() == ["[rank 0] last words"]


def test_output_comes_in_rank_order_whoever_is_first(printed):
    def work() -> None:
        time.sleep(0.1 * (2 - rank()))
        print(f"rank {rank()}\n  and more")

    results = launch(work, world_size=3)
    assert printed() == [
        line for r in range(3) for line in (f"[rank {r}] rank {r}", f"[rank {r}]   and more")
    ]
    assert results.output == [f"rank {r}\n  and more\n" for r in range(3)]


def test_output_that_does_not_come_from_python_is_captured(printed):
    def work() -> None:
        libc = ctypes.CDLL(None)
        print("print")
        os.write(1, b"write\n")
        libc.puts(b"puts")
        libc.fflush(None)
        subprocess.run(["echo", "child"], check=True)

    launch(work, world_size=1)
    assert printed() == ["[rank 0] print", "[rank 0] write", "[rank 0] puts", "[rank 0] child"]


@pytest.fixture
def buffered():
    """The C library as it is where standard output is no terminal: it collects what it prints."""
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "__stdoutp" if sys.platform == "darwin" else "stdout")
    room = ctypes.create_string_buffer(4096)
    libc.setvbuf(stdout, room, 0, len(room))
    yield libc
    libc.fflush(None)
    libc.setvbuf(stdout, None, 2, 0)


def test_c_output_in_a_buffer_is_not_lost(printed, buffered):
    launch(lambda: buffered.puts(b"puts"), world_size=1)
    assert printed() == ["[rank 0] puts"]


def test_c_output_of_the_kernel_in_a_buffer_is_not_told_by_every_rank(capfd, buffered):
    buffered.printf(b"once ")
    assert launch(rank).output == ["", ""]
    buffered.fflush(None)
    assert capfd.readouterr().out.count("once") == 1


def test_where_torch_was_built_is_no_place_on_this_machine(printed):
    whole = "what(): [enforce fail at /__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:464]"
    results = launch(print, whole, world_size=1)
    assert results.output == ["what(): [enforce fail at pair.cc:464]\n"]
    assert printed() == ["[rank 0] what(): [enforce fail at pair.cc:464]"]


def test_both_streams_are_merged_in_order(printed):
    def work() -> None:
        for turn in range(3):
            print("out", turn)
            print("err", turn, file=sys.stderr)

    assert launch(work, world_size=1).output == ["out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"]


def test_log_handlers_of_the_kernel_write_into_the_output_of_the_rank(monkeypatch):
    logger, handler = logging.getLogger("of_the_kernel"), logging.StreamHandler()
    monkeypatch.setattr(handler, "stream", sys.stderr)
    logger.addHandler(handler)
    try:
        results = launch(lambda: logger.warning("heard"))
    finally:
        logger.removeHandler(handler)
    assert results.output == ["heard\n", "heard\n"]


def test_what_a_listener_of_the_kernel_writes_it_writes_in_each_rank(printed):
    log, records = logging.getLogger("by a queue"), queue.Queue()
    handler = logging.handlers.QueueHandler(records)
    log.addHandler(handler)
    listener = logging.handlers.QueueListener(records, logging.StreamHandler(sys.stderr))
    listener.start()
    try:
        launch(lambda: log.warning("logged by %d", rank()))
    finally:
        log.removeHandler(handler)
        listener.stop()
    assert printed() == ["[rank 0] logged by 0", "[rank 1] logged by 1"]


def test_a_stream_that_a_thread_is_writing_to_amid_the_fork_holds_no_rank_up(monkeypatch):
    """The thread is not in the fork, but the stream's lock is, as that thread had it."""
    written = threading.Lock()

    class Stream(io.StringIO):
        def flush(self) -> None:
            with written:
                super().flush()

    monkeypatch.setattr(sys, "stderr", Stream())
    handler = logging.StreamHandler()  # such as torch's, whose stream is the kernel's
    with written:
        results = launch(lambda: print(handler.stream is sys.stderr))
    assert results.output == ["True\n", "True\n"]


def test_what_the_kernel_has_not_yet_flushed_is_not_printed_twice(capfd):
    sys.stdout.write("once ")
    assert launch(rank).output == ["", ""]
    assert capfd.readouterr().out.count("once") == 1


def test_a_progress_bar_shows_what_it_looked_like_in_the_end():
    def work() -> None:
        for step in range(100):
            print(f"\rstep {step}", end="", flush=True)
        print("\r\nWindows\r\nlast\r", end="")

    assert launch(work, world_size=1).output == ["step 99\nWindows\nlast"]


def test_bytes_that_are_not_text_do_no_harm(printed):
    def work() -> None:
        os.write(1, b"\xff\xfe and \xc3\xa9\n")
        print("\ud800 \N{SNOWMAN}")

    launch(work, world_size=1)
    assert printed() == ["[rank 0] \ufffd\ufffd and é", "[rank 0] \\ud800 \N{SNOWMAN}"]


def test_a_line_is_ended_by_a_new_line_alone(printed):
    launch(lambda: print("one\x0cline\u2028still one"), world_size=1)
    assert "".join(printed()) == "[rank 0] onelinestill one"


def test_a_flood_is_cut_in_the_middle_and_needs_no_memory():
    def work() -> None:
        print("first")
        block = b"x" * 99 + b"\n"
        for _ in range(1000):
            sys.stdout.buffer.write(block * 1000)  # all of it, also if a signal comes amid
        print("last")

    launch(lambda: None, world_size=1)  # a first one imports much
    before = psutil.Process().memory_info().rss
    text = launch(work, world_size=1).output[0]
    assert psutil.Process().memory_info().rss - before < 20e6
    assert text.startswith("first\n")
    assert text.endswith("x\nlast\n")
    assert f"[... {100_000_000 + 11 - KEPT_BYTES:,} bytes left out ...]" in text
    assert len(text) < KEPT_BYTES + 100


def test_a_flood_without_end_does_not_hold_up_the_deadline():
    def work() -> None:
        block = b"y" * 65536
        while True:
            os.write(1, block)

    with within(60), pytest.raises(WorkerTimeout):
        launch(work, timeout=0.5)


def test_a_rank_that_prints_as_fast_as_the_kernel_reads_does_not_hold_it_up():
    worker = WorkerHandle(0)
    worker.open()
    reads = itertools.repeat(b"z" * 1000, 10**6)
    reader = worker.output_reader
    worker.output_reader = SimpleNamespace(read=lambda size: next(reads))
    worker._read_output()
    worker.output_reader = reader
    worker.close()
    assert reads.__length_hint__() > 10**6 - 1000


def test_a_rank_may_close_or_replace_its_streams(printed):
    def work() -> int:
        print("kept")
        sys.stdout.close()
        sys.stderr = None  # without a flush()
        os.close(1)
        os.close(2)
        return rank()

    assert list(launch(work)) == [0, 1]
    assert printed() == ["[rank 0] kept", "[rank 1] kept"]


def test_a_rank_has_nothing_to_read():
    assert list(launch(lambda: (os.read(0, 10), sys.stdin.read()), world_size=1)) == [(b"", "")]
    with pytest.raises(WorkerError, match="EOFError: a rank has no keyboard"):
        launch(lambda: input("?"), world_size=1)


@pytest.mark.parametrize("stop", [breakpoint, pdb.Pdb().set_trace])
def test_a_debugger_which_has_no_keyboard_either_is_told_as_that(stop):
    def work() -> None:
        stop()
        print("never")

    with pytest.raises(WorkerError, match=r"a rank has no keyboard.* print") as caught:
        launch(work, world_size=1)
    assert "stop()" in str(caught.value)


def test_a_silent_run_prints_nothing(printed):
    assert launch(rank).output == ["", ""]
    assert printed() == []


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_mark_in_the_output_is_found_however_it_arrives_and_is_never_printed(size):
    output = CapturedOutput()
    data = f"one{MARK.format('7-0')}two\x1e\n{MARK.format('7-1')}three".encode()
    for start in range(0, len(data), size):
        output.add(data[start : start + size])
    output.add(b"", is_last=True)
    assert output.text() == "onetwo\x1e\nthree"
    assert output.pieces() == [("one", "7-0"), ("two\x1e\n", "7-1"), ("three", "")]


def test_a_mark_in_the_middle_that_is_left_out_stands_where_the_gap_is():
    output = CapturedOutput()
    for mark in ("1-0", "1-1", "1-2"):
        output.add(b"x" * KEPT_BYTES + MARK.format(mark).encode())
    (head, first), (middle, second), (tail, third), last = output.pieces()
    assert (first, second, third, last) == ("1-0", "1-1", "1-2", ("", ""))
    assert len(head) == KEPT_BYTES // 2
    assert (head + middle + tail) == output.text()


def test_however_many_marks_there_are_a_kernel_keeps_some_thousands_and_all_of_the_text():
    """As of a rank that clears its display and shows it anew in each step."""
    output = CapturedOutput()
    for step in range(10_000):
        output.add(f"{step % 10}{MARK.format(f'7-{step}')}".encode())
    output.add(b"end", is_last=True)
    pieces = output.pieces()
    assert len(pieces) < 5_000
    assert "".join(text for text, _mark in pieces) == "0123456789" * 1_000 + "end"
