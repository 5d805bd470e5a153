"""The fault matrix, part three: what the kernel did before, and a machine with little to give."""

from faults import ENDS, EXCEPTIONS, HANGS, Fault, on_rank_1
from faults_around import CALLS, OUTPUT, RESULTS

TRAINS = """
def work():
    layer = torch.nn.Linear(1500, 1500)
    layer(torch.ones(1500, 1500)).sum().backward()
    return layer.bias.grad[0].item(), total()

launch(work)
"""
TRAINED = "[(1500.0, 3.0), (1500.0, 3.0)]"
LOADER = "DataLoader(list(range(8)), batch_size=2, num_workers=2, persistent_workers=True)"
BEFORE = {
    "multi-threaded torch work": "(torch.ones(1500, 1500) @ torch.ones(1500, 1500)).sum()",
    "autograd": "torch.nn.Linear(900, 900)(torch.ones(900, 900)).sum().backward()",
    "numpy BLAS and torch linalg": """
        numpy.ones((1500, 1500)) @ numpy.ones((1500, 1500))
        torch.linalg.svd(torch.rand(500, 500))
    """,
    "a finished DataLoader": "list(DataLoader(list(range(8)), num_workers=2))",
    "a DataLoader whose workers live": f"loader = {LOADER}\nlist(loader)",
    "threads that compute all the time": """
        enough = threading.Event()

        def burn():
            while not enough.is_set():
                torch.ones(300, 300) @ torch.ones(300, 300)

        threading.Thread(target=burn, daemon=True).start()
    """,
}
HISTORIES = [
    Fault(
        f"kernel did before: {name}",
        TRAINS,
        gives=TRAINED,
        first=cell,
        last="enough.set()" if "enough" in cell else "",
        history=True,
        within=3,
    )
    for name, cell in BEFORE.items()
]

LOADERS = [
    Fault(
        "DataLoader with workers inside a rank",
        f"def work():\n    return [b.tolist() for b in {LOADER}][-1]\n\nlaunch(work)",
        gives="[[6, 7], [6, 7]]",
        within=3,
    ),
    Fault(
        "a rank that fails while its DataLoader's workers live",
        on_rank_1(f"loader = iter({LOADER})", "next(loader)", "raise ValueError('mid-epoch')"),
        says=("rank 1 failed: ValueError: mid-epoch", "{cell}, line 5"),
        within=1,
    ),
    Fault(
        "a DataLoader's worker that is killed inside a rank",
        on_rank_1(
            f"loader = {LOADER}",
            "batches = iter(loader)",
            # In one line: torch's handler raises wherever the rank is when it hears of the end.
            "os.kill(batches._workers[0].pid, signal.SIGKILL) or list(batches)",
        ),
        says=("rank 1 failed: RuntimeError: DataLoader worker", "{cell}, line 5"),
        within=6,
    ),
]

ROOMS = [
    Fault(
        "full temporary folders and a full /dev/shm",
        "launch(lambda: (total(), torch.ones(2**24)))[1][1].sum().item()",
        gives="16777216.0",
        first="""
        for folder in (os.environ["TMPDIR"], "/tmp", "/var/tmp", "/dev/shm"):
            room = os.statvfs(folder)
            if room.f_blocks * room.f_frsize > 2**20:  # not ours: see `ROOMS`
                assert folder.endswith("tmp")
                continue
            filler = open(f"{folder}/filler", "wb", buffering=0)
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                filler.close()
            assert os.statvfs(folder).f_bavail == 0
        """,
        own=True,
        room="full",
        within=1,
    ),
    Fault(
        "read-only home",
        "launch(total)",
        gives="[3.0, 3.0]",
        first="assert os.statvfs(os.path.expanduser('~')).f_flag & os.ST_RDONLY",
        own=True,
        room="read-only home",
        within=1,
    ),
]

LIFT = "resource.setrlimit(resource.RLIMIT_NOFILE, limit)"
LIMIT = """
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({}, limit[1]))
"""
LIMITS = [
    Fault(
        "64 descriptors",
        "launch(total)",
        first=LIMIT.format(64),
        last=LIFT,
        says=("could not be started: Too many open files", "ulimit -n"),
    ),
    Fault(
        "descriptors enough for one rank only",
        "launch(total, world_size=8)",
        first=LIMIT.format("len(os.listdir('/proc/self/fd')) + 9"),
        last=LIFT,
        says=("rank 1 of 8 could not be started: Too many open files",),
    ),
    Fault(
        "no descriptor left inside a rank",
        on_rank_1(*LIMIT.format(64).strip().splitlines(), "os.pipe()"),
        says=("rank 1 failed: OSError", "Too many open files", "{cell}, line "),
    ),
    Fault(
        "no process left",
        "launch(total)",
        first="""
        import torch._dynamo  # which somebody else may not be allowed to read
        if os.getuid() == 0:  # whom the limit does not bind: become somebody else
            os.setuid(54_321)
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self/fd stays ours
        limit = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, limit[1]))
        """,
        last="resource.setrlimit(resource.RLIMIT_NPROC, limit)",
        says=("rank 0 of 2 could not be started: Resource temporarily unavailable", "ulimit -u"),
        own=True,
    ),
    Fault(
        "ranks that are gone before all are forked, in a kernel that ignores SIGCHLD",
        "launch(lambda: os._exit(3), world_size=16, backend=None)",
        first="signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        last="signal.signal(signal.SIGCHLD, signal.SIG_DFL)",
        says=("failed: the process is gone", "the notebook ignores SIGCHLD"),
    ),
]
FAULTS = [
    *EXCEPTIONS,
    *ENDS,
    *HANGS,
    *RESULTS,
    *OUTPUT,
    *CALLS,
    *LOADERS,
    *LIMITS,
    *HISTORIES,
    *ROOMS,
]
