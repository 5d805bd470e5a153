"""Whether an answer is what was wanted, and both in a few words."""

import math
import re
import tempfile
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

# Relative and absolute. A number may come from float32, whatever it is by now; a tensor says.
_TOLERANCES: dict[Any, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    float: (1.3e-6, 1e-7),
}
_PRECISE = 1e-10, 1e-10  # in double precision, and in whole numbers
_MOST, _WIDEST = 8, 72  # values of a tensor that are shown; characters of anything
_UNSTABLE = re.compile(
    rf" at 0x[0-9a-f]+|{re.escape(tempfile.gettempdir())}/(?:[\w.-]+/)*|(?<='127.0.0.1', )\d+"
)  # addresses of objects, temporary folders, ports

Tolerance = tuple[float | None, float | None]  # relative, absolute; None for the dtype's own


def difference(
    wanted: Any, got: Any, tolerance: Tolerance = (None, None), given: Collection[torch.dtype] = ()
) -> str | None:
    """Say in what `got` is not `wanted`, or None, in whatever style it is written.

    A list may be a tuple or a tensor of as many, a number one of numpy or a tensor without
    dimensions, a float a whole number. A dict may be a Counter, and where its values are of
    several kinds, its keys being names, it may have further ones. A tensor may have another dtype
    that holds such numbers, unless ranks were `given` tensors of the wanted one.
    """
    try:
        return _difference(wanted, got, tolerance, given)
    except Exception as error:  # such as of an __eq__ of its own
        return f"wanted {_kind(wanted)}, got {_kind(got)}: {type(error).__name__}: {error}"


def _difference(wanted: Any, got: Any, *how: Any) -> str | None:
    wanted, got = _as_tensor(wanted), _as_tensor(got)
    if isinstance(wanted, torch.Tensor):
        return _tensors(wanted, got, *how)
    if isinstance(wanted, list | tuple):
        got = list(got) if isinstance(got, torch.Tensor) and got.dim() else got
        if isinstance(got, Sequence) and not isinstance(got, str | bytes):
            if len(wanted) != len(got):
                return f"wanted {len(wanted)} items, got {len(got)}"
            return _items(range(len(wanted)), wanted, got, *how)
    elif isinstance(wanted, dict) and isinstance(got, dict):
        if not _are_keys_of(wanted, got):
            return f"wanted the keys {list(wanted)}, got {list(got)}"
        return _items(wanted, wanted, got, *how)
    elif isinstance(wanted, int | float) and isinstance(got, torch.Tensor) and not got.dim():
        got = got.item()
    kinds = int | float if isinstance(wanted, float) else type(wanted)
    if not isinstance(got, kinds) or isinstance(got, bool) > isinstance(wanted, bool):
        return f"wanted {_kind(wanted)}, got {_kind(got)}"
    same = wanted == got
    if isinstance(wanted, float):
        relative, absolute = _within(float, how[0])
        same = math.isclose(wanted, got, rel_tol=relative, abs_tol=absolute)
        same = same or (math.isnan(wanted) and math.isnan(got))
    return None if same else _unlike(wanted, got)


def _as_tensor(value: Any) -> Any:
    """What numpy has made, as torch would have."""
    numbers = isinstance(value, np.ndarray | np.number | np.bool_)
    return torch.as_tensor(np.array(value)) if numbers else value


def _are_keys_of(wanted: dict, got: dict) -> bool:
    further, kinds = got.keys() - wanted.keys(), set(map(type, wanted.values()))
    may = len(kinds) > 1 or (kinds == {int} and not any(got[key] for key in further))
    return wanted.keys() <= got.keys() and (may or not further)


def _items(keys: Iterable, wanted: Any, got: Any, *how: Any) -> str | None:
    told = ((key, _difference(wanted[key], got[key], *how)) for key in keys)
    return next((f"item {key!r}: {found}" for key, found in told if found), None)


def _within(dtype: Any, tolerance: Tolerance) -> tuple[float, float]:
    own = _TOLERANCES.get(dtype, _PRECISE)
    return tuple(a if b is None else b for a, b in zip(own, tolerance, strict=True))


