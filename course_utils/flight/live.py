"""`explain_hangs`: a job under torchrun that says itself who is guilty, when it hangs.

A thread of every rank looks whether a call has been pending for nearly as long as its group waits,
whether somebody has sent the signal, and whether a different rank has asked. Then every rank hands
a dump and its stacks to the store that the job has met in, and the rank that has asked first
prints the report. So it works on several hosts, and nothing listens that did not listen before.
A rank whose thread cannot run, since it is stopped or its Python stands still, leaves nothing: that
is what the report has to go by.
"""

import contextlib
import faulthandler
import json
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from course_utils.flight import report
from course_utils.flight.dumps import Entry, RawDump, RawDumps, from_raw
from course_utils.flight.explanation import Explanation, explain
from course_utils.flight.guilt import NOTHING
from course_utils.flight.unpickle import Unreadable, plain
from course_utils.launcher import echoes, torch_private
from course_utils.launcher.language import _
from course_utils.launcher.torch_private import C10D

_HOOK = 0xF119  # the number under which the hooks are registered with a group
_LOOK_S = 1.0  # between two looks of the thread
_COLLECT_S = 10.0  # for the dumps of all ranks to come in
_PART_OF_TIMEOUT = 0.9  # after that much of a group's timeout a call counts as hanging
_MANY = 2000  # calls and messages that are kept
_KEYS = "course_utils/flight"
_BACKENDS = ("gloo", "nccl")


@dataclass(eq=False)
class _Message:
    """A send or a receive: gloo's own recorder notes none."""

    group: Any
    op_id: int
    number: int
    kind: str
    peer: int  # in the group's own numbers; -1 for any
    sizes: list[list[int]]
    dtypes: list[str]
    line: dict[str, Any] | None
    created_ns: int
    work: Any = None
    finished: bool = False

    def is_over(self) -> bool:
        """Whether it is complete; then its work is let go."""
        if not self.finished and self.work is not None and self.work.is_completed():
            self.finished = True
            self.work = None
        return self.finished


_messages: deque[_Message] = deque(maxlen=_MANY)
_watched: set[int] = set()


def watch_groups() -> None:
    """Have the recorder on, and note messages in all groups, those that exist and those to come."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_MANY))
    torch_private.wrap(f"{C10D}:_register_pg_in_world", _watching)
    for group in list(_names()):
        _watch_group(group)


def _names() -> dict[Any, str]:
    """The groups of this rank, with their names."""
    world = torch_private.find(f"{C10D}:_world")
    return {} if world is None else dict(world.pg_names)


def _watching(register: Any) -> Any:
    def register_and_watch(group: Any, *args: Any, **options: Any) -> None:
        register(group, *args, **options)
        with contextlib.suppress(RuntimeError):
            _watch_group(group)

    return register_and_watch


def _watch_group(group: Any) -> None:
    if not isinstance(group, c10d.ProcessGroup) or id(group) in _watched:
        return
    _watched.add(id(group))
    issuing: dict[int, _Message] = {}

    def before(call: Any) -> None:
        if call.name.name not in ("SEND", "RECV"):
            return
        sizes = []
        dtypes = []
        for tensor in call.input_tensors or call.output_tensors:
            dtype = str(tensor.dtype)
            sizes.append(list(tensor.shape))
            dtypes.append(dtype.removeprefix("torch."))
        message = _Message(
            group=group,
            op_id=call.op_id,
            number=len(_messages) + 1,
            kind=call.name.name.lower(),
            peer=call.root,
            sizes=sizes,
            dtypes=dtypes,
            line=_line(sys._getframe(1)),
            created_ns=time.time_ns(),
        )
        issuing[call.op_id] = message
        _messages.append(message)

    def after(call: Any) -> None:
        message = issuing.pop(call.op_id, None)
        if message is not None:
            message.work = call.work
        for earlier in list(_messages):
            earlier.is_over()

    torch_private.hook(group, _HOOK, before, after)


def _line(frame: Any) -> dict[str, Any] | None:
    """The innermost line outside of torch and of this file."""
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if f"{os.sep}torch{os.sep}" not in file and file != __file__:
            return {"filename": file, "line": frame.f_lineno, "name": code.co_name}
        frame = frame.f_back
    return None


def dump(failed: bool = False, pending_only: bool = False) -> RawDump:
    """What this rank has called: torch's dump, with the table of groups and with messages.

    Args:
        failed: Whether the last call has raised an exception, so that it counts as pending.
        pending_only: Leave out lines and, as far as torch does, calls that are over.
    """
    asked = {}
    if pending_only:
        asked = {"includeStackTraces": False, "onlyActive": True}
    entries: list[Entry] = []
    raw: RawDump = {"version": "2.10", "entries": entries, "pg_status": {}}
    dump_as_torch_does = torch_private.find("torch._C._distributed_c10d:_dump_fr_trace")
    backends = _BACKENDS if dump_as_torch_does is not None else ()
    for backend in backends:
        with contextlib.suppress(RuntimeError, TypeError, ValueError, Unreadable):
            pickled = dump_as_torch_does(backend=backend, **asked)
            part = plain(pickled)
            raw = {**part}
            entries += raw.get("entries", [])
    for message in list(_messages):
        entry = _as_entry(message)
        if entry is not None:
            entries.append(entry)
    entries.sort(key=lambda entry: entry["time_created_ns"])
    raw["entries"] = entries
    raw["pg_config"] = _table()
    raw["dumped_ns"] = time.time_ns()
    if failed and entries:
        raw["failed"] = True
        entries[-1].update(state="scheduled", retired=False)
    return raw


def _table() -> dict[str, dict[str, str]]:
    """The groups of this rank, as NCCL's dumps have them; gloo's have the last one only."""
    table = {}
    for group, name in _names().items():
        if isinstance(group, c10d.ProcessGroup):
            ranks = list(c10d.get_process_group_ranks(group))
            table[name] = {"name": name, "desc": group.group_desc, "ranks": str(ranks)}
    return table


def _as_entry(message: _Message) -> Entry | None:
    name = _names().get(message.group)
    if name is None:
        return None
    pg_id = 0
    if name.isdigit():
        pg_id = int(name)
    is_over = message.is_over()
    state = "scheduled"
    if is_over:
        state = "completed"
    frames = []
    if message.line:
        frames.append(message.line)
    return {
        "record_id": 0,
        "pg_id": pg_id,
        "process_group": (name, message.group.group_desc),
        "collective_seq_id": 0,
        "p2p_seq_id": message.number,
        "op_id": message.op_id,
        "profiling_name": _profiling_name(message),
        "time_created_ns": message.created_ns,
        "input_sizes": message.sizes,
        "input_dtypes": message.dtypes,
        "output_sizes": message.sizes,
        "output_dtypes": message.dtypes,
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": is_over,
        "timeout_ms": 0,
        "is_p2p": True,
        "frames": frames,
    }


def _profiling_name(message: _Message) -> str:
    """Such as `gloo:send 0->1`, as torch names a message under NCCL."""
    place = message.group.rank()
    peer = str(message.peer)
    if message.peer < 0:
        peer = "?"
    arrow = "<-"
    if message.kind == "send":
        arrow = "->"
    return f"gloo:{message.kind} {place}{arrow}{peer}"


def stacks() -> str:
    """Where the threads of this rank are, but for the one that asks."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        blocks = file.read().split("\n\n")
    others = []
    for block in blocks:
        if not block.startswith("Current thread"):
            others.append(block)
    return "\n\n".join(others)


