"""What a rank does besides its calls: side channels, what it leaves behind, what it computes.

A line counts as the answer's unless it stands in a file that wraps the answer. The answer is also
responsible for what libraries do for it, except torch and Keras, which have files and stores of
their own.
"""

import contextlib
import functools
import inspect
import logging
import mmap
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d

import course_utils
from course_checks.flops import flops
from course_checks.shared import file_of, shared_value
from course_checks.transit import Transit
from course_utils.launcher import torch_private
from course_utils.launcher.language import N_, _, sentences
from course_utils.launcher.stacks import Frame
from course_utils.launcher.torch_private import C10D
from course_utils.record.frames import is_learners

_TORCH = os.path.dirname(torch.__file__) + os.sep
_UTILS = os.path.dirname(course_utils.__file__) + os.sep
_CHECKS = os.path.dirname(__file__) + os.sep
# What these do is their own business, whoever has called them,
_OWN_BUSINESS = _TORCH, _UTILS, _CHECKS, "<frozen"
# except where they do it for their caller.
_FOR_CALLERS = (
    __file__,
    f"{_TORCH}serialization",
    f"{_TORCH}distributed{os.sep}elastic",
    f"{_UTILS}launcher{os.sep}descendants.py",  # through which a rank starts a program
)
_DOES = {  # side channels, by their names in `allow`
    "store": N_("Rank {rank} uses a store at {line}."),
    "backend": N_("Rank {rank} calls a backend directly, where nobody sees it at {line}."),
    "files": N_("Rank {rank} writes to the file system at {line}."),
    "sockets": N_("Rank {rank} uses a socket of its own at {line}."),
    "processes": N_("Rank {rank} starts a process at {line}."),
    "memory": N_("Rank {rank} shares memory with other processes at {line}."),
    "frames": N_("Rank {rank} looks into frames or objects of others at {line}."),
}
_EVENTS = {  # by side channel, events that Python reports to `sys.addaudithook`
    "files": "open os.mkdir os.rename os.link os.symlink",
    "sockets": "socket.connect socket.bind socket.sendto",
    "processes": "subprocess.Popen os.system os.posix_spawn os.exec os.fork os.forkpty",
    "memory": "mmap.__new__",
    "frames": "sys._getframe sys._current_frames gc.get_objects gc.get_referrers gc.get_referents "
    "object.__getattr__ sys.setprofile sys.settrace",
}
_CHANNELS = {}  # by event, its side channel
for _channel, _events in _EVENTS.items():
    _CHANNELS |= dict.fromkeys(_events.split(), _channel)
_TO_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")  # attributes that lead to frames
# Of functions that an answer is not to call. Compiled here once, and not in every rank.
_STORE_CALL = re.compile("set$|get$|add|append|wait|check|compare|delete|list|num|queue|bar")
_BACKEND_CALL = re.compile("broadcast|reduce|gather|scatter|to_?all|send|recv|barrier")
_WRITE = re.compile("^writev?$")
_METHODS = {  # by side channel, a class of torch, and the names of its methods
    "store": (f"{C10D}:Store", _STORE_CALL),
    "backend": ("torch._C._distributed_c10d:Backend", _BACKEND_CALL),
}
_ONLY = N_("Here ranks are to know of each other by messages and collectives alone.")
_HOOK = 0x7ACF  # our hook's number with a group; the recorder's is smaller, so that one runs first
_LATEST_S = 0.006  # how much later than the first rank the last one comes to its first calls
_NAP_S = 0.0005  # what is left of a learner's sleep where ranks come late


def _random_numbers() -> tuple:
    """The states of the global random generators."""
    torch_state = torch.default_generator.get_state().tolist()
    python_state = random.getstate()
    numpy_state = ""
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy_state = str(numpy.random.get_state())
    return torch_state, python_state, numpy_state


class _State(NamedTuple):
    """Something global that an answer is to leave as it was."""

    read: Callable[[], Any]
    changed: str  # what to say otherwise


_OPTIONAL = "random numbers"  # is compared only where an exercise says so
_KEPT = {
    "folder": _State(lambda: os.stat(".").st_ino, N_("the working folder is another one")),
    "environment": _State(lambda: os.environ._data.copy(), N_("os.environ has changed")),
    "grad mode": _State(
        torch.is_grad_enabled, N_("gradients are switched over for all that follows")
    ),
    "dtype": _State(torch.get_default_dtype, N_("torch's default dtype has changed")),
    _OPTIONAL: _State(_random_numbers, N_("the global random numbers are not where they were")),
}
# What may stand in options of `check`.
_ALWAYS_KEPT = set(_KEPT) - {_OPTIONAL}
WORDS = {"allow": _ALWAYS_KEPT | set(_DOES), "keep": {_OPTIONAL}}


