"""A host: its addresses, its programs, and who ends them when the kernel is gone."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from course_utils.launcher.deadlines import Deadline

# When its input ends, processes with the host's mark in their environment end, also those that left
# their group, as torchrun's ranks do. Where none can be asked, torchrun has a second to stop them.
_LOOPBACK = """
echo; groups=$(sed s/^/-/)
if [ -e /proc/self/environ ]; then
    marked() { grep -lszFx "COURSE_HOST=$0" /proc/[0-9]*/environ | cut -d/ -f3; }
    while ids=$(marked); [ "$ids" ]; do kill -9 $ids; done
elif [ "$groups" ]; then
    kill -s TERM -- $groups; sleep 1; kill -s KILL -- $groups
fi 2>/dev/null
"""
WATCHERS = {  # each is ready when it has printed a line, and ends when its input does
    "namespaces": shlex.split(
        "unshare --net --pid --kill-child --mount-proc sh -c 'echo;exec cat'"
    ),
    "loopback": ["sh", "-c", _LOOPBACK],
}
_PYTHON = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
Env = Mapping[str, str] | None  # variables besides those of the host


class Program:
    """A started program; `output` and `errors` are what it has written up to now."""

    output = property(lambda self: self._text(0))
    errors = property(lambda self: self._text(1))
    everything = property(lambda self: self.output + self.errors)

    def __init__(self, title: str, words: list[str], **options: object) -> None:
        self.title = title
        self._files = [TemporaryFile(), TemporaryFile()]  # noqa: SIM115 - readable to the last
        output, errors = self._files
        for file in self._files:
            weakref.finalize(self, file.close)
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, **options
        )

    def _text(self, stream: int) -> str:
        file = self._files[stream].fileno()
        size = os.fstat(file).st_size
        written = os.pread(file, size, 0)  # not by its position, which the program writes at
        return written.decode(errors="replace")

    def wait_for(self, text: str = "", timeout_s: float = 240.0) -> str:
        """Return the output when it contains `text`, or without one when the program has ended.

        Raises:
            RuntimeError: It ended with an error, or without the text.
            TimeoutError: It took longer than `timeout_s`, or as many times longer as this machine
                is slow.
        """
        return wait([self], text, timeout_s)[0]

    def close(self) -> None:
        """Stop it if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait(programs: Sequence[Program], text: str, timeout_s: float) -> list[str]:
    """As `Program.wait_for`, of all of them; where one fails, the others are not waited for."""
    deadline = Deadline(timeout_s)
    while True:
        running = [program for program in programs if program.process.poll() is None]
        has_failed = any(program.process.returncode for program in programs)
        if not running or has_failed:
            break
        first = running[0]
        if text and text in first.output:
            break
        if deadline.is_over():
            took = f"{first.title!r} took over {timeout_s:g} s"
            raise TimeoutError(f"{took}:\n{first.everything}")
        time.sleep(0.02)
    for program in programs:
        code = program.process.returncode
        has_failed = text not in program.output
        if not text and code:
            has_failed = True
        if has_failed:
            end = f"{program.title!r} ended with {code}"
            raise RuntimeError(f"{end}:\n{program.everything}")
    return [program.output for program in programs]


class Host:
    """Host 0 or 1; `address` and `interface` are between the hosts, `outside` is on another net."""

    def __init__(self, number: int, form: str, disk: Path) -> None:
        self.number = number
        self.disk = disk.absolute()
        self._programs: list[Program] = []
        self._enter: list[str] = []  # what a command on this host begins with
        self._mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self.watcher = subprocess.Popen(
            [*WATCHERS[form], self._mark],
            bufsize=0,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        first_line = self.watcher.stdout.readline()
        complaint = first_line.decode().strip()
        if complaint:
            self.watcher.communicate()
            raise RuntimeError(complaint)
        self.watcher.stdout.close()
        if form == "namespaces":
            self._enter = self._entrance()
            self.interface = "eth0"
            self.address = f"10.9.0.{number + 1}"
            self.outside = f"203.0.113.{number + 1}"
        elif sys.platform == "darwin":  # where loopback has one address
            self.interface = "lo0"
            self.address = "127.0.0.1"
            self.outside = "127.0.0.1"
        else:
            self.interface = "lo"
            self.address = f"127.0.0.{number + 1}"
            self.outside = f"127.0.0.{number + 11}"

    def _entrance(self) -> list[str]:
        """The words that lead a command into the namespaces of the watcher."""
        spaces = f"/proc/{self.watcher.pid}/ns"
        network = f"--net={spaces}/net"
        processes = f"--pid={spaces}/pid_for_children"
        mounts = f"--mount={spaces}/mnt"
        return ["nsenter", network, processes, mounts, f"--wd={self.disk}"]

    def start(self, command: str, env: Env = None) -> Program:
        """Start a command, without a shell; `python`, `torchrun` and scripts use this Python."""
        name, *arguments = shlex.split(command)
        if name in _PYTHON:
            words = _PYTHON[name]
        elif name.endswith(".py"):
            words = [sys.executable, name]
        else:
            words = [name]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": self.interface,
            "COURSE_HOST": self._mark,
            **(env or {}),
        }
        program = Program(
            f"host {self.number}: {command}",
            [*self._enter, *words, *arguments],
            env=environment,
            cwd=self.disk,
            start_new_session=True,
        )
        self._programs.append(program)
        if not self._enter:
            line = f"{program.process.pid}\n"
            self.watcher.stdin.write(line.encode())
        return program

    def run(self, command: str, env: Env = None, timeout_s: float = 240.0) -> str:
        """Start a command, wait for its end and return its output; raises as `wait_for` does."""
        return self.start(command, env).wait_for(timeout_s=timeout_s)

    def ip(self, *lines: str) -> None:
        """Configure the network of this namespace, with process ids as they are outside of it."""
        into_network = self._enter[:2]
        words = [*into_network, "ip", "-batch", "-"]
        batch = "\n".join(lines)
        run = subprocess.run(words, input=batch, capture_output=True, text=True)
        if run.returncode:
            complaint = run.stderr.strip()
            first_line, *_ = complaint.split("\n")
            raise RuntimeError(first_line)

    def cut_power(self) -> None:
        """End every process on it at once; unlike after `close`, its cable stays plugged in."""
        if not self._enter:
            self.close()
            return
        # -1 is everybody in a namespace: never in that of the kernel.
        of_kernel = os.readlink("/proc/self/ns/pid")
        script = '[ "$(readlink /proc/self/ns/pid)" != "$0" ] && { kill -9 -1 2>&- || true; }'
        subprocess.run([*self._enter, "sh", "-c", script, of_kernel], check=True)

    def close(self) -> None:
        """End everything on this host."""
        self.watcher.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # somebody else holds the pipe open
            self.watcher.wait(timeout=5)
        self.watcher.kill()
        self.watcher.wait()
        for program in self._programs:
            program.close()
