"""Kernels and programs, forked from a process that has imported torch: else each spends 3 s on it.

What a cell sees is a fresh kernel's: nothing of ours is imported there, and no name is defined.
`python -m pytest --nbval notebooks` knows nothing of this, and starts each kernel anew.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn
from unittest import mock

IMPORTED = (
    "ipykernel.ipkernel", "ipykernel.kernelapp", "matplotlib.backends.backend_agg",
    "matplotlib.figure", "torch.distributed", "torch._dynamo.trace_rules",
)  # fmt: skip
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as a kernel has it
KERNEL = "-m", "ipykernel_launcher"
END = "\0"  # what a program prints last that has come to its end
PR_SET_PDEATHSIG, MADV_COLLAPSE = 1, 25
OF_A_TERMINAL = signal.SIGINT, signal.SIGHUP, signal.SIGTERM
FORKED: dict[int, set[int]] = {}  # in the nursery: kernels that run, by whose requests they were
ADDRESS = "COURSE_NURSERY"  # in the environment of workers that share one


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
    """The process that forks them."""

    requests: socket.socket | None = None
    _process: subprocess.Popen | None = None

    def open(self) -> str:
        """Start it, for whoever connects to this address; it ends with this process."""
        self._folder = tempfile.TemporaryDirectory(prefix="n")
        address = f"{self._folder.name}/requests"
        alive, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(address)
            listening.listen(64)
            theirs = listening.fileno(), alive
            command = [sys.executable, __file__, *map(str, theirs)]
            self._process = subprocess.Popen(command, pass_fds=theirs, env=os.environ | BACKEND)
        os.close(alive)
        return address

    def close(self) -> None:
        """End it, and the kernels that it has forked."""
        if self._process:
            os.close(self._alive)
            self._process.wait()
            self._process = None

    def warm(self) -> socket.socket:
        """Start it, unless it is there; returns where requests go."""
        if not self.requests:
            self.requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.requests.connect(os.environ.get(ADDRESS) or self.open())
        return self.requests

    def start(self, command: list[str], **how: Any) -> Kernel:
        """What `jupyter_client.launcher.launch_kernel` does, for a command of KERNEL."""
        with open(os.devnull, "rb") as nothing:
            standard = nothing.fileno(), 1, getattr(how.get("stderr"), "fileno", lambda: 2)()
            return self._start(command, standard, how)

    def popen(self, command: list[str], **how: Any) -> "Script":
        """What `subprocess.Popen` does for `python -s -m MODULE` with pipes; `-s` has no effect."""
        (reading, stdin), (stdout, writing) = os.pipe(), os.pipe()
        child = self._start(command, (reading, writing, 2), how)
        os.close(reading)
        os.close(writing)
        return Script(child.pid, open(stdin, "w"), open(stdout))

    def run(self, code: str, **how: Any) -> str:
        """What `python -c CODE` prints, run to its end; RuntimeError with its last words if not.

        Args:
            code: a program.
            how: `env` and `cwd`, as for `subprocess.run`.
        """
        reading, writing = os.pipe()
        command = [sys.executable, "-c", f"{code}\nprint(end={END!r})"]
        with tempfile.TemporaryFile("w+") as errors, open(os.devnull, "rb") as nothing:
            standard = nothing.fileno(), writing, errors.fileno()
            self._start(command, standard, {"env": os.environ, "cwd": os.getcwd()} | how)
            os.close(writing)
            with open(reading) as printed:
                text = printed.read()
            if not text.endswith(END):
                errors.seek(0)
                raise RuntimeError(f"{text}{errors.read()}")
        return text.removesuffix(END)

    def _start(self, command: list[str], standard: tuple[int, ...], how: dict[str, Any]) -> Kernel:
        asked = self.warm()
        request = {"argv": command, "env": dict(how["env"]), "cwd": how.get("cwd")}
        socket.send_fds(asked, [pickle.dumps(request)], standard)
        return Kernel(int(asked.recv(20)))


class Script(Kernel):
    """As much of a Popen as grade.py asks for."""

    def __init__(self, pid: int, stdin: IO, stdout: IO) -> None:
        super().__init__(pid)
        self.stdin, self.stdout = stdin, stdout

    def wait(self) -> int:
        self.stdout.close()
        return super().wait()


NURSERY = Nursery()


def warm() -> Any:
    """While this lasts, kernels are forked from one that is warm."""
    return mock.patch("jupyter_client.provisioning.local_provisioner.launch_kernel", NURSERY.start)


WARM = SimpleNamespace(Popen=NURSERY.popen, PIPE=subprocess.PIPE)  # instead of `subprocess`


def serve(listening: socket.socket, alive: int) -> None:
    """Fork what is asked for, until nobody holds the other end of `alive`."""
    for number in OF_A_TERMINAL:  # it ends with who started it, and ends its kernels first
        signal.signal(number, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # for good: to look through it, a kernel would make all of its pages its own
    enlarge_pages()
    signal.signal(signal.SIGCHLD, reap)
    ends = selectors.DefaultSelector()
    for end in (listening, alive):
        ends.register(end, selectors.EVENT_READ)
    while True:
        for end in [key.fileobj for key, _ in ends.select()]:
            if end == alive:
                for owner in list(FORKED):
                    end_kernels_of(owner)
                return
            if end is listening:
                ends.register(listening.accept()[0], selectors.EVENT_READ)
            else:
                answer(end, ends)


def enlarge_pages() -> None:
    """Have 512 neighbouring pages count as one for each fork of this process, where Linux can.

    A kernel does so itself before its 64th rank (`devices/prepare.py`), which many never have.
    """
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, access, _, _, inode, *name = line.split()
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            begin, end = (int(number, 16) for number in addresses.split("-"))
            size = ctypes.c_size_t(end - begin)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), size, MADV_COLLAPSE)


def answer(requests: socket.socket, ends: selectors.BaseSelector) -> None:
    request, descriptors, *_ = socket.recv_fds(requests, 1 << 17, 3)
    if not request:  # whoever asked has ended, perhaps was killed: its kernels end as well
        end_kernels_of(requests.fileno())
        ends.unregister(requests)
        requests.close()
        return
    pid = os.fork()
    if pid == 0:
        for key in ends.get_map().values():
            if key.fileobj is not requests:
                os.close(key.fd)
        become(requests, request, descriptors)
    FORKED.setdefault(requests.fileno(), set()).add(pid)
    for descriptor in descriptors:
        os.close(descriptor)


def end_kernels_of(owner: int) -> None:
    """End all kernels that were asked for by this descriptor, and what they have started."""
    for pid in FORKED.pop(owner, ()):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def reap(*_: Any) -> None:
    """Reap what has ended; its number may soon be that of a stranger, so it is forgotten."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            for forked in FORKED.values():
                forked.discard(pid)


