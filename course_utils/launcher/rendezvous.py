"""Where the ranks of one launch meet, and the environment that `torchrun` would have set.

A group made by `launch` meets in a `FileStore` on an anonymous file: it has no port, no path and
no owner but this family of processes, so nobody else can join it, overwrite its keys, or fill
the disk under it. A group made by the learner (`backend=None`, or a second one, or RPC) needs an
address. The kernel binds it, rank 0 serves it, at the latest when somebody asks; the kernel never
does: a store thread in a process that forks hangs its children.
"""

import _thread
import contextlib
import importlib
import os
import secrets
import select
import shutil
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from course_utils.launcher.transport import anonymous_file

_LOOPBACK = "127.0.0.1"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
# Torch's own deadlines come after the launcher's, which says more and may be put off.
_SLACK = timedelta(days=1)


class Rendezvous:
    """The meeting point of `world_size` ranks, laid out as `nodes` equal nodes of one machine."""

    def __init__(self, world_size: int, nodes: int, timeout: float) -> None:
        self.world_size, self.nodes = world_size, nodes
        self.timeout = timedelta(seconds=timeout) + _SLACK
        self._opened = contextlib.ExitStack()
        self._server: dist.TCPStore | None = None  # in rank 0, as long as it lives

    def open(self, listens: bool) -> None:
        """In the kernel: take a port, where early ranks may queue if it listens, and a file."""
        self.port = self._opened.enter_context(socket.socket())
        self.port.bind((_LOOPBACK, 0))
        if listens:
            self.port.listen(self.world_size + 8)
        # Short, since the path of a socket may have 107 bytes; not to be guessed.
        self._folder = Path(tempfile.gettempdir(), f"ddp-{secrets.token_urlsafe(6)}")
        self._opened.callback(shutil.rmtree, self._folder, ignore_errors=True)
        if os.path.exists("/proc/self/fd"):
            file = anonymous_file("rendezvous")
            self._opened.callback(os.close, file)
            self._path = f"/proc/self/fd/{file}"
        else:
            self._path = f"{self.folder()}/store"

    def folder(self) -> str:
        """A private folder, made when somebody needs it, which ends with the launch.

        A rank's `multiprocessing` has its sockets there: a stopped DataLoader worker leaves them.
        """
        self._folder.mkdir(0o700, exist_ok=True)
        return str(self._folder)

    def environment(self, rank: int) -> dict[str, str]:
        """What `torchrun --nnodes=nodes` sets for this rank, and sockets kept on loopback."""
        size, each = self.world_size, self.world_size // self.nodes
        ranks = {"RANK": rank, "LOCAL_RANK": rank % each, "GROUP_RANK": rank // each}
        sizes = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": each, "GROUP_WORLD_SIZE": self.nodes}
        role = {"ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": size}
        address = {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": self.port.getsockname()[1]}
        elastic = {"TORCHELASTIC_RUN_ID": "launch", "TORCHELASTIC_USE_AGENT_STORE": True}
        restarts = {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
        names = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
        sockets = {name: os.environ.get(name, _INTERFACE) for name in names}  # the user's wins
        found = ranks | sizes | role | address | elastic | restarts | sockets
        # NCCL would have a thread for its own service, which listens on a fixed port.
        ours = {"OMP_NUM_THREADS": "1", "NCCL_RAS_ENABLE": os.environ.get("NCCL_RAS_ENABLE", "0")}
        return {name: str(value) for name, value in found.items()} | ours

    def forked(self) -> None:
        """In the kernel: all ranks have the port, and one of them will serve it."""
        self.port.close()

    def serve(self, rank: int) -> None:
        """In a worker, for a group that the learner will make: rank 0 serves the address."""
        _promise_only(self.port.getsockname()[1])
        if rank == 0:
            self._serve()
        self.port.close()

    def _serve(self) -> None:
        number, options = self.port.getsockname()[1], {"timeout": self.timeout}
        options |= {"wait_for_workers": False, "master_listen_fd": os.dup(self.port.fileno())}
        self._server = dist.TCPStore(_LOOPBACK, number, is_master=True, **options)

    def _serve_when_asked(self) -> None:
        """Wait for somebody at the address, such as a second `init_process_group`, or `init_rpc`.

        Until then this thread only waits: a store's own would be there at each later fork.
        """
        select.select([self.port], [], [])
        self._serve()

    def join(self, backend: str, rank: int) -> None:
        """In a worker: join the group of all ranks, and be ready for others that it may make."""
        _promise_only(self.port.getsockname()[1])
        if rank == 0:
            self.port.listen(self.world_size + 8)
            # No `threading.Thread`: the learner's program, and the record, would count it.
            _thread.start_new_thread(self._serve_when_asked, ())
        else:
            self.port.close()
        store = dist.FileStore(self._path, self.world_size)
        store.set_timeout(self.timeout)
        group = {"store": store, "rank": rank, "world_size": self.world_size}
        if "nccl" in backend:  # else torch would take the GPU that has the local rank's number
            group["device_id"] = torch.device("cuda", torch.cuda.current_device())
        dist.init_process_group(backend, timeout=self.timeout, **group)

    def close(self) -> None:
        """In the kernel: give everything back."""
        self._opened.close()


def _promise_only(ours: int) -> None:
    """Let a `setup()` that sets a MASTER_PORT of its own work as it does under plain `python`.

    TORCHELASTIC_USE_AGENT_STORE says that somebody serves the store. Torch takes that to be so for
    whatever address stands in the environment by then, where nobody would serve it.
    """
    name = "TORCHELASTIC_USE_AGENT_STORE"

    def serves(host: str, port: int) -> bool:
        if port != ours:  # the C++ part asks as well, and would forgive that a port is taken
            os.environ.pop(name, None)
        return os.environ.get(name) == "True" and port == ours

    # Private. Where torch asks in another way, only a port of the learner's own is not served.
    with contextlib.suppress(ImportError):
        torchs = importlib.import_module("torch.distributed.rendezvous")  # not `dist.rendezvous`
        torchs._agent_store_serves = serves
