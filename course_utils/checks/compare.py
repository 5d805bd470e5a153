"""Whether an answer is what was wanted, and both in a few words."""

import math
import re
import tempfile
from collections.abc import Iterable
from typing import Any

import torch

# Relative and absolute: those of torch.testing.assert_close.
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
}
_MOST, _WIDEST = 8, 72  # values of a tensor that are shown; characters of anything
_UNSTABLE = re.compile(
    rf" at 0x[0-9a-f]+|{re.escape(tempfile.gettempdir())}/(?:[\w.-]+/)*|(?<='127.0.0.1', )\d+"
)  # addresses of objects, temporary folders, ports

Tolerance = tuple[float | None, float | None]  # relative, absolute; None for the dtype's own


def difference(wanted: Any, got: Any, tolerance: Tolerance = (None, None)) -> str | None:
    """Say in what `got` is not `wanted`, or None; a list may be a tuple, and a dict a Counter."""
    if isinstance(wanted, torch.Tensor):
        return _tensors(wanted, got, tolerance)
    if isinstance(wanted, list | tuple) and isinstance(got, list | tuple):
        if len(wanted) != len(got):
            return f"wanted {len(wanted)} items, got {len(got)}"
        return _items(range(len(wanted)), wanted, got, tolerance)
    if isinstance(wanted, dict) and isinstance(got, dict):
        if wanted.keys() != got.keys():
            return f"wanted the keys {list(wanted)}, got {list(got)}"
        return _items(wanted, wanted, got, tolerance)
    if type(wanted) is not type(got):
        return f"wanted {_kind(wanted)}, got {_kind(got)}"
    same = wanted == got
    if isinstance(wanted, float):
        relative, absolute = (1e-9 if t is None else t for t in tolerance)
        same = math.isclose(wanted, got, rel_tol=relative, abs_tol=absolute)
        same = same or (math.isnan(wanted) and math.isnan(got))
    return None if same else f"wanted {brief(wanted)}, got {brief(got)}"


def _items(keys: Iterable, wanted: Any, got: Any, tolerance: Tolerance) -> str | None:
    told = ((key, difference(wanted[key], got[key], tolerance)) for key in keys)
    return next((f"item {key!r}: {found}" for key, found in told if found), None)


def _tensors(wanted: torch.Tensor, got: Any, tolerance: Tolerance) -> str | None:
    if not isinstance(got, torch.Tensor):
        return f"wanted {_kind(wanted)}, got {_kind(got)}"
    for what in ("layout", "dtype", "shape"):
        one, other = getattr(wanted, what), getattr(got, what)
        if one != other:
            one, other = (tuple(x) if what == "shape" else _plain(x) for x in (one, other))
            return f"wanted {what} {one}, got {other}"
    wanted, got = wanted.detach(), got.detach()
    if wanted.dtype.is_floating_point or wanted.dtype.is_complex:
        own = _TOLERANCES.get(wanted.dtype, (1e-7, 1e-7))
        relative, absolute = (a if b is None else b for a, b in zip(own, tolerance, strict=True))
        close = torch.isclose(got, wanted, rtol=relative, atol=absolute, equal_nan=True)
    else:
        close = got == wanted
    if close.all():
        return None
    place = (~close).nonzero()[0].tolist()
    one, other = (brief(x[tuple(place)]) for x in (wanted, got))
    if one == other:
        one, other = (repr(x[tuple(place)].item()) for x in (wanted, got))
    return f"element {place}: wanted {one}, got {other}" if place else f"wanted {one}, got {other}"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return "None" if value is None else f"{type(value).__name__} {brief(value)}"


def _plain(what: Any) -> str:
    return str(what).removeprefix("torch.")


def brief(value: Any) -> str:
    """A value in one short line, the same in every run."""
    text = _UNSTABLE.sub("...", _text(value)).replace("\n", " ")
    return text if len(text) <= _WIDEST else text[: _WIDEST - 4] + " ..."


def _text(value: Any) -> str:
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
