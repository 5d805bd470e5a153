"""Real workers from a notebook cell: fork one process per rank, watch, collect, stop."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from course_utils.launcher import nested, worker
from course_utils.launcher.language import _
from course_utils.launcher.listener import Listener
from course_utils.launcher.stop_button import Stopped, stop_button
from course_utils.launcher.worker_group import WorkerGroup

Pieces = list[list[tuple[str, str]]]  # by rank what it printed: each piece, and the mark after it


class Results(list):
    """What the ranks returned, by global rank.

    Attributes:
        output: What each rank printed.
        unfinished: Sentences on what ranks had not ended when time was up.
        trace: What the ranks sent, received and waited for; None unless it was recorded.
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
    """Run `fn(*args)` on every rank, for `course_utils.launch`, which has checked all arguments.

    That is in `notebook.py`, with defaults of its own: a backend that fits the machine, and a
    timeout that counts silence.

    Args:
        fn: What each rank runs.
        *args: Its arguments.
        world_size: Number of ranks.
        backend: Of the process group; None if `fn` makes the group itself.
        nodes: Number of equal nodes that the ranks are laid out as.
        timeout: Seconds until all ranks must be done; a listener may extend it.
        listeners: Who takes part in the launch; see `Listener`.
        show: Shows what the ranks printed; by default `print_in_rank_order`.

    Raises:
        RuntimeError: This process is a rank itself.
        Stopped: The stop button was pressed; it has the results, if they are there already.
        WorkerError: A rank failed, or none could be started.
        WorkerTimeout: The ranks weren't done in time.
    """
    if worker.current_worker:
        raise RuntimeError(_(nested.REFUSAL))
    group = WorkerGroup(world_size, nodes, timeout, listeners)
    try:
        with stop_button() as press_times_s, contextlib.closing(group):
            group.start(fn, args, backend)
            values = group.results(press_times_s)
        results = Results(values, group.output())
        results.unfinished = group.unfinished
        if press_times_s:  # too late to stop anything here, but who pressed wants the cell to end
            raise Stopped(results=results)
    except Stopped as stopped:
        stopped.unfinished = group.unfinished
        raise
    finally:
        show_output = show or print_in_rank_order
        show_output(group.output_pieces())
    return results


def print_in_rank_order(pieces: Pieces) -> None:
    """Print what each rank printed; `pieces` is that of `WorkerGroup.output_pieces`."""
    lines = []
    for rank, pieces_of_rank in enumerate(pieces):
        for text, _mark in pieces_of_rank:
            if text:
                lines.append(prefixed(rank, text))
    if lines:  # ipykernel opens a socket for each thread that writes, even nothing
        sys.stdout.write("".join(lines))
        sys.stdout.flush()


def prefixed(rank: int, text: str) -> str:
    """A text of a rank, with its name before each line."""
    name = f"[rank {rank}] "
    lines = text.removesuffix("\n").replace("\n", f"\n{name}")
    return f"{name}{lines}\n"
