"""Two hosts on one machine: network namespaces joined by cables, or two addresses of loopback.

A host of the first form has interfaces, addresses, ports and processes of its own, and no name in
this system. Its watcher reads from a pipe; when the kernel closes it, or dies in whatever way, the
watcher ends, and with it all of the host. Lessons import it from `course_cluster`. Source:
namespaces(7), pid_namespaces(7), veth(4).
"""

import contextlib
import functools
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from course_cluster.host import Host, wait

FORMS = {
    "namespaces": "two network namespaces, joined by cables",
    "loopback": "two addresses of this machine's loopback interface",
}

_say_once = functools.cache(print)


class Hosts(tuple[Host, ...]):
    """Both hosts; their `form`, and a `port` for ranks to meet at that is free on the first one."""

    form: str
    port: int

    def run(self, *commands: str, timeout_s: float = 240.0) -> list[str]:
        """Start a command on each host, wait for both and return their outputs.

        Raises as `Program.wait_for` does; where one fails, the other one is not waited for.
        """
        programs = []
        for host, command in zip(self, commands, strict=True):
            programs.append(host.start(command))
        return wait(programs, "", timeout_s)

    @contextlib.contextmanager
    def slow(self, mbit_s: float) -> Iterator[None]:
        """Let the cable carry so many 10^6 bits per second in each direction (Linux: tbf).

        Raises:
            RuntimeError: There is no cable.
            ValueError: Not above 0.
        """
        if self.form == "loopback":
            raise RuntimeError("two loopback addresses have no cable that could be slow")
        if not mbit_s > 0:
            raise ValueError(f"mbit_s must be above 0, got {mbit_s!r}")
        queue = f"dev eth0 root tbf rate {mbit_s * 1e6:.0f}bit burst 16kb latency 400ms"
        try:
            self._on_both(f"tc qdisc replace {queue}")
            yield
        finally:
            self._on_both("tc qdisc replace dev eth0 root noqueue")

    def _on_both(self, command: str) -> None:
        self.run(command, command)


@contextlib.contextmanager
def two_hosts(disk: str | Path = ".", form: str = "auto") -> Iterator[Hosts]:
    """Give two hosts that share a disk; afterwards nothing of them is left.

    Args:
        disk: The working directory of every program on them.
        form: "namespaces" (Linux, root), "loopback" (anywhere) or "auto": the first that works.

    Raises:
        RuntimeError: form="namespaces", and this machine does not allow them.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(disk)
        why = ""
        first_choice = form
        if form == "auto":
            first_choice = "namespaces"
        try:
            hosts = _built(stack, first_choice, folder)
        except RuntimeError as error:
            if form != "auto":
                raise
            stack.close()
            why = f" (namespaces: {error})"
            hosts = _built(stack, "loopback", folder)
        _say_once(f"hosts: {FORMS[hosts.form]}{why}")
        yield hosts


def _built(stack: contextlib.ExitStack, form: str, disk: Path) -> Hosts:
    if form == "namespaces":
        # First of all, since Debian hides `tc` from all others.
        if sys.platform != "linux" or os.geteuid():
            raise RuntimeError("they need root on Linux")
        for tool in ("unshare", "nsenter", "ip", "tc"):
            if not shutil.which(tool):
                raise RuntimeError(f"no {tool} here")
    both = []
    for number in (0, 1):
        host = Host(number, form, disk)
        both.append(stack.enter_context(contextlib.closing(host)))
    hosts = Hosts(both)
    hosts.form = form
    hosts.port = 23456
    if form == "namespaces":
        _plug_in(*hosts)
    else:
        any_port = (hosts[0].address, 0)
        with socket.create_server(any_port) as server:
            _address, hosts.port = server.getsockname()
    return hosts


def _plug_in(first: Host, second: Host) -> None:
    """Join two network namespaces by two cables, and give their ends addresses."""
    other_space = second.watcher.pid
    for name in ("eth0", "eth1"):
        first.ip(f"link add {name} type veth peer name {name} netns {other_space}")
    for host in (first, second):
        host.ip(f"address add {host.address}/24 dev eth0")
        host.ip(f"address add {host.outside}/24 dev eth1")
        host.ip("link set lo up", "link set eth0 up", "link set eth1 up")
