"""Where one rank is when time is up, and what it waits for: from stack, source and record."""

import ast
import contextlib
import functools
import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from course_utils.launcher import torch_private
from course_utils.launcher.language import N_, _
from course_utils.launcher.stacks import (
    CALLED_AFTER_JOINING,
    RUN_FUNCTION,
    Frame,
    Stack,
    learners_frame,
)
from course_utils.launcher.words import ranks_named
from course_utils.record.event import ASYNC, BACKWARD, KINDS, USER_THREAD, Event, Log, key_of

# Calls that meet in the store or in gloo itself, where nothing is noted.
STORE_CALLS = {"init_process_group", "monitored_barrier", "destroy_process_group"}
STORE = N_("the store")
_IN_STORE = "wait_in_the_store"  # a function of the recorder, see `record/hooks.py`
FILE_LOCK = N_("a file lock")
LOCK = N_("a lock")
CHILD = N_("a child process")
LAUNCHER = N_("a second launcher")
_DDP_FORWARD = N_("DDP's forward")
_FSDP_FORWARD = N_("FSDP's forward")
# Functions of torch.distributed that only make a call and wait for it. Around them others may take
# their time without waiting for anybody: all_gather_object pickles, DDP's forward computes.
_ONLY_CALL = {
    *KINDS,
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce_coalesced",
    "all_to_all_single",
    "gather_single",
    "new_group",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
}
# Likewise functions out of which C++ makes DDP's calls; but only while no other one runs in them.
_DDP = "torch.nn.parallel:DistributedDataParallel"
_DDP_CALLS = {
    torch_private.name_in_stacks(f"{_DDP}._distributed_broadcast_coalesced"),
    torch_private.name_in_stacks(f"{_DDP}._pre_forward"),
    torch_private.name_in_stacks("torch.distributed.utils:_sync_params_and_buffers"),
    torch_private.name_in_stacks("torch.distributed.utils:_verify_param_shape_across_processes"),
}
_RUNS_BACKWARD = torch_private.name_in_stacks("torch.autograd.graph:_engine_run_backward")
# What holds a rank inside its own process, by the file of a library that it stands in, or by a
# folder in that file's path.
_HOLDERS = {
    "/concurrent/futures/_base.py": N_("a future"),
    "/multiprocessing/queues.py": N_("a queue"),
    "/queue.py": N_("a queue"),
    "/threading.py": LOCK,
    "/multiprocessing/synchronize.py": LOCK,
    "/torch/utils/data/dataloader.py": N_("the DataLoader"),
    "/filelock/": FILE_LOCK,
    "/subprocess.py": N_("a subprocess"),
    "/multiprocessing/popen_fork.py": CHILD,
    "/torch/multiprocessing/spawn.py": LAUNCHER,
    "/torch/distributed/elastic/agent/": LAUNCHER,
}
# What threading and multiprocessing build of locks, by the class of the method that a rank is in.
_BUILT_OF_LOCKS = {
    "Barrier": N_("a barrier of threads"),
    "Condition": N_("a condition"),
    "Event": N_("an event"),
    "Semaphore": N_("a semaphore"),
    "Thread": N_("a thread's end"),
}
# What a rank may wait for while a thread of its own works.
_HAND_OVER = {"a thread's end", "a future", "a queue", "an event", "a condition"}
# Where asyncio stands when it has nothing to run, and the file of its loop, which leads there.
_IDLE_ASYNCIO, _ASYNCIO = "/selectors.py", "/asyncio/base_events.py"
# A Lock is written in C and has no frame, but `with mutex:` can wait for nothing else.
_LOCKS = re.compile(r"\.acquire\(|^with ([\w.]*lock\b|[^()]+:\s*(#|$|pass\b))", re.IGNORECASE)
_CHILDREN = re.compile(r"\bos\.(wait|waitpid|waitid|wait3|wait4)\(")
_FILE_LOCKS = re.compile(r"\b(flock|lockf)\(")
_WRAPPERS = {
    *("wrapper", "_wrapper", "inner", "inner_func"),  # what decorators make
    torch_private.name_in_stacks("torch.nn:Module._call_impl"),
    torch_private.name_in_stacks("torch.nn:Module._wrapped_call_impl"),
}
_COMPILES = "/torch/_inductor/"  # a rank that waits for its workers is slow, and doesn't hang
LOOPS = (ast.For, ast.While)
_SLEEPS = re.compile(r"\bsleep\(")
_ROWS_WITHOUT_LINE = {  # by state
    "returned": N_("its function has returned"),
    "silent": N_("gives no answer: it is stopped by a signal, or held up inside the system"),
}


