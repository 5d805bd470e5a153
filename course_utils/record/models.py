"""Inside a rank: whether its DDP models' gradients were averaged, and what their weights became.

Nothing in here disturbs a model. DDP itself keeps the nodes of the graph that accumulate gradients
alive. Hooks listen to a few of them until the first gradient arrives, and to three of them always.
"""

import contextlib
import threading
import weakref
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_utils.launcher import torch_private
from course_utils.record.event import BACKWARD, DDP_INIT, FORWARD, UNAVERAGED, UNFINISHED, UNHEARD

# Parameters of a model that are listened to; at least one should take part in every loss.
_LISTENED_TO = 8
_COMPARED = 3  # parameters of a model some of whose numbers are compared between ranks
_NUMBERS = 200  # of each
_COMM_HOOKS = "torch.nn.parallel:DistributedDataParallel._comm_hooks"


class Models:
    """All models that the rank has wrapped in DDP."""

    def __init__(self) -> None:
        self._finalizers: list[weakref.finalize] = []
        self._unfinished = False  # whether some model's reducer was left with open buckets
        self._unaveraged = False  # whether some model was trained on gradients of one rank
        self._unheard = False  # whether parameters were trained whose gradients DDP didn't hear of
        # By id: each parameter for whose gradient a DDP model listens, and its dtype at that time.
        self._heard: dict[int, tuple[weakref.ref, torch.dtype]] = {}
        self._ddp_averages = False  # whether any call came from a backward pass
        self._elements = 0  # of tensors handed in by calls that were not DDP's
        # By a model's position: the number of gradients seen, and a checksum of its last weights.
        self._checksums: dict[int, tuple[int, int]] = {}

    def follow(self, model: DistributedDataParallel) -> None:
        """Arrange for the end of a model to be noticed."""
        training = _Training(model)
        position = len(self._finalizers)
        finalizer = weakref.finalize(model, self._judge, model.reducer, training, position)
        self._finalizers.append(finalizer)
        for weight in model.module.parameters():
            if weight.requires_grad:
                self._heard[id(weight)] = weakref.ref(weight), weight.dtype

    def _is_heard(self, weight: torch.Tensor) -> bool:
        """Whether DDP hears of a parameter's gradient.

        Of one that was converted since, torch makes a new node of the graph, which DDP doesn't
        know. Where DDP has averaged, that may have been after the training, for an evaluation.
        """
        reference, dtype = self._heard.get(id(weight), (None, None))
        if reference is None or reference() is not weight:
            return False
        return dtype == weight.dtype or self._ddp_averages

    def note(self, elements: int, flags: int) -> None:
        """Note that a call has handed in tensors with so many elements in all."""
        if flags & BACKWARD:
            self._ddp_averages = True
        elif not flags & (FORWARD | DDP_INIT):
            self._elements += elements

    def flags(self) -> int:
        """When the function has returned: what has gone wrong, as a flag of an event.

        At most one flag: an earlier test may find the cause of what a later one finds.
        """
        for finalizer in self._finalizers:
            finalizer()
        if self._unfinished:
            return UNFINISHED
        if self._unheard:
            return UNHEARD
        if self._unaveraged:
            return UNAVERAGED
        return 0

    def checksums(self) -> tuple[tuple[int, int], ...]:
        """By model, as they were wrapped: the gradients seen, and a checksum of its last weights.

        The checksum is 0 where nothing says that the weights of all ranks should be equal. Asked
        after `flags`.
        """
        unknown = (0, 0)
        checksums = []
        for position in range(len(self._finalizers)):
            seen_and_checksum = self._checksums.get(position, unknown)
            checksums.append(seen_and_checksum)
        return tuple(checksums)

    def _judge(self, reducer: Any, training: "_Training", position: int) -> None:
        """At a model's end: what became of its weights, and what has gone wrong with gradients."""
        self._note_checksum(training, position)
        by_hand = self._elements >= training.elements
        if training.has_stepped() and not self._ddp_averages and not by_hand:
            self._unaveraged = True
        unheard = [weight for weight in training.trained() if not self._is_heard(weight)]
        if self._elements < sum(weight.numel() for weight in unheard):
            self._unheard = True
        if _has_open_buckets(reducer):
            self._unfinished = True

    def _note_checksum(self, training: "_Training", position: int) -> None:
        """Note the last weights of a model that should be the same on all ranks."""
        if self._ddp_averages and training.is_everybodys:
            with contextlib.suppress(Exception):  # a GPU may be in no state to be asked
                last_weights = checksum(training.last_numbers)
                self._checksums[position] = training.gradients_seen, last_weights


def _has_open_buckets(reducer: Any) -> bool:
    """Whether the last backward pass left buckets of DDP's that were never reduced."""
    if threading.active_count() > 1:
        return False  # the backward pass of a different thread may hold the reducer's lock
    name = "torch.distributed:Reducer._check_reducer_finalized"
    check = torch_private.find_in(reducer, name)
    if check is None:
        return False
    try:
        check()
    except RuntimeError:
        return True
    return False


