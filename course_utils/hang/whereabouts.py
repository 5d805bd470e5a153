"""Where one rank is when time is up, and what it waits for: from stack, source and record."""

import ast
import contextlib
import functools
import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from course_utils.launcher.stacks import Frame, learners_line
from course_utils.launcher.words import ranks_named
from course_utils.record.event import ASIDE, ASYNC, BACKWARD, Event, Log

# Calls that meet in the store or in gloo itself, where nothing is noted.
STORE_CALLS = {"init_process_group", "monitored_barrier", "destroy_process_group"}
STORE, _IN_STORE = "the store", "wait_in_the_store"  # see `hooks`
# What of its own process holds a rank, by the library's file that it stands in.
_HOLDERS = {
    "/concurrent/futures/_base.py": "a future",
    "/multiprocessing/queues.py": "a queue",
    "/queue.py": "a queue",
    "/threading.py": "a lock",
    "/multiprocessing/synchronize.py": "a lock",
    "/torch/utils/data/dataloader.py": "the DataLoader",
    "/filelock/": "a file lock",
    "/subprocess.py": "a subprocess",
    "/multiprocessing/popen_fork.py": "a child process",
    "/torch/multiprocessing/spawn.py": "a child process",
    "/torch/distributed/elastic/agent/": "a child process",
}
# What threading and multiprocessing build of locks, by the class whose method a rank is in.
_BUILT_OF_LOCKS = {
    "Barrier": "a barrier of threads",
    "Condition": "a condition",
    "Event": "an event",
    "Semaphore": "a semaphore",
    "Thread": "a thread's end",
}
# What a rank waits for while a thread of its own works.
_HAND_OVER = {"a thread's end", "a future", "a queue", "an event", "a condition"}
_IDLE_LOOP, _LOOP = "/selectors.py", "/asyncio/base_events.py"  # asyncio has nothing to run
# A Lock is written in C, so that no frame tells of it: `with mutex:` calls nothing else.
_LOCKS = re.compile(r"\.acquire\(|^with ([\w.]*lock\b|[^()]+:\s*(#|$))", re.IGNORECASE)
_FILE_LOCKS = re.compile(r"\b(flock|lockf)\(")
_WRAPPERS = {"wrapper", "_wrapper", "_call_impl", "_wrapped_call_impl", "inner", "inner_func"}
_COMPILES = "/torch/_inductor/"  # its workers are slow, and no hang
LOOPS = (ast.For, ast.While)
_SLEEPS = re.compile(r"\bsleep\(")
_SAID = {
    "returned": "its function has returned",
    "silent": "gives no answer: it is stopped by a signal, or held up inside the system",
}


@dataclass
class Whereabouts:
    """Where one rank is."""

    rank: int
    # "waiting" for other ranks, "held" by something of its own process, "running", "silent" if it
    # does not answer, "returned" if its function has.
    state: str
    what: str | None = None  # it waits in or is held by: "all_reduce", "backward" or "a lock"
    line: Frame | None = None  # the learner's
    open: tuple[Event, ...] = ()  # the calls of which one or more keep it: they are not complete
    calls: tuple[Event, ...] = field(default=(), repr=False)  # all that are known, in order
    known: bool = True  # whether its calls are known at all
    complete: bool = True  # whether none of them is forgotten
    # The exception that has led it into an `except` or a `finally`, and the line that raised it.
    handles: str = ""
    raised_at: Frame | None = None
    # The exception that has ended a thread of it, and the line that raised it.
    ended: tuple[str, Frame] | None = None
    path: tuple[Frame, ...] = field(default=(), repr=False)  # all its lines of the learner
    starts: bool = False  # whether it has not come to the learner's function yet
    in_thread: bool = False  # whether a thread waits for other ranks, and the rank for that thread

    @property
    def call(self) -> Event | None:
        """The call that it waits in, where there is no doubt about it."""
        return self.open[0] if len(self.open) == 1 else None

    @property
    def queued(self) -> bool:
        """Whether it needs the result of a call that a GPU does later."""
        return bool(self.call and self.call.queued)

    def needs(self, call: Event) -> None:
        """It has queued a call that cannot end, and sooner or later stands where it needs that."""
        if self.state == "running":
            self.state, self.what, self.open = "waiting", call.kind, (call,)

    def row(self, world: tuple[int, ...]) -> str:
        """One line about it, or two: what it does, at which line, and in which call."""
        if self.state in _SAID:
            return _SAID[self.state]
        doing = {"waiting": f"waiting in {self.what}", "held": f"waiting for {self.what}"}
        doing = doing.get(self.state, "running")
        if self.in_thread:
            doing = f"waiting for a thread in {self.what}"
        if self.queued:
            doing = f"has queued {self.what} and is"
        if self.starts:
            return "starting, before your function"
        if self.line is None:
            return f"{doing}, outside of your code"
        row = f"{doing} at {self.line.place}: {self.line.code}"
        return f"{row}\n{' ' * 10}{told(self.call, world)}" if self.call else row