@dataclass
class Whereabouts:
    """Where one rank is.

    Attributes:
        rank: Its global rank.
        state: "waiting" for other ranks, "held" by something of its own process, "running" if it
            computes, "silent" if it does not answer, "returned" if its function has.
        blocker: What it waits in or is held by, such as "all_reduce", "backward" or "a lock".
        line: The learner's line that it is in, as a frame.
        open_calls: The calls that may hold it: at least one of them is not complete, and does.
            `WaitGraph` cuts them down to those that do, as far as that is known.
        calls: All its events that are known, in order: its calls, and the "return" of its function.
        known: Whether its calls are known at all.
        complete: Whether none of them is forgotten.
        handles: The exception that has led it into an `except` or a `finally`.
        raised_at: The line that raised that exception.
        ended: The exception that has ended a thread of it, and the line that raised it.
        path: All lines of the learner's in its stack, outermost first.
        starts: Whether it has not come to the learner's function yet.
        in_thread: Whether a thread waits for other ranks, and the rank for that thread.
        has_threads: Whether threads run in it that its function has started.
        only_calls: Whether it stands in a function that does nothing but make its call.
        is_ending: Whether it has returned, and still does what it left for its end.
    """

    rank: int
    state: str
    blocker: str | None = None
    line: Frame | None = None
    open_calls: tuple[Event, ...] = ()
    calls: tuple[Event, ...] = field(default=(), repr=False)
    known: bool = True
    complete: bool = True
    handles: str = ""
    raised_at: Frame | None = None
    ended: tuple[str, Frame] | None = None
    path: tuple[Frame, ...] = field(default=(), repr=False)
    starts: bool = False
    in_thread: bool = False
    has_threads: bool = False
    only_calls: bool = False
    is_ending: bool = False

    @property
    def call(self) -> Event | None:
        """The call that it waits in, where there is no doubt about it."""
        if len(self.open_calls) != 1:
            return None
        return self.open_calls[0]

    @property
    def last_call(self) -> Event | None:
        """The last of its calls, of which the return of its function is none."""
        for event in reversed(self.calls):
            if key_of(event) is not None:
                return event
        return None

    @property
    def queued(self) -> bool:
        """Whether it needs the result of a call that a GPU carries out later."""
        return bool(self.call and self.call.queued)

    def mark_waiting_for(self, call: Event) -> None:
        """Note that it has queued a call that cannot end, whose result it will need."""
        self.state = "waiting"
        self.blocker = call.kind
        self.open_calls = (call,)
        self.only_calls = True

    def set_waiting(self, blocker: str, calls: Sequence[Event], frame: Frame | None) -> None:
        """Note that it waits for other ranks in a frame; some of these calls may hold it."""
        self.state = "waiting"
        self.open_calls = _calls_that_may_hold(calls, blocker, frame)
        self.blocker = blocker
        if blocker.startswith("_"):  # a name of torch's insides
            self.blocker = "torch.distributed"
            if self.call:
                self.blocker = self.call.kind

    def row(self, world: tuple[int, ...]) -> str:
        """One line about it, or two: what it does, at which line, and in which call."""
        if self.state in _ROWS_WITHOUT_LINE:
            return _(_ROWS_WITHOUT_LINE[self.state])
        if self.starts:
            return _("starting, before your function")
        doing = self._state_in_words()
        if self.line is None:
            if self.queued:
                return _("{doing} outside of your code", doing=doing)
            return _("{doing}, outside of your code", doing=doing)
        row = _("{doing} at {line}", doing=doing, line=self.line.place_and_code)
        if self.call is None:
            return row
        indent = " " * 10
        return f"{row}\n{indent}{described(self.call, world)}"

    def _state_in_words(self) -> str:
        """What it does, such as "waiting in barrier": the place comes behind these words."""
        blocker = ""
        if self.blocker:
            blocker = _(self.blocker)
        if self.queued:
            return _("has queued {call} and is", call=blocker)
        if self.in_thread:
            return _("waiting for a thread in {call}", call=blocker)
        if self.state == "waiting":
            return _("waiting in {call}", call=blocker)
        if self.state == "held":
            return _("waiting for {holder}", holder=blocker)
        return _("running")


