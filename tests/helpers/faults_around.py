"""The fault matrix, part two: what ranks give back and print, and how they are called."""

from faults import NO_HURRY, STOPPED, TIMEOUT, Fault, on_rank_1

RESULTS = [
    Fault(
        "result that cannot be pickled",
        "launch(lambda: threading.Lock() if dist.get_rank() else 0)",
        says=("rank 1 failed: its result, a lock, cannot be sent back", STOPPED),
    ),
    Fault(
        "a generator function",
        "def work():\n    yield dist.get_rank()\n\nlaunch(work)",
        says=(
            "ranks 0 and 1 failed: its result, a generator, cannot be sent back",
            "Likely reason: calling such a function runs nothing of it",
        ),
        **NO_HURRY,
    ),
    Fault(
        "result that cannot be rebuilt",
        """
        class Trap:
            def __reduce__(self):
                return int, ("not a number",)

        launch(lambda: Trap() if dist.get_rank() else 0)
        """,
        says=("rank 1 failed: its result arrived but cannot be rebuilt", STOPPED),
    ),
    Fault(
        "result of 1 GB",
        """
        tensor = launch(lambda: torch.full((2**28 * dist.get_rank(),), 5.0))[1]
        found = tensor.nbytes, tensor[-1].item()
        del tensor
        found
        """,
        gives="(1073741824, 5.0)",
        within=20,
    ),
    Fault(
        "result with a view of a huge storage",
        """
        results = launch(lambda: torch.empty(2**31, dtype=torch.uint8)[7:10].fill_(4))
        results[1].tolist(), results[1].untyped_storage().nbytes()
        """,
        gives="([4, 4, 4], 3)",
    ),
    Fault(
        "result that does not fit into the kernel's memory",
        on_rank_1(
            "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)",
            "return torch.ones(2**28)",
        ),
        first="""
        in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 28), resource.RLIM_INFINITY))
        """,
        last="resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)",
        says=("rank 1 failed: its result arrived but cannot be rebuilt", STOPPED),
        within=6,
    ),
]

OUTPUT = [
    Fault(
        "flood of output, 100 MB",
        on_rank_1("for _ in range(1000):", "    print('flood ' * 16_666)", then="return total()"),
        gives="[3.0, 3.0]",
        within=10,
    ),
    Fault(
        "a line of 100 MB without an end",
        on_rank_1("os.write(1, b'x' * 100_000_000)", then="return total()"),
        gives="[3.0, 3.0]",
        within=10,
    ),
    Fault(
        "flood from C, past Python's streams, by a rank that never ends",
        on_rank_1("subprocess.run(['yes'])", options=TIMEOUT),
        error="WorkerTimeout",
        says=("rank 1: waiting for a subprocess at {cell}, line 3",),
        within=3,
    ),
    Fault(
        "a rank that closes its standard output",
        on_rank_1("os.close(1)", "print('lost')", then="return total()"),
        says=("rank 1 failed: OSError", "{cell}, line 4"),
    ),
]

CALLS = [
    Fault(
        "nested launch",
        "def work():\n    return launch(total)\n\nlaunch(work)",
        says=("ranks 0 and 1 failed: RuntimeError: launch was called inside a worker", "line 2"),
        **NO_HURRY,
    ),
    Fault(
        "launch from a thread",
        """
        found = []
        thread = threading.Thread(target=lambda: found.extend(launch(total)))
        thread.start()
        thread.join()
        found
        """,
        gives="[3.0, 3.0]",
    ),
    Fault(
        "launch from two threads at once",
        """
        found = []
        def run():
            found.extend(launch(total))
        threads = [threading.Thread(target=run) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        found
        """,
        gives="[3.0, 3.0, 3.0, 3.0]",
    ),
    Fault(
        "port collision: the learner's fixed port is taken",
        """
        def work(port):
            where = f"tcp://127.0.0.1:{port}"
            rank, world_size = int(os.environ["RANK"]), 2
            dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world_size)

        launch(work, taken.getsockname()[1], backend=None)
        """,
        first="taken = socket.create_server(('127.0.0.1', 0))",
        last="taken.close(); del taken",
        says=("rank 0 failed: DistNetworkError", "EADDRINUSE", "{cell}, line 4"),
    ),
    Fault(
        "a rank that starts a program and leaves it behind",
        "launch(lambda: subprocess.Popen(['sleep', '600']).pid > 0)",
        gives="[True, True]",
    ),
    Fault(
        "stop button",
        "launch(time.sleep, 60)",
        error="Stopped",
        stop=(0.5,),
        within=0.5,
    ),
    Fault(
        "stop button while ranks wait in C++",
        "launch(lambda: dist.get_rank() or dist.recv(torch.ones(1), src=1))",
        error="Stopped",
        stop=(0.5,),
        within=0.5,
    ),
    Fault(
        "stop button pressed three times",
        "launch(time.sleep, 60)",
        error="Stopped",
        stop=(0.5, 0.52, 0.54),
        within=0.5,
    ),
]
