"""Entries to the challenge that want points without the work: texts, and what is said of each.

Each is worth writing: some would work in a judge that looks at results and at a recording only.
"""

RING = """
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(n)
    for turn in range(2 * (n - 1)):
        mine, into = chunks[(rank - turn) % n], chunks[(rank - turn - 1) % n]
        arrived = torch.empty_like(into)
        sending = dist.isend(mine, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sending.wait()
        if turn < n - 1:
            into += arrived
        else:
            into.copy_(arrived)
    return x
"""
OTHERS = "[other for other in range(dist.get_world_size()) if other != dist.get_rank()]"

# Refused before a rank starts: the text leads out of what an entry is made of.
OUTSIDE = {
    "by the store": (
        "def all_reduce(x, league):\n"
        "    dist.distributed_c10d._get_default_store().set('x', str(x.tolist()))\n    return x\n",
        "Line 2: dist.distributed_c10d is not to be had here.",
    ),
    "by a file": (
        "def all_reduce(x, league):\n"
        "    open('/dev/shm/mine', 'w').write(str(x.tolist()))\n    return x\n",
        "Line 2: open is not to be had here",
    ),
    "by shared memory": (
        "board = torch.zeros(8, 2**18, dtype=torch.int32).share_memory_()\n"
        "def all_reduce(x, league):\n"
        "    board[dist.get_rank(), :x.numel()] = x\n    return board.sum(0)[:x.numel()]\n",
        "Line 1: .share_memory_ is not to be had here.",
    ),
    "by memory of the notebook's": (
        "def all_reduce(x, league):\n    shared[dist.get_rank()] = x\n    return sum(shared)\n",
        "Line 2: shared is not to be had here: it is not defined in this cell",
    ),
    "reads others' memory": (
        "import ctypes\n"
        "def all_reduce(x, league):\n"
        "    return ctypes.string_at(x.data_ptr(), x.nbytes)\n",
        "Line 3: ctypes is not to be had here",
    ),
    "maps a file as a tensor": (
        "def all_reduce(x, league):\n"
        "    return torch.from_file('/dev/shm/mine', shared=True, size=x.numel())\n",
        "Line 2: torch.from_file is not to be had here.",
    ),
    "a collective": (
        "def all_reduce(x, league):\n    dist.all_reduce(x)\n    return x\n",
        "Line 2: dist.all_reduce is not to be had here. An all-reduce is to be made of messages",
    ),
    "a collective by another name": (
        "def all_reduce(x, league):\n    getattr(dist, 'all' + '_reduce')(x)\n    return x\n",
        "Line 2: getattr is not to be had here",
    ),
    "the operator beneath": (
        "def all_reduce(x, league):\n    torch.ops.c10d.allreduce_([x])\n    return x\n",
        "Line 2: torch.ops is not to be had here.",
    ),
    "patches the clock": (
        "from course_utils import Network\n"
        "Network.link = lambda *a: (0, 1, 0)\n"
        "def all_reduce(x, league):\n    return x\n",
        "Line 2: Network is not to be had here",
    ),
    "patches what sends": (
        "def all_reduce(x, league):\n    dist.isend = dist.irecv\n    return x\n",
        "Line 2: .isend is set",
    ),
    "reads the judge's frames": (
        "def all_reduce(x, league):\n"
        "    return (y for y in ()).gi_frame.f_back.f_locals['arguments']\n",
        "Line 2: .gi_frame is not to be had here.",
    ),
    "what a function knows": (
        "def all_reduce(x, league):\n    dist.isend.__globals__['dist'].all_reduce(x)\n",
        "Line 2: .__globals__ is not to be had here.",
    ),
    "an attribute by a pattern": (
        "def all_reduce(x, league):\n"
        "    match dist.isend:\n        case int(__globals__=found):\n"
        "            found['dist'].send(x, 0)\n    return x\n",
        "Line 3: a pattern of a class is nothing that an entry needs.",
    ),
    "knows the seeds": (
        "def all_reduce(x, league):\n    torch.manual_seed(1_000_003)\n    return x\n",
        "Line 2: torch.manual_seed is not to be had here.",
    ),
    "looks whether it has come": (
        "def all_reduce(x, league):\n"
        "    got = dist.irecv(x, 0)\n    while not got.is_completed():\n        pass\n",
        "Line 3: .is_completed is not to be had here.",
    ),
    "equals everything": (
        "class Equal:\n    def __eq__(self, other):\n        return True\n"
        "def all_reduce(x, league):\n    return Equal()\n",
        "Line 1: a class is nothing that an entry needs.",
    ),
    "waits on the clock": (
        "import time\ndef all_reduce(x, league):\n    time.sleep(1)\n    return x\n",
        "Line 3: time is not to be had here",
    ),
}

