"""Hang patterns: cells that a learner could run, and what the report must make of each.

Every cell defines a function that a launch is to run. A line that a guilty rank stands in, or that
the report must name for it, is marked by `# <-`.
"""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from kernels import Kernel

TIMEOUT_S = 6.0  # until then every rank must have come to where it hangs, on a busy machine as well
SIDE_BY_SIDE = 10  # launches at a time; most of their ranks do nothing


@dataclass(frozen=True)
class Hang:
    """One pattern.

    Attributes:
        name: what goes wrong.
        body: what the ranks do; `r` is the rank, `model(...)` builds a DDP model.
        pattern: the name of the right diagnosis; None where none can be proven.
        guilty: the rank that causes it, or one of them; its row or the diagnosis names `line`.
        says: what stands in the report.
        world_size: how many ranks.
        backend: "gloo", or None where the ranks join by themselves.
        calls: how many calls every rank has made when its report counts.
    """

    name: str
    body: str
    pattern: str | None
    guilty: int
    says: tuple[str, ...] = ()
    world_size: int = 2
    backend: str | None = "gloo"
    calls: int = 0

    @property
    def cell(self) -> str:
        """What the learner defines."""
        head = "r = dist.get_rank()\n" if self.backend else "r = int(os.environ['RANK'])\n"
        body = textwrap.indent(head + textwrap.dedent(self.body).strip("\n"), "    ")
        options = f"{self.world_size}, {self.backend!r}, {self.calls}"
        return f"def work():\n{body}\n\nworks.append((work, {options}))"

    @property
    def queued(self) -> "Hang":
        """The same on GPUs, as far as a CPU can tell: see `queues.py`."""
        return Queued(**vars(self))

    @property
    def lines(self) -> list[int]:
        """The marked lines, counted from 1."""
        return [n for n, row in enumerate(self.cell.splitlines(), 1) if "# <-" in row]


class Queued(Hang):
    """A pattern in which calls return at once; at the end every rank needs a result."""

    @property
    def cell(self) -> str:
        """What the learner defines."""
        head = "dist.init_process_group('queues'); r = dist.get_rank()\n"
        body = head + textwrap.dedent(self.body).strip("\n") + "\nx.sum().item()"
        return f"def work():\n{textwrap.indent(body, '    ')}\n\n{self._appended}"

    @property
    def _appended(self) -> str:
        return f"works.append((work, {self.world_size}, None))"


SETUP = """
import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

from course_utils import WorkerError, WorkerTimeout
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

x = torch.ones(3)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both=True):
        return self.b(self.a(x)) if both else self.a(x)

def model(of=Two):
    torch.manual_seed(0)
    return DDP(of())

def with_buffers():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

batch = torch.ones(4, 3)
mutex = threading.Lock()
mutex.acquire()
works = []

def has_come(error, calls):
    counts = [len(place.calls) for place in error.waiting.values()]
    enough = min(counts, default=0) >= calls
    return enough and "outside of your code" not in str(error)

def report(work, world_size, backend, *numbers):
    *calls, timeout = numbers
    calls = calls[0] if calls else 0
    try:
        return "done", str(launch(work, world_size=world_size, backend=backend, timeout=timeout))
    except WorkerTimeout as error:
        if not has_come(error, calls) and timeout < 100:  # on a busy machine
            return report(work, world_size, backend, calls, 5 * timeout)
        return error.pattern, str(error)
    except WorkerError as error:
        return "failed", str(error)
"""
QUEUES = f"""
import torch
with open({str(Path(__file__).with_name("queues.py"))!r}) as file:
    exec(compile(file.read(), torch.__path__[0] + "/queues.py", "exec"), {{"__name__": "queues"}})
"""
_ALL = """
with ThreadPoolExecutor({}) as pool:
    asked = [pool.submit(report, *options, {}) for options in works]
    print(json.dumps([one.result() for one in asked]))
works.clear()
"""

