"""How recording, the report of a hang, the live panel and patience come into a launch."""

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.stacks import Frame
from course_utils.launcher.worker_handle import WorkerHandle


class Listener:
    """Six points of a launch, at each of which nothing happens unless a subclass says so."""

    def on_start(self, world_size: int) -> None:
        """In the kernel, before anything is forked; what it raises ends the launch."""

    def in_worker(self, rank: int) -> AbstractContextManager[object]:
        """In a rank: entered before the process group is made, left when the function has returned.

        An exception of the function passes through it.
        """
        return contextlib.nullcontext()

    def on_poll(self, members: Sequence[WorkerHandle], final: bool = False) -> bool | None:
        """In the kernel, at least ten times a second, and once at the end, started or not.

        True says that the ranks will never be done, which ends the launch.
        """

    def on_timeout(self) -> float:
        """In the kernel, when time is up: how many seconds from the start the ranks get instead.

        Where nobody who listens says more than have passed, the launch ends.
        """
        return 0.0

    def on_error(self, ranks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """In the kernel, when a launch fails, before the ranks are stopped.

        Args:
            ranks: By global rank its stack, outermost first; [] where it gave none, None where its
                function has returned. Empty if the error is no time-out.
            error: Its `parts` may be replaced by better ones.
        """

    def on_exit(self) -> None:
        """In the kernel, when all ranks are gone."""


class ScaledTimeout(Listener):
    """Gives ranks more time where this machine is slow when their time is up.

    Args:
        timeout_s: seconds that are long enough on a quiet machine.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def on_timeout(self) -> float:
        """So many times the seconds as this machine is slow."""
        return slowness() * self.timeout_s