def of(rank: int, frames: list[Frame] | None, log: Log | None) -> Whereabouts:
    """Put together what a stack and the record say; `frames` is None for a rank that returned."""
    state = "returned" if frames is None else "running" if frames else "silent"
    one = Whereabouts(rank, state, known=log is not None, complete=bool(log and log.complete))
    one.calls = log.events if log else ()
    if not frames:
        return one
    one.line = learners_line(frames)
    one.starts = _starts(frames, one)
    one.path = tuple(frame for frame in frames if frame.is_learners)
    one.handles, one.raised_at = getattr(frames, "handles", None) or ("", None)
    if what := held_by(frames):
        one.state, one.what = "held", what
        one.ended = getattr(frames, "ended", None) if what in _HAND_OVER else None
    elif what := waits_in(frames):
        one.state, one.what, one.open = "waiting", what, _open(one.calls, what, one.line)
        if what.startswith("_"):  # a name of torch's insides
            one.what = one.call.kind if one.call else "torch.distributed"
    else:
        one.line = settled(frames)
    if one.what in _HAND_OVER or _awaits(frames):
        _look_at_threads(one, getattr(frames, "threads", ()))
    return one


def _starts(frames: list[Frame], one: Whereabouts) -> bool:
    """By the launcher's own frames: `_run_function` makes the group, `_call_function` comes later.

    What the record has is read later than the stack, so a rank may have returned meanwhile.
    """
    names = [frame.name for frame in frames[:2]]
    if names[:1] != ["_run_function"] or names[1:] == ["_call_function"]:
        return False
    return "init_process_group" in [frame.name for frame in frames] or not one.calls


def _awaits(frames: list[Frame]) -> bool:
    """Whether asyncio waits until something ends that runs in a thread, or elsewhere."""
    idle = frames[-1].file.endswith(_IDLE_LOOP)
    return idle and any(frame.file.endswith(_LOOP) for frame in frames)


def _look_at_threads(one: Whereabouts, threads: Iterable[list[Frame]]) -> None:
    """A rank that waits for a thread waits for whom that thread waits for."""
    for frames in threads:
        if held_by(frames) or not (what := waits_in(frames)):
            continue
        line = learners_line(frames)
        calls = one.calls
        if what not in ("wait", "backward"):
            calls = tuple(call for call in calls if call.flags & ASIDE)
        one.state, one.what, one.open = "waiting", what, _open(calls, what, line)
        if what.startswith("_"):
            one.what = one.call.kind if one.call else "torch.distributed"
        one.line = line or one.line
        one.in_thread = True
        return


def _open(calls: tuple[Event, ...], what: str, line: Frame | None) -> tuple[Event, ...]:
    """Which calls a rank may be waiting in; those that have met are sorted out later."""
    if what in STORE_CALLS or what == STORE or not calls:
        return ()
    if what in ("wait", "backward"):
        flag = ASYNC if what == "wait" else BACKWARD
        return tuple(call for call in calls if call.flags & flag)
    here = line and (line.file, line.line)
    return calls[-1:] if (calls[-1].line and calls[-1].line[:2]) == here else ()


def is_message(call: Event) -> bool:
    """Whether a call has one other end, and not a group."""
    return call.kind in ("send", "recv")


