"""Where the ranks of one launch meet, and the environment that `torchrun` would have set.

A group made by `launch` meets in a `FileStore` on an anonymous file. It has no port, no path and
no owner other than these processes, so nobody else can join it, overwrite its keys, or fill
the disk under it. A group made by the learner (`backend=None`, or a second one, or RPC) needs an
address. The kernel binds it, and rank 0 serves it, at the latest when somebody asks. The kernel
never does: a store's thread in a process that forks hangs its children.
"""

import _thread
import contextlib
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

from course_utils.launcher import torch_private
from course_utils.launcher.transport import anonymous_file

_LOOPBACK = "127.0.0.1"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
# Torch's own deadlines come after the launcher's, which says more and may be extended.
_SLACK = timedelta(days=1)
_MORE_CLIENTS = 8  # that may queue at the address in addition to the ranks


class Rendezvous:
    """The meeting point of `world_size` ranks, laid out as `nodes` equal nodes of one machine.

    Args:
        world_size: Number of ranks.
        nodes: Number of nodes, which divides `world_size`.
        timeout_s: Seconds until the launch ends; torch waits longer than that.
    """

    def __init__(self, world_size: int, nodes: int, timeout_s: float) -> None:
        self.world_size = world_size
        self.nodes = nodes
        timeout = timedelta(seconds=timeout_s)
        self._torchs_timeout = timeout + _SLACK
        self._opened = contextlib.ExitStack()
        self._server: dist.TCPStore | None = None  # in rank 0, as long as it lives

    def open(self, listens: bool) -> None:
        """In the kernel: take a port, where early ranks may queue if it listens, and a file."""
        self._socket = self._opened.enter_context(socket.socket())
        self._socket.bind((_LOOPBACK, 0))
        self._port: int = self._socket.getsockname()[1]
        if listens:
            self._listen()
        # Short, since the path of a socket may have 107 bytes; random, so that nobody guesses it.
        parent = tempfile.gettempdir()
        token = secrets.token_urlsafe(6)
        self._folder = Path(parent, f"ddp-{token}")
        self._opened.callback(shutil.rmtree, self._folder, ignore_errors=True)
        if os.path.exists("/proc/self/fd"):
            descriptor = anonymous_file("rendezvous")
            self._opened.callback(os.close, descriptor)
            self._store_path = f"/proc/self/fd/{descriptor}"
        else:
            self._store_path = f"{self.make_folder()}/store"

    def _listen(self) -> None:
        self._socket.listen(self.world_size + _MORE_CLIENTS)

    def make_folder(self) -> str:
        """The path of a private folder, which ends with the launch; make it if need be.

        A rank's `multiprocessing` has its sockets there: a stopped DataLoader worker leaves them.
        """
        self._folder.mkdir(0o700, exist_ok=True)
        return str(self._folder)

    def environment(self, rank: int) -> dict[str, str]:
        """What `torchrun --nnodes=nodes` sets for this rank, and sockets kept on loopback."""
        ranks_per_node = self.world_size // self.nodes
        node, local_rank = divmod(rank, ranks_per_node)
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "GROUP_RANK": node,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": ranks_per_node,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": self._port,
            "TORCHELASTIC_RUN_ID": "launch",
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "OMP_NUM_THREADS": 1,
        }
        # What the user has set wins. NCCL's RAS service would listen on a fixed port.
        defaults = {
            "GLOO_SOCKET_IFNAME": _INTERFACE,
            "NCCL_SOCKET_IFNAME": _INTERFACE,
            "NCCL_RAS_ENABLE": "0",
        }
        for name, default in defaults.items():
            variables[name] = os.environ.get(name, default)
        return {name: str(value) for name, value in variables.items()}

    def after_fork(self) -> None:
        """In the kernel: all ranks have the port, and one of them will serve it."""
        self._socket.close()

    def serve(self, rank: int) -> None:
        """In a worker, for a group that the learner will make: rank 0 serves the address."""
        _answer_for_our_port_alone(self._port)
        if rank == 0:
            self._start_server()
        self._socket.close()

    def join(self, backend: str, rank: int) -> None:
        """In a worker: join the group of all ranks, and be ready for others that it may make."""
        _answer_for_our_port_alone(self._port)
        if rank == 0:
            self._listen()
            # No `threading.Thread`: the learner's program, and the record, would count it.
            _thread.start_new_thread(self._start_server_when_asked, ())
        else:
            self._socket.close()
        store = dist.FileStore(self._store_path, self.world_size)
        store.set_timeout(self._torchs_timeout)
        device = None
        if "nccl" in backend:  # otherwise torch takes the GPU that has the local rank's number
            device = torch.device("cuda", torch.cuda.current_device())
        dist.init_process_group(
            backend,
            timeout=self._torchs_timeout,
            store=store,
            rank=rank,
            world_size=self.world_size,
            device_id=device,
        )

    def _start_server(self) -> None:
        self._server = dist.TCPStore(
            _LOOPBACK,
            self._port,
            is_master=True,
            timeout=self._torchs_timeout,
            wait_for_workers=False,
            master_listen_fd=os.dup(self._socket.fileno()),
        )

    def _start_server_when_asked(self) -> None:
        """Wait for somebody at the address, such as a second `init_process_group`, or `init_rpc`.

        Until then this thread only waits: a store's own would be there at each later fork.
        """
        select.select([self._socket], [], [])
        self._start_server()

    def close(self) -> None:
        """In the kernel: give everything back."""
        self._opened.close()


def _answer_for_our_port_alone(our_port: int) -> None:
    """Replace torch's question whether somebody serves a store: only the one at our port is served.

    TORCHELASTIC_USE_AGENT_STORE says so of whatever address stands in the environment when torch
    asks. Where a learner's `setup()` has set a MASTER_PORT of its own, nobody would serve that; so
    rank 0 does, as under plain `python`.
    """
    variable = "TORCHELASTIC_USE_AGENT_STORE"

    def agent_store_serves(host: str, port: int) -> bool:
        if port != our_port:  # the C++ part asks as well, and would forgive that a port is taken
            os.environ.pop(variable, None)
            return False
        return os.environ.get(variable) == "True"

    torch_private.wrap(
        "torch.distributed.rendezvous:_agent_store_serves", lambda torchs: agent_store_serves
    )
