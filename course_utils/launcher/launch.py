"""Real workers from a notebook cell: fork one process per rank, watch, collect, stop."""

import contextlib
import importlib
import inspect
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from course_utils.launcher import rank
from course_utils.launcher.listener import Listener
from course_utils.launcher.placement import cuda_in_use, place
from course_utils.launcher.team import Interrupts, Team

# Parameters that `torch.multiprocessing.spawn` and many a tutorial hand in, and whom to ask here.
_ASKED = {
    "rank": "dist.get_rank()",
    "world_size": "dist.get_world_size()",
    "local_rank": "os.environ['LOCAL_RANK']",
}
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
    _import_what_ddp_needs()
    team = Team(world_size, nodes, timeout, listeners)
    with contextlib.ExitStack() as closing:
        for listener in listeners:
            listener.before(world_size)
            closing.callback(listener.close)
        closing.callback(lambda: _print_in_rank_order(team.output()))
        with Interrupts() as interrupts, team:
            team.fork(fn, args, placement)
            values = team.results(interrupts, time.monotonic() + timeout)
    return Results(values, team.output())


def _import_what_ddp_needs() -> None:
    """DDP imports it when it is first built, which takes a second: once here, not in every rank."""
    if "torch._dynamo" not in sys.modules:
        name = "TORCHINDUCTOR_CACHE_DIR"  # else it makes a folder, and writes into the environment
        with contextlib.ExitStack() as afterwards:
            if name not in os.environ:
                os.environ[name] = tempfile.gettempdir()
                afterwards.callback(os.environ.pop, name)
            importlib.import_module("torch._dynamo")


def _refuse_what_cannot_work(
    fn: Callable[..., Any], args: tuple, world_size: int, nodes: int, timeout: float
) -> None:
    """Raise a sentence that says what to do, before anything is started."""
    if not hasattr(os, "fork"):
        raise RuntimeError("launch needs fork: use Linux, macOS, or WSL on Windows.")
    if rank.inside():
        raise RuntimeError(
            "launch was called inside a worker. A rank cannot launch ranks: call launch from the "
            "cell, with a larger world_size."
        )
    if not callable(fn):
        raise TypeError(
            f"launch needs a function, got {'None' if fn is None else type(fn).__name__}: write "
            "launch(fn) or launch(fn, 1, 2), not launch(fn()), which calls it in the kernel."
        )
    for name, value in (("world_size", world_size), ("nodes", nodes)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if world_size % nodes:
        raise ValueError(
            f"{world_size} ranks cannot be laid out as {nodes} equal nodes: "
            "make world_size a multiple of nodes."
        )
    if not isinstance(timeout, (int, float)) or not math.isfinite(timeout) or timeout <= 0:
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}.")
    _refuse_wrong_arguments(fn, args)
    if reason := cuda_in_use():
        raise RuntimeError(reason)


def _refuse_wrong_arguments(fn: Callable[..., Any], args: tuple) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # some functions written in C do not tell
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        message = f"{name}{signature} does not fit the {len(args)} arguments given to launch"
        ways = [f"{_ASKED[it]} for {it}" for it in signature.parameters if it in _ASKED]
        hint = f" A rank asks {' and '.join(ways)}: nobody hands it in." if ways else ""
        raise TypeError(f"{message}: {error}.{hint}") from None


def _print_in_rank_order(output: list[str]) -> None:
    lines = [
        f"[rank {number}] {line}\n"
        for number, text in enumerate(output)
        for line in text.removesuffix("\n").split("\n")
        if text
    ]
    if lines:  # ipykernel keeps a socket for every thread that writes, were it nothing
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