def told(call: Event, world: tuple[int, ...]) -> str:
    """Such as `collective #3, float32 of shape (4,), root 0`."""
    if call.kind == "new_group":
        return f"new group #{call.number}, of {ranks_named(call.group)}"
    head = f"collective #{call.number}{of_group(call, world)}"
    if is_message(call):
        end = "any rank" if call.peer is None else f"rank {call.peer}"
        tag = f" with tag {call.tag}" if call.tag else ""
        head = f"message #{call.number} {'to' if call.kind == 'send' else 'from'} {end}{tag}"
    queued = f", queued at {call.where}" if call.queued and call.line else ""
    data = f", {content(call)}" if call.dtype and call.kind != "barrier" else ""
    root = "" if call.root is None else f", root {call.root}"
    return f"{head}{data}{root}{queued}"


def content(call: Event) -> str:
    """Such as `float32 of shape (4,)`."""
    return f"{call.dtype} of shape {call.shape}"


def of_group(call: Event, world: tuple[int, ...]) -> str:
    """Such as ` of group 1 (ranks 0 and 2)`; nothing for the group of all ranks."""
    if call.group_name == "0" and call.group == world:
        return ""
    who = f"({ranks_named(call.group)})"
    return f" of group {call.group_name} {who}" if call.group_name.isdigit() else f" of {who}"


def waits_in(frames: list[Frame]) -> str | None:
    """What of `torch.distributed` the learner's line is inside, if anything.

    Backward is one such thing: DDP averages gradients there, in C++, which a Python stack hides.
    """
    own = learners_line(frames)
    inner = frames[frames.index(own) + 1 :] if own else frames
    for frame in inner:
        if frame.file.endswith("nn/parallel/distributed.py"):
            return "DDP(model)" if frame.name == "__init__" else "DDP's forward"
        if frame.name == "_engine_run_backward":
            return "backward"
        if "torch/distributed/fsdp/" in frame.file and frame.name.endswith("pre_forward"):
            return "FSDP's forward"
    calls = [f.name for f in inner if "torch/distributed/" in f.file and f.name not in _WRAPPERS]
    if not calls and inner and inner[-1].name == _IN_STORE:
        return STORE
    if not calls:
        return "wait" if own and ".wait(" in own.code and not held_by(frames) else None
    # `dist.get_rank()` waits for nobody, but `get_model_state_dict()` calls what does.
    return calls[0] if any(_may_wait(name) for name in calls) else None


def _may_wait(name: str) -> bool:
    """Whether a function of `torch.distributed` may wait for other ranks, by its name."""
    asks = "get_", "is_", "_get_", "_is_", "_rank_not_in_group", "WORLD", "default_pg", "pg_"
    return not name.startswith(asks)


def held_by(frames: list[Frame]) -> str | None:
    """What of its own process, not of another rank, the learner's line waits for, if anything."""
    own = learners_line(frames)
    inner = frames[frames.index(own) + 1 :] if own else []
    if any(_COMPILES in frame.file for frame in inner):
        return None
    for frame in inner:
        for file, what in _HOLDERS.items():
            if frame.file.endswith(file) or (file.endswith("/") and file in frame.file):
                owner = innermost(frame, ast.ClassDef)
                return _BUILT_OF_LOCKS.get(getattr(owner, "name", None), what)
    if own and not inner and _FILE_LOCKS.search(own.code):
        return "a file lock"
    return "a lock" if own and not inner and _LOCKS.search(own.code) else None


def settled(frames: list[Frame]) -> Frame | None:
    """The line of a rank that computes: where a `while` goes round, its first, which stays."""
    own = learners_line(frames)
    if own != frames[-1] or _SLEEPS.search(own.code):
        return own
    loop = innermost(own, *LOOPS)
    return Frame(own.file, loop.lineno, own.name) if isinstance(loop, ast.While) else own


def innermost(line: Frame, *kinds: type[ast.stmt]) -> ast.stmt | None:
    """The innermost statement around a line that is of these kinds."""
    return max(around(line, *kinds), key=lambda node: node.lineno, default=None)


def around(line: Frame, *kinds: type[ast.stmt]) -> list[ast.stmt]:
    """The statements around a line that are of these kinds."""
    nodes = _statements("".join(linecache.getlines(line.file)))
    return [n for n in nodes if isinstance(n, kinds) and n.lineno <= line.line <= n.end_lineno]


@functools.lru_cache(maxsize=4)  # ranks mostly stand in the same file
def _statements(source: str) -> list[ast.stmt]:
    with contextlib.suppress(SyntaxError, ValueError):
        return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return []
