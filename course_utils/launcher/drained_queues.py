"""Queues of the notebook into which ranks put more than a pipe holds.

A rank can't end before such a queue is written, and the cell can't read it before the ranks have
ended. So the kernel reads on behalf of the cell while they end, and puts back what it has read.
"""

import contextlib
import multiprocessing.util
from multiprocessing.queues import Queue
from typing import Any


class DrainedQueues:
    """What was read, and from which queue."""

    def __init__(self) -> None:
        self._items: list[tuple[Queue, Any]] = []

    def take(self) -> None:
        """Read whatever has arrived."""
        # Private: without it, such a queue keeps its rank from ending until time is up.
        known = getattr(multiprocessing.util, "_afterfork_registry", {})
        for queue in list(known.values()):
            if isinstance(queue, Queue):
                self._drain(queue)

    def _drain(self, queue: Queue) -> None:
        with contextlib.suppress(Exception):  # empty, closed, or not to be unpickled here
            while True:
                item = queue.get(block=False)
                self._items.append((queue, item))

    def give_back(self) -> None:
        """Put it all back, in the same order, for the cell to read."""
        for queue, item in self._items:
            with contextlib.suppress(Exception):
                queue.put(item)
        self._items.clear()
