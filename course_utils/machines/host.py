"""A host: its addresses, where its programs run, and who ends them when the kernel is gone."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from course_utils.machines.program import Program

WATCHERS = {  # each is ready when it has printed a line, and ends when its input does
    "namespaces": shlex.split("unshare --net --pid --kill-child --mount-proc sh -c 'echo; cat'"),
    "loopback": [sys.executable, "-I", "-S", str(Path(__file__).with_name("host_agent.py"))],
}
PYTHON = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
Env = Mapping[str, str] | None  # variables besides those of the host


class Host:
    """One of the two.

    Attributes:
        number: 0 or 1.
        address: On the network between the hosts, whose interface is `interface`.
        outside: Its address on a second network, or `address` again where there is no second one.
        env: Environment variables that its programs get.
    """

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
