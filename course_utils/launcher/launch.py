"""Real workers from a notebook cell: fork one process per rank, watch, collect, stop."""

import contextlib
import ctypes
import importlib
import inspect
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

from course_utils.launcher import rank
from course_utils.launcher.listener import Listener
from course_utils.launcher.placement import cuda_in_use, place
from course_utils.launcher.team import Stopped, Team

# Parameters that `torch.multiprocessing.spawn` and many a tutorial hand in, and whom to ask here.
_ASKED = {
    "rank": "dist.get_rank()",
    "world_size": "dist.get_world_size()",
    "local_rank": "os.environ['LOCAL_RANK']",
}
_IMPORTING = threading.Lock()
_said: set[str] = set()  # what launch chose for the learner is said once in a kernel


class Results(list):
    """What the ranks returned, by global rank.

    Attributes:
        output: what each rank printed.
        trace: what the ranks sent, received and waited for; None unless it was recorded.
    """

    trace: Any = None

    def __init__(self, values: list[Any], output: list[str]) -> None:
        super().__init__(values)
        self.output = output


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str | None = "auto",
    device: str = "auto",
    nodes: int = 1,
    timeout: float = 60.0,
    listeners: Sequence[Listener] = (),
) -> Results:
    """As `course_utils.launch`, with whatever shall listen in place of `live` and `trace`."""
    _refuse_what_cannot_work(fn, args, world_size, nodes, timeout)
    placement = place(backend, device, world_size)
    if placement.notice and placement.notice not in _said:
        _said.add(placement.notice)
        print(placement.notice, flush=True)
    _import_what_ranks_need()
    team = Team(world_size, nodes, timeout, listeners)
    try:
        with _stop_button() as pressed, contextlib.closing(team):
            team.start(fn, args, placement)
            values = team.results(pressed)
    finally:
        _print_in_rank_order(team.output())
    return Results(values, team.output())


def _refuse_what_cannot_work(
    fn: Callable[..., Any], args: tuple, world_size: int, nodes: int, timeout: float
) -> None:
    """Say what to do instead, before anything starts."""
    if not hasattr(os, "fork"):
        raise RuntimeError("launch needs fork: use Linux, macOS, or WSL on Windows.")
    if rank.me:
        way = "A rank cannot launch ranks: call launch from the cell, with a larger world_size."
        raise RuntimeError(f"launch was called inside a worker. {way}")
    if not callable(fn):
        got = "None" if fn is None else type(fn).__name__
        way = "write launch(fn) or launch(fn, 1, 2), not launch(fn()), which calls it in the kernel"
        raise TypeError(f"launch needs a function, got {got}: {way}.")
    for name, value in (("world_size", world_size), ("nodes", nodes)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if world_size % nodes:
        what = f"{world_size} ranks cannot be laid out as {nodes} equal nodes"
        raise ValueError(f"{what}: make world_size a multiple of nodes.")
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}.")
    if message := _misfit(fn, args):
        raise TypeError(message)
    if message := cuda_in_use():
        raise RuntimeError(message)


def _misfit(fn: Callable[..., Any], args: tuple) -> str:
    """What is wrong with the arguments; a function written in C may not tell what it takes."""
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(fn)
        try:
            signature.bind(*args)
        except TypeError as error:
            name = getattr(fn, "__name__", type(fn).__name__)
            message = f"{name}{signature} does not fit the {len(args)} arguments given to launch"
            ways = [f"{_ASKED[it]} for {it}" for it in signature.parameters if it in _ASKED]
            hint = f" A rank asks {' and '.join(ways)}: nobody hands it in." if ways else ""
            return f"{message}: {error}.{hint}"
    return ""


def _import_what_ranks_need() -> None:
    """Import here, once, what each rank would: for DDP alone that takes a second.

    Under a lock: a rank forked while another thread is importing would wait for that thread.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"  # else it makes a folder, and writes into the environment
    with _IMPORTING, contextlib.ExitStack() as afterwards:
        if find := getattr(dist.Backend, "_ensure_backend_registered", None):
            find("gloo")  # torch 2.15 looks for it among all installed packages
        if "torch._dynamo" in sys.modules:
            return
        if name not in os.environ:
            os.environ[name] = tempfile.gettempdir()
            afterwards.callback(os.environ.pop, name)
        importlib.import_module("torch._dynamo")


@contextlib.contextmanager
def _stop_button() -> Iterator[list[int]]:
    """Presses of the stop button, noticed where stopping is safe instead of anywhere."""
    pressed: list[int] = []
    ours = threading.current_thread() is threading.main_thread()
    if ours:
        action = ctypes.create_string_buffer(256)  # Python knows only of handlers it set
        rank.LIBC.sigaction(signal.SIGINT, None, action)
        old = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL if old is None else old)
            rank.LIBC.sigaction(signal.SIGINT, action, None)
    if pressed:
        raise Stopped


def _print_in_rank_order(output: list[str]) -> None:
    told = ""
    for number, text in enumerate(output):
        name = f"[rank {number}] "
        if text:
            told += name + text.removesuffix("\n").replace("\n", f"\n{name}") + "\n"
    if told:  # ipykernel keeps a socket for every thread that writes, were it nothing
        sys.stdout.write(told)
        sys.stdout.flush()
