"""One rank as the kernel sees it: a process, its messages, its output, its stack."""

import contextlib
import os
import signal
import socket
import time
from typing import Any

from course_utils.launcher import errors, parcel

KEPT_BYTES = 64 * 1024  # of each rank's output: the first half and the last half of these
_AT_ONCE = 256 * 1024
_READS = 32  # in a row: a rank that prints as fast as the kernel reads must not hold it up
_NOTHING = object()


class Member:
    """The kernel's ends of one rank. Four descriptors: channel, output, stack, and the process."""

    def __init__(self, rank: int) -> None:
        self.rank, self.pid, self.process = rank, 0, -1
        self.channel: socket.socket | None = None
        self.pipe = self.stack = -1
        self.theirs: socket.socket | None = None  # the rank's ends, until it is forked
        self.output = -1
        self.result: Any = _NOTHING
        self.failure: errors.Failure | None = None
        self.metrics: dict[str, list[Any]] = {}
        self.status: int | None = None  # exit status, or minus the signal's number
        self._buffers: list[Any] = []
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def open(self) -> None:
        """Make the channels."""
        self.stack = parcel.anonymous_file("stack")
        self.channel, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.setblocking(False)
        self.pipe, self.output = os.pipe()
        os.set_blocking(self.pipe, False)

    def hand_over(self) -> tuple[socket.socket, int, int]:
        """In the rank: its channel, output and stack, which `close` then leaves open."""
        own = self.theirs, self.output, self.stack
        self.theirs, self.output, self.stack = None, -1, -1
        return own

    def watch(self, pid: int) -> None:
        """In the kernel: take note of the process that was just forked."""
        self.pid = pid
        self._close_theirs()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the rank does the same; whoever comes first
        if hasattr(os, "pidfd_open"):
            self.process = os.pidfd_open(pid)

    def _close_theirs(self) -> None:
        if self.theirs:
            self.theirs.close()
        if self.output >= 0:
            os.close(self.output)
        self.theirs, self.output = None, -1

    def close(self) -> None:
        """Close whatever is open."""
        self._close_theirs()
        for descriptor in (self.pipe, self.stack, self.process):
            if descriptor >= 0:
                os.close(descriptor)
        self.pipe = self.stack = self.process = -1
        if self.channel:
            self.channel.close()
        self._buffers.clear()

    @property
    def settled(self) -> bool:
        """Whether this rank has said all that it will say."""
        return self.result is not _NOTHING or self.failure is not None

    def descriptors(self) -> list[int]:
        """What to wait for."""
        own = [self.channel.fileno(), self.pipe, self.process]
        return [] if self.status is not None else [number for number in own if number >= 0]

    def read(self) -> None:
        """Take in everything that has arrived, and notice the end."""
        ended = self.status is None and self._has_ended()
        self._read_output()
        self._read_messages()
        if ended and not self.settled:
            self.failure = errors.from_exit(self.rank, time.monotonic(), self.status, self.dump())

    def _has_ended(self) -> bool:
        return self._wait(os.WNOHANG)

    def _wait(self, flags: int) -> bool:
        """Reap the process if it has ended, and end what it has left behind in its group."""
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flags) is None:
                return False
            self._signal_group()  # the unreaped process still owns the number of its group
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # a kernel that ignores SIGCHLD has its children reaped for it
            self.status = 0
        return True

    def _signal_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the rank and whatever it has started, now."""
        if self.pid and self.status is None:
            self._signal_group()
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the end of a rank that was killed or has said farewell."""
        if self.pid and self.status is None:
            self._wait(0)
        if self.pipe >= 0:
            self._read_output()

    def release(self) -> None:
        """Let a rank go that is done and holds its connections for the others."""
        with contextlib.suppress(OSError):
            self.channel.send(b"x")

    def ask_for_stack(self) -> None:
        """Have the rank write where it is; `dump` reads it."""
        os.ftruncate(self.stack, 0)
        os.kill(self.pid, signal.SIGUSR1)

    def dump(self) -> str:
        """What faulthandler has written about this rank, also at a crash."""
        return os.pread(self.stack, _AT_ONCE, 0).decode(errors="replace")

    def _read_messages(self) -> None:
        while True:
            try:
                message, files, _, _ = socket.recv_fds(self.channel, _AT_ONCE, 1)
            except (BlockingIOError, ConnectionResetError):
                return
            if not message:
                return
            try:
                self._take(message, files)
            except Exception as error:
                note = f"its result arrived but cannot be rebuilt: {type(error).__name__}: {error}"
                failure = errors.from_exception(self.rank, time.monotonic(), error, note)
                self.failure = self.failure or failure  # what follows a lost part fails, too
            finally:
                for file in files:
                    os.close(file)

    def _take(self, message: bytes, files: list[int]) -> None:
        kind, content = message[:6], memoryview(message)[6:]
        if kind == b"buffer":
            self._buffers.append(parcel.receive_buffer(files[0]))
        elif kind == b"stream":
            self.result = parcel.unpack(parcel.receive_buffer(files[0]), self._buffers)
        elif kind == b"result":
            self.result = parcel.unpack(content, self._buffers)
        elif kind == b"failed":
            self.failure = parcel.unpack(content)
        else:
            for name, value in parcel.unpack(content).items():
                self.metrics.setdefault(name, []).append(value)

    def _read_output(self) -> None:
        for _ in range(_READS):
            if self.pipe < 0:
                return
            try:
                data = os.read(self.pipe, _AT_ONCE)
            except BlockingIOError:
                return
            if not data:  # nobody holds the other end; a poll would report it for ever
                os.close(self.pipe)
                self.pipe = -1
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        room = KEPT_BYTES // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room else data
        excess = len(self._tail) - KEPT_BYTES // 2
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def text(self) -> str:
        """What the rank printed; the middle is left out when it is very long."""
        gap = f"\n[... {self._dropped:,} bytes left out ...]\n" if self._dropped else ""
        whole = self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")
        # A progress bar rewrites its line: keep what it looked like in the end.
        return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in whole.split("\n"))