def locate(rank: int, frames: list[Frame] | None, log: Log | None) -> Whereabouts:
    """Put together what a rank's stack and its record say.

    Args:
        rank: The global rank.
        frames: Its stack, outermost first; empty if it gave none, None if it has returned.
        log: Its calls, if they are known.
    """
    whereabouts = Whereabouts(rank, state="returned")
    whereabouts.known = log is not None
    whereabouts.complete = log is not None and log.complete
    if log is not None:
        whereabouts.calls = log.events
    if frames is None:
        return whereabouts
    whereabouts.state = "silent"
    if frames:
        whereabouts.state = "running"
        if not isinstance(frames, Stack):
            frames = Stack(frames)  # of which nothing else is known
        _look_at_stack(whereabouts, frames)
    return whereabouts


def _look_at_stack(whereabouts: Whereabouts, frames: Stack) -> None:
    learner_frame = learners_frame(frames)
    whereabouts.line = learner_frame
    whereabouts.has_threads = frames.has_threads
    whereabouts.path = tuple(frame for frame in frames if frame.is_learners)
    whereabouts.starts = _starts(frames, whereabouts)
    if frames.handles:
        whereabouts.handles, whereabouts.raised_at = frames.handles
    holder = held_by(frames)
    call = distributed_call_in(frames)
    if holder:
        whereabouts.state = "held"
        whereabouts.blocker = holder
        if holder in _HAND_OVER:
            whereabouts.ended = frames.thread_ended_by
    elif call:
        whereabouts.set_waiting(call, whereabouts.calls, learner_frame)
        whereabouts.only_calls = whereabouts.blocker in KINDS or _only_calls(frames)
    else:
        whereabouts.line = stable_line(frames)
    if whereabouts.blocker in _HAND_OVER or _awaits(frames):
        _look_at_threads(whereabouts, frames.threads)


def _starts(frames: list[Frame], whereabouts: Whereabouts) -> bool:
    """Whether a rank has not come to the learner's function yet, by the launcher's own frames.

    The record is read later than the stack, so a rank without calls may have returned meanwhile.
    """
    outermost, *names = [frame.name for frame in frames]
    if outermost != RUN_FUNCTION:
        return False
    if names and names[0] in CALLED_AFTER_JOINING:
        return False
    return "init_process_group" in names or not whereabouts.calls


def _awaits(frames: list[Frame]) -> bool:
    """Whether asyncio waits until something ends that runs in a thread, or elsewhere."""
    is_idle = frames[-1].file.endswith(_IDLE_ASYNCIO)
    return is_idle and any(frame.file.endswith(_ASYNCIO) for frame in frames)


def _look_at_threads(whereabouts: Whereabouts, threads: Iterable[list[Frame]]) -> None:
    """A rank that waits for a thread waits for the ranks that this thread waits for."""
    for frames in threads:
        call = distributed_call_in(frames)
        if not call or held_by(frames):
            continue
        calls = whereabouts.calls
        if call not in ("wait", "backward"):
            calls = _with_flag(calls, USER_THREAD)
        thread_frame = learners_frame(frames)
        whereabouts.set_waiting(call, calls, thread_frame)
        whereabouts.in_thread = True
        if thread_frame:
            whereabouts.line = thread_frame
        return


