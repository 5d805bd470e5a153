"""A hang speaks early: a line that appears when no rank has called anything for seconds."""

import contextlib
import html
from collections.abc import Sequence
from time import monotonic

from IPython import get_ipython
from IPython.display import DisplayHandle

from course_utils.hang import whereabouts
from course_utils.hang.facts import together
from course_utils.hang.whereabouts import Whereabouts
from course_utils.launcher.listener import Listener
from course_utils.launcher.member import Member
from course_utils.launcher.stacks import from_dump
from course_utils.launcher.words import ranks_named
from course_utils.record.record import Record

_STILL_S = 5.0


class Early(Listener):
    """In a notebook: where all ranks are, while they may hang and `timeout` is not yet over."""

    _view: DisplayHandle | None = None

    def __init__(self, record: Record, timeout: float) -> None:
        self._record, self._timeout = record, timeout

    def before(self, world_size: int) -> None:
        """Begin to watch."""
        self._seen, self._since, self._asked = [], monotonic(), False

    def tick(self, members: Sequence[Member], final: bool = False) -> None:
        """After some silence ask every rank where it is, and tell it at the next tick."""
        if final:
            self._show("")
        elif (seen := [self._record.counts(), [m.settled for m in members]]) != self._seen:
            self._seen, self._since, self._asked = seen, monotonic(), False
            self._show("")
        elif self._asked:
            if self._since:
                self._show(self._line(members))
            self._since = 0.0  # told
        elif monotonic() - self._since >= _STILL_S:
            self._asked = True
            for member in self._askable(members):
                with contextlib.suppress(OSError):  # it has just ended
                    member.ask_for_stack()

    def _askable(self, members: Sequence[Member]) -> list[Member]:
        """Who has called something: a rank that is still starting would die of the question."""
        return [m for m in members if not m.settled and self._seen[0][m.rank]]

    def _line(self, members: Sequence[Member]) -> str:
        """Nothing where no rank waits: a long computation moves nothing that could be seen here."""
        logs = self._record.logs()
        frames = {m.rank: None if m.settled else from_dump(m.dump()) for m in members}
        for member in members:  # else a rank that dies later would seem to have died there
            member.forget_stack()
        stands = [whereabouts.of(rank, frames[rank], logs[rank]) for rank in frames]
        if not any(one.state == "waiting" for one in stands):
            return ""
        told = together({one.rank: _stand(one) for one in stands}).items()
        where = "; ".join(f"{ranks_named(who)} {what}" for what, who in told)
        silence = f"No rank has called anything for {_STILL_S:g} s"
        return f"{silence}: {where}. Time is up after {self._timeout:g} s."

    def _show(self, text: str) -> None:
        """Show a line, or take away the one that is shown."""
        bundle = {"text/plain": text, "text/html": f"<i>{html.escape(text)}</i>"}
        if self._view:
            self._view.update(bundle, raw=True)
            self._view = self._view if text else None
        elif text and somebody_looks():
            self._view = DisplayHandle()
            self._view.display(bundle, raw=True)


def somebody_looks() -> bool:
    """Whether a person runs this cell: a run that compares outputs could not answer a question."""
    return getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False)


def _stand(one: Whereabouts) -> str:
    """Such as `in all_reduce (cell [3], line 3, in f)`."""
    if one.state in ("returned", "silent"):
        return {"returned": "done", "silent": "without a call"}[one.state]
    where = f" ({one.line.place})" if one.line else ""
    return f"in {one.what}{where}" if one.what else f"running{where}"
