"""Whether a result is what was wanted, and both in a few words."""

import math
import re
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from course_utils.launcher.language import _, ngettext

# Relative and absolute, by dtype. A plain number may have come from float32; a tensor says.
_TOLERANCES: dict[Any, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    float: (1.3e-6, 1e-7),
}
_PRECISE = 1e-10, 1e-10  # in double precision, and in whole numbers
_FROM_NUMPY = (np.ndarray, np.number, np.bool_)
_MOST_VALUES = 8  # of a tensor that are shown
_WIDEST = 72  # characters of anything that is shown
_TEMPORARY = re.escape(tempfile.gettempdir())
# Addresses of objects, temporary folders, ports.
_UNSTABLE = re.compile(rf" at 0x[0-9a-f]+|{_TEMPORARY}/(?:[\w.-]+/)*|(?<='127.0.0.1', )\d+")

Tolerance = tuple[float | None, float | None]  # relative, absolute; None for the dtype's own
Dtypes = Collection[torch.dtype]


def difference(
    wanted: Any, got: Any, tolerance: Tolerance = (None, None), given: Dtypes = ()
) -> str | None:
    """Say how `got` differs from what is wanted, or None; however it is written.

    A list may be a tuple, or a tensor of the same length. A number may be one of numpy, or a tensor
    without dimensions. A float may be a whole number. A dict may be a Counter. Where its values are
    of several kinds, so that its keys are names, it may have further ones. A tensor may have a
    different dtype that holds such numbers, unless ranks were `given` tensors of the wanted one.

    Args:
        wanted: What is wanted.
        got: What an answer has returned.
        tolerance: For floating-point numbers.
        given: The dtypes of the tensors that the ranks had as arguments.
    """
    try:
        return _Comparison(tolerance, given).difference(wanted, got)
    except Exception as error:  # such as of the result's own __eq__
        wanted_kind = _kind(wanted)
        kind = _kind(got)
        exception = type(error).__name__
        return _(
            "wanted {wanted}, got {got}: {exception}: {error}",
            wanted=wanted_kind,
            got=kind,
            exception=exception,
            error=error,
        )


