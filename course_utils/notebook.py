"""`launch` as a notebook calls it: the launcher, with all that may listen to it."""

from collections.abc import Callable
from typing import Any

from course_utils.early import Early
from course_utils.hang.report import HangReport
from course_utils.launcher import launch as launcher
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import Results
from course_utils.launcher.listener import Listener
from course_utils.live import Panel
from course_utils.network.trace import Trace
from course_utils.record.record import Record


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str | None = "auto",
    device: str = "auto",
    nodes: int = 1,
    timeout: float = 60.0,
    live: bool = False,
    trace: bool = False,
) -> Results:
    """Run `fn(*args)` in `world_size` forked workers that have joined one process group.

    The function asks `torch.distributed` for its rank and runs unchanged under `torchrun`.
    Whatever the workers print appears in rank order when they are done.

    Args:
        fn: any function, also one of a notebook cell, a lambda or a closure.
        *args: handed to every rank as they are; nothing is pickled on the way in.
        world_size: how many ranks, at least 1.
        backend: "auto" takes NCCL where every rank gets a GPU of its own, else gloo on the CPU;
            "gloo" or "nccl"; None leaves `init_process_group()` to `fn`.
        device: "auto", "cpu" or "cuda"; `backend="gloo", device="cuda"` lets ranks share GPUs.
        nodes: lays the ranks out as so many equal nodes, so that local and global rank differ.
        timeout: seconds until all ranks must be done.
        live: shows a panel with progress, metrics (see `report`) and output while they run.
        trace: records every send, receive, collective and wait; needs torch 2.15.

    Returns:
        A list with what each rank returned. Tensors arrive on the CPU, detached, contiguous.
        Its `trace` is the recording.

    Raises:
        ValueError, TypeError, RuntimeError: for what cannot work; nothing was started.
        WorkerError: a rank failed; the message names the root cause, its rank and its line.
        WorkerTimeout: the ranks were not done in time; the message says where each of them was.
    """
    record = Record(trace)
    listeners: list[Listener] = [
        record,
        Early(record, timeout),
        HangReport(record),
        *([Panel()] if live else []),
    ]
    how = {"backend": backend, "device": device, "nodes": nodes, "timeout": timeout}
    try:
        results = launcher.launch(fn, *args, world_size=world_size, listeners=listeners, **how)
    except WorkerError as error:
        error.trace = _trace(record)
        raise
    results.trace = _trace(record)
    return results


def _trace(record: Record) -> Trace | None:
    return Trace.later(record.events, record.ended, record.failed) if record.trace else None