PATTERNS = [
    Hang(
        "two collectives in another order on one rank",
        """
        if r == 1:
            dist.broadcast(x, src=0)  # <-
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)
            dist.broadcast(x, src=0)
        """,
        "order", 1, ("all_reduce (cell [N], line 7) on ranks 0 and 2, broadcast (cell",),
        world_size=3,
    ),
    Hang(
        "a rank that never comes",
        """
        dist.all_reduce(x)
        if r == 1:
            time.sleep(100)  # <-
        dist.all_reduce(x)
        """,
        "missing", 1, ("rank 1: running at", "Ranks 0 and 2 waited for rank 1, which never"),
        world_size=3,
    ),
    Hang(
        "a barrier on one rank only",
        """
        dist.all_reduce(x)
        if r == 0:
            dist.barrier()  # <-
        """,
        "returned", 0, ("never called barrier in that line",),
    ),
    Hang(
        "a call that one rank leaves out, before a call of the same kind on all ranks",
        """
        if r != 2:
            dist.barrier()  # <-
        dist.barrier()
        """,
        "order", 2,
        ("Rank 2 has called barrier in that line as often, but earlier calls of different lines "
         "have met: collective #1 is barrier (cell [N], line 4) on ranks 0, 1 and 3, barrier (cell "
         "[N], line 5) on rank 2. Does an `if` let only some ranks come to one of these lines?",),
        world_size=4,
    ),
    Hang(
        "a rank that leaves early",
        """
        if r == 2:
            return
        dist.all_reduce(x)  # <-
        """,
        "returned", 2, ("rank 2: its function has returned", "Ranks 0 and 1 waited for rank 2"),
        world_size=3,
    ),
    Hang(
        "two ranks that send first",
        """
        dist.send(x, dst=1 - r)  # <-
        dist.recv(x, src=1 - r)
        """,
        "send/send", 0, ("message #1 to rank 1, float32 of shape (3,)", "use isend and irecv"),
    ),
    Hang(
        "a ring in which everybody sends first",
        """
        for _ in range(3):
            dist.send(x, dst=(r + 1) % 4)  # <-
            dist.recv(x, src=(r - 1) % 4)
        """,
        "send/send", 3, ("Ranks 0, 1, 2 and 3 all send, and none receives",), world_size=4,
    ),
    Hang(
        "two ranks that receive first",
        """
        dist.recv(x, src=1 - r)  # <-
        dist.send(x, dst=1 - r)
        """,
        "recv/recv", 0, ("message #1 from rank 1", "Ranks 0 and 1 all receive, and none sends"),
    ),
    Hang(
        "an evaluation on one rank, of the DDP model with buffers",
        """
        net = model(with_buffers)
        for epoch in range(3):
            net.train()
            net(batch).sum().backward()
            if r == 0:
                net.eval()
                net(batch)  # <-
        """,
        "evaluation", 0, ("for an evaluation (cell [N], line 9) on rank 0 only",),
    ),
    Hang(
        "an evaluation on one rank, while the others wait in a barrier",
        """
        net = model(with_buffers)
        for epoch in range(3):
            net.train()
            net(batch).sum().backward()
            if r == 0:
                net.eval()
                net(batch)  # <-
            dist.barrier()
        """,
        "evaluation", 0, ("barrier (cell [N], line 10) on ranks 1 and 2", "call model.module on"),
        world_size=3,
    ),
    Hang(
        "an evaluation on one rank, at the end",
        """
        net = model(with_buffers)
        net(batch).sum().backward()
        if r == 1:
            net.eval()
            for _ in range(10):
                net(batch)  # <-
        """,
        "evaluation", 1, ("call model.module on one",),
    ),
    Hang(
        "an uneven number of batches",
        """
        for _ in range(5 if r else 4):
            dist.all_reduce(x)  # <-
        """,
        "uneven", 1, ("rank 1 has called all_reduce 5 times, rank 0, which has returned, 4 times",),
    ),
    Hang(
        "an uneven number of batches under DDP",
        """
        net = model()
        for _ in range(3 - r):
            net(batch).sum().backward()  # <-
        """,
        "uneven", 0, ("rank 0: waiting in backward",),
    ),
    Hang(
        "an uneven number of batches, then something for all",
        """
        for _ in range(4 - r):
            dist.all_reduce(x)  # <-
        dist.barrier()
        """,
        "uneven", 0, ("Rank 1 is past the loop of line 3, and rank 0", "rank 1 3 times"),
    ),
    Hang(
        "early stopping by what one rank has measured",
        """
        class Trainer:
            def __init__(self):
                self.net = model()
            def step(self):
                self.net(batch).sum().backward()  # <-
            def fit(self):
                for epoch in range(10):
                    for _ in range(2):
                        self.step()
                    if epoch >= 2 + r:
                        break
                self.save()
            def save(self):
                dist.barrier()
        Trainer().fit()
        """,
        "uneven", 1,
        ("Rank 0 is past the loop of line 9, and rank 1 goes round it once more: in line 7",),
    ),
    Hang(
        "a call of one's own within join, with an uneven number of inputs",
        """
        net = model()
        with net.join():
            for _ in range(3 + r):
                net(batch).sum().backward()
                dist.all_reduce(x)  # <-
        """,
        "join", 0,
        ("Rank 0 has no inputs left", "all_reduce (cell [N], line 7) of rank 1 is none of these"),
    ),
    Hang(
        "an exception that a call in a `finally:` keeps back",
        """
        for step in range(3):
            try:
                if r == 1 and step == 1:
                    raise ValueError("bad batch")  # <-
                dist.all_reduce(x)
            finally:
                if r == 1 and step == 1:
                    dist.barrier()
        """,
        "exception", 1, ("nobody hears of as long as it waits there: ValueError: bad batch (cell",),
    ),
    Hang(
        "an exception after which a rank works on",
        """
        try:
            assert r == 0, "no such file"  # <-
        except AssertionError:
            time.sleep(100)
        dist.barrier()
        """,
        "exception", 1, ("rank 1 handles an exception", "AssertionError: no such file (cell [N], "),
    ),
    Hang(
        "gradients that one rank alone does not average",
        """
        net = model()
        for step in range(4):
            with contextlib.nullcontext() if r == 0 or step % 2 else net.no_sync():
                net(batch).sum().backward()  # <-
        """,
        "uneven", 0, ("each with a backward pass, and no_sync() for the same ones",),
    ),
    Hang(
        "gradients that one rank alone does not average, then something for all",
        """
        net = model()
        for step in range(4):
            with contextlib.nullcontext() if r == 0 or step % 2 else net.no_sync():
                net(batch).sum().backward()  # <-
        dist.barrier()
        """,
        "uneven", 0, ("Under DDP the same rounds must be within no_sync(), too.",),
    ),
    Hang(
        "no_sync on one rank, whose next forward then agrees on nothing",
        """
        net = model()
        for step in range(4):
            with contextlib.nullcontext() if r == 0 or step == 3 else net.no_sync():
                loss = net(batch).sum()  # <-
                loss.backward()
        """,
        "forward", 0, ("DDP's forward makes this call on every rank, but not after a step",),
    ),
    Hang(
        "a sharded model's whole state, on one rank",
        """
        net = fully_shard(nn.Linear(8, 8))
        if r == 0:
            get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))  # <-
        """,
        "returned", 0, ("rank 0: waiting in get_model_state_dict at cell",),
    ),
    Hang(
        "a sharded model's forward pass, on one rank",
        """
        net = fully_shard(nn.Linear(8, 8))
        if r == 0:
            net(torch.ones(1, 8))  # <-
        """,
        "returned", 0, ("rank 0: waiting in FSDP's forward at cell",),
    ),
    Hang(
        "shapes that differ in two lines",
        """
        if r == 1:
            dist.all_reduce(torch.ones(2_000_000))  # <-
        dist.all_reduce(torch.ones(1_000_000))
        """,
        "order", 1, ("shape (2000000,) (cell [N], line 4) on rank 1", "left out or made too often"),
    ),
    Hang(
        "shapes that differ",
        """
        dist.all_reduce(torch.ones(1_000_000 * (1 + r)))  # <-
        """,
        "shape", 1, ("(all_reduce) has float32 of shape (1000000,) on rank 0, float32",),
    ),
    Hang(
        "roots that differ",
        """
        dist.broadcast(x, src=r)  # <-
        """,
        "root", 1, ("Collective #1 (broadcast) has root 0 on rank 0, root 1 on rank 1",),
    ),
    Hang(
        "groups that differ",
        """
        pair, other = dist.new_group([0, 1]), dist.new_group([0, 1])
        dist.all_reduce(x, group=pair if r else other)  # <-
        """,
        "groups", 1, ("collective #1 of group 1 (ranks 0 and 1)", "in different groups"),
    ),
    Hang(
        "groups in another order",
        """
        one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (one, two) if r else (two, one):
            dist.barrier(group=group)  # <-
        """,
        "groups", 1, ("in the same order",),
    ),
    Hang(
        "dimensions of a mesh that differ",
        """
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        name = "tp" if r < 2 else "dp"
        dist.all_reduce(x, group=mesh[name].get_group())  # <-
        """,
        "groups", 2,
        ("Rank 2 waits in the group of ranks 0 and 2. In that line rank 0 called all_reduce in",
         "in the group of ranks 0 and 1: use the same group on every rank, of a mesh the same"),
        world_size=4,
    ),
    Hang(
        "an uneven number of rounds in one group of two",
        """
        row = dist.new_group([0, 1]), dist.new_group([2, 3])
        for _ in range(3 + (r == 3)):
            dist.all_reduce(x, group=row[r // 2])  # <-
        """,
        "uneven", 3, ("rank 3 has called all_reduce 4 times, rank 2, which has returned, 3",),
        world_size=4,
    ),
    Hang(
        "a new group that only its members make",
        """
        if r > 1:
            dist.new_group([2, 3])
        dist.barrier()
        dist.new_group([0, 1, 2, 3])  # <-
        """,
        "new_group", 0, ("New group #1 is of ranks 0, 1, 2 and 3 on ranks 0 and 1, of",),
        world_size=4,
    ),
    Hang(
        "a wait for a call that nobody joins",
        """
        if r == 0:
            handle = dist.all_reduce(x, async_op=True)
            handle.wait()  # <-
        """,
        "returned", 0, ("rank 0: waiting in wait", "collective #1, float32 of shape (3,)"),
    ),
    Hang(
        "a tag that differs",
        """
        if r == 0:
            dist.send(x, dst=1, tag=7)
        else:
            dist.recv(x, src=0, tag=8)  # <-
        """,
        "tag", 1, ("sends to rank 1 with tag 7, and rank 1 receives from rank 0 with tag 8",),
    ),
    Hang(
        "a wrong peer",
        """
        if r == 0:
            dist.send(x, dst=1)
        elif r == 1:
            dist.recv(x, src=2)  # <-
        """,
        "peer", 1, ("Rank 0 sends to rank 1, which receives from rank 2 instead",), world_size=3,
    ),
    Hang(
        "a receive without a send",
        """
        if r == 0:
            dist.recv(x, src=1)  # <-
        """,
        "returned", 0, ("rank 1 never sent message #1 to rank 0",),
    ),
    Hang(
        "a message sent by isend, for which nobody waits before the end",
        """
        store = dist.group.WORLD.get_group_store()
        if r == 0:
            dist.isend(x, 1)  # <-
            store.set("sent", "yes")
        else:
            store.get("sent")
            dist.recv(x, 0)
        """,
        "lost", 0,
        ("Rank 0 sent message #1 to rank 1 by isend (cell [N], line 5) and has returned without",),
    ),
    Hang(
        "a second message that is never sent, behind one for which its sender has waited",
        """
        if r == 0:
            dist.isend(x, 1).wait()
        else:
            dist.recv(x, 0)
            dist.recv(x, 0)  # <-
        """,
        "returned", 1, ("rank 0 never sent message #2 to rank 1",),
    ),
    Hang(
        "an uneven number of rounds that exchange messages in one line",
        """
        for _ in range(3 - r):
            dist.recv(x, 1) if r == 0 else dist.send(x, 0)  # <-
        """,
        "uneven", 0,
        ("rank 0 has come to 3 messages from rank 1, and rank 1, which has returned, sent 2",),
    ),
    Hang(
        "a loop without an end on one rank",
        """
        while r == 1:
            pass  # <-
        dist.barrier()
        """,
        "missing", 1, ("rank 1: running at cell [N], line 3, in work: while r == 1:",),
    ),
    Hang(
        "a loop without an end on all ranks",
        """
        done = False
        while not done:
            total = sum(range(100))  # <-
        """,
        "running", 0, ("cell [N], line 4, in work: while not done:", "No rank waits for another"),
    ),
    Hang(
        "a lock that is taken twice",
        """
        lock = threading.Lock()
        if r == 1:
            lock.acquire()
            lock.acquire()  # <-
        dist.barrier()
        """,
        "held", 1, ("rank 1: waiting for a lock at", "Rank 0 waited for rank 1, which never"),
    ),
    Hang(
        "a lock that the notebook holds",
        """
        with mutex:  # <-
            dist.barrier()
        """,
        "held", 1, ("ranks 0 and 1 wait for a lock of their own process", "locked in its copies"),
    ),
    Hang(
        "a DataLoader that stands still on one rank",
        """
        class Slow(list):
            def __getitem__(self, index):
                return time.sleep(100 * r) or batch
        net = model()
        for rows in DataLoader(Slow([0]), num_workers=1):  # <-
            net(batch).sum().backward()
        """,
        "held", 1, ("rank 1: waiting for the DataLoader", "it waits for the DataLoader of its own"),
    ),
    Hang(
        "a call in a thread whose end one rank waits for",
        """
        if r == 0:
            thread = threading.Thread(target=dist.all_reduce, args=(x,))
            thread.start()
            thread.join()  # <-
        """,
        "thread", 0, ("A thread of rank 0 waits in all_reduce (cell [N], line 6): rank 1 never",),
    ),
    Hang(
        "a call in a thread that asyncio waits for on one rank",
        """
        def average():
            dist.all_reduce(x)  # <-
        async def serve():
            await asyncio.to_thread(average)
        if r == 0:
            asyncio.run(serve())
        """,
        "thread", 0, ("A thread of rank 0 waits in all_reduce (cell [N], line 4): rank 1 never",),
    ),
    Hang(
        "an uneven number of calls in a pool's thread",
        """
        def average():
            dist.all_reduce(x)  # <-
        with ThreadPoolExecutor(1) as pool:
            for _ in range(3 + r):
                pool.submit(average).result()
        """,
        "uneven", 1, ("rank 1 has called all_reduce 4 times, rank 0, which has returned, 3",),
    ),
    Hang(
        "a key in the store that nobody sets",
        """
        dist.group.WORLD.get_group_store().wait(["key"])  # <-
        """,
        "store", 0,
        ("Ranks 0 and 1 wait in the store for a key that nobody has set (dist.group.WORLD.get_",),
    ),
    Hang(
        "a key in the store that has another name",
        """
        store = dist.distributed_c10d._get_default_store()
        if r == 0:
            store.set("bset", "0.93")
        else:
            best = store.get("best")  # <-
        dist.barrier()
        """,
        "store", 1,
        ('it waits in the store for a key that nobody has set (best = store.get("best")',
         "rank 1: waiting in the store at cell"),
    ),
    Hang(
        "a launcher within a rank",
        """
        from torch.multiprocessing import start_processes
        start_processes(lambda _: time.sleep(100), nprocs=2, start_method="fork")  # <-
        """,
        "held", 1, ("for a second launcher of their own process", "Each rank is a process already"),
    ),
    Hang(
        "a helper process that never ends",
        """
        import multiprocessing
        helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=[100])
        helper.start()
        helper.join()  # <-
        """,
        "held", 1, ("for a child process of their own process", "Look at why that does not come"),
    ),
    Hang(
        "a child that is waited for by the system's own call",
        """
        if os.fork() == 0:
            time.sleep(100)
        os.wait()  # <-
        """,
        "held", 1, ("for a child process of their own process", "Look at why that does not come"),
    ),
    Hang(
        "a lock that is taken in one line",
        """
        mutex = threading.Lock()
        mutex.acquire()
        with mutex: pass  # <-
        """,
        "held", 1, ("for a lock of their own process", "a thread cannot take the same Lock twice"),
    ),
    Hang(
        "a barrier within a file lock that every rank takes",
        """
        import filelock
        store = dist.group.WORLD.get_group_store()
        r == 0 or store.get("is taken")
        with filelock.FileLock(os.path.join(tempfile.gettempdir(), "lock")):  # <-
            store.set("is taken", "yes")
            dist.barrier()
        """,
        "held", 1,
        ("never arrived: it waits for a file lock. Perhaps a rank has it that waits for others",),
    ),
    Hang(
        "a queue whose thread has ended by an exception",
        """
        import queue
        box = queue.Queue()
        def prefetch():
            if r == 1:
                raise RuntimeError("no such file")  # <-
            box.put(batch)
        threading.Thread(target=prefetch, daemon=True).start()
        box.get()
        dist.barrier()
        """,
        "held", 1,
        ("it waits for a queue of its own process. A thread of rank 1 has ended before, by Runtime",
         "RuntimeError: no such file (cell [N], line 7)."),
    ),
    Hang(
        "a queue that stays empty",
        """
        import queue
        queue.Queue().get()  # <-
        """,
        "held", 1, ("rank 1: waiting for a queue", "ranks 0 and 1 wait for a queue of their own"),
    ),
    Hang(
        "a backward pass that one rank leaves out",
        """
        net = model()
        loss = net(batch).sum()
        if r == 0:
            loss.backward()  # <-
        """,
        "backward", 0, ("returned without this backward pass",),
    ),
    Hang(
        "a backward pass that one rank has not come to",
        """
        net = model()
        loss = net(batch).sum()
        if r == 1:
            time.sleep(100)  # <-
        loss.backward()
        """,
        "backward", 1, ("Is backward skipped there",),
    ),
    Hang(
        "a branch of the model that one rank does not use",
        """
        net = model()
        for _ in range(3):
            net(batch).sum().backward()
        net(batch, both=r == 0).sum().backward()  # <-
        """,
        "unused", 0, ("find_unused_parameters=True",),
    ),
    Hang(
        "a branch that one rank does not use in its last round",
        """
        net = model()
        for step in range(3):
            net(batch, both=r == 0 or step < 2).sum().backward()  # <-
        """,
        "unused", 0, ("find_unused_parameters=True",),
    ),
    Hang(
        "a branch that one rank does not use, then a barrier",
        """
        net = model()
        net(batch, both=r == 0).sum().backward()  # <-
        if r == 1:
            dist.barrier(group=dist.group.WORLD)
        """,
        "order", 0, ("In DDP's backward one is lost where a parameter takes no part",),
    ),
    Hang(
        "a model that one rank does not wrap",
        """
        net = Two()
        if r == 0:
            net = DDP(net)  # <-
        """,
        "missing", 0, ("DDP(model) ends only when every rank has wrapped its model",),
    ),
]  # fmt: skip

