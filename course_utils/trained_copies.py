"""A model of the notebook that only ranks have trained: each has changed a copy of its own."""

import builtins
import contextlib
import inspect
import mmap
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from course_utils.launcher.language import _
from course_utils.launcher.listener import Listener

_was_told = False  # once in a kernel is enough
_WEIGHTS = 8  # tensors of a model that are compared
_NUMBERS = 1000  # of each


class TrainedCopies(Listener):
    """Sees whether ranks have changed weights of models that are the notebook's.

    Args:
        fn: what each rank runs.
        args: its arguments.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        self._models = _models(fn, args)

    def on_start(self, world_size: int) -> None:
        """Make the memory in which each rank says whether it has changed a model."""
        size = max(1, world_size * len(self._models))
        self._changed = mmap.mmap(-1, size)

    @contextlib.contextmanager
    def in_worker(self, rank: int) -> Iterator[None]:
        """Compare some weights of each model before and after."""
        models = self._models.values()
        before = [_sample(model) for model in models]
        yield
        first_place = rank * len(models)
        for number, model in enumerate(models):
            after = _sample(model)
            if _differ(before[number], after):
                self._changed[first_place + number] = 1

    def on_exit(self) -> None:
        """Read what ranks have said, and give the memory back."""
        has_changed = bytes(self._changed)
        self._changed.close()
        self._names = []
        for number, name in enumerate(self._models):
            by_rank = has_changed[number :: len(self._models)]
            if any(by_rank):
                self._names.append(name)

    def sentence(self, results: Sequence[Any]) -> str:
        """What is to be said of it, unless ranks have returned something, or it was said before."""
        global _was_told
        if _was_told or not self._names:
            return ""
        returned_nothing = all(result is None for result in results)
        if not returned_nothing:
            return ""
        _was_told = True
        return _(
            "launch: the ranks have changed {name}, each its own copy, and returned nothing: in "
            "the notebook it is as it was. Return {name}.state_dict() and load that here, or "
            "save it.",
            name=self._names[0],
        )


def _sample(model: nn.Module) -> list[torch.Tensor]:
    """Some numbers of some weights, as they are now."""
    weights = list(model.parameters())
    every = max(1, len(weights) // _WEIGHTS)
    sample = []
    with contextlib.suppress(Exception):  # a lazy module, or one on no device, has no numbers
        for weight in weights[::every]:
            numbers = weight.detach().reshape(-1)
            first_numbers = numbers[:_NUMBERS]
            # A rank may have moved its weights to a GPU: both samples are compared on the CPU.
            sample.append(first_numbers.to("cpu", copy=True))
    return sample


def _differ(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    if len(before) != len(after):  # layers were added, or made for the first time
        return False
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            continue
        if not torch.equal(old, new):
            return True
    return False


def _models(fn: Callable[..., Any], args: Sequence[Any]) -> dict[str, nn.Module]:
    """By its name, each model that the function is handed, or finds around it."""
    values = {}
    with contextlib.suppress(TypeError, ValueError):  # a function in C may not tell its parameters
        signature = inspect.signature(fn)
        bound = signature.bind(*args)
        values.update(bound.arguments)
    values.update(_found_around(fn, set()))
    models = {}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            models[name] = value
    return models


def _found_around(fn: Any, seen: set[int]) -> dict[str, Any]:
    """The variables outside of a function which it names, and those of functions among them."""
    if not isinstance(fn, FunctionType) or id(fn) in seen:
        return {}
    seen.add(id(fn))
    module = fn.__globals__
    variables = dict(inspect.getclosurevars(fn).nonlocals)
    for name in sorted(_names(fn.__code__)):
        if name in module and not hasattr(builtins, name):
            variables[name] = module[name]
    for value in list(variables.values()):
        if getattr(value, "__globals__", None) is module:
            variables = _found_around(value, seen) | variables
    return variables


def _names(code: CodeType) -> set[str]:
    """All names in a function, and in those that it defines."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