class _Training:
    """Whether parameters of a model were changed after they had got gradients."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        parameters = self._parameters(model)
        self.elements = sum(parameter.numel() for parameter in parameters)
        # Whether all ranks of the launch are to train it alike. With a communication hook, the
        # learner decides what is averaged, and when.
        self.is_everybodys = model.process_group.size() == dist.get_world_size()
        # By position, some numbers of some weights as they were at the last backward pass. Later, a
        # rank may load others, such as the best for an evaluation.
        self.last_numbers: dict[int, torch.Tensor] = {}
        self.gradients_seen = 0  # a rank with fewer batches than others has fewer
        # Each parameter's version at the first gradient.
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._hooks: list[Any] = []
        self._at_wrapping: list[tuple[weakref.ref, int]] = []  # each parameter, and its version
        if model.process_group.size() == 1:
            return
        weights = list(model.module.parameters())
        references = map(weakref.ref, weights)
        self._at_wrapping.extend(zip(references, _versions(weights), strict=True))
        self._listen_to_first_gradient(parameters)
        self._compare_weights(parameters)

    def _listen_to_first_gradient(self, parameters: list[torch.Tensor]) -> None:
        """Have the first gradient of about `_LISTENED_TO` parameters noticed, up to twice that."""
        step = max(1, len(parameters) // _LISTENED_TO)
        for parameter in parameters[::step]:
            edge = torch.autograd.graph.get_gradient_edge(parameter)
            hook = edge.node.register_hook(self._first_gradient)
            self._hooks.append(hook)

    def _compare_weights(self, parameters: list[torch.Tensor]) -> None:
        """Keep numbers of about `_COMPARED` parameters, up to twice that, for the checksum."""
        compared = [weight for weight in parameters if weight.is_contiguous()]  # others are copied
        step = max(1, len(compared) // _COMPARED)
        for position, parameter in enumerate(compared[::step]):
            self._keep_numbers(position, parameter)

    def _keep_numbers(self, position: int, parameter: torch.Tensor) -> None:
        """Keep some of a parameter's numbers at each of its gradients. It takes 10 us."""
        optimizers = "torch.nn:Parameter._in_backward_optimizers"
        if torch_private.find_in(parameter, optimizers) is not None:  # it may have changed by then
            self.is_everybodys = False
            return
        reference = weakref.ref(parameter)

        def keep(*_: object) -> None:
            weight = reference()
            if weight is None:
                return
            with contextlib.suppress(Exception):  # it would end the learner's backward pass
                self.gradients_seen += 1
                self.last_numbers[position] = weight.detach().flatten()[:_NUMBERS].clone()

        edge = torch.autograd.graph.get_gradient_edge(parameter)
        edge.node.register_hook(keep)

    def _parameters(self, model: DistributedDataParallel) -> list[torch.Tensor]:
        return [weight for weight in model.module.parameters() if weight.requires_grad]

    def _first_gradient(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # it would end the learner's backward pass
            for hook in self._hooks:
                hook.remove()
            model = self._model()
            # With a communication hook, the learner decides what DDP averages.
            if model is None or torch_private.find_in(model, _COMM_HOOKS):
                self.is_everybodys = False
                return
            parameters = self._parameters(model)
            self._versions = list(zip(parameters, _versions(parameters), strict=True))

    def has_stepped(self) -> bool:
        """Whether any parameter has changed since the first gradient."""
        parameters = [parameter for parameter, _version in self._versions]
        now = zip(_versions(parameters), self._versions, strict=True)
        return any(version > first for version, (_parameter, first) in now)

    def trained(self) -> list[torch.Tensor]:
        """Parameters that have a gradient, and have changed since the model was wrapped."""
        parameters = []
        for reference, version in self._at_wrapping:
            parameter = reference()
            if parameter is None or parameter.grad is None or not parameter.requires_grad:
                continue
            if _versions([parameter])[0] > version:
                parameters.append(parameter)
        return parameters


def _versions(parameters: list[torch.Tensor]) -> list[int]:
    """How often each has been changed in place; zeros where torch doesn't say."""
    version = torch_private.find("torch:Tensor._version")
    if version is None:
        return [0] * len(parameters)
    return list(map(version.__get__, parameters))


def checksum(numbers: dict[int, torch.Tensor]) -> int:
    """A number that is the same where tensors have the same bits.

    Args:
        numbers: one-dimensional tensors of any dtype, by position.

    Returns:
        At least 1; 0 if some are on a GPU that is still at work, which isn't waited for.
    """
    bits = b""
    for position in sorted(numbers):
        tensor = numbers[position]
        if tensor.is_cuda and not torch.cuda.current_stream(tensor.device).query():
            return 0
        as_bytes = tensor.cpu().view(torch.uint8)
        bits += bytes(as_bytes.tolist())
    return zlib.crc32(bits) + 1