def _calls_that_may_hold(
    calls: Sequence[Event], blocker: str, frame: Frame | None
) -> tuple[Event, ...]:
    """Which calls may hold a rank that waits in a frame. Those that have met are sorted out later.

    A rank whose last event is its "return" sends its result, and a tensor in it may wait for its
    own call (see `transport._Pickler`): which one, nobody knows.
    """
    if blocker in STORE_CALLS or blocker == STORE or not calls:
        return ()
    if blocker == "wait":
        return _with_flag(calls, ASYNC)
    if blocker == "backward":
        return _with_flag(calls, BACKWARD)
    last = calls[-1]
    has_returned = key_of(last) is None
    if has_returned or not _stand_in_same_line(last.frame, frame):
        return ()
    return (last,)


def _stand_in_same_line(frame: Frame | None, other: Frame | None) -> bool:
    """Whether two frames have the same file and line, or neither is there."""
    if frame is None or other is None:
        return frame is other
    return (frame.file, frame.line) == (other.file, other.line)


def _with_flag(calls: Sequence[Event], flag: int) -> tuple[Event, ...]:
    return tuple(call for call in calls if call.flags & flag)


def is_message(call: Event) -> bool:
    """Whether a call has one other end, and not a group."""
    return call.kind in ("send", "recv")


def described(call: Event, world: tuple[int, ...]) -> str:
    """Such as `collective #3, float32 of shape (4,), root 0`."""
    if call.kind == "new_group":
        return _(
            "new group #{number}, of {ranks}", number=call.number, ranks=ranks_named(call.group)
        )
    head = _("collective #{number}{of_group}", number=call.number, of_group=of_group(call, world))
    if is_message(call):
        head = _message(call)
    data = root = queued = ""
    if call.dtype and call.kind != "barrier":
        data = _(", {content}", content=content(call))
    if call.root is not None:
        root = _(", root {root}", root=call.root)
    if call.queued and call.line:
        queued = _(", queued at {line}", line=call.where)
    return f"{head}{data}{root}{queued}"


def _message(call: Event) -> str:
    """Such as `message #2 from any rank with tag 7`."""
    end = _("any rank")
    if call.peer is not None:
        end = _("rank {rank}", rank=call.peer)
    tag = ""
    if call.tag:
        tag = _(" with tag {tag}", tag=call.tag)
    if call.kind == "send":
        return _("message #{number} to {end}{tag}", number=call.number, end=end, tag=tag)
    return _("message #{number} from {end}{tag}", number=call.number, end=end, tag=tag)


def content(call: Event) -> str:
    """Such as `float32 of shape (4,)`."""
    return _("{dtype} of shape {shape}", dtype=call.dtype, shape=call.shape)


def of_group(call: Event, world: tuple[int, ...]) -> str:
    """Such as ` of group 1 (ranks 0 and 2)`; nothing for the group of all ranks."""
    if call.group_name == "0" and call.group == world:
        return ""
    ranks = ranks_named(call.group)
    if call.group_name.isdigit():
        return _(" of group {name} ({ranks})", name=call.group_name, ranks=ranks)
    return _(" of ({ranks})", ranks=ranks)


def _inner_frames(frames: list[Frame], learner_frame: Frame | None) -> list[Frame]:
    """The frames inside the learner's line; none if there is no such line."""
    if learner_frame is None:
        return []
    from_inside = frames[::-1]
    count = from_inside.index(learner_frame)  # the innermost one: in a recursion it comes again
    return frames[len(frames) - count :]


def distributed_call_in(frames: list[Frame]) -> str | None:
    """What of `torch.distributed` the learner's line is inside, if anything.

    Backward is one such thing: DDP averages gradients there, in C++, which a Python stack hides.
    """
    inner = frames
    learner_frame = learners_frame(frames)
    if learner_frame:
        inner = _inner_frames(frames, learner_frame)
    for frame in inner:
        wrapper = _in_wrapper(frame)
        if wrapper:
            return wrapper
    names = []
    for frame in inner:
        if "torch/distributed/" in frame.file and frame.name not in _WRAPPERS:
            names.append(frame.name)
    # `dist.get_rank()` waits for nobody, but `get_model_state_dict()` calls what does.
    if any(_may_wait(name) for name in names):
        return names[0]
    if names:
        return None
    if inner and inner[-1].name == _IN_STORE:
        return STORE
    if learner_frame and ".wait(" in learner_frame.code and not held_by(frames):
        return "wait"
    return None


