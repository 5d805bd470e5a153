"""What a rank waits for at its line, read from its stack and from the learner's source."""

import ast
import contextlib
import functools
import linecache
import re

from course_utils.launcher import stacks
from course_utils.launcher.stacks import Frame

# What of its own process holds a rank, by the library's file that it stands in.
_HOLDERS = {
    "/concurrent/futures/_base.py": "a future",
    "/multiprocessing/queues.py": "a queue",
    "/queue.py": "a queue",
    "/threading.py": "a lock",
    "/multiprocessing/synchronize.py": "a lock",
    "/torch/utils/data/dataloader.py": "the DataLoader",
    "/subprocess.py": "a subprocess",
}
# What threading and multiprocessing build of locks, by the class whose method a rank is in.
_BUILT_OF_LOCKS = {
    "Barrier": "a barrier of threads",
    "Condition": "a condition",
    "Event": "an event",
    "Semaphore": "a semaphore",
    "Thread": "a thread's end",
}
# A Lock is written in C, so that no frame tells of it: `with mutex:` calls nothing else.
_LOCKS = re.compile(r"\.acquire\(|^with ([\w.]*lock\b|[^()]+:\s*(#|$))", re.IGNORECASE)
_WRAPPERS = {"wrapper", "_wrapper", "_call_impl", "_wrapped_call_impl", "inner"}
LOOPS = (ast.For, ast.While)
_SLEEPS = re.compile(r"\bsleep\(")


def waits_in(frames: list[Frame]) -> str | None:
    """What of `torch.distributed` the learner's line is inside, if anything.

    Backward is one such thing: DDP averages gradients there, in C++, which a Python stack hides.
    """
    own = stacks.learners_line(frames)
    inner = frames[frames.index(own) + 1 :] if own else frames
    for frame in inner:
        if frame.file.endswith("nn/parallel/distributed.py"):
            return "DDP(model)" if frame.name == "__init__" else "DDP's forward"
        if frame.name == "_engine_run_backward":
            return "backward"
    waits = own and ".wait(" in own.code and not held_by(frames)
    calls = (f.name for f in inner if "torch/distributed/" in f.file and f.name not in _WRAPPERS)
    what = next(calls, "wait" if waits else "get_rank")
    return None if what.startswith(("get_", "is_")) else what  # which wait for nobody


def held_by(frames: list[Frame]) -> str | None:
    """What of its own process, not of another rank, the learner's line waits for, if anything."""
    own = stacks.learners_line(frames)
    inner = frames[frames.index(own) + 1 :] if own else []
    for frame in inner:
        for file, what in _HOLDERS.items():
            if frame.file.endswith(file):
                owner = innermost(frame, ast.ClassDef)
                return _BUILT_OF_LOCKS.get(getattr(owner, "name", None), what)
    return "a lock" if own and not inner and _LOCKS.search(own.code) else None


def settled(frames: list[Frame]) -> Frame | None:
    """The line of a rank that computes: where a `while` goes round, its first, which stays."""
    own = stacks.learners_line(frames)
    if own != frames[-1] or _SLEEPS.search(own.code):
        return own
    loop = innermost(own, *LOOPS)
    return Frame(own.file, loop.lineno, own.name) if isinstance(loop, ast.While) else own


def innermost(line: Frame, *kinds: type[ast.stmt]) -> ast.stmt | None:
    """The innermost statement around a line that is of these kinds."""
    nodes = _statements("".join(linecache.getlines(line.file)))
    around = [n for n in nodes if isinstance(n, kinds) and n.lineno <= line.line <= n.end_lineno]
    return max(around, key=lambda node: node.lineno, default=None)


@functools.lru_cache(maxsize=4)  # ranks mostly stand in the same file
def _statements(source: str) -> list[ast.stmt]:
    with contextlib.suppress(SyntaxError, ValueError):
        return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return []
