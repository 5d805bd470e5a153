"""Real workers from a notebook cell: fork one process per rank, watch, collect, stop."""

import contextlib
import importlib
import inspect
import math
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course_utils.launcher import rank
from course_utils.launcher.listener import Listener
from course_utils.launcher.placement import cuda_in_use, place
from course_utils.launcher.team import Team, interrupts

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
    for holds, error in _refusals(fn, args, world_size, nodes, timeout):
        if holds:
            raise error
    placement = place(backend, device, world_size)
    if placement.notice and placement.notice not in _said:
        _said.add(placement.notice)
        print(placement.notice, flush=True)
    _import_what_ddp_needs()
    team = Team(world_size, nodes, timeout, listeners)
    with contextlib.ExitStack() as closing:
        closing.callback(lambda: _print_in_rank_order(team.output()))
        with team.starting():
            for listener in listeners:
                listener.before(world_size)
                closing.callback(listener.close)
        with interrupts() as pressed, contextlib.closing(team):
            with team.starting():
                team.fork(fn, args, placement)
            values = team.results(pressed)
    return Results(values, team.output())


def _import_what_ddp_needs() -> None:
    """DDP imports it when it is first built, which takes a second: once here, not in every rank.

    Under a lock: a rank forked while another thread is importing would wait for that thread.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"  # else it makes a folder, and writes into the environment
    with _IMPORTING, contextlib.ExitStack() as afterwards:
        if "torch._dynamo" in sys.modules:
            return
        if name not in os.environ:
            os.environ[name] = tempfile.gettempdir()
            afterwards.callback(os.environ.pop, name)
        importlib.import_module("torch._dynamo")


def _refusals(
    fn: Callable[..., Any], args: tuple, world_size: int, nodes: int, timeout: float
) -> Iterator[tuple[object, Exception]]:
    """Whether something cannot work, and what to do instead; the first one counts."""
    way = "use Linux, macOS, or WSL on Windows."
    yield not hasattr(os, "fork"), RuntimeError(f"launch needs fork: {way}")
    nested = "A rank cannot launch ranks: call launch from the cell, with a larger world_size."
    yield rank.me, RuntimeError(f"launch was called inside a worker. {nested}")
    got = "None" if fn is None else type(fn).__name__
    way = "write launch(fn) or launch(fn, 1, 2), not launch(fn()), which calls it in the kernel."
    yield not callable(fn), TypeError(f"launch needs a function, got {got}: {way}")
    for name, value in (("world_size", world_size), ("nodes", nodes)):
        wrong = not isinstance(value, int) or isinstance(value, bool) or value < 1
        message = f"{name} must be a whole number of at least 1, got {value!r}."
        yield wrong, ValueError(message)
    message = f"{world_size} ranks cannot be laid out as {nodes} equal nodes: "
    yield world_size % nodes, ValueError(f"{message}make world_size a multiple of nodes.")
    wrong = not isinstance(timeout, (int, float)) or not math.isfinite(timeout) or timeout <= 0
    yield wrong, ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}.")
    message = _misfit(fn, args)
    yield message, TypeError(message)
    message = cuda_in_use()
    yield message, RuntimeError(message)


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