def _tensors(
    wanted: torch.Tensor, got: Any, tolerance: Tolerance, given: Collection[torch.dtype]
) -> str | None:
    if not wanted.dim() and isinstance(got, int | float) and not isinstance(got, bool):
        # As good as a tensor without dimensions.
        got = torch.tensor(got, dtype=torch.float64 if isinstance(got, float) else None)
        given = ()
    if not isinstance(got, torch.Tensor):
        return f"wanted {_kind(wanted)}, got {_kind(got)}"
    for what in ("layout", "dtype", "shape"):
        one, other = getattr(wanted, what), getattr(got, what)
        if one != other and not (what == "dtype" and one not in given and _holds(other, one)):
            one, other = (tuple(x) if what == "shape" else _plain(x) for x in (one, other))
            return f"wanted {what} {one}, got {other}"
    wanted, got = wanted.detach(), got.detach()
    relative, absolute = max(_within(one.dtype, tolerance) for one in (wanted, got))
    if wanted.dtype.is_floating_point or wanted.dtype.is_complex:
        near = got.to(wanted.dtype)
        close = torch.isclose(near, wanted, rtol=relative, atol=absolute, equal_nan=True)
    else:
        close = got == wanted
    if close.all():
        return None
    place = (~close).nonzero()[0].tolist()
    said = _unlike(*(x[tuple(place)].item() for x in (wanted, got)))
    return f"element {place}: {said}" if place else said


def _holds(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers of the wanted dtype may just as well be of this one."""
    if torch.bool in (dtype, wanted) or dtype.is_complex or wanted.is_complex:
        return False
    return wanted.is_floating_point or not dtype.is_floating_point


def _unlike(wanted: Any, got: Any) -> str:
    """Such as `wanted 3, got 4`, with as many digits, or from where on, as it takes to differ."""
    one, other = brief(wanted), brief(got)
    if one == other:
        one, other = repr(wanted), repr(got)
        if len(one) + len(other) > _WIDEST:
            pairs = enumerate(zip(one, other, strict=False))
            start = max(0, next((n for n, (a, b) in pairs if a != b), len(one)) - 8)
            one, other = (f"... {own[start:][:_WIDEST]}" for own in (one, other))
    return f"wanted {one}, got {other}"


def dtypes_of(value: Any) -> set[torch.dtype]:
    """Those of all tensors in a value."""
    leaves = tree_leaves(value)
    leaves += [
        own for one in leaves if isinstance(one, torch.nn.Module) for own in one.parameters()
    ]
    return {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return "a tensor"
    return "None" if value is None else f"{type(value).__name__} {brief(value)}"


def _plain(what: Any) -> str:
    return str(what).removeprefix("torch.")


def brief(value: Any, said: str = "") -> str:
    """A value in one short line, the same in every run; of a long dict the item that is `said`."""
    try:
        text = _UNSTABLE.sub("...", _text(value)).replace("\n", " ")
        items = value.items() if isinstance(value, dict) and len(text) > _WIDEST else ()
        if told := {key: own for key, own in items if said.startswith(f"item {key!r}:")}:
            return brief(told)
    except Exception as error:  # of a __repr__, or of a list that holds itself
        text = f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= _WIDEST else text[: _WIDEST - 4] + " ..."


def _text(value: Any) -> str:
    value = _as_tensor(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, torch.nn.Module):
        return f"a {type(value).__name__} of {sum(p.numel() for p in value.parameters())} numbers"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_text(own)}" for key, own in value.items()) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return repr(value)


def _tensor(value: torch.Tensor) -> str:
    if value.layout != torch.strided or value.is_meta:
        return f"a {_plain(value.layout)} tensor on {value.device}"
    value = value.detach()
    if value.numel() <= _MOST:
        return _text(value.tolist())
    *shown, last = map(_text, [*value.flatten()[: _MOST - 2].tolist(), value.flatten()[-1].item()])
    return f"[{', '.join(shown)}, ..., {last}] ({' x '.join(map(str, value.shape))})"
