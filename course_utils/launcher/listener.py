"""How recording, the report of a hang, the live panel and more time come into a launch."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import StacksByRank, WorkerError
from course_utils.launcher.worker_handle import WorkerHandle


class Listener:
    """Six points of a launch. At each of them nothing happens unless a subclass overrides it."""

    def on_start(self, world_size: int) -> None:
        """In the kernel, before anything is forked; what it raises ends the launch."""

    def in_worker(self, rank: int) -> AbstractContextManager[object]:
        """In a rank: entered before the process group is made, left when the function has returned.

        An exception of the function passes through it.
        """
        return contextlib.nullcontext()

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> bool | None:
        """In the kernel, about ten times a second, and once at the end.

        Args:
            workers: The handles of all ranks.
            final: The ranks are gone, or none has started; this is the last call.

        Returns:
            True if the ranks will never be done, which ends the launch.
        """

    def on_timeout(self) -> float:
        """In the kernel, when time is up: return the new time limit in seconds.

        It is counted from the last fork, a little after `on_start`. A limit that has already passed
        ends the launch, unless a different listener returns a later one. A listener that fails
        doesn't change it.
        """
        return 0.0

    def on_error(self, stacks: StacksByRank, error: WorkerError) -> None:
        """In the kernel, when a launch fails, before the ranks are stopped.

        Args:
            stacks: Where each rank is; empty unless time was up.
            error: Its `parts` may be replaced by better ones.
        """

    def on_exit(self) -> None:
        """In the kernel, when all ranks are gone."""


class ScaledTimeout(Listener):
    """Gives ranks more time if this machine is slow when their time is up.

    Args:
        timeout_s: Seconds that are long enough on a quiet machine.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def on_timeout(self) -> float:
        """The seconds, multiplied by how slow this machine is."""
        return slowness() * self.timeout_s
