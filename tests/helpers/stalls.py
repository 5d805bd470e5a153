"""Ranks that hang, made by hand: their calls, their stacks, and the error that tells of them."""

from collections.abc import Iterable
from types import SimpleNamespace

import torch

from course_utils import WorkerTimeout
from course_utils.hang.report import HangReport
from course_utils.launcher import errors
from course_utils.launcher.stacks import Frame
from course_utils.record.event import Event, Log

C10D = f"{torch.__path__[0]}/distributed/distributed_c10d.py"
DDP = f"{torch.__path__[0]}/nn/parallel/distributed.py"


def call(rank: int, kind: str = "all_reduce", number: int = 1, line: int = 7, **more) -> Event:
    """A call at a line of train.py, by all of two ranks if nothing else is said."""
    shape = more.get("shape", (1,))
    known = {
        "index": number - 1, "start_s": 0.0, "end_s": 0.0, "group": (0, 1), "group_name": "0",
        "dtype": "float32", "shape": shape, "bytes": 4 * torch.Size(shape).numel(),
        "tag": 0 if kind in ("send", "recv") else None, "line": ("train.py", line, "train"),
        "place": f"train.py, line {line}, in train", "code": f"dist.{kind}(x)",
    }  # fmt: skip
    return Event(rank=rank, kind=kind, number=number, **(known | more))


def at(line: int = 7) -> list[Frame]:
    """The stack of a rank that runs in a line of train.py."""
    return [Frame("train.py", line, "train")]


def inside(name: str = "all_reduce", file: str = C10D, line: int = 7) -> list[Frame]:
    """The stack of a rank whose line waits in a call of torch."""
    return [*at(line), Frame(file, 80, name)]


def explained(
    stacks: dict[int, list[Frame] | None],
    *calls: Iterable[Event],
    now: float = 99.0,
    complete: bool = True,
) -> WorkerTimeout:
    """The error for ranks with these stacks and calls; without any, their calls are not known."""
    logs = {rank: Log(tuple(own), complete) for rank, own in enumerate(calls)}
    error = errors.worker_timeout(stacks, [""] * len(stacks), 2.5, now)
    HangReport(SimpleNamespace(logs=lambda: logs)).on_error(stacks, error)
    return error
