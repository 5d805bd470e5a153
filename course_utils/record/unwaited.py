"""Inside a rank: asynchronous calls of the learner's that nobody waits for.

Until somebody waits, the result is not there, or not whole. Torch lets it pass.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed.distributed_c10d as c10d

from course_utils.record.event import UNWAITED
from course_utils.record.memory import Part, Row
from course_utils.record.waits import somebody_has

# What a program may call to know that a call is complete.
_WAYS = "wait", "is_completed", "synchronize", "block_current_stream", "get_future", "result"


class Unwaited:
    """Those of this rank, until somebody waits for them."""

    def __init__(self, writer: Part) -> None:
        self._writer = writer
        self._works: dict[int, tuple[Any, Row]] = {}  # by id
        self._many = 1  # so many are looked at: who still has them?

    def listen(self) -> None:
        """Take note of everybody who waits, or asks."""
        for name in _WAYS:
            if hasattr(c10d.Work, name):
                setattr(c10d.Work, name, self._noticing(getattr(c10d.Work, name)))

    def _noticing(self, wait: Callable) -> Callable:
        works = self._works

        @functools.wraps(wait)
        def notice_and_wait(work: Any, *args: Any, **options: Any) -> Any:
            works.pop(id(work), None)
            return wait(work, *args, **options)

        return notice_and_wait

    def follow(self, work: Any, issued: Row) -> None:
        """A call has been issued, and the learner gets its work."""
        if len(self._works) >= self._many:
            self._note_lost()
            self._many = 2 * len(self._works) + 1
        self._works[id(work)] = work, issued

    def meet(self, group_name: str) -> None:
        """A barrier of a group ends after all calls of that group before it."""
        for key, (_, issued) in list(self._works.items()):
            if issued.fields["group_name"] == group_name:
                self._works.pop(key, None)

    def forget(self) -> None:
        """In a process that a rank has forked: they are not its own."""
        self._works.clear()

    def note_all(self) -> None:
        """When the function has returned: nobody will wait for these."""
        for _, issued in self._works.values():
            self._note(issued)
        self._works.clear()

    def _note_lost(self) -> None:
        """Of those that nobody has any more, nobody can wait for one."""
        for key, entry in list(self._works.items()):
            if not somebody_has(entry):
                self._note(entry[1])
                self._works.pop(key, None)

    def _note(self, issued: Row) -> None:
        is_kept = self._writer.head.rows - issued.index < len(self._writer.rows)
        if is_kept:  # else a later call has its row
            issued.flags |= UNWAITED
