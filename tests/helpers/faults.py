"""The fault matrix, part one: what goes wrong inside a rank.

Each row is a cell that a learner could run, and what they must get for it: the right value, or
one error that says what happened.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One row of the matrix.

    Attributes:
        name: what goes wrong.
        cell: the learner's cell.
        gives: the text of the cell's value, where there is one.
        says: what stands in the error's message, where there is one; `{cell}` is the cell's name.
        error: the error's name.
        within: seconds until the ranks' deadline.
        own: the kernel is harmed or changed, so that no other fault shares it.
        history: what the kernel did before matters, and all that the ones before this one did.
        first: a cell that is run before.
        last: a cell that is run after, such as one that lifts a limit.
        stop: the stop button is pressed so many seconds after the ranks were forked.
        room: the kernel runs where the folders are full or read-only; see `test_faults.rooms`.
    """

    name: str
    cell: str
    gives: str = ""
    says: tuple[str, ...] = ()
    error: str = "WorkerError"
    within: float = 0.0
    own: bool = False
    history: bool = False
    first: str = ""
    last: str = ""
    stop: tuple[float, ...] = ()
    room: str = ""


def on_rank_1(*lines: str, world_size: int = 2, then: str = "dist.barrier()", options="") -> str:
    """A cell in which rank 1 does something, from its line 3 on, and all others wait for it."""
    body = "\n        ".join(lines)
    return (
        f"def work():\n    if dist.get_rank() == 1:\n        {body}\n    {then}\n\n"
        f"launch(work, world_size={world_size}{options})"
    )


TIMEOUT = ", timeout=3"  # for ranks to come to where they hang
# After a first failure the others get all the time that a busy machine needs to fail.
NO_HURRY = {
    "first": "from course_utils.launcher import worker_group as group\n"
    "grace, group._GRACE_S = group._GRACE_S, 60",
    "last": "group._GRACE_S = grace",
}
ALLOWED = "get_ipython().kernel._allow_stdin = True  # as JupyterLab sets it for each cell"
STOPPED = "Rank 0 was stopped."
NEVER_CAME = "Rank 0 waited for rank 1, which never arrived"

EXCEPTIONS = [
    Fault(
        "exception on one rank",
        on_rank_1("raise KeyError('label')", world_size=3),
        says=("rank 1 failed: KeyError: 'label'", "{cell}, line 3", "Ranks 0 and 2 were stopped."),
    ),
    Fault(
        "exception on all ranks",
        "def work():\n    return 1 / 0\n\nlaunch(work, world_size=4)",
        says=("ranks 0, 1, 2 and 3 failed: ZeroDivisionError: division by zero", "{cell}, line 2"),
        **NO_HURRY,
    ),
    Fault(
        "exception on rank 0 only, which its peers feel first",
        """
        def work():
            if dist.get_rank() == 0:
                dist.destroy_process_group()
                time.sleep(0.2)
                raise ValueError("only the first")
            dist.barrier()

        launch(work, world_size=3)
        """,
        says=("rank 0 failed: ValueError: only the first", "{cell}, line 5"),
        **NO_HURRY,
    ),
    Fault(
        "exception that cannot be printed",
        """
        class Shy(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        def work():
            raise Shy

        launch(work)
        """,
        says=("ranks 0 and 1 failed: Shy: (its message cannot be printed)", "{cell}, line 6"),
        **NO_HURRY,
    ),
    Fault(
        "exception with a message of 10 MB",
        on_rank_1("raise ValueError('ü' * 10_000_000)"),
        says=("rank 1 failed: ValueError: üüü", "{cell}, line 3"),
    ),
    Fault(
        "exception 900 calls deep",
        """
        def fall(depth):
            return fall(depth + 1)

        launch(fall, 0)
        """,
        says=("ranks 0 and 1 failed: RecursionError", "{cell}, line 2"),
        **NO_HURRY,
    ),
    Fault(
        "a rank that asks for input",
        on_rank_1(ALLOWED, "input('how many? ')"),
        says=("rank 1 failed: EOFError: a rank has no keyboard", "{cell}, line 4"),
    ),
    Fault(
        "a rank that asks for a password",
        on_rank_1(ALLOWED, "__import__('getpass').getpass()"),
        says=("rank 1 failed: EOFError: a rank has no keyboard", "{cell}, line 4"),
    ),
    Fault(
        "a rank that asks for a password by a name that the kernel took before",
        on_rank_1(ALLOWED, "getpass()"),
        first="from getpass import getpass",
        last="del getpass",
        says=("rank 1 failed: EOFError: a rank has no keyboard", "{cell}, line 4"),
    ),
]

