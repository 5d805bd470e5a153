"""A hang speaks early: where all ranks are, after some silence, or the whole report at once."""

import html
import math

from IPython import get_ipython
from IPython.display import DisplayHandle

from course_utils.hang.deadlock import Deadlock
from course_utils.hang.report import Silence, table
from course_utils.record.record import Record

_STILL_S, _ALONE_S = 5.0, 1.0


class Early(Silence):
    """In a notebook: where all ranks are, while they may hang and `timeout` is not yet over."""

    _view: DisplayHandle | None = None

    def __init__(self, record: Record, timeout: float) -> None:
        super().__init__(record, _STILL_S if somebody_looks() else math.inf)
        self._timeout = timeout

    def before(self, world_size: int) -> None:
        """Begin to watch; a rank alone can only wait in vain, whoever looks."""
        super().before(world_size)
        self.still_s = _ALONE_S if world_size == 1 else self.still_s

    def silent(self, dead: Deadlock) -> bool:
        """Nothing where no rank waits: a long computation moves nothing that could be seen here."""
        if not dead.for_ever and dead.waits_for:
            still = f"No rank has called anything for {self.still_s:g} s:\n{table(dead)}"
            self.moved(f"{still}\nTime is up after {self._timeout:g} s.")
        return dead.for_ever

    def moved(self, text: str = "") -> None:
        """Take away what is shown, and show a text."""
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
