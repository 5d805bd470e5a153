"""A hang speaks early: where all ranks are, after some silence, or the whole report at once."""

import html
import math

from IPython import get_ipython
from IPython.display import DisplayHandle

from course_utils.hang.deadlock import Deadlock
from course_utils.hang.report import table
from course_utils.hang.silence import Silence
from course_utils.record.record import Record

_STILL_S, _ALONE_S = 5.0, 1.0


class Early(Silence):
    """In a notebook: where all ranks are, while they may hang and `timeout` is not yet over."""

    _view: DisplayHandle | None = None

    def __init__(self, record: Record, timeout: float) -> None:
        super().__init__(record, _STILL_S if somebody_looks() else math.inf)
        self._timeout, self._alone = timeout, False

    def before(self, world_size: int) -> None:
        """Begin to watch; a rank alone that waits for another does so in vain, whoever looks."""
        super().before(world_size)
        self._alone = world_size == 1
        self.still_s = _ALONE_S if self._alone else self.still_s

    def moved(self) -> None:
        """Take away what is shown."""
        self._show("")

    def silent(self, dead: Deadlock) -> bool:
        """Nothing where no rank waits: a long computation moves nothing that could be seen here."""
        if dead.for_ever:
            return True
        if dead.waits_for and not self._alone:
            still = f"No rank has called anything for {self.still_s:g} s:\n{table(dead)}"
            self._show(f"{still}\nTime is up after {self._timeout:g} s.")
        return False

    def _show(self, text: str) -> None:
        """Show a text, or take away the one that is shown."""
        bundle = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>" * bool(text)}
        if self._view:
            self._view.update(bundle, raw=True)
            self._view = self._view if text else None
        elif text:
            self._view = DisplayHandle()
            self._view.display(bundle, raw=True)


def somebody_looks() -> bool:
    """Whether a person runs this cell: a run that compares outputs could not answer a question."""
    return getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False)