def _only_calls(frames: list[Frame]) -> bool:
    """Whether a rank that may wait stands in a function that does nothing but make a call."""
    inner = _inner_frames(frames, learners_frame(frames))
    for frame in inner:
        if "torch/distributed/" in frame.file and frame.name in _ONLY_CALL:
            return True
    return bool(inner) and inner[-1].name in _DDP_CALLS


def _in_wrapper(frame: Frame) -> str | None:
    """The call of DDP or FSDP, or the backward pass, that a frame belongs to, if any."""
    if frame.file.endswith("nn/parallel/distributed.py"):
        if frame.name == "__init__":
            return "DDP(model)"
        return _DDP_FORWARD
    if frame.name == _RUNS_BACKWARD:
        return "backward"
    if "torch/distributed/fsdp/" in frame.file and frame.name.endswith("pre_forward"):
        return _FSDP_FORWARD
    return None


def _may_wait(name: str) -> bool:
    """Whether a function of `torch.distributed` may wait for other ranks, by its name."""
    asks = "get_", "is_", "_get_", "_is_", "_rank_not_in_group", "WORLD", "default_pg", "pg_"
    return not name.startswith(asks)


def held_by(frames: list[Frame]) -> str | None:
    """What the learner's line waits for inside its own process, and not in a rank, if anything."""
    learner_frame = learners_frame(frames)
    if learner_frame is None:
        return None
    inner = _inner_frames(frames, learner_frame)
    if any(_COMPILES in frame.file for frame in inner):
        return None
    for frame in inner:
        holder = _holder(frame)
        if holder:
            return holder
    if inner:
        return None
    code = learner_frame.code
    if _CHILDREN.search(code) and "WNOHANG" not in code:
        return CHILD
    if _FILE_LOCKS.search(code):
        return FILE_LOCK
    if _LOCKS.search(code):
        return LOCK
    return None


def _holder(frame: Frame) -> str | None:
    """What a frame of a library waits for, if it's one of those that wait."""
    for file, holder in _HOLDERS.items():
        is_folder = file.endswith("/")
        if frame.file.endswith(file) or (is_folder and file in frame.file):
            owner = innermost(frame, ast.ClassDef)
            if owner and owner.name in _BUILT_OF_LOCKS:
                return _BUILT_OF_LOCKS[owner.name]
            return holder
    return None


def stable_line(frames: list[Frame]) -> Frame | None:
    """The line to show for a rank that computes.

    Inside a `while` loop that is the loop's first line, so that it's the same at every look.
    """
    learner_frame = learners_frame(frames)
    if learner_frame != frames[-1] or _SLEEPS.search(learner_frame.code):
        return learner_frame
    loop = innermost(learner_frame, *LOOPS)
    if isinstance(loop, ast.While):
        return Frame(learner_frame.file, loop.lineno, learner_frame.name)
    return learner_frame


def innermost(frame: Frame, *kinds: type[ast.stmt]) -> ast.stmt | None:
    """The innermost statement around a frame's line that is of these kinds."""
    return max(around(frame, *kinds), key=lambda statement: statement.lineno, default=None)


def around(frame: Frame, *kinds: type[ast.stmt]) -> list[ast.stmt]:
    """The statements around a frame's line that are of these kinds."""
    source = "".join(linecache.getlines(frame.file))
    statements = []
    for statement in _statements(source):
        is_around = statement.lineno <= frame.line <= statement.end_lineno
        if is_around and isinstance(statement, kinds):
            statements.append(statement)
    return statements


@functools.lru_cache(maxsize=4)  # ranks mostly stand in the same file
def _statements(source: str) -> list[ast.stmt]:
    statements = []
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.stmt):
                statements.append(node)
    return statements