class _Watcher(threading.Thread):
    """The thread of one rank that looks, leaves the dump, and perhaps prints the report."""

    def __init__(
        self, folder: Path, after_s: float | None, signal_number: int, wake_up: int
    ) -> None:
        super().__init__(name="explain_hangs", daemon=True)
        self._signal_number = signal_number
        self._folder = folder
        self._after_s = after_s
        self._wake_up = wake_up
        # While torch shows an exception of a rank, sys.stderr is a buffer of torch's.
        self._stderr = sys.stderr
        self._store: Any = None
        self._ask = threading.Event()
        self._failed = False
        self.over = threading.Event()

    def ask(self, failed: bool) -> None:
        """Have the ranks leave their dumps now."""
        self._failed = failed
        self._ask.set()

    def run(self) -> None:
        """Look once a second, until the dumps were left; then only end the rank where it must."""
        while True:
            signals = b""
            readable, _writable, _broken = select.select([self._wake_up], [], [], _LOOK_S)
            if readable:
                signals = os.read(self._wake_up, 64)
            try:
                if dist.is_initialized() and not self.over.is_set():
                    self._look(signals)
            except Exception as error:  # the training must not suffer from it
                self._say(_(report.NOT_WATCHED, error=error))
                self.over.set()
            # Python's handler waits until the rank is back from C++, which may never be.
            if signal.SIGTERM in signals and signal.getsignal(signal.SIGTERM) is _do_nothing:
                os._exit(128 + signal.SIGTERM)

    def _say(self, text: str) -> None:
        print(text, file=self._stderr, flush=True)

    def _look(self, signals: bytes) -> None:
        if self._store is None:
            self._store = _store_of_its_own()
        is_asked = self._signal_number in signals or self._ask.is_set() or self._is_overdue()
        is_asking = is_asked or signal.SIGTERM in signals
        if not is_asking and not self._store.check(["asked"]):
            return
        is_first = False
        if is_asking:
            times_asked = self._store.add("asked", 1)
            is_first = times_asked == 1
        self._leave(is_first, is_asked)
        self.over.set()

    def _is_overdue(self) -> bool:
        """Whether a call of this rank has been pending for too long."""
        now_ns = time.time_ns()
        for entry in dump(pending_only=True)["entries"]:
            if entry.get("retired") or entry.get("state") == "completed":
                continue
            limit_s = self._after_s
            if limit_s is None and entry.get("timeout_ms"):
                limit_s = _PART_OF_TIMEOUT * entry["timeout_ms"] / 1e3
            pending_ns = now_ns - entry["time_created_ns"]
            if limit_s is not None and pending_ns > limit_s * 1e9:
                return True
        return False

    def _leave(self, is_first: bool, is_asked: bool) -> None:
        """Leave a dump; the first rank to do so reports on all, the others wait for that."""
        rank = dist.get_rank()
        left = dump(self._failed)
        left["stack"] = stacks()
        text = json.dumps(left)
        packed = zlib.compress(text.encode())
        self._store.set(f"dump/{rank}", packed)
        if is_first:
            self._report(dist.get_world_size(), is_asked)
            self._store.set("reported", b"1")
            return
        deadline = time.monotonic() + 2 * _COLLECT_S
        while time.monotonic() < deadline and not self._store.check(["reported"]):
            time.sleep(0.1)

    def _report(self, world_size: int, is_asked: bool) -> None:
        """Collect the dumps of all ranks, keep them in the folder, and say who is guilty.

        A job that is only ended, and does not hang, is ended without a word.
        """
        raw = self._collected(world_size)
        if len(raw) < world_size and not is_asked:
            # A peer is gone, and the job is ended for that: here its last call was to meet it.
            raw[dist.get_rank()] = dump(failed=True)
        files = {rank: f"_dump_{rank}" for rank in raw}
        dumps = from_raw(raw, files, [])
        explanation = explain(dumps)
        verdict = explanation.verdict
        hangs = verdict.outcome != NOTHING and (verdict.pending or verdict.evidence)
        if not hangs and not is_asked:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for rank, left in raw.items():
            path = self._folder / files[rank]
            path.write_bytes(pickle.dumps(left, protocol=2))
        self._say(_with_stacks(explanation, self._folder))

    def _collected(self, world_size: int) -> RawDumps:
        raw: RawDumps = {}
        deadline = time.monotonic() + _COLLECT_S
        while len(raw) < world_size and time.monotonic() < deadline:
            for rank in range(world_size):
                key = f"dump/{rank}"
                if rank not in raw and self._store.check([key]):
                    packed = self._store.get(key)
                    raw[rank] = json.loads(zlib.decompress(packed))
            time.sleep(0.1)
        return raw


