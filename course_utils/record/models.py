"""Inside a rank: whether the gradients of its DDP models have been averaged.

Nothing here disturbs a model. DDP itself holds the nodes of the graph that take in gradients, and
a few of these are listened to until the first gradient has come.
"""

import contextlib
import threading
import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from course_utils.record.event import BACKWARD, FORWARD, UNAVERAGED, UNFINISHED, WRAPS

_WATCHED = 8  # parameters of a model, of which at least one takes part in every loss


class Models:
    """All models that the rank has wrapped in DDP."""

    def __init__(self) -> None:
        self._ends: list[weakref.finalize] = []
        self._unfinished = self._unaveraged = self._averages = False
        self._bytes = 0  # that calls of anybody else but DDP have handed in

    def follow(self, model: DistributedDataParallel) -> None:
        """See to it that the end of a model is noticed."""
        trained = _Trained(model)
        end = weakref.finalize(model, self._ask, model.reducer, trained)
        self._ends.append(end)

    def note(self, size: int, flags: int) -> None:
        """A call has handed in so many bytes."""
        if flags & BACKWARD:
            self._averages = True
        elif not flags & (FORWARD | WRAPS):
            self._bytes += size

    def flags(self) -> int:
        """When the function has returned: what has gone wrong, as flags of an event."""
        for end in self._ends:
            end()
        if self._unfinished:
            return UNFINISHED
        return UNAVERAGED if self._unaveraged else 0

    def _ask(self, reducer: Any, trained: "_Trained") -> None:
        """At a model's end: has a backward pass left gradients that nobody averaged?"""
        by_hand = self._bytes >= trained.bytes
        if trained.is_stepped() and not self._averages and not by_hand:
            self._unaveraged = True
        if threading.active_count() == 1:  # else another one's backward may hold what we ask for
            try:
                reducer._check_reducer_finalized()
            except RuntimeError:
                self._unfinished = True


class _Trained:
    """Whether parameters of a model were changed after they had got gradients."""

    def __init__(self, model: DistributedDataParallel) -> None:
        parameters = [weight for weight in model.module.parameters() if weight.requires_grad]
        self.bytes = sum(weight.nbytes for weight in parameters)
        self._versions: list[tuple[torch.Tensor, int]] = []  # when the first gradient had come
        self._hooks: list[Any] = []
        self._model = weakref.ref(model)
        if model.process_group.size() > 1:
            step = max(1, len(parameters) // _WATCHED)
            for weight in parameters[::step]:
                node = torch.autograd.graph.get_gradient_edge(weight).node
                self._hooks.append(node.register_hook(self._has_gradient))

    def _has_gradient(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # else it would end the learner's backward pass
            for hook in self._hooks:
                hook.remove()
            model = self._model()
            # With a hook for its communication, what DDP averages is the learner's own affair.
            if model is not None and not getattr(model, "_comm_hooks", None):
                weights = [weight for weight in model.module.parameters() if weight.requires_grad]
                self._versions = [(weight, weight._version) for weight in weights]

    def is_stepped(self) -> bool:
        return any(weight._version > version for weight, version in self._versions)
