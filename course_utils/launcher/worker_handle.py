"""One rank as the kernel sees it: a process, its messages, its output, its stack."""

import contextlib
import errno
import os
import signal
import socket
from io import FileIO
from typing import Any

from course_utils.launcher import errors, stack_writer, transport
from course_utils.launcher.captured_output import CapturedOutput
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.language import _, in_two_languages
from course_utils.launcher.libc import LIBC
from course_utils.launcher.shutdown import PendingWork
from course_utils.launcher.stacks import WRITTEN
from course_utils.launcher.stop_button import Stopped, a_press_ends_rebuilding

_READ_BYTES = 256 * 1024
_READS = 32  # at most, one after the other: a rank that prints without end mustn't hold us up
_NO_RESULT = object()
_ASK_AGAIN_S = 0.3  # then a rank that was asked for its stack is asked in the other way


class WorkerHandle:
    """What the kernel holds of one rank: four descriptors, for messages, output, stack and process.

    A rank's life, and what of it is true from then on:

    | the rank                            | here                                              |
    | ----------------------------------- | ------------------------------------------------- |
    | is forked                           | `pid` is not 0                                    |
    | has returned, or has failed         | `result` or `failure` is there, so it's `settled` |
    | ends, and waits for something       | `pending_work`                                    |
    | has shut down as a program does     | `has_shut_down`, so it `is_over`                  |
    | is dead, killed by us or otherwise  | `status` is there, so it `is_over`                |

    Attributes:
        pid: Of the process; 0 before it is forked.
        result: What the function returned, once `settled`.
        failure: How the rank failed, or None.
        status: The exit status, or minus the signal's number; None while the process lives, and
            `errors.UNKNOWN_STATUS` where nobody heard it.
        pending_work: What the rank is waiting for although its function is over.
        has_shut_down: The rank has reported that it has shut down as a program does.
        late_death: How it died although it had returned and wasn't stopped.
        output: What it printed.
        stack_signals: Two signals by which it is asked for its stack; see `stack_writer`.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pid = 0
        self.result: Any = _NO_RESULT
        self.failure: errors.Failure | None = None
        self.status: int | None = None
        self.pending_work: PendingWork | None = None
        self.has_shut_down = False
        self.late_death = ""
        self.output = CapturedOutput()
        self.output_reader: FileIO | None = None
        self._process: FileIO | None = None  # readable once it has ended; none on macOS
        self._was_told_to_end = False
        self._answer_deadline = Deadline(_ASK_AGAIN_S)
        self._buffers: list[Any] = []
        self._descriptors = contextlib.ExitStack()

    def open(self) -> None:
        """Open the channels: the kernel's ends, and the rank's ends until it is forked."""
        keep = self._descriptors.enter_context
        self.stack_signals = stack_writer.two_unused_signals()
        stack_descriptor = transport.anonymous_file("stack")
        stack_file = FileIO(stack_descriptor, "r+")
        self.stack_file = keep(stack_file)
        kernel_socket, worker_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.kernel_socket = keep(kernel_socket)
        self.worker_socket = keep(worker_socket)
        # Unless asked for more, macOS sends at most 2,048 bytes and has room for 4,096.
        room_bytes = 4 * transport.LARGE_BYTES
        worker_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room_bytes)
        kernel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        kernel_socket.setblocking(False)
        reader, writer = os.pipe()
        self.output_reader = keep(FileIO(reader))
        self.output_writer = keep(FileIO(writer, "w"))
        os.set_blocking(reader, False)

    def after_fork(self) -> None:
        """In the kernel, when all ranks are forked: let go of the rank's ends, hold its process."""
        self.worker_socket.close()
        self.output_writer.close()
        # Impossible on macOS, in a container that forbids it, and if the rank is gone and reaped.
        with contextlib.suppress(AttributeError, OSError):
            process = FileIO(os.pidfd_open(self.pid))
            self._process = self._descriptors.enter_context(process)

    def close(self) -> None:
        """Close whatever is open."""
        self._descriptors.close()
        self._buffers.clear()

    @property
    def settled(self) -> bool:
        """Whether this rank has returned or failed."""
        return self.result is not _NO_RESULT or self.failure is not None

    @property
    def is_over(self) -> bool:
        """Whether this rank has shut down as a program does, is dead, or was never forked."""
        return self.has_shut_down or self.status is not None or not self.pid

    @property
    def _is_alive(self) -> bool:
        """Whether there is a process, as far as it was looked at."""
        return bool(self.pid) and self.status is None

    def waitables(self) -> list[socket.socket | FileIO]:
        """What becomes readable when the rank says something or ends."""
        if self.status is not None:
            return []
        waitables: list[socket.socket | FileIO] = [self.kernel_socket]
        if self.output_reader:
            waitables.append(self.output_reader)
        if self._process:
            waitables.append(self._process)
        return waitables

    def read(self) -> None:
        """Take in everything that has arrived, and notice the end."""
        # Reap before reading: then all that the rank sent before its end is read below, and counts.
        has_just_died = self._is_alive and self._reap(os.WNOHANG)
        self._read_output()
        self._read_messages()
        if not has_just_died or self._was_told_to_end:
            return
        if not self.settled:
            stack = self.read_stack()
            self.failure = errors.from_exit(self.rank, self.status, stack)
        elif not self.failure and not self.has_shut_down and self.status:
            self.late_death = errors.how_it_died(self.status)

    def _reap(self, flags: int = 0) -> bool:
        """Reap the process if it has ended, and kill what it has left in its process group.

        Args:
            flags: Of `waitpid`; without `WNOHANG`, it waits for the end.

        Returns:
            Whether the process has ended.
        """
        # A kernel that ignores SIGCHLD has its children reaped for it, and never hears how they
        # ended: then waiting raises ChildProcessError.
        try:
            can_look_first = hasattr(os, "waitid")  # not on macOS before Python 3.13
            if can_look_first:
                looks = os.WEXITED | os.WNOWAIT | flags
                if os.waitid(os.P_PID, self.pid, looks) is None:
                    return False
                # Before it is reaped, so that its group's number can't be that of a new one.
                self._signal_group(signal.SIGKILL)
            pid, status = os.waitpid(self.pid, flags)
            if not pid:
                return False
            if not can_look_first:
                self._signal_group(signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self.status = errors.UNKNOWN_STATUS
        return True

    # The process may be gone, and reaped by nobody here: then no signal can be sent.
    def _signal_process(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, number)

    def _signal_group(self, number: int) -> None:
        """Send a signal to the process group of the rank, in which is what it has started."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the rank and to whatever it has started."""
        if self._is_alive:
            self._signal_group(number)
            self._signal_process(number)  # it has no group of its own yet if it was just forked

    def kill_all(self) -> None:
        """End the rank and whatever it has started."""
        self.signal_all(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM, as `torchrun` does to a rank that is to stop because another failed."""
        self._was_told_to_end = True
        if self._is_alive:
            with contextlib.suppress(OSError):
                _signal_main_thread(self.pid, signal.SIGTERM)

    def reap(self) -> None:
        """Wait for the end of a rank that was killed."""
        if self._is_alive:
            self._reap()
        self._read_output()

    def request_stack(self) -> None:
        """Have the rank write where it is: `read_stack` reads it, once `has_written_stack`."""
        # Both share one offset into the file, which `seek` sets back. If it stayed where it is, the
        # rank would write behind what it wrote before.
        self.stack_file.seek(0)
        self.stack_file.truncate()
        self._answer_deadline = Deadline(_ASK_AGAIN_S)
        in_python, _in_c = self.stack_signals
        self._signal_process(in_python)

    def has_written_stack(self) -> bool:
        """Whether all frames are there; until they are, `ask_again_if_late` should be called."""
        return bool(WRITTEN.search(self.read_stack()))

    def ask_again_if_late(self) -> None:
        """Ask for the stack in the other way, from C, if the rank is slow to answer."""
        if self._answer_deadline.is_over():
            self._answer_deadline = Deadline(_ASK_AGAIN_S)
            _in_python, in_c = self.stack_signals
            self._signal_process(in_c)

    def read_stack(self) -> str:
        """What `stack_writer` or faulthandler has written about this rank, also at a crash."""
        written = os.pread(self.stack_file.fileno(), _READ_BYTES, 0)
        return written.decode(errors="replace")

    def _read_messages(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while True:
                message, files, flags, _address = socket.recv_fds(
                    self.kernel_socket, _READ_BYTES, 1
                )
                if not message:
                    return
                self._read_message(message, files, flags)

    def _read_message(self, message: bytes, files: list[int], flags: int) -> None:
        message_kind, content = transport.kind_and_content(message)
        try:
            lacks_its_file = flags & socket.MSG_CTRUNC
            if lacks_its_file:  # this process may open no more
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if files:
                content = transport.receive_buffer(files[0])
            self._take(message_kind, content)
        except Stopped:
            raise
        except BaseException as error:  # an object may end its own rebuilding by sys.exit()
            # It's about a result: all else that a rank sends is plain texts and numbers.
            note, in_english = in_two_languages(_cannot_be_rebuilt, error)
            failure = errors.from_exception(self.rank, error, note, in_english)
            # Once a part is lost, what follows fails, too: here the first failure counts.
            self.failure = self.failure or failure

    def _take(self, kind: bytes, content: Any) -> None:
        if kind == transport.BUFFER:
            self._buffers.append(content)
            return
        buffers, self._buffers = self._buffers, []
        if self._was_told_to_end and kind in (transport.RESULT, transport.FAILED):
            return  # what a rank says because it's stopped is no cause
        if kind == transport.RESULT:
            with a_press_ends_rebuilding(self.rank):
                self.result = transport.unpack(content, buffers)
            return
        value = transport.unpack(content, buffers)
        if kind == transport.SHUT_DOWN:
            self.has_shut_down = True
            self.pending_work = None
        elif kind == transport.PENDING:
            self.pending_work = value
        elif kind == transport.FAILED:
            self.failure = value  # a second one goes instead of the first, which it names

    def _read_output(self) -> None:
        for _attempt in range(_READS):
            if self.output_reader is None:
                return
            data = self.output_reader.read(_READ_BYTES)
            if data is None:  # nothing has arrived
                return
            at_end_of_file = not data
            if at_end_of_file:  # `wait` would report it forever
                self.output_reader.close()
                self.output_reader = None
            self.output.add(data, is_last=at_end_of_file)


def _cannot_be_rebuilt(error: BaseException) -> str:
    return _(
        "its result arrived but cannot be rebuilt: {exception}: {words}",
        exception=type(error).__name__,
        words=error,
    )


def _signal_main_thread(pid: int, number: int) -> None:
    """Send a signal that wakes a sleeping rank: Python runs handlers in the main thread alone.

    Of a process that stands still, any thread may take a signal that is sent to all of them.
    """
    send = getattr(LIBC, "tgkill", None)  # not on macOS
    if send is None or send(pid, pid, number):
        os.kill(pid, number)
