"""What DDP has to do with a call, and whether a backward pass ended before its averaging."""

import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from course_utils.record.event import EVALUATES, FORWARD, WRAPS


class Models:
    """The models that a rank has wrapped in DDP.

    Attributes:
        unfinished: Whether one was seen whose backward pass left gradients that nobody averaged.
    """

    def __init__(self, carefully: Callable[..., Any]) -> None:
        self._carefully = carefully
        self._wrapping, self._models = weakref.WeakSet(), weakref.WeakSet()
        self.wrapping = False  # asking a WeakSet takes too long for every call
        self.unfinished = False

    def flags(self, frame: FrameType) -> int:
        """What a frame of DDP, below a call, says of it."""
        if frame.f_code.co_name not in ("forward", "__init__"):
            return 0
        model = frame.f_locals["self"]
        if frame.f_code.co_name == "__init__":
            self._wrapping.add(model)
            self.wrapping = True
            return WRAPS
        return FORWARD | (0 if model.training else EVALUATES)

    def follow(self) -> None:
        """See to it that a model's reducer is asked when the model ends."""
        for model in [model for model in self._wrapping if hasattr(model, "reducer")]:
            weakref.finalize(model, self._carefully, self._ask, model.reducer)
            self._models.add(model)
            self._wrapping.discard(model)
        self.wrapping = len(self._wrapping) > 0

    def ask(self) -> None:
        """Ask the reducers of all models that are still there."""
        self.follow()
        for model in list(self._models):
            self._ask(model.reducer)

    def _ask(self, reducer: Any) -> None:
        if threading.active_count() == 1:  # else another one's backward may hold what we ask for
            try:
                reducer._check_reducer_finalized()
            except RuntimeError:
                self.unfinished = True
