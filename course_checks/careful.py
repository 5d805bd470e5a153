"""Results of answers are written and read as plain data, so they bring no code with them.

A number's class may say that it equals any other number, and a pickle may name any function to be
called when it is read. So a rank hands over what its result holds (`plain`), and the judge reads
types of data only (`unpack`). A notebook and a grader do the same.
"""

import contextlib
import io
import pickle
from collections import deque
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from course_utils.launcher import torch_private
from course_utils.launcher.language import _

_DATA = {
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "course_utils.launcher.transport": {"_rebuild"},
    "course_utils.launcher.errors": {"Failure"},
    "course_utils.launcher.shutdown": {"PendingWork"},
    "course_utils.record.event": {"Event"},
    "course_utils.launcher.stacks": {"Frame"},
    "course_utils.network.trace": {"Trace"},
    "course_checks.outcome": {"Outcome", "Row"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "torch": {"Generator", "Size", "Tensor", "device"},
    "torch.nn.parameter": {"Parameter"},
}


def plain(value: Any) -> Any:
    """What a result holds, without its own class: a named tuple as a tuple, an IntEnum as an int.

    Methods are called on the plain type, such as `dict.items(value)`, since a subclass may override
    them.
    """
    if isinstance(value, Tensor):
        return _plain_tensor(value)
    if isinstance(value, np.generic):  # before floats: some numbers of numpy are floats as well
        return value
    if isinstance(value, np.ndarray):
        return np.ndarray.view(value, np.ndarray)
    if isinstance(value, dict):
        plain_dict = {}
        for key, item in dict.items(value):
            plain_dict[plain(key)] = plain(item)
        return plain_dict
    for kind in (list, tuple, set, frozenset, deque):
        if isinstance(value, kind):
            items = kind.__iter__(value)
            return kind(map(plain, items))
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    kind = type(value)
    if kind in (bool, int, float, str):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    return value


def _plain_tensor(value: Tensor) -> Tensor:
    kind = type(value)
    if kind in (Tensor, torch.nn.Parameter):
        return value
    if hasattr(value, "full_tensor") or hasattr(value, "trigger_wait"):
        return value  # torch's own: a part of a tensor, or one that is on its way; see `transport`
    disable = torch_private.find("torch._C:DisableTorchFunctionSubclass") or contextlib.nullcontext
    with disable():
        return value.as_subclass(Tensor)


def unpack(stream: bytes) -> Any:
    """Read a packed result; raises UnpicklingError if it holds more than data."""
    file = io.BytesIO(stream)
    return Unpickler(file).load()


class Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
    """Python's own unpickler, not the one in C: here an instruction can be refused."""

    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of data, and nothing else."""
        if module == "torch":
            constant = getattr(torch, name, None)
            if isinstance(constant, torch.dtype | torch.layout):
                return constant
        if name not in _DATA.get(module, ()):
            kind = f"{module}.{name}"
            message = _("{kind} is no type of data that a check compares", kind=kind)
            raise pickle.UnpicklingError(message)
        return super().find_class(module, name)

    def load_build(self) -> None:
        """Give an object its attributes, unless it is a class."""
        if isinstance(self.stack[-2], type):
            raise pickle.UnpicklingError(_("a result must not change a class"))
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build
