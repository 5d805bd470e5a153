"""When no rank has called anything for a while: where they all are, long before time is up."""

import contextlib
from collections.abc import Sequence
from time import monotonic

from course_utils.hang.deadlock import Deadlock
from course_utils.hang.report import HangReport
from course_utils.launcher.member import Member
from course_utils.launcher.stacks import from_dump
from course_utils.record.record import Record


class Silence(HangReport):
    """Asks all ranks after `still_s` seconds, and ends a launch that is proven to hang for ever."""

    def __init__(self, record: Record, still_s: float) -> None:
        super().__init__(record)
        self.still_s = still_s

    def before(self, world_size: int) -> None:
        """Begin to watch."""
        self._seen, self._since, self._asked = [], monotonic(), False

    def tick(self, members: Sequence[Member], final: bool = False) -> bool:
        """Ask, and at the next tick see what that says."""
        if final:  # perhaps of a launch that has never begun
            self.moved()
        elif (seen := [self._record.counts(), [m.settled for m in members]]) != self._seen:
            self._seen, self._since, self._asked = seen, monotonic(), False
            self.moved()
        elif self._asked and self._since:
            self._since = 0.0  # told
            stacks = {m.rank: None if m.settled else from_dump(m.dump()) for m in members}
            for member in members:  # else a rank that dies later would seem to have died there
                member.forget_stack()
            return self.silent(self.deadlock(stacks, monotonic()))
        elif not self._asked and monotonic() - self._since >= self.still_s:
            self._asked = True
            for member in members:
                with contextlib.suppress(OSError):  # it has just ended
                    if not member.settled:
                        member.ask_for_stack()
        return False

    def moved(self) -> None:
        """Some rank has called something, or has ended."""

    def silent(self, dead: Deadlock) -> bool:
        """None has; returns whether the launch shall end."""
        return dead.for_ever