class _Comparison:
    """Compares with one tolerance; see `difference`."""

    def __init__(self, tolerance: Tolerance, given: Dtypes) -> None:
        self._tolerance = tolerance
        self._given = given

    def difference(self, wanted: Any, got: Any) -> str | None:
        """As the function of this name, but lets exceptions through."""
        wanted = _as_tensor(wanted)
        got = _as_tensor(got)
        if isinstance(wanted, Tensor):
            return self._of_tensors(wanted, got)
        if isinstance(wanted, list | tuple):
            return self._of_sequences(wanted, got)
        if isinstance(wanted, dict) and isinstance(got, dict):
            return self._of_dicts(wanted, got)
        return self._of_values(wanted, got)

    def _of_dicts(self, wanted: dict, got: dict) -> str | None:
        if not _are_keys_of(wanted, got):
            wanted_keys = list(wanted)
            keys = list(got)
            return _("wanted the keys {wanted}, got {got}", wanted=wanted_keys, got=keys)
        return self._of_items(wanted, wanted, got)

    def _of_sequences(self, wanted: list | tuple, got: Any) -> str | None:
        if isinstance(got, Tensor) and got.dim():
            got = list(got)
        if isinstance(got, str | bytes):  # which are sequences as well
            return self._of_values(wanted, got)
        if not isinstance(got, Sequence):
            return self._of_values(wanted, got)
        wanted_length = len(wanted)
        length = len(got)
        if wanted_length != length:
            return ngettext(
                "wanted {wanted} item, got {got}",
                "wanted {wanted} items, got {got}",
                wanted_length,
                wanted=wanted_length,
                got=length,
            )
        return self._of_items(range(length), wanted, got)

    def _of_items(self, keys: Iterable, wanted: Any, got: Any) -> str | None:
        for key in keys:
            differs = self.difference(wanted[key], got[key])
            if differs:
                return _of_item(key, differs)
        return None

    def _of_values(self, wanted: Any, got: Any) -> str | None:
        if isinstance(wanted, int | float):
            got = _number(got)
        if not _is_of_same_kind(wanted, got):
            return _mismatch(wanted, got)
        if isinstance(wanted, float):
            is_same = self._is_close(wanted, got)
        else:
            is_same = wanted == got
        if is_same:
            return None
        return _unlike(wanted, got)

    def _is_close(self, wanted: float, got: float) -> bool:
        if math.isnan(wanted):
            return math.isnan(got)
        relative, absolute = self._tolerances(float)
        return math.isclose(wanted, got, rel_tol=relative, abs_tol=absolute)

    def _tolerances(self, dtype: Any) -> tuple[float, float]:
        """Relative and absolute."""
        relative, absolute = self._tolerance
        relative_of_dtype, absolute_of_dtype = _TOLERANCES.get(dtype, _PRECISE)
        if relative is None:
            relative = relative_of_dtype
        if absolute is None:
            absolute = absolute_of_dtype
        return relative, absolute

    def _of_tensors(self, wanted: Tensor, got: Any) -> str | None:
        given = self._given
        if _is_number(got) and not wanted.dim():
            got = _scalar_tensor(got)
            given = ()
        if not isinstance(got, Tensor):
            return _mismatch(wanted, got)
        differs = self._of_layout_dtype_or_shape(wanted, got, given)
        if differs:
            return self._with_number(differs, wanted, got)
        return self._of_elements(wanted.detach(), got.detach())

    def _with_number(self, differs: str, wanted: Tensor, got: Tensor) -> str:
        """What is wrong beside the shape, where there is a single number."""
        is_one_number = wanted.numel() == got.numel() == 1
        is_plain = wanted.layout == got.layout == torch.strided
        if not is_one_number or not is_plain or wanted.shape == got.shape:
            return differs
        wanted_number = wanted.detach().reshape(())
        got_number = got.detach().reshape(())
        number = self._of_elements(wanted_number, got_number)
        if number is None:
            return differs
        return _(
            "{difference}, and the number is wrong as well: {number}",
            difference=differs,
            number=number,
        )

    @staticmethod
    def _of_layout_dtype_or_shape(wanted: Tensor, got: Tensor, given: Dtypes) -> str | None:
        if wanted.layout != got.layout:
            wanted_layout = _short(wanted.layout)
            layout = _short(got.layout)
            return _("wanted layout {wanted}, got {got}", wanted=wanted_layout, got=layout)
        if not _is_dtype_right(wanted.dtype, got.dtype, given):
            wanted_dtype = _short(wanted.dtype)
            dtype = _short(got.dtype)
            return _("wanted dtype {wanted}, got {got}", wanted=wanted_dtype, got=dtype)
        wanted_shape = tuple(wanted.shape)
        shape = tuple(got.shape)
        if wanted_shape != shape:
            return _("wanted shape {wanted}, got {got}", wanted=wanted_shape, got=shape)
        return None

    def _of_elements(self, wanted: Tensor, got: Tensor) -> str | None:
        close = self._close(wanted, got)
        if close.all():
            return None
        far = ~close
        first_far = far.nonzero()[0]
        place = first_far.tolist()
        index = tuple(place)
        wanted_number = wanted[index].item()
        number = got[index].item()
        differs = _unlike(wanted_number, number)
        if not place:
            return differs
        return _("element {place}: {difference}", place=place, difference=differs)

    def _close(self, wanted: Tensor, got: Tensor) -> Tensor:
        """By element, whether it is near enough."""
        dtype = wanted.dtype
        has_fractions = dtype.is_floating_point or dtype.is_complex
        if not has_fractions:
            return got == wanted
        tolerances = self._tolerances(dtype)
        tolerances_of_got = self._tolerances(got.dtype)
        relative, absolute = max(tolerances, tolerances_of_got)  # the wider one
        near = got.to(dtype)
        return torch.isclose(near, wanted, rtol=relative, atol=absolute, equal_nan=True)


def _is_of_same_kind(wanted: Any, got: Any) -> bool:
    """Whether two values can be compared: a float with a whole number too, a bool with a bool."""
    if isinstance(got, bool):
        return isinstance(wanted, bool)
    if isinstance(wanted, float):
        return isinstance(got, int | float)
    return isinstance(got, type(wanted))


def _number(value: Any) -> Any:
    """A tensor without dimensions as the number in it; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.dim():
        return value
    return value.item()


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float)


def _scalar_tensor(number: int | float) -> Tensor:
    """A number as a tensor without dimensions, a float in double precision."""
    if isinstance(number, float):
        return torch.tensor(number, dtype=torch.float64)
    return torch.tensor(number)


def _as_tensor(value: Any) -> Any:
    """What numpy has made, as torch would have."""
    if isinstance(value, _FROM_NUMPY):
        return torch.as_tensor(np.array(value))
    return value


def _are_keys_of(wanted: dict, got: dict) -> bool:
    """Whether a dict has the wanted keys, and no others that it may not have."""
    if not wanted.keys() <= got.keys():
        return False
    further_keys = got.keys() - wanted.keys()
    if not further_keys:
        return True
    kinds = {type(item) for item in wanted.values()}
    if len(kinds) > 1:
        return True
    if kinds != {int}:
        return False
    return all(not got[key] for key in further_keys)  # a Counter may have counts of zero


def _is_dtype_right(wanted: torch.dtype, got: torch.dtype, given: Dtypes) -> bool:
    """Whether a tensor has the wanted dtype, or one that does as well."""
    if wanted == got:
        return True
    if wanted in given:
        return False
    return _holds(got, wanted)


def _holds(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers of the wanted dtype may just as well be of this one."""
    if torch.bool in (dtype, wanted):
        return False
    if dtype.is_complex or wanted.is_complex:
        return False
    return wanted.is_floating_point or not dtype.is_floating_point


