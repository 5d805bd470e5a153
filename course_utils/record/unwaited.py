"""Inside a rank: asynchronous calls of the learner's that nobody waits for.

Until somebody waits, the result may be missing or incomplete. Torch says nothing about it.
"""

from collections.abc import Callable
from typing import Any

from course_utils.launcher import torch_private
from course_utils.launcher.torch_private import C10D
from course_utils.record.event import UNWAITED
from course_utils.record.memory import Part, Row
from course_utils.record.waits import Entry, somebody_has

# Methods of a work that a program may call to learn that it is complete.
_METHODS = "wait", "is_completed", "synchronize", "block_current_stream", "get_future", "result"


class Unwaited:
    """The calls of this rank that nobody has waited for so far."""

    def __init__(self, writer: Part) -> None:
        self._writer = writer
        self._works: dict[int, Entry] = {}  # by id of the work
        self._sees_all = True  # else it can't be said of a call that nobody waits for it
        self._check_at_count = (
            1  # once there are so many, drop those that nobody else holds any more
        )

    def listen(self) -> None:
        """Notice everybody who waits, or asks whether a work is complete."""
        names = [f"{C10D}:Work.{method}" for method in _METHODS]
        if None in map(torch_private.find, names):
            self._sees_all = False
            return
        for name in names:
            torch_private.wrap(name, self._wrap)

    def _wrap(self, method: Callable) -> Callable:
        """Extend a method of a work: whoever calls it has waited for the work."""
        works = self._works

        def notice_and_wait(work: Any, *args: Any, **options: Any) -> Any:
            works.pop(id(work), None)
            return method(work, *args, **options)

        return notice_and_wait

    def follow(self, entry: Entry) -> None:
        """A call has been issued, and the learner gets its work."""
        if not self._sees_all:
            return
        if len(self._works) >= self._check_at_count:
            self._note_lost()
            self._check_at_count = 2 * len(self._works) + 1
        self._works[id(entry.work)] = entry

    def end_by_barrier(self, group_name: str) -> None:
        """A barrier ends after all calls that were made before it in the same group."""
        for key, entry in list(self._works.items()):
            if entry.row.fields["group_name"] == group_name:
                self._works.pop(key, None)

    def forget(self) -> None:
        """In a process that a rank has forked: these calls are the rank's."""
        self._works.clear()

    def note_all(self) -> None:
        """When the function has returned: nobody will wait for the remaining calls."""
        for entry in self._works.values():
            self._note(entry.row)
        self._works.clear()

    def _note_lost(self) -> None:
        """If nobody holds a work any more, nobody can wait for it."""
        for key, entry in list(self._works.items()):
            if not somebody_has(entry):
                self._note(entry.row)
                self._works.pop(key, None)

    def _note(self, issued: Row) -> None:
        if self._writer.still_has(issued):
            issued.flags |= UNWAITED
