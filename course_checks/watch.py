"""What a rank does besides its calls: side channels, what it leaves behind, what it computes.

A line counts as the answer's unless it stands where the exercise wraps the answer. It is in charge
of what libraries do for it, except torch and Keras, which have files and stores of their own.
"""

import contextlib
import functools
import importlib
import inspect
import math
import mmap
import os
import random
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

import course_utils
from course_checks.transit import Transit
from course_utils.launcher.stacks import Frame
from course_utils.record.frames import is_learners

_TORCH, _UTILS, _HERE = (
    f"{os.path.dirname(module.__file__)}{os.sep}"
    for module in (torch, course_utils, sys.modules[__package__])
)
_OWN_BUSINESS = _TORCH, _UTILS, _HERE, "<frozen"
_FOR_OTHERS = (
    __file__,
    f"{_TORCH}serialization",
    f"{_TORCH}distributed{os.sep}elastic",
    f"{_UTILS}launcher{os.sep}descendants.py",  # through which a rank starts a program
)
_DOES = {  # side channels, by their names in `allow`
    "store": "uses a store",
    "backend": "calls a backend directly, where nobody sees it",
    "files": "writes to the file system",
    "sockets": "uses a socket of its own",
    "processes": "starts a process",
    "memory": "shares memory with other processes",
    "frames": "looks into frames or objects of others",
}
_EVENTS = {  # of those that `sys.addaudithook` is told of
    "files": "open os.mkdir os.rename os.link os.symlink",
    "sockets": "socket.connect socket.bind socket.sendto",
    "processes": "subprocess.Popen os.system os.posix_spawn os.exec os.fork os.forkpty",
    "memory": "mmap.__new__",
    "frames": "sys._getframe sys._current_frames gc.get_objects gc.get_referrers gc.get_referents "
    "object.__getattr__",
}
_TO_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")  # attributes that lead to them
_KINDS = {event: kind for kind, events in _EVENTS.items() for event in events.split()}
_BACKEND = torch._C._distributed_c10d.Backend
_METHODS = {  # of these classes, which an answer's own lines are not to call
    kind: (owner, re.compile(names))  # here, once, and not in each rank
    for kind, owner, names in (
        ("store", c10d.Store, "set$|get$|add|append|wait|check|compare|delete|list|num|queue|bar"),
        ("backend", _BACKEND, "broadcast|reduce|gather|scatter|to_?all|send|recv|barrier"),
        ("files", os, "^writev?$"),
    )
}  # fmt: skip
_ONLY = "Here ranks are to know of each other by messages and collectives alone."
_HOOK = 0x7ACF  # the number of the delays among a group's hooks: behind the recorder's
_LATEST_S = 0.006  # how much later than the first one the last rank comes to its first calls
_NAP_S = 0.0005  # what is left of a learner's sleep where ranks come late


def _random_numbers() -> tuple:
    numpy = sys.modules.get("numpy")
    others = random.getstate(), str(numpy and numpy.random.get_state())
    return torch.default_generator.get_state().tolist(), *others


_OPTIONAL = "random numbers"  # only to be left as they were where an exercise says so
_KEPT: dict[str, tuple[Callable[[], Any], str]] = {  # to be left as it was, and what is said else
    "folder": (lambda: os.stat(".").st_ino, "the working folder is another one"),
    "environment": (lambda: os.environ._data.copy(), "os.environ has changed"),
    "grad mode": (torch.is_grad_enabled, "gradients are switched over for all that follows"),
    "dtype": (torch.get_default_dtype, "torch's default dtype has changed"),
    _OPTIONAL: (_random_numbers, "the global random numbers are not where they were"),
}
WORDS = {"allow": {*_DOES, *_KEPT} - {_OPTIONAL}, "keep": {_OPTIONAL}}  # of options of check


@contextlib.contextmanager
def flops(counts: bool) -> Iterator[Callable[[], int]]:
    """Gives what has `counts` the number of its floating-point operations, forward and backward."""
    if not counts:
        yield lambda: 0
        return
    # It imports triton: behind torch._dynamo, which `launch` imports.
    counter = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    with counter(display=False, custom_mapping=_PRODUCTS) as mode:
        yield mode.get_total_flops


