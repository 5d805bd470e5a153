"""One rank as the kernel sees it: a process, its messages, its output, its stack."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from io import FileIO
from typing import Any

from course_utils.launcher import errors, stack_writer, transport
from course_utils.launcher.shutdown import AtWork
from course_utils.launcher.stacks import WRITTEN

KEPT_BYTES = 64 * 1024  # of each rank's output: the first half and the last half of these
_HALF = KEPT_BYTES // 2
# Among what a rank prints, such a mark says where something else belongs: see `pieces`.
MARK = "\x1emark {}\x1e"
_MARKED = re.compile(rb"\x1emark ([\d-]+)\x1e")
_MARK_BEGUN = re.compile(rb"\x1e[mark\d -]{0,40}\Z")  # the rest of it is still to come
_BUILT_IN = re.compile(r"/__w/\S+/(?=\w+\.\w+:\d+)")  # where torch was, such as `pair.cc:464`
_AT_ONCE = 256 * 1024
_READS = 32  # in a row: a rank that prints as fast as the kernel reads must not hold it up
_NOTHING = object()
_IN_C_S = 0.3  # so long after it was asked in vain, a rank is asked in the other way


class WorkerHandle:
    """The kernel's ends of one rank. Four descriptors: channel, output, stack, and the process."""

    pipe: FileIO | None = None
    process: FileIO | None = None  # readable once it has ended; none on macOS

    def __init__(self, rank: int) -> None:
        self.rank, self.pid, self._asked = rank, 0, 0.0
        self.result: Any = _NOTHING
        self.failure: errors.Failure | None = None
        self.status: int | None = None  # exit status, or minus the signal's number
        self.at_work: AtWork | None = None  # what it waits for although its function is over
        self.has_ended = self.is_stopped = False
        self.died_late = ""  # how, though it had returned and was not stopped
        self._ends = contextlib.ExitStack()
        self._buffers: list[Any] = []
        self._printed, self._dropped = bytearray(), 0
        self._half_a_mark = b""
        self._marks: list[tuple[int, str]] = []  # behind how many bytes, and whose

    def open(self) -> None:
        """Make the channels: the kernel's ends, and the rank's until it is forked."""
        keep = self._ends.enter_context
        self.signals = stack_writer.free_signals()
        self.stack = keep(FileIO(transport.anonymous_file("stack"), "r+"))
        self.channel, self.theirs = map(keep, socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        # Unless asked for more, macOS sends at most 2,048 bytes and has room for 4,096.
        self.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * transport.LARGE_BYTES)
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * transport.LARGE_BYTES)
        self.channel.setblocking(False)
        reading, writing = os.pipe()
        self.pipe, self.output = keep(FileIO(reading)), keep(FileIO(writing, "w"))
        os.set_blocking(reading, False)

    def watch(self) -> None:
        """In the kernel, when all ranks are forked: let go of the rank's ends, hold its process."""
        self.theirs.close()
        self.output.close()
        # None on macOS, in a container that forbids it, of a rank that is gone and reaped already.
        with contextlib.suppress(AttributeError, OSError):
            self.process = self._ends.enter_context(FileIO(os.pidfd_open(self.pid)))

    def close(self) -> None:
        """Close whatever is open."""
        self._ends.close()
        self._buffers.clear()

    @property
    def settled(self) -> bool:
        """Whether this rank has said all that it will say."""
        return self.result is not _NOTHING or self.failure is not None

    @property
    def is_over(self) -> bool:
        """Whether this rank has come to its end as a program does, or is dead."""
        return self.has_ended or self.status is not None or not self.pid

    def waitables(self) -> list[socket.socket | FileIO]:
        """What to wait for."""
        ends = (self.channel, self.pipe, self.process) if self.status is None else ()
        return [end for end in ends if end]

    def read(self) -> None:
        """Take in everything that has arrived, and notice the end."""
        ended = self.status is None and self._wait(os.WNOHANG)
        self._read_output()
        self._read_messages()
        if not ended or self.is_stopped:
            return
        if not self.settled:
            self.failure = errors.from_exit(self.rank, self.status, self.read_stack())
        elif not self.failure and not self.has_ended and self.status:
            self.died_late = errors.how_it_died(self.status)

    def _wait(self, flags: int = 0) -> bool:
        """Reap the process if it has ended, and end what it has left behind in its group."""
        status = 0  # of a kernel that ignores SIGCHLD, which has its children reaped for it
        with contextlib.suppress(ChildProcessError):
            if owned := hasattr(os, "waitid"):  # not on macOS before Python 3.13
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flags) is None:
                    return False
                self._signal(signal.SIGKILL, os.killpg)  # unreaped, it still owns its group
            pid, status = os.waitpid(self.pid, flags)
            if not pid:
                return False
            if not owned:
                self._signal(signal.SIGKILL, os.killpg)
        self.status = os.waitstatus_to_exitcode(status)
        return True

    def _signal(self, number: int, send: Callable[[int, int], None] = os.kill) -> None:
        with contextlib.suppress(OSError):  # gone: a kernel that ignores SIGCHLD has nobody to reap
            send(self.pid, number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the rank and whatever it has started, now, or send them another signal."""
        if self.pid and self.status is None:
            self._signal(number, os.killpg)
            self._signal(number)

    def ask_to_end(self) -> None:
        """Send what `torchrun` sends a rank that is to stop because another failed."""
        self.is_stopped = True
        if self.pid and self.status is None:
            self._signal(signal.SIGTERM, _to_main_thread)

    def reap(self) -> None:
        """Wait for the end of a rank that was killed."""
        if self.pid and self.status is None:
            self._wait()
        self._read_output()

    def request_stack(self) -> None:
        """Have the rank write where it is; `read_stack` reads it once it `has_written_stack`."""
        self.stack.seek(0)  # for the rank as well: else it writes behind all that it wrote before
        self.stack.truncate()
        self._asked = time.monotonic()
        self._signal(self.signals[0])

    def has_written_stack(self) -> bool:
        """Whether all frames are there; if they are not for long, asks again, see `asking`."""
        written = WRITTEN.search(self.read_stack())
        if not written and time.monotonic() > self._asked + _IN_C_S:
            self._asked = time.monotonic()
            self._signal(self.signals[1])
        return bool(written)

    def read_stack(self) -> str:
        """What faulthandler has written about this rank, also at a crash."""
        return os.pread(self.stack.fileno(), _AT_ONCE, 0).decode(errors="replace")

    def _read_messages(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while True:
                message, files, _, _ = socket.recv_fds(self.channel, _AT_ONCE, 1)
                if not message:
                    return
                try:
                    content = transport.receive_buffer(*files) if files else message[6:]
                    self._take(message[:6], content)
                except Exception as error:
                    kind = type(error).__name__
                    note = f"its result arrived but cannot be rebuilt: {kind}: {error}"
                    failure = errors.from_exception(self.rank, error, note)
                    self.failure = self.failure or failure  # what follows a lost part fails, too

    def _take(self, kind: bytes, content: Any) -> None:
        if kind == transport.BUFFER:
            self._buffers.append(content)
            return
        value, self._buffers = transport.unpack(content, self._buffers), []
        if kind == transport.ENDED:
            self.has_ended, self.at_work = True, None
        elif kind == transport.AT_WORK:
            self.at_work = value
        elif self.is_stopped:
            return  # what it says of its end is no cause
        elif kind == transport.RESULT:
            self.result = value
        else:
            self.failure = value

    def _read_output(self) -> None:
        for _ in range(_READS):
            if not self.pipe or (data := self.pipe.read(_AT_ONCE)) is None:
                return
            if not data:  # end of file, which `wait` would report for ever
                self.pipe.close()
                self.pipe = None
            self._take_in(self._half_a_mark + data, ends=not data)

    def _take_in(self, data: bytes, ends: bool) -> None:
        """Keep what was printed, without marks, the first half and the last half of it."""
        *whole, last = _MARKED.split(data)
        begun = None if ends else _MARK_BEGUN.search(last)
        self._half_a_mark = begun[0] if begun else b""
        for number, piece in enumerate([*whole, last.removesuffix(self._half_a_mark)]):
            if number % 2:  # what the pattern's brackets hold
                self._marks.append((self._dropped + len(self._printed), piece.decode()))
                continue
            self._printed += piece
            excess = len(self._printed) - KEPT_BYTES
            if excess > 0:
                del self._printed[_HALF : _HALF + excess]
                self._dropped += excess

    def text(self) -> str:
        """What the rank printed; the middle is left out when it is very long."""
        return _readable(self._kept(0, len(self._printed) + 1))

    def pieces(self) -> list[tuple[str, str]]:
        """What the rank printed up to each mark, and whose it is; at last what follows them."""
        pieces, start = [], 0
        for position, mark in self._marks:
            stop = position
            if position > _HALF:  # it may have stood in the middle that is left out
                stop = max(_HALF, position - self._dropped)
            pieces.append((_readable(self._kept(start, stop)), mark))
            start = stop
        pieces.append((_readable(self._kept(start, len(self._printed) + 1)), ""))
        return pieces

    def _kept(self, start: int, stop: int) -> bytes:
        """Some of the bytes that are kept, with a word where those behind them are left out."""
        kept = bytes(self._printed[start:stop])
        if self._dropped and start <= _HALF < stop:
            gap = f"\n[... {self._dropped:,} bytes left out ...]\n".encode()
            kept = kept[: _HALF - start] + gap + kept[_HALF - start :]
        return kept


def _readable(kept: bytes) -> str:
    whole = _BUILT_IN.sub("", kept.decode(errors="replace"))
    # A progress bar rewrites its line: keep what it looked like in the end.
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in whole.split("\n"))


def _to_main_thread(pid: int, number: int) -> None:
    """Send a signal that wakes a sleeping rank: Python runs handlers in the main thread alone.

    Of a process that stands still, any thread may take a signal that is sent to all of them.
    """
    send = getattr(ctypes.CDLL(None), "tgkill", None)  # not on macOS
    if send is None or send(pid, pid, number):
        os.kill(pid, number)
