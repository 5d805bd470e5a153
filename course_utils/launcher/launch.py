"""Real workers from a notebook cell: fork one process per rank, watch, collect, stop."""

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course_utils.launcher import nested, worker
from course_utils.launcher.descendants import LIBC
from course_utils.launcher.listener import Listener
from course_utils.launcher.worker_group import Stopped, WorkerGroup

Pieces = list[list[tuple[str, str]]]  # by rank what it printed, each piece up to a mark


class Results(list):
    """What the ranks returned, by global rank.

    Attributes:
        output: what each rank printed.
        unfinished: sentences on what ranks had not ended when time was up.
        trace: what the ranks sent, received and waited for; None unless it was recorded.
    """

    trace: Any = None

    def __init__(self, values: list[Any], output: list[str]) -> None:
        super().__init__(values)
        self.output = output
        self.unfinished: list[str] = []


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str | None = "gloo",
    nodes: int = 1,
    timeout: float = 60.0,
    listeners: Sequence[Listener] = (),
    show: Callable[[Pieces], None] | None = None,
) -> Results:
    """As `course_utils.launch`, which has looked at everything that is handed in.

    It has also chosen the backend (None where `fn` makes the group), who listens, and what is to
    `show` the output instead of `print_in_rank_order`. Raises RuntimeError where no launch can be.
    """
    if worker.current_worker:
        raise RuntimeError(nested.REFUSAL)
    team = WorkerGroup(world_size, nodes, timeout, listeners)
    try:
        with _stop_button() as pressed, contextlib.closing(team):
            team.start(fn, args, backend)
            values = team.results(pressed)
    finally:
        (show or print_in_rank_order)(team.pieces())
    results = Results(values, team.output())
    results.unfinished = team.unfinished
    return results


@contextlib.contextmanager
def _stop_button() -> Iterator[list[int]]:
    """Presses of the stop button, noticed where stopping is safe instead of anywhere."""
    pressed: list[int] = []
    ours = threading.current_thread() is threading.main_thread()
    if ours:
        action = ctypes.create_string_buffer(256)  # Python knows only handlers it set
        LIBC.sigaction(signal.SIGINT, None, action)
        old = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield pressed
    finally:
        if pressed:  # takes further presses, which could hit ipykernel amid its reply
            time.sleep(1.0)
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL if old is None else old)
            LIBC.sigaction(signal.SIGINT, action, None)
    if pressed:
        raise Stopped


def print_in_rank_order(pieces: Pieces) -> None:
    """Print what each rank printed, of `WorkerGroup.pieces`."""
    lines = [named(rank, text) for rank, own in enumerate(pieces) for text, _ in own if text]
    if lines:  # ipykernel opens a socket for each thread that writes, even nothing
        sys.stdout.write("".join(lines))
        sys.stdout.flush()


def named(rank: int, text: str) -> str:
    """A text of a rank, with its name before each line."""
    name = f"[rank {rank}] "
    lines = text.removesuffix("\n").replace("\n", f"\n{name}")
    return f"{name}{lines}\n"