ENDS = [
    *(
        Fault(
            f"{name}(), as a script has it",
            f"launch(lambda: [{name}(), print('goes on')])",
            gives="[None, None]",
        )
        for name in ("exit", "quit")
    ),
    Fault(
        "a rank is asked whether it is the notebook",
        "launch(lambda: (hasattr(sys, 'ps1'), sys.argv), world_size=1)",
        gives="[(False, ['cell'])]",
    ),
    Fault(
        "sys.exit",
        on_rank_1("sys.exit(3)"),
        says=("rank 1 failed: sys.exit(3) was called", "{cell}, line 3", STOPPED),
    ),
    Fault(
        "os._exit",
        on_rank_1("os._exit(7)"),
        says=("rank 1 failed: the process left with exit status 7", STOPPED),
    ),
    Fault(
        "SIGKILL",
        on_rank_1("os.kill(os.getpid(), signal.SIGKILL)"),
        says=("rank 1 failed: the process died of SIGKILL", "memory ran out", STOPPED),
    ),
    Fault(
        "SIGSEGV",
        on_rank_1("ctypes.string_at(0)"),
        says=("rank 1 failed: the process died of SIGSEGV", "{cell}, line 3", STOPPED),
    ),
    Fault(
        "SIGSEGV in a thread of the learner",
        on_rank_1(
            "thread = threading.Thread(target=lambda: ctypes.string_at(0))",
            "thread.start()",
            "thread.join()",
        ),
        says=("rank 1 failed: the process died of SIGSEGV", "{cell}, line 3", STOPPED),
    ),
    Fault(
        "SIGABRT inside gloo: all_reduce of different shapes",
        """
        def work():
            dist.all_reduce(torch.ones(1000 + 1000 * dist.get_rank()))

        launch(work)
        """,
        says=(
            "failed: the process died of SIGABRT",
            "{cell}, line 2",
            "shape (1000,)",
            "shape (2000,)",
        ),
    ),
    Fault(
        "out of memory under a limit",
        on_rank_1(
            "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))",
            "torch.zeros(64 << 30, dtype=torch.uint8)",
        ),
        says=("rank 1 failed: RuntimeError", "allocate 68719476736 bytes", "{cell}, line 4"),
    ),
    Fault(
        "leaves the group, then its peer waits for it",
        # It hears from rank 0 first, which else may still be joining: no line of the cell does.
        on_rank_1(
            "dist.recv(torch.zeros(1))",
            "return dist.destroy_process_group()",
            then="dist.send(torch.zeros(1), 1)\n    dist.barrier()",
        ),
        says=("rank 0 failed: RuntimeError: Connection closed by peer\n", "{cell}, line 6"),
    ),
    Fault(
        "all leave the group themselves, as a script does",
        # Who leaves before a peer has connected breaks that peer's connection, in a script as well.
        "def work():\n    dist.barrier()\n    return dist.destroy_process_group()\n\nlaunch(work)",
        gives="[None, None]",
    ),
]

HANGS = [
    Fault(
        "endless loop in Python",
        on_rank_1("while True:", "    pass", options=TIMEOUT),
        error="WorkerTimeout",
        within=3,
        says=("ranks 0 and 1 were not done", "rank 1: running at {cell}, line ", NEVER_CAME),
    ),
    Fault(
        "endless loop in C that never gives the interpreter back",
        on_rank_1("sum(itertools.repeat(0))", options=TIMEOUT),
        error="WorkerTimeout",
        within=3,
        says=("rank 1: running at {cell}, line 3", NEVER_CAME),
    ),
    Fault(
        "mismatched collectives",
        on_rank_1("dist.broadcast(torch.ones(3), src=0)", options=TIMEOUT),
        error="WorkerTimeout",
        within=3,
        says=("rank 0: waiting in barrier at {cell}, line 4",),
    ),
    Fault(
        "send meets send",
        """
        def work():
            dist.send(torch.ones(4), dst=1 - dist.get_rank())

        launch(work, timeout=3)
        """,
        error="WorkerTimeout",
        within=3,
        says=("rank 0: waiting in send at {cell}, line 2", "a blocking send ends only when"),
    ),
    Fault(
        "one rank leaves early",
        on_rank_1("return", options=TIMEOUT),
        error="WorkerTimeout",
        within=3,
        says=("rank 0 was not done", "rank 1: its function has returned", NEVER_CAME),
    ),
    Fault(
        "a rank that is stopped (SIGSTOP)",
        on_rank_1("os.kill(os.getpid(), signal.SIGSTOP)", options=TIMEOUT),
        error="WorkerTimeout",
        within=3,
        says=("rank 0: waiting in barrier at {cell}, line 4", "rank 1: gives no answer"),
    ),
    Fault(
        "a rank that ignores every polite signal",
        on_rank_1(
            "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):",
            "    signal.signal(number, signal.SIG_IGN)",
            "time.sleep(100)",
            options=TIMEOUT,
        ),
        error="WorkerTimeout",
        within=3,
        says=("rank 1: running at {cell}, line 5", NEVER_CAME),
    ),
]
