"""What DDP has to do with a call, and whether a backward pass ended before its averaging."""

import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from course_utils.record import frames
from course_utils.record.event import BACKWARD, EVALUATES, FORWARD, WRAPS


class Models:
    """The models that a rank has wrapped in DDP.

    Attributes:
        unfinished: Whether one was seen whose backward pass left gradients that nobody averaged.
    """

    def __init__(self, carefully: Callable[..., Any]) -> None:
        self._carefully = carefully
        self._wrapping, self._models = weakref.WeakSet(), weakref.WeakSet()
        self._are_new = False  # asking a WeakSet takes too long for every call
        self.unfinished = False

    def seen(self, caller: FrameType | None) -> tuple[FrameType | None, int]:
        """The learner's frame below a call, and what DDP has to do with the call."""
        if self._are_new:
            self._follow()
        frame = caller
        flags = BACKWARD if caller and caller.f_code.co_name == frames.BACKWARD else 0
        while frame and not frames.is_learners(file := frame.f_code.co_filename):
            if file == frames.DDP and frame.f_code.co_name == "forward":
                training = frame.f_locals["self"].training
                flags |= FORWARD if training else FORWARD | EVALUATES
            elif file == frames.DDP and frame.f_code.co_name == "__init__":
                self._wrapping.add(frame.f_locals["self"])
                self._are_new, flags = True, flags | WRAPS
            frame = frame.f_back
        return frame, flags

    def _follow(self) -> None:
        """See to it that a model's reducer is asked when the model ends."""
        for model in [model for model in self._wrapping if hasattr(model, "reducer")]:
            weakref.finalize(model, self._carefully, self._ask, model.reducer)
            self._models.add(model)
            self._wrapping.discard(model)
        self._are_new = len(self._wrapping) > 0

    def ask(self) -> None:
        """Ask the reducers of all models that are still there."""
        self._follow()
        for model in list(self._models):
            self._ask(model.reducer)

    def _ask(self, reducer: Any) -> None:
        if threading.active_count() == 1:  # else another one's backward may hold what we ask for
            try:
                reducer._check_reducer_finalized()
            except RuntimeError:
                self.unfinished = True
