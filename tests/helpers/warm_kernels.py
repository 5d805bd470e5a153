"""Kernels for nbval, forked from a process that has imported torch: else each spends 3 s on that.

What a cell sees is a fresh kernel's: nothing of ours is imported there, and no name is defined.
`python -m pytest --nbval notebooks` knows nothing of this, and starts each kernel anew.
"""

import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from typing import Any, NoReturn

IMPORTED = (
    "ipykernel.ipkernel", "ipykernel.kernelapp", "matplotlib.backends.backend_agg",
    "matplotlib.figure", "torch.distributed", "torch._dynamo.trace_rules",
)  # fmt: skip
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as a kernel has it
KERNEL = "-m", "ipykernel_launcher"


class Kernel:
    """As much of a Popen as jupyter_client asks for: of a child of another process."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """0 when it has ended, however that was: who forked it leaves no zombie."""
        with contextlib.suppress(ProcessLookupError):
            return self.send_signal(0)
        return 0

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return 0

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The process that forks them: it starts with the first, and ends with these requests."""

    requests: socket.socket | None = None

    def start(self, command: list[str], **how: Any) -> Kernel:
        """What `jupyter_client.launcher.launch_kernel` does, for a command of KERNEL."""
        if not self.requests:
            self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                here = [sys.executable, __file__, str(theirs.fileno())]
                subprocess.Popen(here, pass_fds=[theirs.fileno()], env=os.environ | BACKEND)
        request = {"argv": command, "env": dict(how["env"]), "cwd": how.get("cwd")}
        socket.send_fds(self.requests, [pickle.dumps(request)], [how["stderr"].fileno()])
        return Kernel(int(self.requests.recv(20)))


def serve(requests: socket.socket) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, reap)
    while (request := socket.recv_fds(requests, 1 << 17, 1))[0]:
        if not os.fork():
            become(requests, *request[:2])
        os.close(request[1][0])


def reap(*_: Any) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(requests: socket.socket, request: bytes, descriptors: list[int]) -> NoReturn:
    """In the child: what `python -m ipykernel_launcher` would be."""
    wanted, parent = pickle.loads(request), os.getppid()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.send(b"%d" % os.getpid())  # only now: who asks for its group gets its own
    requests.close()
    for standard, own in enumerate([os.open(os.devnull, os.O_RDONLY), 1, *descriptors]):
        os.dup2(own, standard)
    os.chdir(wanted["cwd"] or ".")
    os.environ.clear()
    os.environ.update(wanted["env"], JPY_PARENT_PID=str(parent))
    sys.argv = wanted["argv"][2:]
    gc.unfreeze()
    sys.modules["ipykernel.kernelapp"].launch_new_instance()
    sys.exit()


if __name__ == "__main__":
    del sys.path[0]  # this folder
    serve(socket.socket(fileno=int(sys.argv[1])))
