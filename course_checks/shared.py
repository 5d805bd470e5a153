"""Whether an answer can reach memory that all ranks share, made before they were forked."""

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from course_utils.launcher.language import _
from course_utils.record.frames import is_learners

_NamedValues = Iterator[tuple[str, Any]]

_DEEPEST = 4  # containers within containers that are searched
_LONGEST = 1000  # items of a container that is searched


def shared_value(answer: Any) -> str:
    """The name of a value that an answer can reach and that all ranks share, or an empty string."""
    if isinstance(answer, type):
        if _is_shared(answer, _DEEPEST):
            return answer.__name__
        values = _reached_by_methods(answer, seen=set())
    else:
        values = _reached(answer, seen=set())
    for name, value in values:
        if _is_shared(value, _DEEPEST):
            return name
    return ""


def file_of(function: Any) -> str:
    """The file that a function stands in; an empty string if it is none of Python's."""
    code = getattr(function, "__code__", None)
    return getattr(code, "co_filename", "")


def _reached(function: Any, seen: set[int]) -> _NamedValues:
    """What a function names, its defaults, what it closes over and holds; of its helpers too."""
    if not isinstance(function, FunctionType):
        return
    if id(function) in seen:
        return
    seen.add(id(function))
    for name, value in _values_of(function).items():
        yield name, value
        if isinstance(value, FunctionType) and is_learners(file_of(value)):
            yield from _reached(value, seen)
        kind = value
        if not isinstance(value, type):
            kind = type(value)
        if _is_notebooks(kind):
            yield from _reached_by_methods(kind, seen)


def _values_of(function: FunctionType) -> dict[str, Any]:
    """By name, what a function itself names, has as defaults, closes over and holds."""
    code = function.__code__
    cells = zip(code.co_freevars, _cells(function), strict=True)
    values = dict(cells)
    values.update(function.__kwdefaults__ or {})
    defaults = function.__defaults__ or ()
    name = function.__name__
    values[_("a default of {name}", name=name)] = list(defaults)
    values[_("an attribute of {name}", name=name)] = _attributes(function)
    known = function.__globals__
    for global_name in _names(code):
        if global_name in known:
            values[global_name] = known[global_name]
    return values


def _reached_by_methods(kind: type, seen: set[int]) -> _NamedValues:
    """What the methods of a class reach."""
    for member in vars(kind).values():
        yield from _reached(member, seen)
        # A static method, a class method and a property have a function within.
        for attribute in ("__func__", "fget"):
            function = getattr(member, attribute, None)
            yield from _reached(function, seen)


def _attributes(function: FunctionType) -> dict[str, Any]:
    """What somebody has hung on a function; what it wraps is looked at by itself."""
    attributes = dict(vars(function))
    attributes.pop("__wrapped__", None)
    return attributes


def _is_notebooks(kind: type) -> bool:
    """Whether a class was written in the notebook."""
    return kind.__module__ == "__main__"


def _cells(function: FunctionType) -> Iterator[Any]:
    """The values that a function closes over."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is bound to that name yet
            yield None


def _names(code: CodeType) -> Iterator[str]:
    """All names that a piece of code uses, functions within it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_shared(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_shared()
    if type(value).__module__.startswith(("multiprocessing", "mmap")):
        return True
    if depth == 0:
        return False
    items = _items(value)
    if len(items) > _LONGEST:
        return False
    return any(_is_shared(item, depth - 1) for item in items)


def _items(value: Any) -> Any:
    """What a container holds, or an object or a class of the notebook; else nothing."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set):
        return value
    if isinstance(value, np.ndarray):
        return (value.base,)  # whose memory it is
    if isinstance(value, memoryview):
        return (value.obj,)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, MethodType):
        return (value.__self__,)
    if isinstance(value, type):
        if not _is_notebooks(value):
            return ()
        return vars(value).values()
    kind = type(value)
    if _is_notebooks(kind):
        return (*_instance_attributes(value), kind)
    if kind.__module__ == "types":  # SimpleNamespace
        return _instance_attributes(value)
    return ()


def _instance_attributes(value: Any) -> Any:
    attributes = getattr(value, "__dict__", {})
    return attributes.values()