def _of_vectors(*shapes: Any, out_shape: torch.Size, **_: Any) -> int:
    """Of a matrix and a vector, or of two vectors: two for each number of the larger one."""
    return 2 * max(math.prod(shape) for shape in shapes if isinstance(shape, torch.Size))


def _of_elements(one: Any, other: Any, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    """As of a matrix product that is written as products and their sums; scaling costs nothing."""
    both = isinstance(one, torch.Size) and isinstance(other, torch.Size)
    return 2 * math.prod(out_shape) if both and math.prod(one) > 1 < math.prod(other) else 0


_ATEN = torch.ops.aten
# What torch's counter, which knows products of matrices, leaves out.
_PRODUCTS = dict.fromkeys((_ATEN.mv, _ATEN.addmv, _ATEN.dot, _ATEN.vdot), _of_vectors)
_PRODUCTS |= dict.fromkeys((_ATEN.mul, _ATEN.mul_), _of_elements)


class Watch:
    """The watch over one rank; `seen` is what it saw first in a run, or an empty string."""

    seen, flops, late_s, calls, on, auditing = "", 0, None, 0, False, False

    def __init__(self, fn: Callable, spec: Callable, makes_group: bool, rules: Any) -> None:
        self.fn, self.spec, self.makes_group, self.allow = fn, spec, makes_group, set(rules.allow)
        free = {"environment"} if makes_group else set()  # where to meet may be said there
        free |= self.allow | {_OPTIONAL} - set(rules.keep)
        self.kept, self.counts, self.hide = _KEPT.keys() - free, rules.work, rules.hide

    def listen(self) -> None:
        """In the rank, before the answer runs: notice side channels, and be able to come late."""
        self.exercise, self.pid, self.sleep = set(), os.getpid(), time.sleep
        own = inspect.unwrap(self.fn, stop=lambda outer: self.exercise.add(_file(outer)))
        self.exercise.discard(_file(own))
        named = getattr(own, "__globals__", {})
        _seal([self.spec, *self.hide, *_specifications(named)])
        self.shared = _shared(own)
        named.update({name: self._nap for name, value in named.items() if value is time.sleep})
        time.sleep = self._nap
        for kind, (owner, names) in _METHODS.items():
            for name in filter(names.search, vars(owner)):
                setattr(owner, name, self._noticed(kind, getattr(owner, name)))
        torch._C.PyTorchFileWriter = self._noticed("files", torch._C.PyTorchFileWriter)
        sys.addaudithook(self._audit)
        Transit().listen()
        if c10d.is_initialized():
            c10d.group.WORLD.register_pre_hook(_HOOK, self._delay)

    @contextlib.contextmanager
    def run(self, late: float | None) -> Iterator[None]:
        """Around the answer in one run; `late`: from 0 for the first rank that comes to 1."""
        before = {kind: read() for kind, (read, _) in _KEPT.items() if kind in self.kept}
        self.seen, self.calls, self.late_s = "", 0, None if late is None else late * _LATEST_S
        if self.shared and "memory" not in self.allow:
            self.seen = f"{_DOES['memory']}: {self.shared} was made before the ranks were. {_ONLY}"
        self.sleep(self.late_s or 0)
        self.on = True
        with flops(self.counts and late is None) as count:  # which takes time: once is enough
            yield
        self.on, self.flops = False, count()
        left = [_KEPT[kind][1] for kind, was in before.items() if _KEPT[kind][0]() != was]
        if self.makes_group and c10d.is_initialized():
            left.append("its process group still exists: dist.destroy_process_group() ends it")
        if left:
            self.seen = self.seen or f"leaves something behind: {left[0]}."

    def _delay(self, call: Any) -> None:
        self.calls += 1
        if self.on and self.late_s and self.calls in (2, 3):  # the first one follows a late begin
            self.sleep(self.late_s)

    def _nap(self, seconds: float) -> None:
        """Instead of `time.sleep`: where ranks come late on purpose, a sleep is no barrier."""
        file = sys._getframe(1).f_code.co_filename
        theirs = self.on and is_learners(file) and file not in self.exercise
        self.sleep(min(seconds, _NAP_S) if theirs and self.late_s is not None else seconds)

    def _audit(self, event: str, arguments: tuple) -> None:
        kind = self.on and not self.auditing and _KINDS.get(event)
        if not kind:
            return
        self.auditing = True  # what is called here is told to this hook as well
        try:
            self._judge_event(kind, event, arguments)
        finally:
            self.auditing = False

    def _judge_event(self, kind: str | None, event: str, arguments: tuple) -> None:
        if kind == "files" and event == "open":
            path, _, flags = arguments
            reads = not flags & (os.O_WRONLY | os.O_RDWR)
            kind = None if reads or isinstance(path, int) or path == os.devnull else kind
        elif kind == "memory":
            kind = None if arguments[0] == -1 or arguments[2] == mmap.ACCESS_READ else kind
        elif kind == "frames" and not _asks_for_frames(event, arguments, sys._getframe(2)):
            kind = None
        if kind:
            self._notice(kind, sys._getframe(2))

    def _noticed(self, kind: str, method: Callable) -> Callable:
        @functools.wraps(method)
        def noticed(*args: Any, **options: Any) -> Any:
            if self.on and not (args and hasattr(args[0], "write")):  # torch.save to memory
                self._notice(kind, sys._getframe(1))
            return method(*args, **options)

        return noticed

    def _notice(self, kind: str, frame: FrameType | None) -> None:
        if self.seen or kind in self.allow or os.getpid() != self.pid:
            return
        while frame and not is_learners(file := frame.f_code.co_filename):
            inner = file.startswith(_OWN_BUSINESS) and not file.startswith(_FOR_OTHERS)
            frame = None if inner else frame.f_back
        if frame and file not in self.exercise:
            line = Frame(file, frame.f_lineno, frame.f_code.co_name)
            self.seen = f"{_DOES[kind]} at {line.place}: {line.code}. {_ONLY}"


def _asks_for_frames(event: str, arguments: tuple, asking: FrameType | None) -> bool:
    """Whether an answer's own line asks, by itself or through `inspect`, and no library."""
    if event == "object.__getattr__" and arguments[1] not in _TO_FRAMES:
        return False
    while asking and asking.f_code.co_filename == inspect.__file__:
        asking = asking.f_back
    return asking is not None and is_learners(asking.f_code.co_filename)


def _no_answer(*arguments: Any, **options: Any) -> None:
    raise PermissionError("a specification says what is wanted; an answer does not call it")


def _file(own: Any) -> str:
    return getattr(getattr(own, "__code__", None), "co_filename", "")


def _specifications(named: dict[str, Any]) -> list[Callable]:
    """Those of all exercises of a notebook, which are called `NAME_spec`."""
    return [value for name, value in named.items() if name.endswith("_spec") and callable(value)]


def _seal(functions: Collection[Callable]) -> None:
    for function in functions:
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # a class; a closure
            inspect.unwrap(function).__code__ = _no_answer.__code__


_DEEP, _LONG = 4, 1000  # how far in, and in how long containers, shared memory is looked for


def _shared(answer: Any) -> str:
    """The name of a value that an answer can reach and that all ranks share, or an empty string."""
    for name, value in _reached(answer, seen=set()):
        if _is_shared(value, _DEEP):
            return name
    return ""


def _reached(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Globals that a function names, its defaults and what it closes over; of its helpers too."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    found = dict(zip(function.__code__.co_freevars, _cells(function), strict=True))
    found |= function.__kwdefaults__ or {}
    found |= {f"a default of {function.__name__}": list(function.__defaults__ or ())}
    globals_ = function.__globals__
    found |= {name: globals_[name] for name in _names(function.__code__) if name in globals_}
    for name, value in found.items():
        yield name, value
        if isinstance(value, FunctionType) and is_learners(_file(value)):
            yield from _reached(value, seen)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is bound to that name yet
            yield None


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_shared(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_shared()
    if type(value).__module__.startswith(("multiprocessing", "mmap")):
        return True
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set):
        value = getattr(value, "__dict__", {}).values() if _is_of_the_notebook(value) else ()
    if not depth or len(value) > _LONG:
        return False
    return any(_is_shared(item, depth - 1) for item in value)


def _is_of_the_notebook(value: Any) -> bool:
    """Whether a value's class, or a namespace such as `SimpleNamespace`, is no library's own."""
    return type(value).__module__ in ("__main__", "types")
