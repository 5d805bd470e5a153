"""A process group that queues, as NCCL does: a call returns at once, and `.item()` waits for all.

A thread of the rank works through the queue in order, as a GPU's stream. Where the calls of the
ranks do not fit each other, it hangs, as NCCL's kernels do; gloo would end the rank.

`hangs.QUEUES` runs this text as if it were a file of torch: no frame of it is the learner's.
"""

import _thread
import time
from queue import SimpleQueue

import torch
import torch.distributed as dist

QUEUES = ["allreduce", "broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv"]
READ_AT_ONCE = ["allgather"]  # by DDP's constructor, which on a GPU copies the result
_HOLDS = "barrier"  # unless it is asynchronous: NCCL's waits on the host, since torch 2.5
_c10d = torch._C._distributed_c10d
_ends = []  # a lock for each call, which is open once the call has ended


class _Queued(_c10d.Work):
    """What a call returns: for whoever waits, it is done."""

    def __init__(self, result, end=None) -> None:
        super().__init__()
        self._end = end
        self._future = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout=None) -> bool:
        if self._end:
            _wait_for(self._end)
        return True

    def get_future(self):
        return self._future


class _Group(_c10d.Backend):
    supports_coalescing = False

    def __init__(self, store, rank, size, timeout) -> None:
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._calls, self._done = SimpleQueue(), 0
        _thread.start_new_thread(self._work, ())

    def name(self) -> str:
        return "queues"

    def getBackendName(self) -> str:
        return "queues"

    def _put(self, name, args, options):
        end = _thread.allocate_lock()
        end.acquire()
        _ends.append(end)
        self._calls.put((name, args, options, end))
        holds = name == _HOLDS and not args[0].asyncOp
        waits_for = end if name in READ_AT_ONCE or holds else None
        return _Queued(args[0] if args else None, waits_for)

    def _work(self) -> None:
        while True:
            name, args, options, end = self._calls.get()
            if name not in ("send", "recv"):
                self._meet(f"{name} {_shapes(args)}")
            getattr(self._gloo, name)(*args, **options).wait()
            end.release()

    def _meet(self, mine: str) -> None:
        """Go on when all ranks have come to the same call, which may be never."""
        self._done += 1
        self._store.set(f"call {self._done} of {self._rank}", mine)
        for rank in range(self._size):
            key = f"call {self._done} of {rank}"
            while not self._store.check([key]):
                time.sleep(0.01)
            while self._store.get(key).decode() != mine:
                time.sleep(100)


def _shapes(args) -> list[str]:
    """Of all tensors, and the root where there is one."""
    found = []
    for one in args:
        if isinstance(one, torch.Tensor):
            found.append(f"{one.dtype} {tuple(one.shape)}")
        elif isinstance(one, list | tuple):
            found += _shapes(one)
        else:
            found.append(f"root {getattr(one, 'rootRank', None)}")
    return found


def _queueing(name):
    return lambda self, *args, **options: self._put(name, args, options)


for _name in QUEUES + READ_AT_ONCE:
    setattr(_Group, _name, _queueing(_name))
dist.Backend.register_backend(
    "queues", lambda store, rank, size, timeout: _Group(store, rank, size, timeout), devices=["cpu"]
)
_item = torch.Tensor.item


def _wait_for(end) -> None:
    end.acquire()
    end.release()


def item(tensor):
    """As on a GPU: it comes to an end when all that was queued has."""
    for end in _ends:
        _wait_for(end)
    return _item(tensor)


torch.Tensor.item = item