def die_with_parent() -> None:
    """Have this process killed when the one that started it is gone; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def refuse_backward() -> None:
    """In a kernel: let no backward pass run in it, only in its ranks.

    Where there is a GPU, one would start threads that no rank inherits, and every later launch
    would be refused. This shows it where there is none.
    """
    autograd = sys.modules["torch.autograd"]
    run = autograd._engine_run_backward

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a backward pass in the kernel: on a GPU no launch could follow it")

    def allow() -> None:
        autograd._engine_run_backward = run

    autograd._engine_run_backward = refuse
    os.register_at_fork(after_in_child=allow)


def become(requests: socket.socket, request: bytes, descriptors: list[int]) -> NoReturn:
    """In the child: `python -m ipykernel_launcher`, or what else a request may ask for."""
    wanted, parent = pickle.loads(request), os.getppid()
    options = wanted["argv"][1:]
    die_with_parent()
    os.setsid()
    for number in OF_A_TERMINAL:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.send(b"%d" % os.getpid())  # only now: who asks for its group gets its own
    requests.close()
    for standard, own in enumerate(descriptors):
        os.dup2(own, standard)
        os.close(own)
    os.chdir(wanted["cwd"] or ".")
    os.environ.clear()
    os.environ.update(wanted["env"], JPY_PARENT_PID=str(parent))
    tempfile.tempdir = None  # as its TMPDIR says, if it has one
    if "-c" in options:
        os.environ.pop("JPY_PARENT_PID")
        run_code(options[-1])
    sys.argv = options[options.index("-m") + 1 :]
    if options[0] == KERNEL[0]:
        refuse_backward()
        sys.modules["ipykernel.kernelapp"].launch_new_instance()
    else:
        sys.path[:0] = wanted["env"]["PYTHONPATH"].split(os.pathsep)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


def run_code(code: str) -> NoReturn:
    """What `python -c CODE` does, but for taking down at its end what it has imported."""
    sys.argv = ["-c"]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(code, main.__dict__)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    del sys.path[0]  # this folder
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    os._exit(0)  # what it imported would say at its end what it leaks