def _unlike(wanted: Any, got: Any) -> str:
    """Such as `wanted 3, got 4`, with as many digits, or from where on, as it takes to differ."""
    wanted_text = brief(wanted)
    got_text = brief(got)
    if wanted_text == got_text:
        wanted_in_full = repr(wanted)
        got_in_full = repr(got)
        wanted_text, got_text = _around_first_difference(wanted_in_full, got_in_full)
    return _("wanted {wanted}, got {got}", wanted=wanted_text, got=got_text)


def _around_first_difference(text: str, other: str) -> tuple[str, str]:
    """Both texts; of long ones the part in which they begin to differ."""
    total_width = len(text) + len(other)
    if total_width <= _WIDEST:
        return text, other
    differ_at = _first_difference(text, other)
    start = max(0, differ_at - 8)
    end = start + _WIDEST
    text_from_start = text[start:end]
    other_from_start = other[start:end]
    return f"... {text_from_start}", f"... {other_from_start}"


def _first_difference(text: str, other: str) -> int:
    pairs = zip(text, other, strict=False)
    for place, (character, other_character) in enumerate(pairs):
        if character != other_character:
            return place
    return len(text)


def _mismatch(wanted: Any, got: Any) -> str:
    wanted_kind = _kind(wanted)
    kind = _kind(got)
    return _("wanted {wanted}, got {got}", wanted=wanted_kind, got=kind)


def _of_item(key: Any, text: str) -> str:
    return _("item {key!r}: {difference}", key=key, difference=text)


def leaves(value: Any) -> list[Any]:
    """What is in nested lists, tuples and dicts, and is none of these itself."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple | deque):
        return [value]
    in_all = []
    for item in value:
        in_all += leaves(item)
    return in_all


def dtypes_of(value: Any) -> set[torch.dtype]:
    """Those of all tensors in a value, and of the parameters of its modules."""
    dtypes = set()
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            dtypes.add(leaf.dtype)
        if isinstance(leaf, torch.nn.Module):
            for parameter in leaf.parameters():
                dtypes.add(parameter.dtype)
    return dtypes


def _kind(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return _("a tensor")
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{kind} {brief(value)}"


def _short(constant: Any) -> str:
    """The name of a constant of torch, such as `float32`."""
    return str(constant).removeprefix("torch.")


def brief(value: Any, differs: str = "") -> str:
    """A value in one short line, the same in every run; of a long dict the item that differs."""
    try:
        text = _stable(value)
        if len(text) > _WIDEST and isinstance(value, dict):
            for key, item in value.items():
                beginning = _of_item(key, "")
                if differs.startswith(beginning):
                    return brief({key: item})
    except Exception as error:  # of a __repr__, or of a list that holds itself
        text = _(
            "a {kind} that cannot be shown ({exception})",
            kind=type(value).__name__,
            exception=type(error).__name__,
        )
    if len(text) <= _WIDEST:
        return text
    ending = " ..."
    width = _WIDEST - len(ending)
    return text[:width] + ending


def _stable(value: Any) -> str:
    """A value in one line, without what differs from run to run."""
    text = _text(value)
    text = _UNSTABLE.sub("...", text)
    return text.replace("\n", " ")


def _text(value: Any) -> str:
    value = _as_tensor(value)
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, torch.nn.Module):
        kind = type(value).__name__
        count = 0
        for parameter in value.parameters():
            count += parameter.numel()
        return _("a {kind} of {count} numbers", kind=kind, count=count)
    if isinstance(value, Dataset) and isinstance(value, Sized):
        kind = type(value).__name__
        return _("a {kind} of {count} items", kind=kind, count=len(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        texts = []
        for key, item in value.items():
            text = _text(item)
            texts.append(f"{key!r}: {text}")
        items = ", ".join(texts)
        return "{" + items + "}"
    if isinstance(value, list):
        items = _texts(value)
        return f"[{items}]"
    if isinstance(value, tuple):
        items = _texts(value)
        return f"({items})"
    return repr(value)


def _texts(values: Iterable) -> str:
    return ", ".join(map(_text, values))


def _tensor(value: Tensor) -> str:
    if value.layout != torch.strided or value.is_meta:
        layout = _short(value.layout)
        return _("a {layout} tensor on {device}", layout=layout, device=value.device)
    value = value.detach()
    if value.numel() <= _MOST_VALUES:
        return _text(value.tolist())
    numbers = value.flatten()
    first_numbers = numbers[: _MOST_VALUES - 2].tolist()
    last_number = numbers[-1].item()
    beginning = _texts(first_numbers)
    end = _text(last_number)
    lengths = map(str, value.shape)
    shape = " x ".join(lengths)
    return f"[{beginning}, ..., {end}] ({shape})"
