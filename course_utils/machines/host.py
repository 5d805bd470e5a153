"""A host: its addresses, its programs, and who ends them when the kernel is gone."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

WATCHERS = {  # each is ready when it has printed a line, and ends when its input does
    "namespaces": shlex.split("unshare --net --pid --kill-child --mount-proc sh -c 'echo; cat'"),
    "loopback": [sys.executable, "-I", "-S", str(Path(__file__).with_name("host_agent.py"))],
}
PYTHON = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
Env = Mapping[str, str] | None  # variables besides those of the host


class Program:
    """A started program, in a session of its own, that sees `disk` as its working directory."""

    def __init__(self, title: str, words: list[str], env: dict[str, str], disk: Path) -> None:
        self.title = title
        with contextlib.ExitStack() as files:  # readable also when the program is gone
            self._output, self._errors = [files.enter_context(TemporaryFile()) for _ in range(2)]
            weakref.finalize(self, files.pop_all().close)
        ends = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._errors}
        self.process = subprocess.Popen(words, cwd=disk, env=env, start_new_session=True, **ends)

    @property
    def output(self) -> str:
        """What it has printed up to now."""
        return _text(self._output)

    @property
    def errors(self) -> str:
        """What it has written to its standard error up to now."""
        return _text(self._errors)

    def wait_for(self, text: str = "", timeout_s: float = 60.0) -> str:
        """Return the output when it contains `text`, or without one when the program has ended.

        Raises:
            RuntimeError: It ended with an error, or without the text.
            TimeoutError: It took longer than `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while self.process.poll() is None and not (text and text in self.output):
            if time.monotonic() > end:
                said = self.output + self.errors
                raise TimeoutError(f"{self.title!r} took over {timeout_s:g} s:\n{said}")
            time.sleep(0.02)
        code = self.process.returncode
        if text not in self.output or (code and not text):
            raise RuntimeError(f"{self.title!r} ended with {code}:\n{self.output + self.errors}")
        return self.output

    def close(self) -> None:
        """Stop it if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Host:
    """Host 0 or 1; `address` and `interface` are between the hosts, `outside` is on another net."""

    def __init__(self, number: int, form: str, disk: Path) -> None:
        self.number, self.disk, self._enter, self._programs = number, disk.absolute(), [], []
        self._mark = f"{os.getpid()}.{time.monotonic_ns()}"
        words = [*WATCHERS[form], self._mark]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.watcher = subprocess.Popen(words, start_new_session=True, **pipes)
        if not self.watcher.stdout.readline():
            raise RuntimeError(self.watcher.communicate()[1].decode().strip())
        self.watcher.stdout.close()
        self.watcher.stderr.close()
        if form == "namespaces":
            own = f"/proc/{self.watcher.pid}/ns/"
            self._enter = ["nsenter", f"--net={own}net", f"--pid={own}pid_for_children"]
            self._enter += [f"--mount={own}mnt", f"--wd={self.disk}"]
            names = "eth0", f"10.9.0.{number + 1}", f"203.0.113.{number + 1}"
        elif sys.platform == "darwin":  # where loopback has one address
            names = "lo0", "127.0.0.1", "127.0.0.1"
        else:
            names = "lo", f"127.0.0.{number + 1}", f"127.0.0.{number + 11}"
        self.interface, self.address, self.outside = names
        self.env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.interface}

    def start(self, command: str, env: Env = None) -> Program:
        """Start a command, without a shell; `python`, `torchrun` and scripts use this Python."""
        name, *rest = shlex.split(command)
        words = PYTHON.get(name, [*PYTHON["python"] * name.endswith(".py"), name])
        env = {**os.environ, **self.env, "COURSE_HOST": self._mark, **(env or {})}
        title = f"host {self.number}: {command}"
        program = Program(title, [*self._enter, *words, *rest], env, self.disk)
        self._programs.append(program)
        if not self._enter:
            self.watcher.stdin.write(f"{program.process.pid}\n".encode())
            self.watcher.stdin.flush()
        return program

    def run(self, command: str, env: Env = None, timeout_s: float = 60.0) -> str:
        """Start a command, wait for its end and return its output; raises as `wait_for` does."""
        return self.start(command, env).wait_for(timeout_s=timeout_s)

    def ip(self, *lines: str) -> None:
        """Configure the network of this namespace, with process ids as they are outside of it."""
        words = [*self._enter[:2], "ip", "-batch", "-"]
        done = subprocess.run(words, input="\n".join(lines), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().split("\n")[0])

    def close(self) -> None:
        """End everything on this host."""
        self.watcher.stdin.close()
        try:
            self.watcher.wait(timeout=5)
        except subprocess.TimeoutExpired:  # somebody else holds the pipe open
            self.watcher.kill()
            self.watcher.wait()
        for program in self._programs:
            program.close()


def _text(file: IO[bytes]) -> str:
    # Not by its position, which the program writes at.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