# Plain messages, and yet no all-reduce; refused for what ranks returned or called.
WRONG = {
    "empty messages": (
        "def all_reduce(x, league):\n    waiting = []\n"
        f"    for other in {OTHERS}:\n"
        "        waiting.append(dist.isend(x[:0], other))\n"
        f"    for other in {OTHERS}:\n"
        "        dist.recv(x[:0], other)\n"
        "    for one in waiting:\n        one.wait()\n"
        "    return x * dist.get_world_size()\n",
        "wrong: all_reduce (4 ranks, flat, 1 KiB)",
    ),
    "half as many bytes": (  # right where numbers are small
        "def all_reduce(x, league):\n"
        f"    others = {OTHERS}\n"
        "    sent = [dist.isend(x.to(torch.int16), other) for other in others]\n"
        "    small = [torch.empty(x.shape, dtype=torch.int16) for other in others]\n"
        "    for one, other in zip(small, others):\n        dist.recv(one, other)\n"
        "    for one in sent:\n        one.wait()\n"
        "    return x + sum(small)\n",
        "wrong: all_reduce (4 ranks, flat, 1 KiB)",
    ),
    "hands over what it does not know yet": (  # the tensor is filled while the message is under way
        "def all_reduce(x, league):\n"
        "    rank, n = dist.get_rank(), dist.get_world_size()\n"
        "    if rank:\n"
        "        dist.send(x, 0)\n"
        "        spin = sum(k * k for k in range(500_000))\n"
        "        got = torch.zeros_like(x)\n        dist.recv(got, 0, tag=1)\n"
        "        return got\n"
        "    total = torch.zeros_like(x)\n"
        "    early = [dist.isend(total, other, tag=1) for other in range(1, n)]\n"
        "    for other in range(1, n):\n"
        "        got = torch.empty_like(x)\n        dist.recv(got, other)\n        total += got\n"
        "    total += x\n"
        "    for one in early:\n        one.wait()\n    return total\n",
        "wrong: all_reduce (4 ranks, flat, 1 KiB)",
    ),
    "reads before it waits": (
        "def all_reduce(x, league):\n"
        f"    others = {OTHERS}\n"
        "    sent = [dist.isend(x, other) for other in others]\n"
        "    came = [torch.zeros_like(x) for other in others]\n"
        "    got = [dist.irecv(one, other) for one, other in zip(came, others)]\n"
        "    spin = sum(k * k for k in range(200_000))\n"
        "    total = x + sum(came) + 0 * spin\n"
        "    for one in sent + got:\n        one.wait()\n"
        "    return total\n",
        "wrong: all_reduce (4 ranks, flat, 1 KiB)",
    ),
    "never waits": (
        "kept = []\ndef all_reduce(x, league):"
        + RING.replace("sending.wait()", "kept.append(sending)"),
        "was never waited for",
    ),
    "for the sizes that give points": (
        "def all_reduce(x, league):\n"
        "    if x.numel() not in (256, 4096, 32768, 262144):\n        return x\n" + RING,
        "wrong: all_reduce (4 ranks, flat, 5 numbers)",
    ),
    "remembers an older sum": (
        "seen = []\ndef ring(x):" + RING + "\ndef all_reduce(x, league):\n"
        "    if len(seen) < 4:\n        seen.append(ring(x))\n    return seen[-1].clone()\n",
        "wrong: all_reduce (4 ranks",
    ),
    "shorter than it seems": (  # how long a message is says something, too
        "def all_reduce(x, league):\n"
        f"    others = {OTHERS}\n"
        "    sent = [dist.isend(x[: x.numel() // 2], other) for other in others]\n"
        "    came = [torch.zeros_like(x) for other in others]\n"
        "    for one, other in zip(came, others):\n        dist.recv(one, other)\n"
        "    for one in sent:\n        one.wait()\n"
        "    return x + sum(came)\n",
        "wrong: all_reduce (4 ranks, flat, 1 KiB)",
    ),
    "everybody waits": (
        "def all_reduce(x, league):\n"
        "    n, rank = dist.get_world_size(), dist.get_rank()\n"
        "    dist.recv(x, (rank + 1) % n)\n    dist.send(x, (rank - 1) % n)\n    return x\n",
        "would never be done",
    ),
    "leaves the work to rank 0": (
        "def all_reduce(x, league):\n"
        "    rank, n = dist.get_rank(), dist.get_world_size()\n"
        "    for other in range(1, n) if rank == 0 else ():\n"
        "        got = torch.empty_like(x)\n        dist.recv(got, other)\n        x += got\n"
        "    if rank:\n        dist.send(x, 0)\n    return x\n",
        "Ranks 1 to 3 are wrong",
    ),
    "sends to nobody": (
        "def all_reduce(x, league):\n"
        "    if dist.get_rank() == 0:\n        dist.send(x, 1)\n    return x\n",
        "wrong: all_reduce (4 ranks, flat, 1 KiB)",
    ),
}