def _store_of_its_own() -> dist.Store:
    """The job's store once more, since the rank may stand in a wait of the one that it has."""
    name = f"{C10D}:_get_default_store"
    get_store = torch_private.find(name)
    if get_store is None:
        raise RuntimeError(_("this torch has no {name}", name=name))
    store = get_store()
    with contextlib.suppress(NotImplementedError, RuntimeError):
        store = store.clone()
    return dist.PrefixStore(_KEYS, store)


def _with_stacks(explanation: Explanation, folder: Path) -> str:
    """The report, and where the guilty ranks are."""
    parts = [_(report.LIVE, folder=folder), str(explanation)]
    ranks = explanation.guilty or explanation.verdict.slow
    for rank in ranks:
        left = explanation.dumps.by_rank.get(rank)
        if left is None or not left.stack:
            continue
        head = _(report.STACK_OF, rank=rank)
        stack = left.stack.rstrip()
        parts.append(f"{head}\n{stack}")
    return "\n\n".join(parts)


def explain_hangs(
    folder: str | Path = "hang",
    after_s: float | None = None,
    signal_number: int = signal.SIGUSR1,
) -> None:
    """Have this job explain itself when it hangs: call it in every rank, before the group is made.

    Args:
        folder: Where the rank that reports leaves all dumps, for `ddp-course hang FOLDER`.
        after_s: Seconds after which a pending call counts as hanging; nine tenths of the group's
            own timeout, unless it is given.
        signal_number: Sent to any rank, it has all ranks leave their dumps at once.

    Raises:
        ValueError: It was not called in the main thread.
    """
    watch_groups()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    # A handler in Python has to wait until the rank comes back from C++; a byte in a pipe does not.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal_number, _do_nothing)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _do_nothing)  # torchrun sends it when a rank has failed
    watcher = _Watcher(Path(folder), after_s, signal_number, reading)
    watcher.start()
    show_exception = sys.excepthook

    def report_first(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        is_echo = echoes.kind_of(error, str(error))  # of a rank that is gone, or has not come
        if dist.is_initialized() and is_echo and not watcher.over.is_set():
            watcher.ask(failed=True)
            watcher.over.wait(3 * _COLLECT_S)
        show_exception(kind, error, trace)

    sys.excepthook = report_first


def _do_nothing(number: int, frame: Any) -> None:
    """The watcher has been woken by the byte in its pipe."""