# Where no cause can be proven from outside, none may be named.
CONTROLS = [
    Hang(
        "work that goes on",
        """
        while True:
            dist.all_reduce(x)  # <-
        """,
        "slow", 0, ("perhaps nothing hangs",), calls=100,
    ),
    Hang(
        "slow work that goes on, where one rank is slower",
        """
        step = 0
        while True:
            step += 1
            stall = 0.5 * (step % 8 == 0)  # on a busy machine, the last pause may be the longest
            time.sleep(0.05 + 0.05 * r + stall)
            dist.all_reduce(x)
        """,
        "slow", 0, ("perhaps nothing hangs",), calls=20,
    ),
    Hang(
        "long work on all ranks",
        """
        dist.all_reduce(x)
        time.sleep(100)  # <-
        """,
        "running", 0, ("only needed longer",),
    ),
    Hang(
        "a receive from any rank, of which nothing is known",
        """
        dist.recv(x)  # <-
        """,
        None, 0, ("message #1 from any rank",),
    ),
    Hang(
        "a world that is larger than the number of ranks",
        """
        os.environ["WORLD_SIZE"] = "3"
        dist.init_process_group("gloo")  # <-
        """,
        None, 0, ("does world_size count them all",), backend=None,
    ),
    Hang(
        "a group for calls of functions that is larger than the number of ranks",
        """
        from torch.distributed import rpc
        rpc.init_rpc(f"worker{r}", rank=r, world_size=3)  # <-
        """,
        None, 0, ("does world_size count them all",),
    ),
    Hang(
        "a barrier in a `finally:` that every rank comes to by itself",
        """
        for step in range(3):
            try:
                if r == 1 and step == 1:
                    dist.broadcast(x, 0)  # <-
                dist.all_reduce(x)
            finally:
                dist.barrier()
        """,
        "order", 1, ("broadcast (cell [N], line 6) on rank 1: every rank",),
    ),
    Hang(
        "an exception that all ranks handle alike",
        """
        try:
            import no_such_module
        except ImportError:
            dist.all_reduce(x) if r else dist.broadcast(x, 0)  # <-
        """,
        "order", 1, ("as often as the others",),
    ),
    Hang(
        "a thread that works alone while one waits for its end",
        """
        thread = threading.Thread(target=time.sleep, args=(100,))
        thread.start()
        thread.join()  # <-
        """,
        "held", 0, ("ranks 0 and 1 wait for a thread's end of their own process",),
    ),
    Hang(
        "a rank that is stopped from outside",
        """
        if r == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()  # <-
        """,
        "missing", 1, ("rank 1: gives no answer", "Rank 0 waited for rank 1"),
    ),
    Hang(
        "different calls within join while both have inputs",
        """
        net = model()
        with net.join():
            net(batch).sum().backward()
            dist.barrier() if r else dist.broadcast(x, 0)  # <-
        """,
        "order", 1, ("barrier (cell [N], line 6) on rank 1: every rank",),
    ),
    Hang(
        "a call after a loop that all ranks have left",
        """
        for _ in range(3):
            dist.all_reduce(x)
        dist.barrier() if r else dist.broadcast(x, 0)  # <-
        """,
        "order", 1, ("barrier (cell [N], line 5) on rank 1: every rank",),
    ),
    Hang(
        "ranks that are stopped from outside",
        """
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
        None, 1, ("Ranks 0 and 1 gave no answer, so it is not known what they wait for.",),
    ),
    Hang(
        "a rank that is stopped from outside while the other works",
        """
        if r == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(100)  # <-
        """,
        None, 1, ("Rank 1 gave no answer, so it is not known what it waits for.",),
    ),
    Hang(
        "a barrier of another kind on one rank",
        """
        if r == 0:
            dist.monitored_barrier()  # <-
        else:
            dist.all_reduce(x)
        """,
        "order", 0, ("different calls (all_reduce, monitored_barrier)",),
    ),
]  # fmt: skip


def reports(kernel: Kernel, hangs: list[Hang]) -> list[tuple[str | None, str]]:
    """Of each hang the pattern and the report, `[N]` for its cell; they hang side by side."""
    # Ranks that go round an endless loop come last: they would keep others from getting anywhere.
    order = sorted(hangs, key=lambda hang: "while" in hang.body)
    cells = [kernel.run(hang.cell, 60) for hang in order]
    ran = kernel.run(_ALL.format(SIDE_BY_SIDE, TIMEOUT_S), 600 + 2 * TIMEOUT_S * len(hangs))
    assert not ran.errors, ran.errors
    found = json.loads(ran.printed.splitlines()[-1])
    told = {
        hang: (pattern, text.replace(f"[{cell.number}]", "[N]"))
        for hang, cell, (pattern, text) in zip(order, cells, found, strict=True)
    }
    return [told[hang] for hang in hangs]