class Watch:
    """The watch over one rank.

    Args:
        fn: The answer.
        spec: Its specification, which it is not to call.
        makes_group: Whether the answer makes the process group itself.
        rules: The exercise's `Rules`.
    """

    def __init__(self, fn: Callable, spec: Callable, makes_group: bool, rules: Any) -> None:
        self.fn = fn
        self.seen = ""  # what the watch saw first in a run
        self.flops = 0  # computed in a run
        self._spec = spec
        self._makes_group = makes_group
        self._allow = set(rules.allow)
        self._hide = rules.hide
        self._counts = rules.work
        self._kept = _ALWAYS_KEPT - self._allow
        self._kept.update(rules.keep)
        if makes_group:
            self._kept.discard("environment")  # it may say where ranks meet
        self._on = False  # whether the answer runs
        self._auditing = False
        # How late this rank comes; None if ranks come as they like.
        self._late_s: float | None = None
        self._calls = 0  # of the group in this run

    def listen(self) -> None:
        """In the rank, before the answer runs: notice side channels, and be able to come late."""
        self._pid = os.getpid()
        self._rank = int(os.environ["RANK"])
        answer = inspect.unwrap(self.fn)
        self._exercise = _files_that_wrap(self.fn, answer)
        names = getattr(answer, "__globals__", {})
        specifications = _specifications(names)
        _seal([self._spec, *self._hide, *specifications], names)
        self._shared = shared_value(answer)
        self._replace_calls(names)
        self._replace_functions("files", os, _WRITE)
        for channel, (name, pattern) in _METHODS.items():
            owner = torch_private.find(name)
            if owner is not None:
                self._replace_functions(channel, owner, pattern)
        torch_private.wrap("torch._C:PyTorchFileWriter", partial(self._noticing, "files"))
        sys.addaudithook(self._audit)
        Transit().listen()
        if c10d.is_initialized():
            torch_private.hook(c10d.group.WORLD, _HOOK, self._delay)

    def _replace_functions(self, channel: str, owner: Any, pattern: re.Pattern) -> None:
        """Have the functions of a class or module noticed whose names a pattern finds."""
        for name in list(filter(pattern.search, vars(owner))):
            function = getattr(owner, name)
            noticing = self._noticing(channel, function)
            setattr(owner, name, noticing)

    def _replace_calls(self, names: dict[str, Any]) -> None:
        """Replace what we do differently, also where the notebook has imported it by a name."""
        self._sleep = time.sleep
        self._set_handler = signal.signal
        for name, value in list(names.items()):
            if value is time.sleep:
                names[name] = self._nap
            if value is signal.signal:
                names[name] = self._set_handler_without_frames
        time.sleep = self._nap
        signal.signal = self._set_handler_without_frames

    def _set_handler_without_frames(self, number: int, handler: Any) -> Any:
        """Instead of `signal.signal`: an answer's handler hears which signal came, not where."""
        if self._on and callable(handler):
            handler = partial(_handle, handler)
        return self._set_handler(number, handler)

    @contextlib.contextmanager
    def run(self, late: float | None) -> Iterator[None]:
        """Around the answer in one run.

        Args:
            late: From 0 for the first rank to 1 for the last; None if ranks come as they like.
        """
        before = {}
        for kind, state in _KEPT.items():
            if kind in self._kept:
                before[kind] = state.read()
        self.seen = ""
        self._calls = 0
        self._late_s = None
        if late is not None:
            self._late_s = late * _LATEST_S
        if self._shared and "memory" not in self._allow:
            self.seen = sentences(self._says_shared(), _(_ONLY))
        self._sleep(self._late_s or 0)
        counts = self._counts and late is None  # which takes time: once is enough
        self._on = True
        with flops(counts) as count:
            yield
        self._on = False
        self.flops = count()
        left = self._left_behind(before)
        if left and not self.seen:
            self.seen = _(
                "Rank {rank} leaves something behind: {left}.", rank=self._rank, left=left
            )

    def _says_shared(self) -> str:
        return _(
            "Rank {rank} shares memory with other processes: {name} was made before the ranks "
            "were.",
            rank=self._rank,
            name=self._shared,
        )

    def _left_behind(self, before: dict[str, Any]) -> str:
        """What the answer has not left as it was, or an empty string."""
        for kind, value in before.items():
            state = _KEPT[kind]
            if state.read() != value:
                return _(state.changed)
        if self._makes_group and c10d.is_initialized():
            return _("its process group still exists: dist.destroy_process_group() ends it")
        return ""

    def _delay(self, call: Any) -> None:
        """Come late to the second and third call of the group; the first is late already."""
        self._calls += 1
        if not self._on or not self._late_s:
            return
        if self._calls in (2, 3):
            self._sleep(self._late_s)

    def _nap(self, seconds: float) -> None:
        """Instead of `time.sleep`: where ranks come late on purpose, a sleep is no barrier."""
        caller = sys._getframe(1)
        file = caller.f_code.co_filename
        is_answers = is_learners(file) and file not in self._exercise
        is_late_on_purpose = self._on and self._late_s is not None
        if is_answers and is_late_on_purpose:
            seconds = min(seconds, _NAP_S)
        self._sleep(seconds)

    def _audit(self, event: str, arguments: tuple) -> None:
        """Python reports an event."""
        if not self._on or self._auditing or event not in _CHANNELS:
            return
        self._auditing = True  # what is called here is reported as well
        try:
            channel = _CHANNELS[event]
            caller = sys._getframe(1)
            if _is_side_channel(channel, event, arguments, caller):
                self._notice(channel, caller)
        finally:
            self._auditing = False

    def _noticing(self, channel: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def notice_and_call(*args: Any, **options: Any) -> Any:
            into_memory = args and hasattr(args[0], "write")  # torch.save to a buffer
            if self._on and not into_memory:
                caller = sys._getframe(1)
                self._notice(channel, caller)
            return function(*args, **options)

        return notice_and_call

    def _notice(self, channel: str, frame: FrameType | None) -> None:
        """A side channel is used in this frame: say so if the answer is responsible for it."""
        if self.seen or channel in self._allow:
            return
        if os.getpid() != self._pid:
            return
        frame = _responsible(frame)
        if frame is None:
            return
        code = frame.f_code
        if code.co_filename in self._exercise:
            return
        place = Frame(code.co_filename, frame.f_lineno, code.co_name)
        line = place.place_and_code
        does = _(_DOES[channel], rank=self._rank, line=line)
        self.seen = sentences(does, _(_ONLY))


def _files_that_wrap(fn: Callable, answer: Callable) -> set[str]:
    """The files of the functions around an answer, without its own."""
    files = set()
    while hasattr(fn, "__wrapped__"):
        files.add(file_of(fn))
        fn = fn.__wrapped__
    files.discard(file_of(answer))
    return files


def _responsible(frame: FrameType | None) -> FrameType | None:
    """The learner's frame that a call was made for; None if it is a library's own business."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_learners(file):
            return frame
        is_for_its_caller = file.startswith(_FOR_CALLERS)
        if file.startswith(_OWN_BUSINESS) and not is_for_its_caller:
            return None
        frame = frame.f_back
    return None


def _is_side_channel(channel: str, event: str, arguments: tuple, caller: FrameType | None) -> bool:
    """Whether an event that Python reports can carry something from rank to rank."""
    if event == "open":
        path, _mode, flags = arguments
        if isinstance(path, int) or path == os.devnull:
            return False
        writes = os.O_WRONLY | os.O_RDWR
        return bool(flags & writes)
    if channel == "memory":
        descriptor, _length, access = arguments[:3]
        has_file = descriptor != -1
        return has_file and access != mmap.ACCESS_READ
    if channel == "frames":
        return _asks_for_frames(event, arguments, caller)
    return True


def _asks_for_frames(event: str, arguments: tuple, caller: FrameType | None) -> bool:
    """Whether an answer's own line asks, by itself or through `inspect`, and no library."""
    if event == "object.__getattr__":
        _owner, attribute = arguments
        if attribute not in _TO_FRAMES:
            return False
    asks_for_others = [inspect.__file__]
    code = None
    if caller:
        code = caller.f_code
    if code is traceback.walk_stack.__code__:  # who prints a stack is no spy
        asks_for_others.append(traceback.__file__)
    elif code is logging.currentframe.__code__:  # nor is who writes a log
        caller = caller.f_back
    while caller:
        file = caller.f_code.co_filename
        if file not in asks_for_others:
            return is_learners(file)
        caller = caller.f_back
    return False


def _handle(handler: Callable, number: int, frame: FrameType | None) -> Any:
    """Call a handler of signals without the frame, which leads to those of the judge."""
    return handler(number, None)


def _refuse() -> None:
    raise PermissionError(_("a specification says what is wanted; an answer does not call it"))


def _no_answer(*arguments: Any, refuse: Callable, **options: Any) -> None:
    refuse()  # is given, since a notebook's function finds none of our names


def _specifications(names: dict[str, Any]) -> list[Callable]:
    """Those of all exercises of a notebook, which are called `NAME_spec`."""
    specifications = []
    for name, value in names.items():
        if name.endswith("_spec") and callable(value):
            specifications.append(value)
    return specifications


def _seal(functions: Collection[Callable], names: dict[str, Any]) -> None:
    """Have these functions refuse to be called, and what a notebook has made of their code."""
    codes = set()
    for function in functions:
        inner = inspect.unwrap(function)
        code = getattr(inner, "__code__", None)
        codes.add(code)
    copies = []
    for value in names.values():
        if isinstance(value, FunctionType) and value.__code__ in codes:
            copies.append(value)
    for function in [*functions, *copies]:
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # a class; a closure
            inner = inspect.unwrap(function)
            inner.__code__ = _no_answer.__code__
            inner.__kwdefaults__ = {"refuse": _refuse}
