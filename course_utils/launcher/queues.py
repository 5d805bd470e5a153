"""Queues of the notebook into which ranks put more than a pipe holds.

A rank cannot end before such a queue is written, and the cell cannot read it before the ranks have
ended. So the kernel reads on behalf of the cell while they end, and puts back what it has read.
"""

import contextlib
import multiprocessing.queues
import multiprocessing.util
from typing import Any


class Drained:
    """What was read, by queue."""

    def __init__(self) -> None:
        self._read: list[tuple[multiprocessing.queues.Queue, Any]] = []

    def take(self) -> None:
        """Read whatever has arrived."""
        # Private: without it, such a queue keeps its rank from ending until time is up.
        known = getattr(multiprocessing.util, "_afterfork_registry", {})
        for queue in list(known.values()):
            if isinstance(queue, multiprocessing.queues.Queue):
                with contextlib.suppress(Exception):  # empty, closed, or not to be unpickled here
                    while True:
                        self._read.append((queue, queue.get(block=False)))

    def give_back(self) -> None:
        """Put it all back, in the same order, for the cell to read."""
        for queue, value in self._read:
            with contextlib.suppress(Exception):
                queue.put(value)
        self._read.clear()
