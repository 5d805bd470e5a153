"""Recordings of real NCCL training, as the PyTorch profiler made them; see README.md beside."""

import gzip
import json
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from course_utils.launcher.language import _

_HERE = Path(__file__).parent
KINDS = ("step", "host", "launch", "compute", "copy", "collective")


class Row(NamedTuple):
    """What one line of a recording says.

    `kind` is "step" (of training), "host" (a call), "launch" (a call that puts work into a stream),
    or work of the GPU: "compute" and "collective" (kernels) or "copy". `lane` is the host's thread
    or the GPU's stream. A piece of work and its launch share the number `launch`, 0 elsewhere.
    `bytes` is what this rank copies or brings to a collective, else 0.
    """

    kind: str
    name: str
    lane: str
    start_us: float
    us: float
    bytes: int
    launch: int

    @property
    def end_us(self) -> float:
        """When it was over, in microseconds since the first step began."""
        return self.start_us + self.us


def recording(name: str) -> list[Row]:
    """Read one of the recordings that come with the course, in the order of its starts.

    Raises:
        ValueError: No recording has this name; the message lists those there are.
    """
    names = sorted(path.name.removesuffix(".json.gz") for path in _HERE.glob("*.json.gz"))
    if name not in names:
        raise ValueError(
            _(
                "no recording is called {name!r}; there are: {names}",
                name=name,
                names=", ".join(names),
            )
        )
    told = json.loads(gzip.decompress((_HERE / f"{name}.json.gz").read_bytes()))
    kinds, calls, lanes = ([table[i] for i in column] for table, column in told["words"])
    starts_us, took_us = (
        [t / 10 for t in times] for times in (accumulate(told["after"]), told["took"])
    )
    return list(map(Row, kinds, calls, lanes, starts_us, took_us, told["bytes"], told["launch"]))
